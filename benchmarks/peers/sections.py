# SPDX-License-Identifier: Apache-2.0
"""What `run` measures. Each section is a function from a Place to plain data, with every turn's figure in it: medians are the page's.
Contenders take turns and each turn begins with another one, since a machine is never equally busy twice. Who is missing is named, with the
reason."""
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
OPS = ("all_reduce", "reduce_scatter", "all_gather")
RANKS = (2, 4)
GRACE_S = 5
ADAMW_NAMES = {"megadp": "megadp", "torch": "PyTorch", "deepspeed": "DeepSpeed"}
SIZES = {  # (whole, quick)
    "sweep_mib": (64, 1), "sweep_turns": (3, 1), "bare_kib": ((4, 64, 1024, 16384, 65536), (4, 1024)), "bare_turns": (3, 1),
    "small_turns": (3, 1), "numel": (1 << 26, 1 << 22), "adamw_turns": (3, 1), "adamw_rounds": (7, 5),
    "runs": (5, 1), "steps": (16, 4), "batch": (64, 16)}


class Place:
    """Where things are, and how they are started. Keeps the commands and who was left out, for the page."""

    def __init__(self, build, python, quick):
        self.build, self.python, self.quick = os.path.abspath(build), python, quick
        self.megadp = os.path.join(self.build, "bin", "megadp")
        self.commands, self.left_out = [], []
        programs = os.path.dirname(os.path.abspath(python))  # ninja, which DeepSpeed builds its op with, is beside its Python
        self.env = dict(os.environ, PYTHONPATH=os.path.join(ROOT, "bindings", "python", "src"), PYTHONDONTWRITEBYTECODE="1",
                        MEGADP_LIBRARY=os.path.join(self.build, "lib", "libmegadp.so"), MEGADP=self.megadp,
                        BENCH_SMALL=os.path.join(self.build, "bin", "bench_small_all_reduce"),
                        PATH=programs + os.pathsep + os.environ.get("PATH", ""))
        self.env.setdefault("MEGADP_PEERS_BUILD", os.path.join(self.build, "benchmarks"))

    def size(self, name):
        return SIZES[name][1 if self.quick else 0]

    def script(self, name):
        return os.path.join(HERE, name)

    def shown(self, command):
        """A command as a reader would type it at the top of a checkout."""
        def word(text):
            text = "python" if text == self.python else text.replace(self.build, "build").replace(ROOT + os.sep, "")
            return f"'{text}'" if " " in text else text
        return " ".join(map(word, command))

    def leave_out(self, who, why):
        if [who, why] not in self.left_out:
            self.left_out.append([who, why])
            print(f"run: left out: {who}: {why}", file=sys.stderr)

    def answers(self, who, command, limit_s=300, may_fail=False):
        """The lines of JSON that a command prints; none, and its name on the list, where it fails. may_fail: what it did print counts."""
        if self.shown(command) not in self.commands:
            self.commands.append(self.shown(command))
        print(f"run: {self.shown(command)}", file=sys.stderr)
        code, out, err = finish(command, self.env, limit_s)
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        if code == 0 or (may_fail and lines):
            return lines
        said = [line for line in err.splitlines() if line.strip(" -")]
        skipped = [line[len("skipped: "):] for line in said if line.startswith("skipped: ")]
        # Python says last what was wrong, other programs first.
        why = (skipped or (said[-1:] if "Traceback" in err else said[:1]) or [f"exit status {code}"])[0]
        why = f"no end within {limit_s} s" if code is None else why
        self.leave_out(who, why.replace(self.build, "build").replace(ROOT + os.sep, ""))
        return []


