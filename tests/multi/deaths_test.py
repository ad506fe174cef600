#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed or stopped at random moments, and a network that is cut: every other rank learns who, soon, and nothing is left
behind.

usage: deaths_test.py MEGADP VICTIM [unittest arguments]      MEGADP_SEED=N repeats a run
"""

import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from hosts import TwoHosts
from launcher_variables import without_launcher

MEGADP, VICTIM = sys.argv[1], sys.argv[2]
SEED = int(os.environ.get("MEGADP_SEED", secrets.randbelow(10**6)))
PHASES = ("rendezvous", "backward", "collective", "step")
# Microseconds into a phase: as long as the phase lasts, roughly. Communicators are made and destroyed over and over in the first.
LENGTH = {"rendezvous": 200000, "backward": 4000, "collective": 3000, "step": 2000, "compute": 300000}
SOON = 5.0
KILLED, TIMED_OUT = ("MDP_E_PEER",), ("MDP_E_PEER", "MDP_E_TIMEOUT")
TAG = "DEATHS_TEST"  # in the environment of every process of a job: others may run megadp here at the same time


def processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def of_process(pid, name):
    """What /proc says; nothing once the process is gone."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def sockets(hosts=None):
    """Our sockets' inodes and names, here or, as each network namespace knows only its own, on both hosts. One that waits to be accepted has
    no inode, and goes with those that it belongs to."""
    if hosts is None:
        with open("/proc/net/unix", encoding="ascii") as file:
            lines = file.readlines()
    else:
        lines = hosts.read("/proc/net/unix").splitlines()
    rows = [line.split() for line in lines if "@megadp-" in line]
    return {row[6]: row[7] for row in rows if row[6] != "0"}


def held_sockets(pids):
    held = set()
    for pid in pids:
        try:
            targets = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        held |= {target[8:-1] for target in targets if target.startswith("socket:[")}
    return held


def named_memory():
    """Shared memory that would outlive its processes: megadp makes none, and UCX shall not either."""
    return {name for name in os.listdir("/dev/shm") if "megadp" in name or "ucx" in name}


