# SPDX-License-Identifier: Apache-2.0
"""megadp.jax with context-parallel ranks, inside jit and outside: attention over a sequence that is cut, and a model trained with it, against
the same on whole arrays. The programs are in jax_cp_cases.py."""
import re
import unittest

import support

CASES = "jax_cp_cases.py"


class JaxCp(unittest.TestCase):
    def run_case(self, ranks, case):
        return support.run_case(self, ranks, CASES, case)

    def test_equal(self):
        for ranks in (1, 2, 3, 4):
            with self.subTest(ranks=ranks):
                self.assertEqual(re.findall(r"(\d+) attentions", self.run_case(ranks, "equal")), ["29"] * ranks)

    def test_parts(self):
        for ranks in (2, 3):
            self.run_case(ranks, "parts")

    def test_refused(self):
        self.run_case(2, "refusals")

    def test_training(self):
        for ranks in (2, 4):
            support.check_trained(self, self.run_case(ranks, "training"), ranks, f"cp 2 x dp {ranks // 2}")


if __name__ == "__main__":
    unittest.main()
