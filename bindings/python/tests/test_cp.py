# SPDX-License-Identifier: Apache-2.0
"""Context parallelism with numpy: attention on several ranks against the same on one. The programs are in cp_cases.py."""
import importlib.util
import unittest

import megadp
import support
from megadp import cp

CASES = "cp_cases.py"


@unittest.skipIf(importlib.util.find_spec("numpy") is None, "numpy is not installed")
class Cp(unittest.TestCase):
    def run_case(self, ranks, case):
        support.run_case(self, ranks, CASES, case)

    def test_equal(self):
        self.run_case(2, "equal")

    def test_refused(self):
        self.run_case(2, "refused")

    def test_part(self):
        self.assertEqual(cp.part(3, 1, 12), [range(4, 8)])
        self.assertEqual(cp.part(3, 1, 12, causal=True), [range(2, 4), range(8, 10)])
        with self.assertRaisesRegex(megadp.MegaDPError, "12 or 18 would do"):
            cp.part(3, 1, 15, causal=True)


if __name__ == "__main__":
    unittest.main()