def read_all(file):
    """What was written so far. Not by seek and read: the writers share the file's position, and would write over one another's lines."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


class Job:
    """Ranks of the victim program, side by side, with or without `megadp run`, on one host or two."""

    def __init__(self, ranks, victim, phase, delay, sig, timeout=30.0, child=False, launcher=False, hosts=None):
        """ranks: how many, or with hosts how many on each."""
        self.counts = ranks if hosts else (ranks,)
        self.ranks, self.victim, self.phase, self.launched = sum(self.counts), victim, phase, launcher or hosts is not None
        self.tag, self.hosts = secrets.token_hex(8), hosts
        self.memory, self.sockets = named_memory(), set()
        command = [VICTIM, str(timeout), str(victim), phase, str(delay), str(int(sig)), *(["child"] if child else [])]
        grace = ["--grace", str(SOON + timeout)]
        if hosts:
            started = [(line, {}) for line in hosts.run(MEGADP, self.counts, command, grace)]
        elif launcher:
            started = [([MEGADP, "run", "--no-prefix", "-n", str(ranks), *grace, "--", *command], {})]
        else:
            job = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
                   "TORCHELASTIC_RUN_ID": self.tag, "TORCHELASTIC_RESTART_COUNT": "0", "GROUP_RANK": "0"}
            started = [(command, {**job, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(ranks)]
        clean = without_launcher()
        self.output, self.errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.processes = [
            subprocess.Popen(line, env={**clean, **env, TAG: self.tag}, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.errors,
                             start_new_session=True) for line, env in started
        ]

    def events(self, kind=None):
        lines = read_all(self.output).split("\n")[:-1]
        return [event for event in map(json.loads, lines) if kind in (None, event["event"])]

    def wait_until(self, condition, limit):
        deadline = time.monotonic() + limit
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
        return condition()

    def alive(self):
        """All of it that exists: ranks, launchers, what they started. Dead ones that nobody has waited for have no environment."""
        return [pid for pid in processes() if f"{TAG}={self.tag}".encode() in of_process(pid, "environ").split(b"\0")]

    def kill(self):
        for _ in range(100):
            left = self.alive()
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if not left:
                break
            time.sleep(0.02)
        for process in self.processes:
            process.wait()

    def close(self):
        self.kill()
        self.output.close()
        self.errors.close()

    def describe(self):
        return f"seed {SEED}, {self.ranks} ranks, victim {self.victim}\nevents {self.events()}\nstderr {read_all(self.errors)[-3000:]}"


class DeathsTest(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(f"{SEED} {self.id()}")
        self.latencies = []

    def tearDown(self):
        spread = sorted(self.latencies)
        if spread:
            print(f"{len(spread)} survivors told after {spread[0] * 1e3:.1f} ms at least, {spread[len(spread) // 2] * 1e3:.1f} ms in the "
                  f"middle, {spread[-1] * 1e3:.1f} ms at most ... ", end="", file=sys.stderr)

    def job(self, ranks, victim, phase, sig=signal.SIGKILL, **more):
        job = Job(ranks, victim, phase, self.random.randrange(LENGTH[phase]), sig, **more)
        self.addCleanup(job.close)
        return job

    def check(self, job, within, statuses, lost=None, since=None):
        """Every survivor was told in time, and told a rank of `lost` (the victim). Latency counts from the signal, or from the call that
        failed where that began later."""
        lost = {job.victim} if lost is None else lost
        expected = set(range(job.ranks)) - {job.victim}
        job.wait_until(lambda: job.events(), 30)
        job.sockets = held_sockets(job.alive()) & set(sockets(job.hosts))
        told = job.wait_until(lambda: {e["rank"] for e in job.events("failed")} >= expected, within + 30)
        self.assertTrue(told, job.describe())
        failed = {e["rank"]: e for e in job.events("failed")}
        since = since or job.events("signal")[0]["ns"]
        for rank in expected:
            event = failed[rank]
            ours = lost(rank) if callable(lost) else lost
            if job.phase == "rendezvous" and event["status"] == "MDP_E_TIMEOUT":
                # Survivors may be in two rendezvous, one after the other: who was told of the death in one does not come to the next.
                ours = ours | {other for other in expected if failed[other]["ns"] < event["ns"]}
            self.assertIn(event["blame"], ours, job.describe())
            self.assertIn(str(event["blame"]), re.findall(r"\branks? (\d+)", event["text"]), job.describe())
            self.assertIn(event["status"], statuses, job.describe())
            latency = (event["ns"] - max(since, event["begun"])) / 1e9
            self.latencies.append(latency)
            self.assertLess(latency, within, job.describe())
        for event in job.events("called"):
            self.assertLess(event["begun"], since + within * 1e9, "a call well after the death did not tell of it: " + job.describe())
        self.assertEqual(job.events("done"), [], job.describe())

    def check_exit_codes(self, job):
        for process in job.processes:
            process.wait(timeout=30)
        codes = [process.returncode for process in job.processes]
        if not job.launched:
            expected = [-signal.SIGKILL if rank == job.victim else 1 for rank in range(job.ranks)]
        else:  # the launcher that has started the victim says how it died
            expected, first = [], 0
            for count in job.counts:
                expected.append(128 + signal.SIGKILL if first <= job.victim < first + count else 1)
                first += count
        self.assertEqual(codes, expected, job.describe())

    def nothing_left(self, job):
        """Gone within moments. Those of its sockets that were seen while it ran, and its memory, go with the last process."""
        self.assertTrue(job.wait_until(lambda: not job.alive(), 10), f"processes {job.alive()} are left\n{job.describe()}")
        left = job.wait_until(lambda: not job.sockets & set(sockets(job.hosts)), 30)
        self.assertTrue(left, "sockets are left\n" + job.describe())
        self.assertTrue(job.wait_until(lambda: named_memory() <= job.memory, 5), f"memory {named_memory() - job.memory} is left")

    def kill_one(self, launcher, phase):
        ranks = self.random.choice((2, 3, 4))
        victim = self.random.randrange(ranks)
        # A rank that dies before it has come to a rendezvous is known to nobody: the others wait for it as for one that is late.
        meeting = phase == "rendezvous"
        job = self.job(ranks, victim, phase, launcher=launcher, timeout=3.0 if meeting else 30.0)
        self.check(job, SOON, TIMED_OUT if meeting else KILLED)
        self.check_exit_codes(job)
        self.nothing_left(job)


class OneHost(DeathsTest):
    def test_killed(self):
        for i in range(20):
            self.kill_one(False, PHASES[i % len(PHASES)])

    def test_killed_under_the_launcher(self):
        for i in range(20):
            self.kill_one(True, PHASES[i % len(PHASES)])

    def test_killed_while_the_others_compute(self):
        for _ in range(3):
            self.kill_one(False, "compute")

    def test_killed_while_its_child_lives_on(self):
        """The child holds every descriptor of the dead rank open."""
        for victim, phase in ((0, "backward"), (2, "backward"), (0, "collective"), (1, "step")):
            job = self.job(3, victim, phase, timeout=2.0, child=True)
            self.check(job, 2.0 + SOON, TIMED_OUT)
            self.check_exit_codes(job)
            job.kill()
            self.nothing_left(job)

    def test_stopped(self):
        """A stopped rank keeps its sockets and is not dead: the communicator's timeout decides."""
        jobs = [self.job(3, victim, PHASES[victim], signal.SIGSTOP, timeout=2.0) for victim in range(3)]
        for job in jobs:
            self.check(job, 2.0 + SOON, TIMED_OUT)
            job.kill()
            self.nothing_left(job)


