# SPDX-License-Identifier: Apache-2.0
"""How gpu_check runs things: commands with a time limit, stages that cannot harm each other, and what becomes of both."""
import os
import signal
import subprocess
import threading
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT = 530  # seconds for the whole run: so that it fits into ten minutes
TAIL = 3000  # characters of a failed command's output that are kept in the report


class Stop(Exception):
    """Ends a stage with an outcome and a sentence: 'failed', or 'skipped' where its subject is not there."""

    def __init__(self, outcome, sentence):
        super().__init__(sentence)
        self.outcome = outcome


class Done:
    def __init__(self, command, code, output, seconds, timed_out):
        self.command, self.code, self.output, self.seconds, self.timed_out = command, code, output, seconds, timed_out

    @property
    def good(self):
        return self.code == 0

    def how(self):
        return "ran past its time limit" if self.timed_out else f"exit code {self.code}"


class Check:
    """One run of the check: the deadline, the log, and the stages so far."""

    def __init__(self, limit, log):
        self.patience = max(1.0, limit / LIMIT)  # a slow machine is given a longer limit, and so are its commands
        self.begin = time.monotonic()
        self.deadline = self.begin + limit
        self.log = open(log, "w", encoding="utf-8", errors="replace") if log else None
        self.lock = threading.Lock()
        self.stages = []

    def left(self):
        return self.deadline - time.monotonic()

    def write(self, text):
        with self.lock:
            if self.log:
                self.log.write(text)
                self.log.flush()

    def run(self, command, limit, env=None, cwd=None):
        """Runs a command for `limit` seconds at most, and not past the deadline of the whole; what it printed comes back in either case."""
        command = [str(word) for word in command]
        limit = min(limit * self.patience, self.left() - 2)
        if limit <= 1:
            raise Stop("skipped", "no time was left for it")
        start = time.monotonic()
        timed_out = False
        try:
            process = subprocess.Popen(command, env={**os.environ, **(env or {})}, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        except OSError as error:
            raise Stop("failed", f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            timed_out = True
            end_group(process)
            output, _ = process.communicate()
        seconds = time.monotonic() - start
        output = output.replace(ROOT + os.sep, "")  # pages name files as the tree does, wherever it lay
        done = Done(command, process.returncode if not timed_out else 124, output, seconds, timed_out)
        self.write(f"\n$ {' '.join(command)}\n{output}\n[{done.how()}, {seconds:.1f} s]\n")
        return done

    def side_by_side(self, commands, limit, env=None, cwd=None):
        """Several at once, in order of the names given: {name: Done}."""
        outcomes, threads = {}, []

        def one(name, command):
            try:
                outcomes[name] = self.run(command, limit, env, cwd)
            except Stop as stop:
                outcomes[name] = Done(command, 125, str(stop), 0, False)

        for name, command in commands.items():
            threads.append(threading.Thread(target=one, args=(name, command)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        return {name: outcomes[name] for name in commands}

    def stage(self, name, what, work):
        """work(stage) notes its findings in the stage; whatever goes wrong in it ends this stage alone. True when it passed."""
        stage = {"name": name, "what": what, "outcome": "passed", "seconds": 0.0, "rows": [], "notes": []}
        print(f"── {name}: {what}", flush=True)
        start = time.monotonic()
        try:
            if self.left() < 5:
                raise Stop("skipped", "no time was left for it")
            work(stage)
        except Stop as stop:
            stage["outcome"] = stop.outcome
            stage["notes"].append(str(stop))
        except Exception as error:  # a defect of the check must not hide the other stages
            stage["outcome"] = "failed"
            stage["notes"].append(f"the check itself failed: {error!r}")
            self.write(traceback.format_exc())
        stage["seconds"] = round(time.monotonic() - start, 1)
        self.stages.append(stage)
        print(f"   {stage['outcome']} ({stage['seconds']} s)" + "".join(f"\n   {note}" for note in stage["notes"]), flush=True)
        return stage["outcome"] == "passed"


def end_group(process):
    """Ends what the check has started, with all its children: they are a process group of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            pass


def row(stage, name, good, **figures):
    """One line of a stage's table. good: True, False, or None for what was skipped."""
    outcome = "skipped" if good is None else "passed" if good else "failed"
    stage["rows"].append({"name": name, "outcome": outcome, **figures})
    if good is False:
        stage["outcome"] = "failed"
    return good


def tail(done):
    return done.output[-TAIL:]
