# SPDX-License-Identifier: Apache-2.0
"""Halos of numpy arrays against numpy.pad of the whole array. The programs are in halo_cases.py."""
import importlib.util
import os
import unittest

import support

CASES = os.path.join(support.PACKAGE, "tests", "halo_cases.py")


@unittest.skipIf(importlib.util.find_spec("numpy") is None, "numpy is not installed")
class Halo(unittest.TestCase):
    def run_case(self, ranks, case):
        out = support.check_ended(self, support.run_ranks(ranks, [CASES, case]))
        self.assertEqual(out.count(f"{case} done"), ranks, out)

    def test_forward(self):
        for ranks in (1, 2, 3):
            self.run_case(ranks, "forward")

    def test_backward(self):
        for ranks in (2, 3):
            self.run_case(ranks, "backward")

    def test_arrays(self):
        for ranks in (1, 2, 3):
            self.run_case(ranks, "arrays")

    def test_refused(self):
        self.run_case(2, "refused")


if __name__ == "__main__":
    unittest.main(verbosity=2)