class TwoHostsWithACable(DeathsTest):
    def test_killed_on_the_other_host(self):
        for victim in (0, 3, 2, 1):
            job = self.job((2, 2), victim, PHASES[1 + victim % 3], hosts=TwoHosts(self))
            self.check(job, SOON, KILLED)
            self.check_exit_codes(job)
            self.nothing_left(job)

    def test_killed_in_a_rendezvous(self):
        for victim in (0, 3):
            job = self.job((2, 2), victim, "rendezvous", hosts=TwoHosts(self), timeout=3.0)
            self.check(job, SOON, TIMED_OUT)
            self.check_exit_codes(job)
            self.nothing_left(job)

    def test_killed_alone_on_its_host_while_its_child_lives_on(self):
        """Its connections stay open and nobody can see its process: only its silence tells."""
        job = self.job((2, 1), 2, "collective", hosts=TwoHosts(self), timeout=2.0, child=True)
        self.check(job, 2.0 + SOON, TIMED_OUT)
        job.kill()
        self.nothing_left(job)

    def test_stopped_on_the_other_host(self):
        jobs = [self.job((2, 2), victim, phase, signal.SIGSTOP, hosts=TwoHosts(self), timeout=2.0)
                for victim, phase in ((0, "backward"), (3, "collective"))]
        for job in jobs:
            self.check(job, 2.0 + SOON, TIMED_OUT)
            job.kill()
            self.nothing_left(job)

    def test_cut_cable(self):
        hosts = TwoHosts(self)
        job = self.job((2, 2), -1, "step", hosts=hosts, timeout=2.0)
        self.assertTrue(job.wait_until(lambda: len(job.events("warm")) == 4, 30), job.describe())
        time.sleep(self.random.random() * 0.1)
        since = time.monotonic_ns()
        hosts.cut_the_cable()
        self.check(job, 2.0 + SOON, TIMED_OUT, lost=lambda rank: {2, 3} if rank < 2 else {0, 1}, since=since)
        self.assertEqual([process.wait(timeout=30) for process in job.processes], [1, 1], job.describe())
        self.nothing_left(job)


if __name__ == "__main__":
    print(f"seed {SEED}", file=sys.stderr)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
