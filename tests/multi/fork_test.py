#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Children of ranks that join a world of their own: they may on one host; between hosts, where the parent has used UCX, they are told at
once why not. The parents' world goes on.

usage: fork_test.py MEGADP FORKS [unittest arguments]
"""

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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