def finish(command, env, limit_s):
    """Exit status, or None if it took longer, output, and errors. What it has started ends with it: left behind, that would disturb."""
    with subprocess.Popen(command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as started:
        try:
            out, err = started.communicate(timeout=limit_s)
            return started.returncode, out, err
        except subprocess.TimeoutExpired:
            end(started)
            return None, "", ""
        except BaseException:
            end(started)
            raise


def end(started):
    """Launchers end their ranks, which may be in sessions of their own, when they are asked to end."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(timeout=GRACE_S)


def in_turns(names, turns):
    for number in range(turns):
        first = number % len(names)
        yield from names[first:] + names[:first]


def sweep_commands(place, op, ranks):
    mib = str(place.size("sweep_mib"))
    ours = [place.megadp, "bench", "collectives", "--sweep", "--op", op, "--ranks", str(ranks), "--mib", mib, "--json"]
    return {"megadp, windows": ours, "megadp, user memory": [*ours, "--user-memory"],
            "Open MPI": [place.script("openmpi.sh"), op, str(ranks), mib, "sweep"],
            "Gloo": [place.python, place.script("torch_sweep.py"), "--op", op, "--ranks", str(ranks), "--mib", mib]}


def sweep(place, op, ranks):
    """Of each contender the sizes, and the microseconds of a call in each turn."""
    commands, found = sweep_commands(place, op, ranks), {}
    for name in in_turns(list(commands), place.size("sweep_turns")):
        turn = {}
        for line in place.answers(f"{name}, {op} over {ranks} ranks", commands[name]):
            if line["right"]:
                turn[line["bytes"]] = round(line["us"], 3)  # the last of a size, where small ones are rounded up to one element a rank
            else:
                place.leave_out(f"{name}, {op} over {ranks} ranks", f"a wrong result at {line['bytes']} bytes")
        for size, us in turn.items():
            found.setdefault(name, {}).setdefault(size, []).append(us)
    return [{"op": op, "ranks": ranks, "contender": name, "bytes": list(found[name]), "us": list(found[name].values())}
            for name in commands if name in found]


def bare_loops(place, op, kib):
    """The library beside loops that do the arithmetic and nothing else, two ranks."""
    rounds = "20" if kib > 1024 else "200"
    command = [place.megadp, "bench", "collectives", "--op", op, "--ranks", "2", "--mib", str(kib / 1024), "--rounds", rounds, "--json"]
    turns = [line for _ in range(place.size("bare_turns")) for line in place.answers(f"bare loops: {op}", command)]
    columns = {"us": "median_ms", "bare_us": "limit_ms", "memcpy_us": "memcpy_ms"}
    row = {"op": op, "ranks": 2, "bytes": kib * 1024}
    return [dict(row, **{name: [round(line[key] * 1e3, 3) for line in turns] for name, key in columns.items()})] if turns else []


def collectives(place):
    swept = [row for ranks in RANKS for op in OPS for row in sweep(place, op, ranks)]
    small = []
    for ranks in RANKS:
        command = [os.path.join(os.path.dirname(HERE), "compare_small.sh"), "--json", str(ranks), str(place.size("small_turns"))]
        small += place.answers(f"small all-reduces over {ranks} ranks", command)
    bare = [row for op in OPS for kib in place.size("bare_kib") for row in bare_loops(place, op, kib)]
    return {"sweep": swept, "small": small, "bare": bare}


def adamw(place):
    """Milliseconds of each turn. The peers' copy to bf16 is measured apart, since megadp's update writes it."""
    numel, rounds = str(place.size("numel")), str(place.size("adamw_rounds"))
    rows = []
    for threads in (1, 2):
        if threads > len(os.sched_getaffinity(0)):
            place.leave_out(f"AdamW with {threads} threads", "there are not as many cores")
            continue
        often = ["--numel", numel, "--threads", str(threads), "--rounds", rounds]
        commands = {"megadp": [place.megadp, "bench", "step", "--param-dtype", "bf16", *often, "--json"],
                    "torch": [place.python, place.script("cpu_adamw.py"), "torch", *often],
                    "deepspeed": [place.python, place.script("cpu_adamw.py"), "deepspeed", *often]}
        found = {name: [] for name in commands}
        for name in in_turns(list(commands), place.size("adamw_turns")):
            found[name] += place.answers(f"{ADAMW_NAMES[name]}, AdamW with {threads} thread{'s' if threads > 1 else ''}", commands[name])
        for name, turns in found.items():
            row = {"contender": name, "threads": threads, "numel": int(numel)}
            if name == "megadp" and turns:
                rows.append({**row, "with_bf16_ms": [turn["update"]["median_ms"] for turn in turns], "bytes": turns[0]["update"]["bytes"],
                             "of_copy": statistics.median(turn["update_to_copy"] for turn in turns)})
            elif turns:
                rows.append({**row, "with_bf16_ms": [turn["step_and_copy_ms"] for turn in turns],
                             "step_ms": [turn["step_ms"] for turn in turns]})
    return {"rows": rows}


def training(place):
    command = [place.python, place.script("torch_step.py"), "--ranks", "2"]
    for option in ("runs", "steps", "batch"):
        command += [f"--{option}", str(place.size(option))]
    rows = []
    for line in place.answers("training with PyTorch", command, limit_s=1800, may_fail=True):
        if "failed" in line:
            place.leave_out(line["contender"], line["failed"])
        else:
            rows.append(line)
    return {"rows": rows}


SECTIONS = {"collectives": collectives, "adamw": adamw, "training": training}
