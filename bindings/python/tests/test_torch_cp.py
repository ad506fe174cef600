# SPDX-License-Identifier: Apache-2.0
"""megadp.torch with context-parallel ranks: attention over a sequence that is cut, and a model trained with it, against torch's own of the
whole. The programs are in torch_cp_cases.py."""
import re
import unittest

import support

CASES = "torch_cp_cases.py"


class TorchCp(unittest.TestCase):
    def run_case(self, ranks, case, *more):
        return support.run_case(self, ranks, CASES, case, *more)

    def test_equal(self):
        for ranks in (1, 2, 3, 4):
            with self.subTest(ranks=ranks):
                self.assertEqual(re.findall(r"(\d+) attentions", self.run_case(ranks, "equal")), ["50"] * ranks)

    def test_types(self):
        self.run_case(2, "types")

    @unittest.skipIf(support.DEVICE != "cpu", "its function is PyTorch's for CPUs")
    def test_own_function(self):
        self.run_case(2, "own_function")

    def test_parts(self):
        for ranks in (2, 3):
            self.run_case(ranks, "parts")

    def test_refused(self):
        self.run_case(2, "refusals")

    def test_training(self):
        for ranks, form in ((2, "ring"), (2, "all_to_all"), (4, "auto")):
            support.check_trained(self, self.run_case(ranks, "training", form), ranks, f"cp 2 x dp {ranks // 2}, {form}")


if __name__ == "__main__":
    unittest.main()
