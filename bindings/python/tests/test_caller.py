# SPDX-License-Identifier: Apache-2.0
"""Updates of the caller's, on 1, 2 and 3 ranks: caller_cases.py."""
import os
import tempfile
import unittest

import support

CASES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "caller_cases.py")


class Caller(unittest.TestCase):
    def run_case(self, name, ranks=(1, 2, 3)):
        for number in ranks:
            with self.subTest(ranks=number), tempfile.TemporaryDirectory() as folder:
                out = support.check_ended(self, support.run_ranks(number, [CASES, name, os.path.join(folder, "saved")]))
                self.assertEqual(out.splitlines(), number * [f"{name}: ok"])

    def test_beside_the_librarys(self):
        self.run_case("beside")

    def test_together(self):
        self.run_case("together")

    def test_fails_on_one_rank(self):
        self.run_case("fails")

    def test_calls_from_within(self):
        self.run_case("within", (1, 2))

    def test_views(self):
        self.run_case("views", (1, 2))

    def test_words(self):
        self.run_case("words", (1, 2))

    def test_checked(self):
        self.run_case("checked", (1, 2))

    def test_whole(self):
        self.run_case("whole", (1, 2, 3))

    def test_whole_words(self):
        self.run_case("whole_words", (2,))

    def test_interrupted(self):
        self.run_case("interrupted", (1, 3))

    def test_kept(self):
        self.run_case("kept", (1, 2))

    def test_interrupted_at_the_ends(self):
        self.run_case("interrupted_at_the_ends", (1, 2))


if __name__ == "__main__":
    unittest.main()
