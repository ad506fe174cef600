# SPDX-License-Identifier: Apache-2.0
"""The update rules: the same bits as an emulation on 1, 2 and 3 ranks, and no further from the papers' formulas than torch's own."""
import importlib.util
import os
import unittest

import numpy as np

import megadp
import support
from rule_emulation import STATE, step

HERE = os.path.dirname(os.path.abspath(__file__))
FURTHER = 1.2  # than torch's


class Bits(unittest.TestCase):
    def run_cases(self, ranks, *cases):
        environment = support.environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        out = support.check_ended(self, support.run_ranks(ranks, [os.path.join(HERE, "rule_cases.py"), *cases], env=environment))
        return sorted(out.splitlines())

    def test_steps(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                self.assertEqual(self.run_cases(ranks, "steps"), sorted([f"steps {rule} ok" for rule in STATE] * ranks))

    def test_together(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                self.assertEqual(len(self.run_cases(ranks, "together")), 3 * ranks)

    def test_clipped_and_scaled(self):
        for ranks in (1, 3):
            with self.subTest(ranks=ranks):
                self.assertEqual(len(self.run_cases(ranks, "clipped", "scaled")), 2 * 7 * ranks)


class Formulas(unittest.TestCase):
    """200 steps from the same values with the same gradients."""

    SIZE, STEPS, RATES = 4096, 200, (1e-2, 1e-3, 3e-3, 1e-4)
    VALUES = dict(weight_decay=0.02, betas=(0.9, 0.99), eps=1e-8, momentum=0.9)

    def setUp(self):
        random = np.random.default_rng(5)
        self.start = random.standard_normal(self.SIZE).astype(np.float32)
        self.grads = (random.standard_normal((self.STEPS, self.SIZE)) * np.exp(random.standard_normal((self.STEPS, 1)))).astype(np.float32)
        self.rates = [self.RATES[t * len(self.RATES) // self.STEPS] for t in range(self.STEPS)]

    def exactly(self, rule):
        w, state = self.start.astype(np.float64), [np.zeros(self.SIZE) for _ in STATE[rule]]
        for t, (lr, g) in enumerate(zip(self.rates, self.grads), 1):
            w, state = step(rule, w, state, g.astype(np.float64), t, lr, dtype=np.float64, **self.VALUES)
        return w

    def ours(self, rule):
        options = {"betas": ("adam", "adamw", "lion"), "eps": ("adam", "adamw"), "momentum": ("sgd_momentum", "sgd_nesterov")}
        values = {name: value for name, value in self.VALUES.items() if rule in options.get(name, (rule,))}
        with megadp.Comm(backend="host") as comm:
            buffer = megadp.Buffer(comm, {"w": (self.SIZE,)})
            buffer.write("w", self.start)
            optimizer = megadp.Optimizer(buffer, rule=rule, **values)
            for lr, g in zip(self.rates, self.grads):
                buffer.put("w", g)
                optimizer.step(lr=lr)
            return buffer.param("w").numpy().astype(np.float64)

    def torchs(self, rule):
        import torch

        torch.set_num_threads(1)
        p = torch.nn.Parameter(torch.from_numpy(self.start.copy()))
        values, optim = self.VALUES, torch.optim
        adam = dict(betas=values["betas"], eps=values["eps"], weight_decay=values["weight_decay"], foreach=False)
        sgd = dict(weight_decay=values["weight_decay"], foreach=False, momentum=0.0 if rule == "sgd" else values["momentum"])
        optimizer = {"adam": lambda: optim.Adam([p], **adam), "adamw": lambda: optim.AdamW([p], **adam)}.get(
            rule, lambda: optim.SGD([p], lr=0.1, nesterov=rule == "sgd_nesterov", **sgd))()
        for lr, g in zip(self.rates, self.grads):
            optimizer.param_groups[0]["lr"] = lr
            p.grad = torch.from_numpy(g.copy())
            optimizer.step()
        return p.detach().numpy().astype(np.float64)

    def distance(self, rule, found):
        return float(np.sqrt(np.mean(np.square(found - self.exactly(rule)))))

    @unittest.skipIf(importlib.util.find_spec("torch") is None, "torch is not installed")
    def test_beside_torch(self):
        for rule in STATE:
            if rule == "lion":
                continue
            with self.subTest(rule=rule):
                mine, theirs = self.distance(rule, self.ours(rule)), self.distance(rule, self.torchs(rule))
                print(f"{rule}: {mine:.2e} from the formula in float64, torch's {theirs:.2e}", flush=True)
                self.assertLess(theirs, 1e-4)
                self.assertLessEqual(mine, FURTHER * theirs)

    def test_lion(self):
        """Where a mean is so near to zero that rounding decides on its sign, an element is two steps off; there is none here."""
        found = self.distance("lion", self.ours("lion"))
        print(f"lion: {found:.2e} from the formula in float64", flush=True)
        self.assertLess(found, 1e-5)


if __name__ == "__main__":
    unittest.main()
