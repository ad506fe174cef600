# SPDX-License-Identifier: Apache-2.0
"""Halos of numpy arrays against numpy.pad of the whole array. The programs are in halo_cases.py."""
import importlib.util
import unittest

import support

CASES = "halo_cases.py"


@unittest.skipIf(importlib.util.find_spec("numpy") is None, "numpy is not installed")
class Halo(unittest.TestCase):
    def run_case(self, ranks, case):
        support.run_case(self, ranks, CASES, case)

    def test_forward(self):
        for ranks in (1, 2, 3):
            self.run_case(ranks, "forward")

    def test_backward(self):
        for ranks in (2, 3):
            self.run_case(ranks, "backward")

    def test_arrays(self):
        for ranks in (1, 2, 3):
            self.run_case(ranks, "arrays")

    def test_staggered(self):
        for ranks in (1, 2, 3):
            self.run_case(ranks, "staggered")

    def test_interrupted(self):
        for ranks in (1, 2):
            self.run_case(ranks, "interrupted")

    def test_dropped(self):
        for ranks in (1, 2):
            self.run_case(ranks, "dropped")

    def test_refused(self):
        self.run_case(2, "refused")


if __name__ == "__main__":
    unittest.main(verbosity=2)
