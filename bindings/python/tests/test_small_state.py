# SPDX-License-Identifier: Apache-2.0
"""State in bf16 and bf16 parameters without masters: nearest with the bits of an emulation, stochastic by the seed alone, without a bias;
and how torch's optimizers have them."""
import importlib.util
import tempfile
import unittest

import numpy as np

import megadp
from rule_emulation import STATE, rounded, step

SIZE = 4096


class Small(unittest.TestCase):
    def setUp(self):
        self.comm = megadp.Comm(backend="host")
        self.addCleanup(self.comm.close)

    def job(self, dtype="f32", **options):
        buffer = megadp.Buffer(self.comm, [megadp.Param("w", (SIZE,), dtype)])
        buffer.write("w", np.ones(SIZE, np.float32))
        return buffer, megadp.Optimizer(buffer, **options)

    def steps(self, buffer, optimizer, gradients):
        for g in gradients:
            buffer.put("w", g)
            optimizer.step()
        out = np.empty(SIZE, np.float32)
        buffer.read("w", out)
        return out

    def gradients(self, count=10):
        return np.random.default_rng(3).standard_normal((count, SIZE)).astype(np.float32)

    def test_nearest(self):
        for rule in (rule for rule in STATE if STATE[rule]):
            with self.subTest(rule=rule):
                found = self.steps(*self.job(rule=rule, lr=0.01, weight_decay=0.1, state_dtype="bf16"), self.gradients())
                w, state = np.ones(SIZE, np.float32), [np.zeros(SIZE, np.float32) for _ in STATE[rule]]
                betas = (0.9, 0.99) if rule == "lion" else (0.9, 0.999)
                for t, g in enumerate(self.gradients(), 1):
                    w, state = step(rule, w, state, g, t, 0.01, 0.1, betas=betas)
                    state = [rounded(each, "bf16") for each in state]
                np.testing.assert_array_equal(found, w)

    def test_without_masters(self):
        """Steps of a sixteenth of what a bf16 near 1 tells apart: by nearest rounding nothing would move."""
        options = dict(rule="sgd", lr=2**-12, no_master=True)
        ones = np.ones((64, SIZE), np.float32)
        found = self.steps(*self.job("bf16", seed=1, **options), ones)
        self.assertAlmostEqual(float(found.mean()), 1 - 64 * 2**-12, delta=4 * 0.5 * 2**-8 * (64 / 16 * SIZE) ** 0.5 / SIZE)
        np.testing.assert_array_equal(found, self.steps(*self.job("bf16", seed=1, **options), ones))
        self.assertTrue((found != self.steps(*self.job("bf16", seed=2, **options), ones)).any())

    def test_what_is_kept(self):
        _, optimizer = self.job("bf16", state_dtype="bf16", stochastic_state=True, no_master=True, seed=2**64 - 1)
        info = optimizer.info()
        self.assertEqual(info["state"], [{"name": "exp_avg", "dtype": "bf16"}, {"name": "exp_avg_sq", "dtype": "bf16"}])
        self.assertEqual(info["seed"], 2**64 - 1)
        self.assertEqual(optimizer.state("w", "exp_avg").dtype, "bfloat16")
        with self.assertRaisesRegex(megadp.InvalidError, "AdamW without masters keeps 'exp_avg' and 'exp_avg_sq'"):
            optimizer.state("w", "master")

    def test_refused(self):
        for options, told in ((dict(state_dtype="f16"), "state_dtype"), (dict(stochastic_state=True), "STOCHASTIC_STATE"),
                              (dict(seed=1), "config.seed is 1"), (dict(seed=-1), "seed"), (dict(rule="sgd", state_dtype="bf16"), "SGD keeps")):
            with self.subTest(options=options), self.assertRaisesRegex(megadp.MegaDPError, told):
                self.job(**options)


@unittest.skipIf(importlib.util.find_spec("torch") is None, "torch is not installed")
class Torch(unittest.TestCase):
    """state_dict is float32, whatever is kept, and goes on from there."""

    SMALL = dict(state_dtype="bf16", stochastic_state=True, no_master=True, seed=7)

    def trained(self, steps, state=None, **options):
        import torch

        import megadp.torch

        torch.manual_seed(1)
        module = torch.nn.Linear(16, 16).to(torch.bfloat16)
        model = megadp.torch.DataParallel(module, self.comm)
        optimizer = megadp.torch.ShardedAdamW(model, lr=0.01, **options)
        if state is not None:
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        for _ in range(steps):
            model(torch.ones(4, 16, dtype=torch.bfloat16)).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.state_dict(), optimizer.state_dict()

    def setUp(self):
        self.comm = megadp.Comm(backend="host")
        self.addCleanup(self.comm.close)

    def test_goes_on(self):
        import torch

        model, state = self.trained(3, **self.SMALL)
        for entry in state["state"].values():
            self.assertEqual(sorted(entry), ["exp_avg", "exp_avg_sq", "step"])
            self.assertEqual(entry["exp_avg"].dtype, torch.float32)
            self.assertTrue(torch.equal(entry["exp_avg"], entry["exp_avg"].bfloat16().float()))
        copies = {name: value.clone() for name, value in model.items()}
        later, _ = self.trained(2, (copies, state), **self.SMALL)
        whole, _ = self.trained(5, **self.SMALL)
        for name in whole:
            self.assertTrue(torch.equal(later[name], whole[name]), name)
        self.trained(1, (copies, self.trained(3)[1]), **self.SMALL)  # with masters, which are left

    def test_checkpoint(self):
        import torch

        import megadp.torch

        with tempfile.TemporaryDirectory() as directory:
            for steps in (2, 3):
                torch.manual_seed(1)
                model = megadp.torch.DataParallel(torch.nn.Linear(16, 16).to(torch.bfloat16), self.comm)
                optimizer = megadp.torch.ShardedAdamW(model, lr=0.01, **self.SMALL)
                if steps == 3:
                    megadp.torch.load_checkpoint(directory, model, optimizer)
                for _ in range(steps):
                    model(torch.ones(4, 16, dtype=torch.bfloat16)).float().square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                if steps == 2:
                    megadp.torch.save_checkpoint(directory, model, optimizer)
            whole, _ = self.trained(5, **self.SMALL)
            for name, value in model.state_dict().items():
                self.assertTrue(torch.equal(value, whole[name]), name)


if __name__ == "__main__":
    unittest.main()
