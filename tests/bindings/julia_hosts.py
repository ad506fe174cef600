#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Julia with two threads while UCX is loaded: UCX takes signals over that Julia's collector lives on, unless it is kept from it. Two ranks on two
network namespaces train and collect garbage on both threads."""
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tests", "multi"))

from hosts import TwoHosts  # noqa: E402

PACKAGE = os.path.join(ROOT, "bindings", "julia")


class JuliaOverUcx(unittest.TestCase):
    def test_two_threads_and_ucx(self):
        hosts = TwoHosts(self)
        julia = subprocess.run([os.path.join(ROOT, "scripts", "setup_julia"), "--print-path"], capture_output=True, text=True,
                               check=True).stdout.strip()
        if not julia:
            self.skipTest("no julia (scripts/setup_julia makes one on Debian 12)")
        environment = dict(os.environ, JULIA_NUM_THREADS="2",
                           JULIA_DEPOT_PATH=os.path.join(os.environ["MEGADP_BINDINGS_BUILD"], "julia-depot"))
        command = [julia, "-O0", "--startup-file=no", f"--project={PACKAGE}", os.path.join(PACKAGE, "test", "programs", "threads.jl")]
        ranks = [subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                 for line in hosts.run(os.environ["MEGADP_PROGRAM"], (1, 1), command)]
        try:
            outputs = [rank.communicate(timeout=280)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        for i, (rank, output) in enumerate(zip(ranks, outputs)):
            self.assertEqual(rank.returncode, 0, output)
            self.assertIn(f"rank {i} threads 2\n", output)
            self.assertIn(f"rank {i} ucx 1\n", output)
            self.assertIn(f"rank {i} trained [200,3]\n", output)
            self.assertRegex(output, f"rank {i} collections [1-9]")


if __name__ == "__main__":
    unittest.main(verbosity=2)
