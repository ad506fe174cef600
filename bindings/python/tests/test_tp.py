# SPDX-License-Identifier: Apache-2.0
"""Tensor and sequence parallelism with numpy: every operator and layer against the same on one rank, whole. The programs are in
tp_cases.py."""
import importlib.util
import json
import re
import unittest
from unittest import mock

import megadp
import support
from megadp import _grid, tp

CASES = "tp_cases.py"
with open(support.ABI_JSON, encoding="utf-8") as abi_file:
    ABI = json.load(abi_file)


@unittest.skipIf(importlib.util.find_spec("numpy") is None, "numpy is not installed")
class Tp(unittest.TestCase):
    def run_case(self, ranks, case, *more, needs_products=True):
        reason = support.no_products() if needs_products else None
        if reason:
            self.skipTest(reason)
        return support.run_case(self, ranks, CASES, case, *more)

    def test_regions(self):
        self.run_case(3, "regions", needs_products=False)

    def test_linear(self):
        """Two ranks, and one, on which the same program is that of the whole layer."""
        for ranks in (1, 2):
            out = self.run_case(ranks, "linear")
            self.assertEqual(set(re.findall(r"(\d+) layers", out)), {"56"}, out)

    @unittest.skipIf(importlib.util.find_spec("ml_dtypes") is None, "ml_dtypes is not installed")
    def test_bf16(self):
        self.run_case(2, "bf16")

    def test_saved(self):
        self.run_case(2, "saved")

    def test_refused(self):
        self.run_case(2, "refused")

    def test_vocabulary(self):
        """Embeddings and cross-entropies against numpy's of the whole."""
        for ranks in (1, 2, 3, 4):
            out = self.run_case(ranks, "vocabulary", needs_products=False)
            self.assertEqual(set(re.findall(r"(\d+) of a vocabulary", out)), {"33"}, out)

    def test_vocabulary_refused(self):
        """And the seeds of a grid."""
        self.run_case(2, "vocabulary_refused", needs_products=False)

    def losses(self, ranks, tensor_parallel):
        """Whole, and with sequence parallelism."""
        out = self.run_case(ranks, "training", tensor_parallel)
        found = [json.loads(line) for line in re.findall(r"losses (\[.*\])", out)]
        self.assertEqual([len(losses) for losses in found], [20, 20], out)
        return found

    def test_training(self):
        """A layer of columns and one of rows in a buffer, 20 steps of AdamW."""
        whole, _ = self.losses(1, 1)
        self.assertLess(whole[-1], 0.7 * whole[0])
        for ranks in (2, 4):
            for sequence, cut in enumerate(self.losses(ranks, 2)):
                apart = max(abs(a - b) / abs(b) for a, b in zip(cut, whole))
                print(f"tp 2 x dp {ranks // 2}, sequence {bool(sequence)}: losses {cut[0]:.6f} to {cut[-1]:.6f}, at most {apart:.1e} apart",
                      flush=True)
                self.assertLess(apart, 1e-5)


class Options(unittest.TestCase):
    """Every field and flag of the C configurations can be given."""

    def given(self, struct, call):
        made, real = [], tp.sized

        def sized(kind, **fields):
            made.append(real(kind, **fields))
            return made[-1]

        with mock.patch.object(tp, "sized", sized), self.assertRaises(megadp.MegaDPError):
            call()
        config = next(config for config in made if type(config).__name__ == struct)
        self.assertEqual([name for name in ABI["structs"][struct]["fields"] if name != "reserved" and not getattr(config, name)], [])
        return config

    def check_flags(self, config, prefix):
        known = [value for name, value in ABI["enums"].items() if name.startswith(prefix)]
        self.assertTrue(known)
        self.assertEqual(config.flags, sum(known))

    def test_all_can_be_given(self):
        with megadp.Comm(backend="host") as comm, megadp.Buffer(comm, [("a", (2,)), ("w", (2, 2)), ("b", (2,))]) as buffer:
            self.check_flags(self.given("mdp_tp_region_config", lambda: tp.region(
                comm, "exchange", bytearray(1), bytearray(1), dim=1, to_dim=2, grad="partial", parts=[1], to_parts=[1],
                check_replicated=True)), "MDP_TP_REGION_CHECK")
            config = self.given("mdp_tp_linear_config", lambda: megadp.TpLinear(
                comm, "row", 2, 2, bias=True, sequence=True, gather_output=True, whole_input=True, transposed=True, blocks=[2],
                grad="replicated", buffer=buffer, weight="w", bias_param="b", dtype="bf16", check_replicated=True))
            self.check_flags(config, "MDP_TP_LINEAR_")
            self.assertEqual((config.weight, config.bias), (1, 2))
            self.check_flags(self.given("mdp_tp_embedding_config", lambda: tp.Embedding(
                comm, 2, grad="partial", sequence=True, check_replicated=True).forward(bytearray(1), bytearray(1))), "MDP_TP_EMBEDDING_")
            self.check_flags(self.given("mdp_tp_cross_entropy_config", lambda: tp.CrossEntropy(
                comm, 2, 1, 0.1, 0.1, check_replicated=True).forward(bytearray(1), bytearray(1))), "MDP_TP_CROSS_ENTROPY_")

    def test_words(self):
        """Of each enumeration all values, but that of a region which says nothing."""
        for words, prefix, first in ((tp.REGIONS, "MDP_TP_", 1), (tp.SPLITS, "MDP_TP_", 1), (tp.GRADS, "MDP_TP_GRAD_", 0)):
            for word, value in words.items():
                self.assertEqual(ABI["enums"][f"{prefix}{(word or 'unset').upper()}"], value)
            self.assertEqual(sorted(words.values()), list(range(first, first + len(words))))
        known = {name: value for name, value in ABI["enums"].items() if name.startswith("MDP_RANDOM_") and value}
        self.assertEqual({f"MDP_RANDOM_{word.upper()}": value for word, value in _grid.RANDOM.items()}, known)


if __name__ == "__main__":
    unittest.main()
