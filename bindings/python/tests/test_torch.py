# SPDX-License-Identifier: Apache-2.0
"""megadp.torch in one process: views, dropped gradients, types, refusals; DLPack between torch and the library."""
import gc
import unittest
import warnings

import torch

import megadp
import megadp.torch


class World(unittest.TestCase):
    def setUp(self):
        self.comm = megadp.Comm()
        self.addCleanup(self.comm.close)

    def wrap(self, module, **options):
        return megadp.torch.DataParallel(module, self.comm, **options)


class Arrays(World):
    def test_torch_takes_ours(self):
        buffer = megadp.Buffer(self.comm, [("w", (2, 3)), megadp.Param("h", (4,), torch.bfloat16), megadp.Param("e", (0,), "f16")])
        for take in (torch.from_dlpack, megadp.torch.as_tensor):
            taken = take(buffer.param("w"))
            taken.fill_(3)
            self.assertEqual(buffer.param("w").memoryview[1, 2], 3)
            buffer.param("w").memoryview[1, 2] = 4
            self.assertEqual((taken[1, 2].item(), taken.shape, taken.dtype), (4, (2, 3), torch.float32))
            self.assertEqual(take(buffer.param("h")).dtype, torch.bfloat16)
            self.assertEqual(take(buffer.param("e")).shape, (0,))

    def test_ours_take_torch(self):
        buffer = megadp.Buffer(self.comm, [("w", (2, 3)), megadp.Param("h", (4,), torch.bfloat16)])
        values = torch.arange(6.0).reshape(3, 2).T
        buffer.put("w", values)
        self.assertTrue(torch.equal(torch.from_dlpack(buffer.grad("w")), values))
        buffer.put("h", torch.arange(4, dtype=torch.bfloat16))
        out = torch.empty(4, dtype=torch.float64)
        buffer.write("h", torch.ones(4, dtype=torch.float16))
        buffer.read("h", out)
        self.assertEqual(out.tolist(), [1] * 4)
        with self.assertRaisesRegex(megadp.InvalidError, "grad"):
            buffer.put("w", torch.ones(2, 3, requires_grad=True))

    def test_views_outlive_the_buffer(self):
        comm = megadp.Comm()
        buffer = megadp.Buffer(comm, [("w", (2,))])
        views = [torch.from_dlpack(buffer.param("w")), megadp.torch.as_tensor(buffer.param("w"))]
        buffer.close()
        comm.close()
        del buffer, comm
        gc.collect()
        views[0].fill_(2)
        self.assertEqual(views[1].tolist(), [2, 2])


