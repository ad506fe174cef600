# SPDX-License-Identifier: Apache-2.0
"""megadp.torch with tensor-parallel ranks, where a script does what is harmless in one process or under DDP: right, or refused. The programs
are in torch_tp_habits_cases.py."""
import unittest

import support


class TorchTpHabits(unittest.TestCase):
    def run_case(self, case, ranks=2):
        reason = support.no_products()
        if reason:
            self.skipTest(reason)
        return support.run_case(self, ranks, "torch_tp_habits_cases.py", case)

    def test_parts_that_repeat(self):
        self.run_case("parts_that_repeat", 3)


for name in ("unlike_replicas", "alike_parts", "bias_of_parts", "places_in_any_order", "layers_of_their_own", "parts_of_another",
             "normalized_over_all", "buffers_of_their_own", "tied_too_late", "compiled", "optimizer_of_another", "reentrant",
             "model_of_whole_arrays", "wrong_words", "second_derivatives", "experts", "part_of_a_plain_dict",
             "part_of_each_kind", "loaded_on_one", "parts_of_permutations", "sums_of_bits", "buffers_that_take_no_copy", "unequal_blocks"):
    setattr(TorchTpHabits, f"test_{name}", lambda self, name=name: self.run_case(name))


if __name__ == "__main__":
    unittest.main()
