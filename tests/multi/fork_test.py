#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Children of ranks that join a world of their own: they may on one host; between hosts, where the parent has used UCX, they are told at
once why not. The parents' world goes on. And children that outlive a rank: its death is noticed all the same.

usage: fork_test.py MEGADP FORKS [unittest arguments]
"""

import os
import signal
import subprocess
import sys
import unittest

from hosts import PORT, TwoHosts
from launcher_variables import without_launcher

MEGADP, FORKS = sys.argv[1], sys.argv[2]
LIMIT = 120  # seconds after which a test has hung


def run_all(commands, **variables):
    """Side by side: exit codes, and the lines of all, sorted."""
    environment = {**without_launcher(), **variables}
    jobs = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for command in commands]
    lines = []
    for job in jobs:
        lines += job.communicate(timeout=LIMIT)[0].splitlines()
    return [job.returncode for job in jobs], sorted(lines)


class Children(unittest.TestCase):
    def test_on_one_host_they_may_join(self):
        codes, lines = run_all([[MEGADP, "run", "--no-prefix", "-n", "2", "--", FORKS]])
        self.assertEqual((codes, [line.strip() for line in lines]), ([0], [f"child of rank {rank}: MDP_OK" for rank in range(2)]))

    def test_between_hosts_they_are_refused(self):
        codes, lines = run_all(TwoHosts(self).run(MEGADP, (1, 1), [FORKS, f"10.83.0.1:{PORT + 1}"]), MEGADP_TRANSPORT="ucx")
        self.assertEqual((codes, len(lines)), ([0, 0], 2), lines)
        for line in lines:
            self.assertRegex(line, r"^child of rank \d: MDP_E_STATE .*forked.*UCX")

    def test_between_hosts_they_may_join_over_sockets(self):
        codes, lines = run_all(TwoHosts(self).run(MEGADP, (1, 1), [FORKS, f"10.83.0.1:{PORT + 1}"]), MEGADP_TRANSPORT="sockets")
        self.assertEqual((codes, [line.strip() for line in lines]), ([0, 0], [f"child of rank {rank}: MDP_OK" for rank in range(2)]))

    def test_a_rank_that_leaves_a_group_is_noticed_though_a_child_lives(self):
        codes, lines = run_all(TwoHosts(self).run(MEGADP, (1, 1), [FORKS, "--leave"]), MEGADP_TRANSPORT="sockets")
        self.assertEqual((codes, len(lines)), ([0, 0], 1), lines)
        self.assertRegex(lines[0], r"^MDP_E_PEER .*rank 1 ")

    def test_a_death_is_noticed_though_a_child_lives(self):
        hosts = TwoHosts(self)
        job = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.83.0.1", "MASTER_PORT": str(PORT)}
        commands = [["ip", "netns", "exec", host, "env", f"RANK={rank}", f"GROUP_RANK={rank}", FORKS, "--die"] for rank, host in enumerate(hosts.names)]
        codes, lines = run_all(commands, **job)
        self.assertEqual((codes, len(lines)), ([0, -signal.SIGKILL], 2), lines)
        child = int(lines[1].removeprefix("child "))
        with open(f"/proc/{child}/stat", encoding="ascii") as file:
            self.assertIn(file.read().rpartition(")")[2].split()[0], "RS", "the child has ended by now")
        os.kill(child, signal.SIGKILL)
        self.assertRegex(lines[0], r"^MDP_E_PEER .*rank 1 ")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
