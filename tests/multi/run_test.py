# SPDX-License-Identifier: Apache-2.0
# `megadp run`, from outside: what its ranks see and say, what it returns, and that nothing is left when it has gone.
# Usage: run_test.py PATH_TO_MEGADP [unittest arguments]. Ranks that wait do so on something that happens, not on a clock.
import ctypes
import errno
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from launcher_variables import without_launcher

MEGADP = ""
LIMIT = 60  # seconds after which a test has hung


def start(*arguments, env=None, **more):
    environment = {**without_launcher(), **(env or {})}
    for name in {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"} - set(env or {}):
        environment.pop(name, None)
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
    return subprocess.Popen([MEGADP, "run", *arguments], env=environment, **{**streams, **more})


def next_line(stream):
    return stream.readline().decode()


class Finished:
    def __init__(self, process, given=None):
        try:
            out, err = process.communicate(None if given is None else given.encode(), timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.kill()
            raise
        self.out, self.err = (out or b"").decode(), (err or b"").decode()
        self.code = process.returncode
        self.lines = self.out.splitlines()


def run(*arguments, given=None, **more):
    if given is not None:
        more["stdin"] = subprocess.PIPE
    return Finished(start(*arguments, **more), given)


def refuse_close_range():
    """This process's close_range() fails with ENOSYS from now on, and that of its children."""
    load_number, is_equal, give, close_range = 0x20, 0x15, 0x06, 436
    steps = [(load_number, 0, 0, 0), (is_equal, 0, 1, close_range), (give, 0, 0, 0x50000 | errno.ENOSYS), (give, 0, 0, 0x7fff0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, ctypes.addressof(program), 0, 0) != 0:  # NO_NEW_PRIVS, SECCOMP
        raise OSError(ctypes.get_errno(), "no filter")


def python(program):
    return [sys.executable, "-S", "-c", program]


def comm(pid):
    """The process's own name, or None when there is no such process."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None


def state(pid):
    """The letter of /proc/<pid>/stat, or None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def gone(pid):
    return state(pid) in (None, "Z", "X")  # a container's init may never wait for what it inherits


def until(true, what):
    end = time.monotonic() + LIMIT
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"did not happen within {LIMIT} s: {what}")
        time.sleep(0.005)


def marked(mark):
    """Processes whose environment holds NAME=value."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if mark.encode() in file.read().split(b"\0"):
                    found.append(int(entry))
        except OSError:
            pass
    return found


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.mark = f"RUN_TEST={os.getpid()}-{self.id()}"
        self.env = dict([self.mark.split("=")])
        self.addCleanup(self.nothing_left)

    def nothing_left(self):
        # What a killed launcher leaves ends a moment later; everything else has ended with it.
        until(lambda: not marked(self.mark), "all processes of the test end")

    def path(self, name):
        return os.path.join(self.folder, name)

    def wait_for_files(self, *names):
        for name in names:
            until(lambda: os.path.exists(self.path(name)), f"a rank writes {name}")

    def read(self, name):
        with open(self.path(name)) as file:
            return file.read()

    def file(self, name, content, mode=0o600):
        with open(self.path(name), "w") as file:
            file.write(content)
        os.chmod(self.path(name), mode)
        return self.path(name)


class Output(RunTest):
    def test_lines_are_prefixed_stream_by_stream(self):
        done = run("-n", "3", "--", "sh", "-c", "echo out $MEGADP_RANK; echo err $MEGADP_RANK >&2", env=self.env)
        self.assertEqual(done.code, 0)
        self.assertEqual(sorted(done.lines), ["[0] out 0", "[1] out 1", "[2] out 2"])
        self.assertEqual(sorted(done.err.splitlines()), ["[0] err 0", "[1] err 1", "[2] err 2"])

    def test_lines_of_different_ranks_never_mix(self):
        program = "import os\nfor i in range(300):\n  for part in (b'a' * 50, b'b' * 50 + b'\\n'):\n    os.write(1, part)"
        done = run("-n", "4", *python(program), env=self.env)
        self.assertEqual(len(done.lines), 1200)
        for line in done.lines:
            self.assertRegex(line, r"^\[[0-3]\] a{50}b{50}$")

    def test_no_prefix_passes_bytes_through(self):
        given = "one\ntwo\n\nno end"
        done = run("-n", "1", "--no-prefix", "cat", given=given, env=self.env)
        self.assertEqual((done.code, done.out, done.err), (0, given, ""))

    def test_no_prefix_keeps_lines_whole(self):
        done = run("-n", "2", "--no-prefix", "printf", "no end", env=self.env)
        self.assertEqual(done.lines, ["no end", "no end"])

    def test_a_partial_last_line_is_flushed(self):
        done = run("-n", "2", "printf", "first\\nlast", env=self.env)
        self.assertEqual(sorted(done.out.splitlines()), ["[0] first", "[0] last", "[1] first", "[1] last"])
        self.assertTrue(done.out.endswith("\n"))

    def test_very_long_lines_come_in_pieces(self):
        done = run("-n", "1", *python("print('x' * 3_000_000)"), env=self.env)
        self.assertEqual([len(line) for line in done.lines], [4 + (1 << 20), 4 + (1 << 20), 4 + 3_000_000 - (2 << 20)])
        whole = run("-n", "1", "--no-prefix", *python("print('x' * 3_000_000)"), env=self.env)
        self.assertEqual(whole.out, "x" * 3_000_000 + "\n")

    def test_much_output_before_a_quick_end_is_complete(self):
        done = run("-n", "2", *python("import os\nos.write(1, b'0123456789\\n' * 5000)"), env=self.env)
        self.assertEqual(len(done.lines), 10000)

    def test_a_slow_reader_loses_nothing_and_signals_still_work(self):
        program = "import os, sys\nfor i in range(40000): os.write(1, b'%099d\\n' % i)\nopen(sys.argv[1], 'w').close()"
        process = start("-n", "1", *python(program), self.path("written"), env=self.env)
        # 4 MB do not fit into the pipes and the launcher's memory, so the rank waits for its reader.
        first = next_line(process.stdout)
        self.assertFalse(os.path.exists(self.path("written")))
        rest = Finished(process)
        self.assertEqual(rest.code, 0)
        lines = [first.rstrip("\n"), *rest.lines]
        self.assertEqual(lines, [f"[0] {i:099d}" for i in range(40000)])

    def test_a_reader_that_goes_away_ends_the_writers(self):
        process = start("-n", "2", "yes", env=self.env)
        next_line(process.stdout)
        process.stdout.close()
        process.wait(LIMIT)
        self.assertEqual(process.returncode, 128 + signal.SIGPIPE)
        self.assertIn("SIGPIPE", process.stderr.read().decode())
        process.stderr.close()

    def test_a_full_disk_is_told_and_the_ranks_go_on(self):
        done = subprocess.run([MEGADP, "run", "-n", "2", "sh", "-c", "echo one; sleep 0.2; echo two; : > $0.$MEGADP_RANK", self.path("done")],
                              env={**without_launcher(), **self.env}, stdout=self.full(), stderr=subprocess.PIPE, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "megadp run: standard output could not be written: No space left on device; what the ranks print is lost\n")
        self.assertTrue(os.path.exists(self.path("done.0")) and os.path.exists(self.path("done.1")))

    def test_a_full_disk_does_not_hide_what_a_rank_returns(self):
        done = run("-n", "1", "sh", "-c", "echo out; exit 3", env=self.env, stdout=self.full())
        self.assertEqual(done.code, 3)
        self.assertIn("could not be written", done.err)

    def test_what_the_launcher_itself_could_not_say_is_a_failure(self):
        for more in ((), ("--json",)):
            self.assertEqual(run("-n", "1", *more, "sh", "-c", "echo err >&2", env=self.env, stderr=self.full()).code, 1)

    def test_the_summary_tells_of_a_full_disk_too(self):
        done = run("-n", "1", "--json", "echo", "out", env=self.env, stdout=self.full())
        events = [json.loads(line) for line in done.err.splitlines()]
        self.assertEqual((done.code, events[-1]["event"], events[-1]["exit"]), (1, "summary", 1))
        self.assertIn("No space left on device", "".join(event.get("text", "") for event in events))

    def test_a_limit_of_file_sizes_is_told(self):
        """SIGXFSZ would end the launcher, and with it every rank, whose own limit stays as it was."""
        with open(self.path("short"), "w") as short:
            done = run("-n", "1", "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do printf '%099d\\n' 0; done; kill -XFSZ $$; sleep 9", env=self.env, stdout=short,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512)))
        self.assertEqual(done.code, 128 + signal.SIGXFSZ)
        self.assertIn("File too large", done.err)

    def full(self):
        full = open("/dev/full", "w")
        self.addCleanup(full.close)
        return full

    def test_standard_input_goes_to_rank_0_alone(self):
        done = run("-n", "2", "sh", "-c", "cat; echo end", given="typed\n", env=self.env)
        self.assertEqual(sorted(done.lines), ["[0] end", "[0] typed", "[1] end"])


class Environment(RunTest):
    def ranks(self, *arguments, env=None):
        done = run(*arguments, "--no-prefix", *python("import os, json\nprint(json.dumps([dict(os.environ), sorted(os.sched_getaffinity(0))]))"),
                   env={**self.env, **(env or {})})
        self.assertEqual((done.code, done.err), (0, ""))
        return sorted((json.loads(line) for line in done.lines), key=lambda rank: int(rank[0]["MEGADP_RANK"]))

    def test_ranks_know_their_place_and_share_a_secret(self):
        ranks = [rank[0] for rank in self.ranks("-n", "3")]
        for number, rank in enumerate(ranks):
            self.assertEqual((rank["MEGADP_RANK"], rank["MEGADP_LOCAL_RANK"]), (str(number), str(number)))
            self.assertEqual((rank["MEGADP_NRANKS"], rank["MEGADP_LOCAL_SIZE"]), ("3", "3"))
            self.assertNotIn("MEGADP_ROOT", rank)
            self.assertRegex(rank["MEGADP_SECRET"], "^[0-9a-f]{64}$")
            self.assertEqual((rank["MEGADP_SECRET"], rank["MEGADP_JOB"]), (ranks[0]["MEGADP_SECRET"], ranks[0]["MEGADP_JOB"]))
        other = self.ranks("-n", "1")[0][0]
        self.assertNotEqual(other["MEGADP_JOB"], ranks[0]["MEGADP_JOB"])
        self.assertNotEqual(other["MEGADP_SECRET"], ranks[0]["MEGADP_SECRET"])
        self.assertNotIn(other["MEGADP_SECRET"][:16], other["MEGADP_JOB"])

    def test_one_of_several_tasks_is_told(self):
        """mpirun -n 2 megadp run -n 1: two models, and nobody said so."""
        task = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "PMIX_NAMESPACE": "7"}
        done = run("-n", "1", "sh", "-c", "echo $MEGADP_OUTER_LAUNCHERS", env={**self.env, **task})
        self.assertEqual(done.code, 0)
        self.assertRegex(done.out, r"^\[0\] none [0-9a-f]{16}\n$")
        self.assertRegex(done.err, r"^megadp run: warning: without --nranks, .* one of several: Open MPI \(OMPI_COMM_WORLD_RANK=1 ")
        event = json.loads(run("--json", "-n", "1", "true", env={**self.env, **task}).err.splitlines()[0])
        self.assertEqual(event["event"], "warning")
        alone = run("-n", "1", "sh", "-c", "echo $MEGADP_OUTER_LAUNCHERS", env={**self.env, **task, "OMPI_COMM_WORLD_RANK": "0",
                                                                                "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                                                                                "OMPI_COMM_WORLD_LOCAL_SIZE": "1"})
        self.assertEqual(alone.err, "")

    def test_an_outer_job_does_not_shine_through(self):
        outer = {"MEGADP_RANK": "7", "MEGADP_NRANKS": "9", "MEGADP_JOB": "outer", "MEGADP_SECRET": "no", "MEGADP_ROOT": "a:1"}
        rank = self.ranks("-n", "1", env=outer)[0][0]
        self.assertEqual((rank["MEGADP_RANK"], rank["MEGADP_NRANKS"]), ("0", "1"))
        self.assertNotEqual(rank["MEGADP_JOB"], "outer")
        self.assertNotIn("MEGADP_ROOT", rank)

    def test_processors_and_threads_are_shared_out(self):
        cpus = sorted(os.sched_getaffinity(0))
        for count in {1, 2, len(cpus)}:
            if count > len(cpus):
                continue
            ranks = self.ranks("-n", str(count))
            self.assertEqual([cpu for rank in ranks for cpu in rank[1]], cpus)  # all of them, each once, contiguous
            for environment, _ in ranks:
                self.assertEqual(environment["OMP_NUM_THREADS"], str(len(cpus) // count))
                self.assertEqual(environment["OPENBLAS_NUM_THREADS"], str(len(cpus) // count))

    def test_more_ranks_than_processors_are_not_bound(self):
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) > 64:
            os.sched_setaffinity(0, cpus[:2])
            self.addCleanup(os.sched_setaffinity, 0, cpus)
            cpus = cpus[:2]
        for environment, bound in self.ranks("-n", str(len(cpus) + 1)):
            self.assertEqual((environment["OMP_NUM_THREADS"], bound), ("1", cpus))

    def test_bind_none(self):
        self.assertEqual([rank[1] for rank in self.ranks("-n", "2", "--bind", "none")], [sorted(os.sched_getaffinity(0))] * 2)

    def test_the_users_thread_count_stays(self):
        environment = self.ranks("-n", "1", env={"OMP_NUM_THREADS": "5"})[0][0]
        self.assertEqual(environment["OMP_NUM_THREADS"], "5")
        self.assertEqual(environment["OPENBLAS_NUM_THREADS"], str(len(os.sched_getaffinity(0))))

    def test_signal_dispositions_are_those_of_the_caller(self):
        program = "import signal, os\nprint(signal.pthread_sigmask(signal.SIG_BLOCK, []), open('/proc/self/status').read().split('SigIgn:')[1].split()[0])"
        alone = subprocess.run(python(program), capture_output=True, text=True, check=True).stdout
        self.assertEqual(run("-n", "1", "--no-prefix", *python(program), env=self.env).out, alone)


class SeveralHosts(RunTest):
    SECRET = "0123456789abcdef" * 4

    def host(self, first, secret, *more, env=None):
        return run("-n", "2", "--nranks", "4", "--first-rank", str(first), "--secret-file", secret, *more, "--no-prefix", "--", "sh", "-c",
                   "echo $MEGADP_RANK $MEGADP_NRANKS $MEGADP_LOCAL_RANK $MEGADP_LOCAL_SIZE $MEGADP_ROOT $MEGADP_JOB $MEGADP_SECRET",
                   env={**self.env, **(env or {})})

    def test_hosts_agree_on_job_and_secret(self):
        secret = self.file("secret", self.SECRET + "\n")
        hosts = [self.host(first, secret, "--root", "a.example:2222") for first in (0, 2)]
        rows = sorted(line.split() for host in hosts for line in host.lines)
        self.assertEqual([row[:5] for row in rows], [[str(r), "4", str(r % 2), "2", "a.example:2222"] for r in range(4)])
        self.assertEqual(len({tuple(row[5:]) for row in rows}), 1)
        self.assertEqual(rows[0][6], self.SECRET)
        self.assertNotIn(self.SECRET[:16], rows[0][5])

    def test_the_root_may_come_from_the_environment(self):
        host = self.host(2, self.file("secret", self.SECRET), env={"MEGADP_ROOT": "[fe80::1]:99"})
        self.assertEqual([line.split()[4] for line in host.lines], ["[fe80::1]:99"] * 2)

    def test_unsafe_and_broken_secrets_are_refused(self):
        for name, content, mode, words in (
                ("readable", self.SECRET, 0o640, "0640"), ("writable", self.SECRET, 0o622, "0622"), ("short", self.SECRET[:-1], 0o600, "64 hex"),
                ("long", self.SECRET + "0", 0o600, "64 hex"), ("other", "g" * 64, 0o600, "64 hex"), ("empty", "", 0o600, "64 hex")):
            with self.subTest(name):
                host = self.host(0, self.file(name, content, mode), "--root", "a:1")
                self.assertEqual((host.code, host.out), (2, ""))
                self.assertIn(words, host.err)
        self.assertIn("make one", self.host(0, self.path("absent"), "--root", "a:1").err)
        os.mkfifo(self.path("fifo"), 0o600)
        self.assertIn("not a regular file", self.host(0, self.path("fifo"), "--root", "a:1").err)

    def test_incomplete_descriptions_are_refused(self):
        secret = self.file("secret", self.SECRET)
        for arguments, words in (
                (("-n", "2", "--nranks", "4"), "--root"), (("-n", "2", "--nranks", "4", "--root", "a:1"), "--secret-file"),
                (("-n", "2", "--secret-file", secret), "--root"), (("-n", "2", "--first-rank", "1"), "at least 3"),
                (("-n", "2", "--nranks", "1"), "at least 2"), (("-n", "2", "--nranks", "4", "--root", "a", "--secret-file", secret), "HOST:PORT"),
                (("-n", "2", "--nranks", "4", "--root", "a:0", "--secret-file", secret), "HOST:PORT"),
                (("-n", "2", "--nranks", "4", "--root", "a:65536", "--secret-file", secret), "HOST:PORT"),
                (("-n", "2", "--nranks", "4", "--root", "fe80::1:5", "--secret-file", secret), "HOST:PORT"),
                (("-n", "2", "--nranks", "4", "--root", ":5", "--secret-file", secret), "HOST:PORT")):
            with self.subTest(arguments):
                done = run(*arguments, "true", env=self.env)
                self.assertEqual(done.code, 2, done.err)
                self.assertIn(words, done.err)


class Usage(RunTest):
    def test_wrong_lines_exit_2_with_a_sentence(self):
        for arguments in ((), ("true",), ("-n",), ("-n", "0", "true"), ("-n", "-1", "true"), ("-n", "x", "true"), ("-n", "99999", "true"), ("-n", "2"),
                          ("-n", "2", "--"), ("-n", "2", "--", ""), ("-n", "2", "--nonsense", "true"), ("-n", "2", "--grace", "-1", "true"),
                          ("-n", "2", "--grace", "nan", "true"), ("-n", "2", "--bind", "socket", "true"), ("-n", "2", "--root", "a:1", "true")):
            with self.subTest(arguments):
                done = run(*arguments, env=self.env)
                self.assertEqual((done.code, done.out), (2, ""), done.err)
                self.assertRegex(done.err, r"(?s)^megadp run: .+\.\nSee: megadp run --help\n$")

    def test_help(self):
        done = run("--help", env=self.env)
        self.assertEqual((done.code, done.err), (0, ""))
        for word in ("--grace", "--no-prefix", "--json", "--secret-file", "MEGADP_RANK", "Usage: megadp run -n N"):
            self.assertIn(word, done.out)

    def test_options_of_the_command_are_its_own(self):
        for arguments in (("echo", "-n2", "--json"), ("--", "echo", "-n2", "--json")):
            self.assertEqual(run("-n", "1", *arguments, env=self.env).out, "[0] -n2 --json\n")
        self.assertEqual(run("-n", "1", "echo", "--", "a", "--", env=self.env).out, "[0] -- a --\n")
        self.assertEqual(run("-n", "1", "--", "--", env=self.env).code, 127)

    def test_a_command_that_cannot_be_executed(self):
        for command, words in (("no-such-command", "not found in PATH"), ("/no/such/file", "No such file"), (self.folder, "Permission denied"),
                               (self.file("plain", "text"), "Permission denied"), (self.file("bad", "#!/no/such/shell\n", 0o700), "No such file")):
            with self.subTest(command):
                done = run("-n", "2", command, env=self.env)
                self.assertEqual((done.code, done.out), (127, ""))
                self.assertIn(f"'{command}' cannot be executed", done.err)
                self.assertIn(words, done.err)
                self.assertEqual(done.err.count("\n"), 1)


class Ends(RunTest):
    def test_exit_codes(self):
        for script, code in (("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137), ("kill -11 $$", 139)):
            with self.subTest(script):
                done = run("-n", "1", "sh", "-c", script, env=self.env)
                self.assertEqual(done.code, code)
                self.assertEqual(done.err == "", code == 0)

    def test_the_failing_rank_is_named(self):
        done = run("-n", "3", "sh", "-c", "[ $MEGADP_RANK != 1 ] || exit 5", env=self.env)
        self.assertEqual(done.code, 5)
        self.assertRegex(done.err, r"megadp run: rank 1 \(pid \d+\) exited with code 5")
        self.assertEqual(run("-n", "1", "sh", "-c", "ulimit -c 0; kill -9 $$", env=self.env).err.split(") ", 1)[1], "was killed by signal 9 (SIGKILL)\n")

    def test_the_first_failing_code_counts(self):
        # Rank 2 fails first; the others when they see that it has gone, which is how a lost peer looks.
        script = (f"cd {self.folder}; echo $$ > new$MEGADP_RANK; mv new$MEGADP_RANK pid$MEGADP_RANK; until [ -s pid2 ]; do sleep 0.01; done; "
                  "[ $MEGADP_RANK = 2 ] && exit 42; "
                  "while s=$(cut -d' ' -f3 /proc/$(cat pid2)/stat 2>/dev/null) && [ \"$s\" != Z ]; do :; done; exit $((MEGADP_RANK + 1))")
        for _ in range(5):
            done = run("-n", "4", "sh", "-c", script, env=self.env)
            self.assertEqual(done.code, 42, done.err)
            self.assertEqual(done.err.count("exited with code"), 4)
            self.assertRegex(done.err, r"^megadp run: rank 2 .* exited with code 42")
            os.unlink(self.path("pid2"))

    def test_a_rank_that_returns_0_does_not_end_the_others(self):
        script = f"[ $MEGADP_RANK = 0 ] && exit 0; until [ -e {self.path('go')} ]; do sleep 0.01; done; echo done"
        process = start("-n", "2", "--grace", "0", "--json", "sh", "-c", script, env=self.env)
        for line in process.stderr:
            if b'"ended"' in line:
                self.assertEqual(json.loads(line)["rank"], 0)
                break
        self.file("go", "")
        done = Finished(process)
        self.assertEqual((done.code, done.out), (0, "[1] done\n"))

    def test_others_return_their_own_errors_within_grace(self):
        script = f"[ $MEGADP_RANK = 0 ] && exit 3; until [ -e {self.path('go')} ]; do sleep 0.01; done; echo my own error; exit 4"
        process = start("-n", "2", "--grace", "600", "sh", "-c", script, env=self.env)
        self.assertIn("rank 0", next_line(process.stderr))
        self.file("go", "")
        done = Finished(process)
        self.assertEqual((done.code, done.out), (3, "[1] my own error\n"))
        self.assertIn("code 4", done.err)

    def test_after_grace_comes_sigterm(self):
        program = ("import os, signal, sys, time\nif os.environ['MEGADP_RANK'] == '1': sys.exit(9)\n"
                   "signal.signal(signal.SIGTERM, lambda *_: (print('asked to end'), sys.exit(0)))\nopen(sys.argv[1], 'w').close()\n"
                   "while True: signal.pause()")
        began = time.monotonic()
        done = run("-n", "2", "--grace", "0.4", *python(program), self.path("ready"), env=self.env)
        self.assertGreaterEqual(time.monotonic() - began, 0.4)
        self.assertEqual(done.code, 9)
        self.assertIn("rank 0 still running 0.4 s after rank 1 failed: SIGTERM", done.err)

    def test_sigterm_reaches_a_stopped_rank(self):
        script = "[ $MEGADP_RANK = 1 ] && exit 9; kill -STOP $$"
        done = run("-n", "2", "--grace", "0.1", "sh", "-c", script, env=self.env)
        self.assertEqual(done.code, 9)
        self.assertIn("killed by signal 15 (SIGTERM)", done.err)

    def test_after_sigterm_comes_sigkill(self):
        script = "[ $MEGADP_RANK = 1 ] && exit 9; trap '' TERM; while :; do sleep 1; done"
        done = run("-n", "2", "--grace", "0.1", "sh", "-c", script, env=self.env)
        self.assertEqual(done.code, 9)
        self.assertIn("killed by signal 9 (SIGKILL)", done.err)

    def test_a_rank_that_dies_slowly_is_the_first(self):
        """Others learn of a death, and end, before the launcher can wait for the process: here it has one more thread for half a second."""
        script = ("import ctypes, os, signal, sys, threading, time\n"
                  "def last():\n"
                  "  while open('/proc/self/stat').read().rsplit(')', 1)[1].split()[0] != 'Z': time.sleep(0.01)\n"
                  "  open(sys.argv[1], 'w').close()\n  time.sleep(0.5)\n  os.kill(os.getpid(), signal.SIGKILL)\n"
                  "if os.environ['MEGADP_RANK'] == '1':\n  threading.Thread(target=last).start()\n  ctypes.CDLL(None).pthread_exit(None)\n"
                  "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\nsys.exit(9)")
        self.assertEqual(run("-n", "2", *python(script), self.path("dying"), env=self.env).code, 137)

    def test_output_of_a_dying_rank_comes_before_its_obituary(self):
        done = run("-n", "1", "sh", "-c", "echo last words >&2; printf unfinished >&2; kill -9 $$", env=self.env)
        self.assertRegex(done.err, r"^\[0\] last words\n\[0\] unfinished\nmegadp run: rank 0 .*SIGKILL\)\n$")

    def test_json_events(self):
        done = run("-n", "2", "--json", "sh", "-c", "[ $MEGADP_RANK = 0 ] || kill -9 $$; echo '{\"x\":1}' >&2", env=self.env)
        self.assertEqual(done.code, 137)
        events = [json.loads(line) for line in done.err.splitlines() if line.startswith("{")]
        self.assertEqual([e["event"] for e in events], ["started", "started", "ended", "ended", "summary"])
        pids = [e["pid"] for e in events[:2]]
        self.assertEqual(events[-1], {"event": "summary", "exit": 137, "ranks": [{"rank": 0, "pid": pids[0], "exit": 0, "signal": None},
                                                                              {"rank": 1, "pid": pids[1], "exit": 137, "signal": "SIGKILL"}]})
        self.assertIn('[0] {"x":1}', done.err)
        refused = run("-n", "2", "--json", "/no/such/file", env=self.env)
        said = [json.loads(line) for line in refused.err.splitlines()]
        self.assertEqual([event["event"] for event in said], ["error", "summary"])
        self.assertEqual((said[-1]["ranks"], said[-1]["exit"], refused.code), ([], 127, 127))


class Signals(RunTest):
    WAITING = ("import os, signal, sys\nrank = os.environ['MEGADP_RANK']\n"
               "def got(number, _):\n  print('got', signal.Signals(number).name, flush=True)\n  if number != signal.SIGUSR1: sys.exit(0)\n"
               "for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT): signal.signal(number, got)\n"
               "open(sys.argv[1] + rank, 'w').close()\nwhile True: signal.pause()")

    def waiting(self, *more):
        process = start("-n", "2", *more, *python(self.WAITING), self.path("ready"), env=self.env)
        self.wait_for_files("ready0", "ready1")
        return process

    def test_signals_reach_every_rank(self):
        for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            with self.subTest(number.name):
                process = self.waiting()
                process.send_signal(signal.SIGUSR1)
                self.assertEqual(sorted(next_line(process.stdout) for _ in range(2)), ["[0] got SIGUSR1\n", "[1] got SIGUSR1\n"])
                process.send_signal(number)
                done = Finished(process)
                self.assertEqual((done.code, sorted(done.lines)), (0, [f"[0] got {number.name}", f"[1] got {number.name}"]))
                for rank in "01":
                    os.unlink(self.path("ready" + rank))

    def test_a_signal_that_kills_gives_its_code(self):
        process = start("-n", "2", "sh", "-c", f": > {self.folder}/ready$MEGADP_RANK; sleep 1000", env=self.env)
        self.wait_for_files("ready0", "ready1")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(Finished(process).code, 128 + signal.SIGTERM)

    def test_a_second_interrupt_kills(self):
        script = f"trap '' INT; : > {self.folder}/ready$MEGADP_RANK; while :; do sleep 1; done"
        process = start("-n", "2", "sh", "-c", script, env=self.env)
        self.wait_for_files("ready0", "ready1")
        process.send_signal(signal.SIGINT)
        self.assertIn("once more kills", next_line(process.stderr))
        process.send_signal(signal.SIGINT)
        done = Finished(process)
        self.assertEqual(done.code, 137)
        self.assertIn("interrupted twice", done.err)

    def test_who_does_not_wait_for_leftovers_gets_the_summary_last_too(self):
        # The grandchild holds the pipes and outlives SIGTERM.
        script = f"(trap '' TERM; : > {self.path('ready')}; while :; do sleep 1; done) & until [ -e {self.path('ready')} ]; do sleep 0.01; done"
        process = start("-n", "1", "--json", "sh", "-c", script, env=self.env)
        for line in process.stderr:
            if b'"ended"' in line:
                break
        process.send_signal(signal.SIGINT)
        done = Finished(process)
        self.assertEqual(done.code, 0)
        self.assertEqual(json.loads(done.err.splitlines()[-1])["event"], "summary")

    def test_a_rank_that_cannot_end_is_given_up(self):
        """A tracer that does not collect its dead tracee keeps it from the launcher, as the kernel keeps one in an uninterruptible call."""
        process = start("-n", "2", "--json", "sh", "-c", f"echo $$ > {self.path('pid$MEGADP_RANK.new')}; "
                        f"mv {self.path('pid$MEGADP_RANK.new')} {self.path('pid$MEGADP_RANK')}; exec sleep 1000", env=self.env)
        self.wait_for_files("pid0", "pid1")
        pid = int(self.read("pid1"))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long] * 4
        if libc.ptrace(0x4206, pid, 0, 0) != 0:  # PTRACE_SEIZE
            process.kill()
            Finished(process)
            self.skipTest(f"processes cannot be traced here: {os.strerror(ctypes.get_errno())}")
        os.kill(pid, signal.SIGKILL)
        until(lambda: state(pid) == "Z", "the rank dies")
        process.send_signal(signal.SIGINT)
        self.assertIn(b"SIGINT", next(line for line in process.stderr if b'"signal"' in line))
        process.send_signal(signal.SIGINT)
        done = Finished(process)
        os.waitpid(pid, 0)
        self.assertEqual(done.code, 128 + signal.SIGINT)
        events = [json.loads(line) for line in done.err.splitlines()]
        self.assertIn(f"rank 1 (pid {pid}) has not ended 20 s after SIGKILL", "".join(e["text"] for e in events if e["event"] == "error"))
        self.assertEqual((events[-1]["event"], events[-1]["ranks"][1]["signal"]), ("summary", "SIGKILL"))

    def test_stopping_the_launcher_stops_its_ranks(self):
        process = start("-n", "1", "sh", "-c", f"echo $$ > {self.path('new')}; mv {self.path('new')} {self.path('pid')}; read x; exit 3",
                        stdin=subprocess.PIPE, env=self.env)
        self.wait_for_files("pid")
        rank = int(self.read("pid"))
        process.send_signal(signal.SIGTSTP)
        until(lambda: state(rank) == "T" and state(process.pid) == "T", "both stop")
        process.send_signal(signal.SIGCONT)
        self.assertEqual(Finished(process, "go\n").code, 3)


class NothingLeft(RunTest):
    def pids(self, *names):
        self.wait_for_files(*names)
        return [int(self.read(name)) for name in names]

    # Writes its process id when it waits, so that the test knows it is there.
    def sleeper(self, name, before=""):
        return f"{before} sh -c 'echo $$ > {self.path(name)}.new; mv {self.path(name)}.new {self.path(name)}; exec sleep 1000'"

    def test_killing_the_launcher_kills_ranks_and_their_children(self):
        script = f"{self.sleeper('child')} & {self.sleeper('own_session', 'setsid')} & {self.sleeper('rank')}"
        process = start("-n", "1", "sh", "-c", script, env=self.env)
        pids = self.pids("child", "own_session", "rank")
        process.kill()
        for pid in pids:
            until(lambda: gone(pid), f"process {pid} ends")
        self.assertEqual(Finished(process).code, -signal.SIGKILL)

    def test_killing_the_launcher_kills_ranks_where_close_range_is_missing(self):
        """As on kernels before 5.9: a filter answers so."""
        script = f"{self.sleeper('own_session', 'setsid')} & {self.sleeper('rank')}"
        process = start("-n", "1", "sh", "-c", script, env=self.env, preexec_fn=refuse_close_range)
        pids = self.pids("own_session", "rank")
        process.kill()
        for pid in pids:
            until(lambda: gone(pid), f"process {pid} ends")
        self.assertEqual(Finished(process).code, -signal.SIGKILL)

    def test_the_kernel_kills_the_ranks_where_the_guardian_cannot(self):
        process = start("-n", "1", "sh", "-c", f"exec {self.sleeper('rank')}", env=self.env)
        self.addCleanup(process.kill)
        rank, = self.pids("rank")
        # The rank may be there before the guardian, which the launcher forks first, has run at all.
        guardians = lambda: [pid for pid in marked(self.mark) if comm(pid) == "mdp-guardian"]
        until(guardians, "the guardian has its name")
        guardian, = guardians()
        os.kill(guardian, signal.SIGKILL)
        until(lambda: gone(guardian), "the guardian ends")
        process.kill()
        until(lambda: gone(rank), "the rank ends")
        Finished(process)

    def test_grandchildren_that_hold_the_pipes_do_not_hang_the_launcher(self):
        done = run("-n", "2", "--grace", "0.1", "sh", "-c", f"{self.sleeper('child$MEGADP_RANK')} & until [ -e {self.path('child$MEGADP_RANK')} ]; do sleep 0.01; done",
                   env=self.env)
        self.assertEqual(done.code, 0)
        self.assertIn("left processes behind", done.err)
        for pid in self.pids("child0", "child1"):
            self.assertTrue(gone(pid), state(pid))

    def test_stubborn_and_daemonized_grandchildren_are_killed(self):
        stubborn = self.sleeper("stubborn", "trap '' TERM;")
        daemon = self.sleeper("daemon", "setsid")
        ready = f"[ -e {self.path('stubborn')} ] && [ -e {self.path('daemon')} ]"
        script = f"({stubborn}) & {daemon} >/dev/null 2>&1 </dev/null & until {ready}; do sleep 0.01; done; exit 6"
        done = run("-n", "1", "--grace", "0.1", "sh", "-c", script, env=self.env)
        self.assertEqual(done.code, 6)
        for pid in self.pids("stubborn", "daemon"):
            self.assertTrue(gone(pid), state(pid))

    def test_what_a_rank_leaves_may_finish_what_it_writes(self):
        script = f"(until [ -e {self.path('go')} ]; do sleep 0.01; done; echo late) & exit 0"
        process = start("-n", "1", "--json", "sh", "-c", script, env=self.env)
        for line in process.stderr:
            if b'"ended"' in line:
                break
        self.file("go", "")
        done = Finished(process)
        self.assertEqual((done.code, done.out), (0, "[0] late\n"))
        self.assertNotIn("leftovers", done.err)

    def test_children_that_were_there_before_are_let_be(self):
        # The shell becomes the launcher and hands down a child of its own.
        older = f"{self.sleeper('older')} >/dev/null 2>&1 & exec \"$@\""
        environment = {**without_launcher(), **self.env}
        done = subprocess.run(["sh", "-c", older, "sh", MEGADP, "run", "-n", "1", "--", "sh", "-c", f"until [ -e {self.path('older')} ]; do sleep 0.01; done"],
                              env=environment, capture_output=True, timeout=LIMIT)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        pid = self.pids("older")[0]
        self.assertFalse(gone(pid))
        os.kill(pid, signal.SIGKILL)

    def test_more_ranks_than_the_limit_of_open_files_allows_a_shell(self):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < 256:
            self.skipTest("the hard limit of open files is below 256")
        done = subprocess.run(["sh", "-c", "ulimit -S -n 32; exec \"$@\"", "sh", MEGADP, "run", "-n", "32", "sh", "-c", "ulimit -n"],
                              env={**without_launcher(), **self.env}, capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), sorted(f"[{rank}] 32" for rank in range(32)))


if __name__ == "__main__":
    MEGADP = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
