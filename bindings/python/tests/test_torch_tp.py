# SPDX-License-Identifier: Apache-2.0
"""megadp.torch with tensor-parallel ranks: every operator, layer and a trained model against torch's own, whole. The programs are in
torch_tp_cases.py."""
import json
import os
import re
import tempfile
import unittest

import support

CASES = os.path.join(support.PACKAGE, "tests", "torch_tp_cases.py")


class TorchTp(unittest.TestCase):
    def run_case(self, ranks, case, *more):
        reason = support.no_products() if case not in ("regions", "vocabulary_values") else None
        if reason:
            self.skipTest(reason)
        out = support.check_ended(self, support.run_ranks(ranks, [CASES, case, *map(str, more)]))
        self.assertEqual(out.count(f"{case} done"), ranks, out)
        return out

    def test_regions(self):
        self.run_case(2, "regions")

    def test_layers(self):
        out = self.run_case(2, "layers")
        self.assertEqual(set(re.findall(r"(\d+) layers", out)), {"38"}, out)

    def test_values(self):
        self.run_case(2, "values")

    def test_frozen(self):
        self.run_case(4, "frozen")

    def test_vocabulary(self):
        for ranks in (1, 2, 3):
            out = self.run_case(ranks, "vocabulary")
            self.assertEqual(set(re.findall(r"(\d+) of a vocabulary", out)), {"44"}, out)

    def test_vocabulary_values(self):
        self.run_case(2, "vocabulary_values")

    def test_vocabulary_training(self):
        """An embedding whose weight is the last layer's too, and one of its own."""
        for ranks, runs in ((2, ("whole", "sequence", "whole-untied")),
                            (4, ("whole", "sequence-gather", "whole-zero_0", "sequence-zero_2", "sequence-untied"))):
            with tempfile.TemporaryDirectory() as folder:
                out = self.run_case(ranks, "vocabulary_training", folder, *runs)
            self.tell(ranks, runs, out)

    def test_training(self):
        for ranks, runs in ((2, ("whole", "sequence")), (4, ("whole", "sequence", "sequence-gather", "whole-zero_0", "sequence-zero_2"))):
            with tempfile.TemporaryDirectory() as folder:
                out = self.run_case(ranks, "training", folder, *runs)
            self.tell(ranks, runs, out)

    def tell(self, ranks, runs, out):
        for run in runs:
            first, last, apart = json.loads(re.search(rf"^{run} (\[.*\])", out, re.M)[1])
            print(f"tp 2 x dp {ranks // 2}, {run}: loss {first:.6f} to {last:.6f}, losses and norms at most {apart:.1e} apart", flush=True)


if __name__ == "__main__":
    unittest.main()
