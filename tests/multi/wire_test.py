#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How often an array crosses the wire between two hosts, counted by their network devices, what the collectives give there, and that a slow
wire is no rank that hangs.

usage: wire_test.py MEGADP BETWEEN_HOSTS [unittest arguments]
"""

import json
import subprocess
import sys
import unittest

from hosts import TwoHosts
from launcher_variables import without_launcher

MEGADP, BETWEEN_HOSTS = sys.argv[1], sys.argv[2]
LIMIT = 240  # seconds after which a test has hung


class Wire(unittest.TestCase):
    def run_all(self, lines, transport):
        """What both hosts have printed, and their errors."""
        environment = {**without_launcher(), "MEGADP_TRANSPORT": transport}
        jobs = [subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for line in lines]
        outputs = [job.communicate(timeout=LIMIT) for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0, 0], outputs)
        return outputs

    def crossings(self, ranks, elements, transport):
        """For each call the lines of both hosts, with `out` and `in` in lengths of the array."""
        outputs = self.run_all(TwoHosts(self).run(MEGADP, ranks, [BETWEEN_HOSTS, "count", str(elements)]), transport)
        calls = list(zip(*([json.loads(line) for line in out.splitlines()] for out, _ in outputs)))
        self.assertEqual(len(calls), 4)
        return [(first["what"], [{way: host[way] / (4 * elements) for way in ("out", "in")} for host in (first, second)])
                for first, second in calls]

    def check_large(self, transport):
        # A count that neither 8 ranks nor the turns divide.
        for what, hosts in self.crossings((4, 4), (4 << 20) + 5, transport):
            print(what, hosts)
            # A broadcast comes to the host that has not got the root; half of a sum's pieces go each way, and then half of the sums.
            self.assertLess(max(ways[way] for ways in hosts for way in ways), 1.1, what)

    def test_ucx(self):
        self.check_large("ucx")

    def test_sockets(self):
        self.check_large("sockets")

    def test_every_size_gives_the_same_bits(self):
        for elements in (1, 3, 8, 1025, 40961):
            for transport in ("ucx", "sockets"):
                self.crossings((2, 1), elements, transport)

    def test_a_timeout_counts_from_the_last_bytes(self):
        """With sockets: a message takes longer than the timeout, but something of it comes all the time."""
        hosts, timeout = TwoHosts(self), 4  # seconds, in which heartbeats come through the same wire, also one that was dropped
        hosts.slow_down("400kbit")
        outputs = self.run_all(hosts.run(MEGADP, (1, 1), [BETWEEN_HOSTS, "scatter", str(256 << 10), str(timeout)]), "sockets")
        print(outputs[0][0])
        self.assertGreater(json.loads(outputs[0][0])["ms"], 1000 * (timeout + 2))

    def test_descriptors_that_run_out_are_named(self):
        for transport in ("ucx", "sockets"):
            for limit in (90, 100, 110, 120):  # wherever in a split that is
                lines = TwoHosts(self).run(MEGADP, (1, 1), ["sh", "-c", f"ulimit -n {limit}; exec {BETWEEN_HOSTS} splits 200"])
                for out, errors in self.run_all(lines, transport):
                    self.assertRegex(out, r"^MDP_E_SYSTEM .*\(ulimit -n\)", (transport, limit, errors))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
