# SPDX-License-Identifier: Apache-2.0
"""megadp.jax with gradient transformations that need whole parameters, optax's where it is installed, on 1, 2 and 3 ranks (jax_whole_cases.py)."""
import importlib.util
import tempfile
import unittest

from test_jax_elementwise import Cases


class Whole(Cases, unittest.TestCase):
    PROGRAM = "jax_whole_cases.py"

    def test_by_hand(self):
        for ranks in (2, 3):
            with self.subTest(ranks=ranks):
                self.run_case(ranks, "by_hand")

    def test_saved(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_case(2, "saved", folder)

    def test_refused(self):
        self.run_case(2, "refused")

    @unittest.skipIf(importlib.util.find_spec("optax") is None, "optax is not installed")
    def test_optax(self):
        self.run_case(2, "optax")

    @unittest.skipIf(importlib.util.find_spec("optax") is None, "optax is not installed")
    def test_optax_refused(self):
        self.run_case(1, "optax_refused")


if __name__ == "__main__":
    unittest.main()
