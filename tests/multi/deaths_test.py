#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed or stopped at random moments: every other rank learns who, soon, and nothing is left behind.

usage: deaths_test.py MEGADP VICTIM [unittest arguments]      MEGADP_SEED=N repeats a run
"""

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
import unittest

MEGADP, VICTIM = sys.argv[1], sys.argv[2]
SEED = int(os.environ.get("MEGADP_SEED", secrets.randbelow(10**6)))
PHASES = ("rendezvous", "backward", "collective", "step")
# Microseconds into a phase: as long as the phase lasts, roughly.
LENGTH = {"rendezvous": 20000, "backward": 4000, "collective": 3000, "step": 2000}
SOON = 5.0
LAUNCHER_VARIABLES = ("MEGADP_", "OMPI_", "PMI", "MPI_", "SLURM_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "HYD")


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_VARIABLES)}
    env.update(more)
    return env


def sockets():
    """Names of our abstract sockets that exist now."""
    with open("/proc/net/unix", encoding="ascii") as file:
        return {line.split()[-1] for line in file if "megadp" in line}


def mappings():
    """Processes that have our shared memory mapped."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
                if "memfd:megadp" in file.read():
                    found.add(int(pid))
        except OSError:
            pass
    return found


class Job:
    """Ranks of the victim program, side by side, with or without `megadp run`."""

    def __init__(self, launcher, ranks, victim, phase, delay, sig, timeout=30.0, child=False):
        self.ranks, self.victim = ranks, victim
        command = [VICTIM, str(timeout), str(victim), phase, str(delay), str(int(sig)), *(["child"] if child else [])]
        session = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        if launcher:
            run = [MEGADP, "run", "--no-prefix", "-n", str(ranks), "--grace", str(SOON + timeout), "--", *command]
            self.processes = [subprocess.Popen(run, env=environment(), **session)]
        else:
            job = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
                   "TORCHELASTIC_RUN_ID": secrets.token_hex(8), "TORCHELASTIC_RESTART_COUNT": "0", "GROUP_RANK": "0"}
            self.processes = [
                subprocess.Popen(command, env=environment(RANK=str(r), LOCAL_RANK=str(r), **job), **session) for r in range(ranks)
            ]

    def finish(self, limit, skip=()):
        """The events printed; processes in `skip` (stopped ones) are not waited for."""
        deadline = time.monotonic() + limit
        events, errors = [], ""
        for index, process in enumerate(self.processes):
            if index in skip:
                continue
            try:
                out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill()
                out, err = process.communicate()
                errors += f"process {index} was still there after {limit} s\n"
            events += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
            errors += err
        return events, errors

    def kill(self):
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


class Deaths(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(f"{SEED} {self.id()}")
        self.sockets, self.mappings = sockets(), mappings()
        self.latencies = []

    def nothing_left(self):
        """Gone within moments: sockets and memory go with the last process."""
        for _ in range(100):
            if sockets() <= self.sockets and mappings() <= self.mappings:
                return
            time.sleep(0.05)
        self.fail(f"left behind: sockets {sockets() - self.sockets}, processes with windows {mappings() - self.mappings}")

    def check(self, job, events, errors, within, statuses=("MDP_E_PEER",)):
        told = [e["ns"] for e in events if e["event"] == "signal"]
        failed = {e["rank"]: e for e in events if e["event"] == "failed"}
        context = f"seed {SEED}, victim {job.victim}\nevents {events}\nstderr {errors[-3000:]}"
        survivors = set(range(job.ranks)) - {job.victim}
        self.assertEqual(set(failed) - {job.victim}, survivors, context)
        for rank in survivors:
            event = failed[rank]
            self.assertEqual(event["blame"], job.victim, context)
            self.assertIn(f"rank {job.victim}", event["text"], context)
            self.assertIn(event["status"], statuses, context)
            if told:
                self.latencies.append((event["ns"] - told[0]) / 1e9)
                self.assertLess(self.latencies[-1], within, context)

    def kill_one(self, launcher, phase):
        ranks = self.random.choice((2, 3, 4))
        victim = self.random.randrange(ranks)
        delay = self.random.randrange(LENGTH[phase])
        with self.subTest(phase=phase, ranks=ranks, victim=victim, delay=delay, seed=SEED):
            job = Job(launcher, ranks, victim, phase, delay, signal.SIGKILL)
            events, errors = job.finish(60)
            self.check(job, events, errors, SOON)
            codes = [process.returncode for process in job.processes]
            if launcher:
                self.assertEqual(codes, [128 + signal.SIGKILL], errors)
            else:
                self.assertEqual(codes, [-signal.SIGKILL if rank == victim else 1 for rank in range(ranks)], errors)
            self.nothing_left()

    def report(self, what):
        spread = sorted(self.latencies)
        if spread:
            print(f"  {what}: {len(spread)} survivors told after {spread[0] * 1e3:.1f} ms at least, "
                  f"{spread[len(spread) // 2] * 1e3:.1f} ms in the middle, {spread[-1] * 1e3:.1f} ms at most", file=sys.stderr)

    def test_killed(self):
        """20 deaths at random moments, in every phase in turn."""
        for i in range(20):
            self.kill_one(False, PHASES[i % len(PHASES)])
        self.report("killed")

    def test_killed_under_the_launcher(self):
        for i in range(20):
            self.kill_one(True, PHASES[i % len(PHASES)])
        self.report("killed under megadp run")

    def test_killed_while_its_child_lives_on(self):
        """The child holds every descriptor of the dead rank open."""
        for victim in (0, 2):
            for phase in ("backward", "collective"):
                with self.subTest(victim=victim, phase=phase, seed=SEED):
                    job = Job(False, 3, victim, phase, self.random.randrange(LENGTH[phase]), signal.SIGKILL, timeout=2.0, child=True)
                    events, errors = job.finish(30)
                    self.check(job, events, errors, 2.0 + SOON, ("MDP_E_PEER", "MDP_E_TIMEOUT"))
                    job.kill()
                    self.nothing_left()
        self.report("killed, child lives on")

    def test_stopped(self):
        """A stopped rank keeps its sockets and is not dead: the communicator's timeout decides."""
        for victim in (0, 1, 2):
            phase = PHASES[1 + victim]
            with self.subTest(victim=victim, phase=phase, seed=SEED):
                job = Job(False, 3, victim, phase, self.random.randrange(LENGTH[phase]), signal.SIGSTOP, timeout=2.0)
                events, errors = job.finish(30, skip={victim})
                out = job.processes[victim]
                os.kill(out.pid, signal.SIGKILL)
                events += [json.loads(line) for line in out.communicate()[0].splitlines() if line.startswith("{")]
                self.check(job, events, errors, 2.0 + SOON, ("MDP_E_TIMEOUT", "MDP_E_PEER"))
                self.nothing_left()
        self.report("stopped")


if __name__ == "__main__":
    print(f"seed {SEED}", file=sys.stderr)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
