#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks in a real control group that has little memory: too much is refused before it is taken, and where the kernel kills a rank all the
same, `megadp run` says so. Skipped where this user may not make a group.

usage: cgroup_test.py MEGADP MULTI_LIMITS [unittest arguments]
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

from launcher_variables import without_launcher

MEGADP, LIMITS = sys.argv[1], sys.argv[2]
SKIPPED = 77
MIB = 1 << 20


def places():
    """Folders in which a memory group can be made, with the name of its limit's file: of cgroup v2 and v1."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            kind, _, options = after.split()[:3]
            if kind == "cgroup2":
                yield before.split()[4], "memory.max"
            elif kind == "cgroup" and "memory" in options.split(","):
                yield before.split()[4], "memory.limit_in_bytes"


class Group:
    """A control group with a limit, for as long as the context lasts."""

    def __init__(self, limit):
        self.limit, self.folder, self.file = limit, None, None

    def __enter__(self):
        for place, file in places():
            try:
                folder = tempfile.mkdtemp(prefix="megadp-test-", dir=place)
            except OSError:
                continue
            try:
                with open(os.path.join(folder, file), "w", encoding="ascii") as out:
                    out.write(str(self.limit))
                self.folder, self.file = folder, os.path.join(folder, file)
                return self
            except OSError:
                os.rmdir(folder)
        print("no memory group can be made here")
        sys.exit(SKIPPED)

    def __exit__(self, *_):
        os.rmdir(self.folder)

    def run(self, *command):
        procs = os.path.join(self.folder, "cgroup.procs")
        return subprocess.run(["sh", "-c", 'echo $$ > "$0"; exec "$@"', procs, MEGADP, "run", *command], env=without_launcher(),
                              capture_output=True, text=True, timeout=60, check=False)


class Cgroup(unittest.TestCase):
    def test_too_much_is_refused_on_all_ranks(self):
        with Group(200 * MIB) as group:
            done = group.run("-n", "2", LIMITS, "register", "400")
        self.assertEqual(done.returncode, 3, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 2, done.stdout)
        for line in lines:
            self.assertIn("MDP_E_MEMORY: mdp_buffer_register: ranks 0 and 1 need together 8430", line)
            self.assertIn(f"of the {200 * MIB} that {group.file} allows", line)

    def test_what_fits_is_registered(self):
        with Group(200 * MIB) as group:
            done = group.run("-n", "2", LIMITS, "register", "40")
        self.assertEqual((done.returncode, done.stdout.count("registered")), (0, 2), done.stderr)

    def test_page_cache_is_no_use(self):
        """A file that was just written stands in the cache of the group; the kernel gives that back when memory is short."""
        with Group(200 * MIB) as group, tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            script = f"dd if=/dev/zero of={folder}/file bs=1M count=150 conv=fsync 2> /dev/null; exec {LIMITS} register 100"
            done = group.run("-n", "1", "sh", "-c", script)
        self.assertEqual((done.returncode, done.stdout.count("registered")), (0, 1), done.stderr + done.stdout)

    def test_a_rank_that_the_kernel_killed_is_called_so(self):
        eat = [sys.executable, "-S", "-c", "import os, signal\nif os.environ['MEGADP_RANK'] == '1': bytearray(400 << 20)\nsignal.pause()"]
        with Group(200 * MIB) as group:
            done = group.run("-n", "2", "--grace", "1", *eat)
        self.assertEqual(done.returncode, 137, done.stderr)
        self.assertRegex(done.stderr, r"rank 1 \(pid \d+\) was killed by signal 9 \(SIGKILL\); the kernel had no memory left for it: "
                                      f"{group.folder} has a limit of {200 * MIB} bytes")
        with Group(200 * MIB) as group:
            done = group.run("-n", "1", "--json", sys.executable, "-S", "-c", "bytearray(400 << 20)")
        ended = [event for event in map(json.loads, done.stderr.splitlines()) if event["event"] == "ended"]
        self.assertIn(group.folder, ended[0]["out_of_memory"])

    def test_another_kill_is_not_called_so(self):
        with Group(200 * MIB) as group:
            done = group.run("-n", "1", "sh", "-c", "kill -9 $$")
        self.assertEqual(done.returncode, 137)
        self.assertNotIn("memory", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
