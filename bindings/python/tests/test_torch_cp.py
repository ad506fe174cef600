# SPDX-License-Identifier: Apache-2.0
"""megadp.torch with context-parallel ranks: attention over a sequence that is cut, and a model trained with it, against torch's own of the
whole. The programs are in torch_cp_cases.py."""
import json
import os
import re
import unittest

import support

CASES = os.path.join(support.PACKAGE, "tests", "torch_cp_cases.py")


class TorchCp(unittest.TestCase):
    def run_case(self, ranks, case, *more):
        out = support.check_ended(self, support.run_ranks(ranks, [CASES, case, *more]))
        self.assertEqual(out.count(f"{case} done"), ranks, out)
        return out

    def test_equal(self):
        for ranks in (1, 2, 3, 4):
            with self.subTest(ranks=ranks):
                self.assertEqual(re.findall(r"(\d+) attentions", self.run_case(ranks, "equal")), ["50"] * ranks)

    def test_types(self):
        self.run_case(2, "types")

    def test_own_function(self):
        self.run_case(2, "own_function")

    def test_parts(self):
        for ranks in (2, 3):
            self.run_case(ranks, "parts")

    def test_refused(self):
        self.run_case(2, "refusals")

    def test_training(self):
        for ranks, form in ((2, "ring"), (2, "all_to_all"), (4, "auto")):
            found = [json.loads(line) for line in re.findall(r"found (\{.*\})", self.run_case(ranks, "training", form))]
            self.assertEqual(len(found), ranks)
            print(f"cp 2 x dp {ranks // 2}, {form}: {found[0]}", flush=True)
            for each in found:
                self.assertLess(each["last"], 0.9 * each["first"])
                self.assertLess(each["losses"], 1e-5)
                self.assertLess(each["parameters"], 1e-4)


if __name__ == "__main__":
    unittest.main()
