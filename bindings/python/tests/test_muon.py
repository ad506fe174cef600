# SPDX-License-Identifier: Apache-2.0
"""The examples that train by Muon: the same losses on any number of ranks, and a sentence where tensor parallelism cuts the matrices."""
import importlib.util
import os
import unittest

import support

TEXT = os.path.join(support.ROOT, "LICENSE")
NEAR = 1e-5


def example(name):
    return os.path.join(support.PACKAGE, "examples", name)


class Muon(unittest.TestCase):
    def losses(self, name, ranks, *arguments):
        out = support.check_ended(self, support.run_ranks(ranks, [example(name), *arguments]))
        return [float(line.split()[-1]) for line in out.splitlines()]

    def same_on_any_number(self, name, *arguments, steps, fall):
        found = {ranks: self.losses(name, ranks, *arguments) for ranks in (1, 2, 4)}
        apart = max(abs(a - b) for ranks in (2, 4) for a, b in zip(found[1], found[ranks]))
        print(f"{name}: loss {found[1][0]:.4f} to {found[1][steps - 1]:.4f}; 1, 2 and 4 ranks at most {apart:.1e} apart", flush=True)
        self.assertEqual({len(losses) for losses in found.values()}, {len(found[1])})
        self.assertLess(apart, NEAR)
        self.assertGreater(found[1][0] - found[1][steps - 1], fall)

    def test_digits(self):
        self.same_on_any_number("digits_muon.py", support.DIGITS, steps=100, fall=2)

    @unittest.skipIf(importlib.util.find_spec("jax") is None, "jax is not installed")
    def test_gpt(self):
        self.same_on_any_number("gpt_muon.py", TEXT, "--steps", "40", steps=40, fall=1.5)

    def test_cut_matrices(self):
        """Refused, with the parameter and what would do; beside tensor parallelism whole ones are trained."""
        out = support.check_ended(self, support.run_source(2, f"""
            import dataclasses, sys
            sys.path.insert(0, {os.path.dirname(example('muon.py'))!r})
            import megadp, muon
            grid = megadp.Grid(megadp.Comm(timeout=60), tp=2)
            for placement in ("sharded", "replicated"):
                buffer = megadp.Buffer(grid, [dataclasses.replace(muon.param("w", (4, 6), True), placement=placement),
                                              dataclasses.replace(muon.param("b", (6,), False), placement="replicated")])
                try:
                    sys.stdout.write(f"{{len(muon.optimizers(buffer, 0.1))}} optimizers\\n")
                except ValueError as error:
                    sys.stdout.write(f"{{error}}\\n")
        """))
        self.assertEqual(out.count("parameter 'w' is cut over the tensor-parallel ranks, and Muon needs all of a matrix"), 2, out)
        self.assertEqual(out.count("2 optimizers"), 2, out)

    def test_orthogonal(self):
        """Singular values near 1, whatever they were, of tall and of wide matrices."""
        out = support.run_source(1, f"""
            import sys
            sys.path.insert(0, {os.path.dirname(example('muon.py'))!r})
            import numpy as np, muon
            for shape in ((30, 8), (8, 30)):
                u, s, v = np.linalg.svd(np.random.default_rng(1).standard_normal(shape).astype(np.float32), full_matrices=False)
                found = muon.orthogonal((u * np.geomspace(100, 1, 8, dtype=np.float32)) @ v)
                values = np.diag(u.T @ found @ v.T)
                assert 0.5 < values.min() and values.max() < 1.3, values
                assert np.abs(u.T @ found @ v.T - np.diag(values)).max() < 1e-4
        """)
        support.check_ended(self, out)


if __name__ == "__main__":
    unittest.main()
