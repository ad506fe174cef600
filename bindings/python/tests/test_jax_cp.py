# SPDX-License-Identifier: Apache-2.0
"""megadp.jax with context-parallel ranks, inside jit and outside: attention over a sequence that is cut, and a model trained with it, against
the same on whole arrays. The programs are in jax_cp_cases.py."""
import json
import os
import re
import unittest

import support

CASES = os.path.join(support.PACKAGE, "tests", "jax_cp_cases.py")


class JaxCp(unittest.TestCase):
    def run_case(self, ranks, case):
        out = support.check_ended(self, support.run_ranks(ranks, [CASES, case]))
        self.assertEqual(out.count(f"{case} done"), ranks, out)
        return out

    def test_equal(self):
        for ranks in (1, 2, 3, 4):
            with self.subTest(ranks=ranks):
                self.assertEqual(re.findall(r"(\d+) attentions", self.run_case(ranks, "equal")), ["28"] * ranks)

    def test_parts(self):
        for ranks in (2, 3):
            self.run_case(ranks, "parts")

    def test_refused(self):
        self.run_case(2, "refusals")

    def test_training(self):
        for ranks in (2, 4):
            found = [json.loads(line) for line in re.findall(r"found (\{.*\})", self.run_case(ranks, "training"))]
            self.assertEqual(len(found), ranks)
            print(f"cp 2 x dp {ranks // 2}: {found[0]}", flush=True)
            for each in found:
                self.assertLess(each["last"], 0.9 * each["first"])
                self.assertLess(each["losses"], 1e-5)
                self.assertLess(each["parameters"], 1e-4)


if __name__ == "__main__":
    unittest.main()
