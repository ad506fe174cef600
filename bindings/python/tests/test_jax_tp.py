# SPDX-License-Identifier: Apache-2.0
"""megadp.jax with tensor-parallel ranks, inside jit and outside: against the same on whole arrays. The programs are in jax_tp_cases.py."""
import json
import os
import re
import unittest

import support

CASES = os.path.join(support.PACKAGE, "tests", "jax_tp_cases.py")


class JaxTp(unittest.TestCase):
    def run_case(self, ranks, case, *more, needs_products=True):
        reason = support.no_products() if needs_products else None
        if reason:
            self.skipTest(reason)
        out = support.check_ended(self, support.run_ranks(ranks, [CASES, case, *map(str, more)]))
        self.assertEqual(out.count(f"{case} done"), ranks, out)
        return out

    def test_regions(self):
        self.run_case(2, "regions", needs_products=False)

    def test_layers(self):
        out = self.run_case(2, "layers")
        self.assertEqual(set(re.findall(r"(\d+) layers", out)), {"28"}, out)

    def test_vocabulary(self):
        for ranks in (1, 2):
            out = self.run_case(ranks, "vocabulary", needs_products=False)
            self.assertEqual(set(re.findall(r"(\d+) of a vocabulary", out)), {"19"}, out)

    def test_order(self):
        self.run_case(3, "order", needs_products=False)

    def test_training(self):
        """Whole, and with sequence parallelism, against one rank."""
        def losses(ranks, size):
            found = [json.loads(line) for line in re.findall(r"losses (\[.*\])", self.run_case(ranks, "training", size))]
            self.assertEqual([len(each) for each in found], [20, 20])
            return found

        whole, _ = losses(1, 1)
        self.assertLess(whole[-1], 0.8 * whole[0])
        for ranks in (2, 4):
            for sequence, cut in enumerate(losses(ranks, 2)):
                apart = max(abs(a - b) / abs(b) for a, b in zip(cut, whole))
                print(f"tp 2 x dp {ranks // 2}, sequence {bool(sequence)}: losses {cut[0]:.6f} to {cut[-1]:.6f}, at most {apart:.1e} apart",
                      flush=True)
                self.assertLess(apart, 1e-5)


if __name__ == "__main__":
    unittest.main()
