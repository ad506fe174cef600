# SPDX-License-Identifier: Apache-2.0
"""megadp.torch with tensor-parallel ranks: every operator, layer and a trained model against torch's own, whole. The programs are in
torch_tp_cases.py."""
import json
import re
import tempfile
import unittest

import support

CASES = "torch_tp_cases.py"
CHECKPOINT_CASES = "torch_tp_checkpoint_cases.py"


class TorchTp(unittest.TestCase):
    def run_case(self, ranks, case, *more, program=CASES):
        reason = support.no_products() if case not in ("regions", "vocabulary_values") else None
        if reason:
            self.skipTest(reason)
        return support.run_case(self, ranks, program, case, *more)

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

    def goes_on(self, dtype, tolerance, loads):
        with tempfile.TemporaryDirectory() as folder:
            def run(ranks, mode, tp):
                return json.loads(re.search(r"^(\{.*\})", self.run_case(ranks, "saved_training", folder, mode, tp, dtype, program=CHECKPOINT_CASES),
                                            re.M)[1])

            saved = run(2, "save", 2)
            self.assertEqual(run(2, "go_on", 2), saved)  # the same bits
            for ranks, tp in loads:
                with self.subTest(ranks=ranks, tp=tp):
                    found = run(ranks, "go_on", tp)
                    self.assertEqual(found["saved"], saved["saved"])
                    self.assertEqual(found["random"], 1)  # those of other ranks stay away
                    apart = max(abs(a - b) / abs(b) for a, b in zip(found["losses"], saved["losses"]))
                    print(f"saved at tp 2, loaded at tp {tp} x dp {ranks // tp}, {dtype}: losses at most {apart:.1e} apart", flush=True)
                    self.assertLess(apart, tolerance)

    def test_checkpoints(self):
        """save_checkpoint at tp 2, load_checkpoint at 1, 2 and 4."""
        self.goes_on("float32", 1e-5, ((1, 1), (4, 2), (4, 4)))
        self.goes_on("bfloat16", 5e-3, ((1, 1),))

    def test_module_buffers_that_differ(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_case(2, "unsaid", folder, program=CHECKPOINT_CASES)

    def tell(self, ranks, runs, out):
        for run in runs:
            first, last, apart = json.loads(re.search(rf"^{run} (\[.*\])", out, re.M)[1])
            print(f"tp 2 x dp {ranks // 2}, {run}: loss {first:.6f} to {last:.6f}, losses and norms at most {apart:.1e} apart", flush=True)


if __name__ == "__main__":
    unittest.main()
