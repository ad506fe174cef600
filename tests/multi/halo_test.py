#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Halos between two hosts and within each, by both transports, against the oracle of tests/capi/halo_test.c.

usage: halo_test.py MEGADP CAPI_HALO [unittest arguments]
"""

import subprocess
import sys
import unittest

from hosts import TwoHosts
from launcher_variables import without_launcher

MEGADP, CAPI_HALO = sys.argv[1], sys.argv[2]


class Halo(unittest.TestCase):
    def check(self, ranks, transport, **options):
        lines = TwoHosts(self).run(MEGADP, ranks, [CAPI_HALO, "launched"], **options)
        environment = {**without_launcher(), "MEGADP_TRANSPORT": transport}
        jobs = [subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for line in lines]
        outputs = [job.communicate(timeout=120)[0] for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0, 0], outputs)

    def test_ucx(self):
        for ranks in ((1, 1), (2, 2), (4, 3)):
            self.check(ranks, "ucx")

    def test_sockets(self):
        for ranks in ((1, 1), (2, 2), (3, 5)):
            self.check(ranks, "sockets")

    def test_link_local_addresses(self):
        for transport in ("ucx", "sockets"):
            self.check((2, 1), transport, link_local=True)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
