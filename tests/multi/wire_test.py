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

    def failures(self, hosts, command, **environment):
        """What both hosts say of a job that does not come about."""
        jobs = [subprocess.Popen(line, env={**without_launcher(), **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                for line in hosts.run(MEGADP, (1, 1), [BETWEEN_HOSTS, *command])]
        said = [job.communicate(timeout=LIMIT)[0] for job in jobs]
        self.assertNotIn(0, [job.returncode for job in jobs], said)
        return said

    def few_ports(self, last):
        """The second host has those from 50000 to this one."""
        hosts = TwoHosts(self)
        subprocess.run(["ip", "netns", "exec", hosts.names[1], "sysctl", "-qw", f"net.ipv4.ip_local_port_range=50000 {last}"], check=True)
        return hosts, rf"no free port at 10\.83\.0\.2: .*\(net.ipv4.ip_local_port_range, 50000 to {last}\)"

    def test_ports_that_run_out_are_named(self):
        """UCX asked for one for ever, whatever the timeout was."""
        for last in (50004, 50005, 50009):  # wherever in a split that is
            hosts, wanted = self.few_ports(last)
            for out, errors in self.run_all(hosts.run(MEGADP, (1, 1), [BETWEEN_HOSTS, "splits", "200"]), "ucx"):
                self.assertRegex(out, f"^MDP_E_SYSTEM .*{wanted}", (last, errors))
        hosts, wanted = self.few_ports(50000)
        for said in self.failures(hosts, ["scatter", "2", "4"], MEGADP_TRANSPORT="sockets"):
            self.assertRegex(said, wanted)

    def test_why_there_is_no_connection_is_told_to_all(self):
        """Rank 0 waits, and rank 1 knows the system's reason: its host has no route for what goes to such ports."""
        hosts = TwoHosts(self)
        subprocess.run(["ip", "-n", hosts.names[1], "rule", "add", "ipproto", "tcp", "dport", "32768-60999", "unreachable"], check=True)
        for said in self.failures(hosts, ["scatter", "2", "4"], MEGADP_TRANSPORT="sockets"):
            self.assertRegex(said, r"no connection for data to rank 0 on .*: connecting to 10\.83\.0\.1:\d+: Network is unreachable")

    def test_what_the_user_has_set_for_ucx_is_named(self):
        hosts = TwoHosts(self)
        for choices, wanted in (({"UCX_TLS": "bogus"}, "no usable network device (UCX_TLS=bogus is set): "),
                                ({"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}, " (UCX_TLS=tcp is set, UCX_NET_DEVICES=lo is set): ")):
            for said in self.failures(hosts, ["scatter", "2", "4"], MEGADP_TRANSPORT="ucx", **choices):
                self.assertIn(wanted, said)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