class Gradients(World):
    def step(self, model, optimizer, x):
        model(x).sum().backward()
        return {name: p.grad.clone() for name, p in model.module.named_parameters()}, optimizer.step()

    def test_dropped_views(self):
        """zero_grad(set_to_none=True) on the wrapped module: gradients are copied, views come back, and it is said once."""
        model = self.wrap(torch.nn.Linear(3, 2))
        optimizer = megadp.torch.ShardedAdamW(model)
        for step in range(3):
            model.module.zero_grad(set_to_none=True)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model(torch.ones(4, 3)).sum().backward()
            self.assertEqual(len(caught), 1 if step == 0 else 0, [str(warning.message) for warning in caught])
            for i, p in model.trained.items():
                self.assertEqual(p.grad.data_ptr(), model.storage.grad(i).data)
                self.assertEqual(p.grad.unique().tolist(), [4])
            optimizer.step()

    def test_zero_grad_is_expected(self):
        for owner in ("model", "optimizer"):
            for set_to_none in (True, False):
                model = self.wrap(torch.nn.Linear(3, 2))
                optimizer = megadp.torch.ShardedAdamW(model)
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    for _ in range(3):
                        {"model": model, "optimizer": optimizer}[owner].zero_grad(set_to_none)
                        model(torch.ones(4, 3)).sum().backward()
                        self.assertEqual(model.module.weight.grad.unique().tolist(), [4])
                        optimizer.step()

    def test_half_width(self):
        """bfloat16 parameters with gradients summed in float32, or in their own type."""
        for grad_dtype in ("f32", "same"):
            model = self.wrap(torch.nn.Linear(3, 2, dtype=torch.bfloat16), grad_dtype=grad_dtype)
            optimizer = megadp.torch.ShardedAdamW(model, lr=0.5, weight_decay=0.0)
            before = model.module.weight.clone()
            model(torch.ones(4, 3, dtype=torch.bfloat16)).sum().backward()
            self.assertEqual(model.storage.grad(0).dtype, {"f32": "float32", "same": "bfloat16"}[grad_dtype])
            optimizer.step()
            torch.testing.assert_close(model.module.weight, before - 0.5, rtol=0.01, atol=0.01)

    def test_not_finite(self):
        model = self.wrap(torch.nn.Linear(3, 2))
        optimizer = megadp.torch.ShardedAdamW(model)
        model(torch.full((1, 3), float("inf"))).sum().backward()
        with self.assertRaises(megadp.MegaDPError) as caught:
            optimizer.step()
        self.assertEqual((caught.exception.code, caught.exception.param), (megadp.Status.NUMERIC, 0))

    def test_clipping(self):
        model = self.wrap(torch.nn.Linear(3, 2))
        optimizer = megadp.torch.ShardedAdamW(model, max_grad_norm=0.5)
        model(torch.ones(4, 3)).sum().backward()
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
        optimizer.step()
        self.assertAlmostEqual(optimizer.report.grad_norm, norm, places=4)
        self.assertTrue(optimizer.report.clipped)

    def test_closure(self):
        model = self.wrap(torch.nn.Linear(3, 2))
        optimizer = megadp.torch.ShardedAdamW(model)

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(4, 3)).sum()
            loss.backward()
            return loss

        self.assertIsInstance(optimizer.step(closure), torch.Tensor)
        self.assertEqual(optimizer.report.step, 1)


class Refusals(World):
    def test_parameters_that_moved(self):
        model = self.wrap(torch.nn.Linear(3, 2))
        optimizer = megadp.torch.ShardedAdamW(model)
        model(torch.ones(1, 3)).sum().backward()
        model.module.bias.data = torch.zeros(2)
        with self.assertRaisesRegex(megadp.InvalidError, "'bias' has left"):
            optimizer.step()

    def test_fixed_values(self):
        model = self.wrap(torch.nn.Linear(3, 2))
        optimizer = megadp.torch.ShardedAdamW(model)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.param_groups[0]["betas"] = (0.5, 0.5)
        with self.assertRaisesRegex(megadp.InvalidError, "betas"):
            optimizer.step()

    def test_arguments(self):
        linear = torch.nn.Linear(3, 2)
        with self.assertRaisesRegex(megadp.InvalidError, "DataParallel"):
            megadp.torch.ShardedAdamW(linear)
        with self.assertRaisesRegex(megadp.InvalidError, "not trained parameters"):
            self.wrap(linear, param_groups=[{"params": [torch.nn.Parameter(torch.ones(1))]}])
        with self.assertRaisesRegex(megadp.InvalidError, "betas"):
            self.wrap(linear, param_groups=[{"params": list(linear.parameters()), "betas": (0.5, 0.5)}])
        with self.assertRaisesRegex(megadp.InvalidError, "params.0..dtype"):
            self.wrap(torch.nn.Linear(3, 2, dtype=torch.float64))
        with self.assertRaisesRegex(megadp.MegaDPError, "step count"):
            megadp.torch.ShardedAdamW(self.wrap(linear)).load_state_dict({})

    def test_loading_parameters(self):
        """load_state_dict writes into the library's memory; the masters of bfloat16 parameters follow."""
        model = self.wrap(torch.nn.Linear(3, 2, dtype=torch.bfloat16))
        optimizer = megadp.torch.ShardedAdamW(model, lr=0.5, weight_decay=0.0)
        model(torch.ones(4, 3, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        model.load_state_dict({"module.weight": torch.full((2, 3), 8.0), "module.bias": torch.zeros(2)})
        optimizer.zero_grad()
        model(torch.ones(4, 3, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        self.assertEqual(model.module.weight.unique().tolist(), [7.5])


if __name__ == "__main__":
    unittest.main()
