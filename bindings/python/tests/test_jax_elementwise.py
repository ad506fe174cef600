# SPDX-License-Identifier: Apache-2.0
"""megadp.jax with element-wise gradient transformations, optax's where it is installed, on 1, 2 and 3 ranks (jax_elementwise_cases.py)."""
import importlib.util
import os
import tempfile
import unittest

import support

HERE = os.path.dirname(os.path.abspath(__file__))


class Cases:
    def run_case(self, ranks, *arguments):
        out = support.check_ended(self, support.run_ranks(ranks, [os.path.join(HERE, self.PROGRAM), *arguments])).splitlines()
        for line in sorted({line for line in out if line.startswith("#")}):
            print(line, flush=True)
        self.assertEqual([line for line in out if not line.startswith("#")], ranks * [f"{arguments[0]}: ok"])


class Elementwise(Cases, unittest.TestCase):
    PROGRAM = "jax_elementwise_cases.py"

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

    def test_clips(self):
        self.run_case(2, "clips")

    def test_unseen(self):
        """A norm in a callback was taken for element by element, and a print for a mistake."""
        self.run_case(1, "unseen")

    def test_sizes(self):
        """Masks by sizes were another thing on pieces, without a word: a trial on small arrays crosses no threshold."""
        self.run_case(2, "sizes")

    @unittest.skipIf(importlib.util.find_spec("optax") is None, "optax is not installed")
    def test_optax_sizes(self):
        self.run_case(2, "optax_sizes")

    @unittest.skipIf(importlib.util.find_spec("optax") is None, "optax is not installed")
    def test_optax_refused(self):
        self.run_case(1, "optax_refused")


if __name__ == "__main__":
    unittest.main()
