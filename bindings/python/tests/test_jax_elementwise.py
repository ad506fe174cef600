# SPDX-License-Identifier: Apache-2.0
"""megadp.jax with element-wise gradient transformations, optax's where it is installed, on 1 and 2 ranks: jax_elementwise_cases.py."""
import importlib.util
import os
import tempfile
import unittest

import support

CASES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jax_elementwise_cases.py")


class Elementwise(unittest.TestCase):
    def run_case(self, ranks, *arguments):
        out = support.check_ended(self, support.run_ranks(ranks, [CASES, *arguments]))
        self.assertEqual(out.splitlines(), ranks * [f"{arguments[0]}: ok"])

    def test_by_hand(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                self.run_case(ranks, "by_hand")

    def test_saved(self):
        for ranks in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                self.run_case(ranks, "saved", folder)

    def test_refused(self):
        self.run_case(2, "refused")

    @unittest.skipIf(importlib.util.find_spec("optax") is None, "optax is not installed")
    def test_optax(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.run_case(ranks, "optax")

    @unittest.skipIf(importlib.util.find_spec("optax") is None, "optax is not installed")
    def test_optax_refused(self):
        self.run_case(1, "optax_refused")


if __name__ == "__main__":
    unittest.main()
