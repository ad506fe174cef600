# SPDX-License-Identifier: Apache-2.0
"""megadp.torch in one process: parameters that are gathered while the forward goes on, wherever they are used."""
import copy
import gc
import unittest
import unittest.mock

import torch

import megadp
import megadp.torch
from test_torch import World


class Mixed(torch.nn.Module):
    """Weights are used by other modules than their own, by a function, by the parent, twice, and from a list."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 8)
        self.b = torch.nn.Linear(8, 8)
        self.heads = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.tied = torch.nn.Linear(8, 8, bias=False)
        self.tied.weight = self.b.weight
        self.lstm = torch.nn.LSTM(8, 8, batch_first=True)
        self.scale = torch.nn.Parameter(torch.ones(8))
        self.kept = [torch.nn.Parameter(torch.ones(8))]
        self.register_parameter("last", self.kept[0])

    def forward(self, x):
        x = torch.nn.functional.linear(x, self.a.weight, self.a.bias)
        x = self.heads(x, x, x)[0] + self.tied(x)
        return self.lstm(x)[0] * self.kept[0] + self.b(x) * self.scale.data.mean()


class Gathering(World):
    def late(self, model):
        """From now on a step's parameters come when they are waited for, and are NaN until then."""
        storage, wait, values = model.storage, model.storage.wait, {}

        def hide():
            wait()
            with torch.no_grad():
                for i in model.trained:
                    memory = megadp.torch.as_tensor(storage.param(i))
                    values[i] = memory.clone()
                    memory.fill_(float("nan"))

        def waited(param=None, *, stream=0):
            for i in list(values) if param is None else [param]:
                if i in values:
                    megadp.torch.as_tensor(storage.param(i)).copy_(values.pop(i))

        storage.wait = waited
        return hide

    def test_every_use_waits(self):
        reference = None
        for gather in (False, True):
            torch.manual_seed(1)
            model = self.wrap(Mixed(), gather_in_forward=gather)
            optimizer = megadp.torch.ShardedAdamW(model, lr=0.1)
            hide = self.late(model) if gather else lambda: None
            losses = []
            for step in range(4):
                x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(step))
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                hide()
                losses.append(loss.item())
            reference = losses if reference is None else reference
            self.assertEqual(losses, reference)

    def test_uses_outside_the_forward(self):
        model = self.wrap(Mixed(), gather_in_forward=True)
        optimizer = megadp.torch.ShardedAdamW(model)
        hide = self.late(model)
        averaged = torch.optim.swa_utils.AveragedModel(model)
        for use in (lambda: [p.detach().clone() for p in model.parameters()], lambda: list(copy.deepcopy(model).parameters()),
                    lambda: list(model.state_dict().values()), lambda: [p.sum() for p in model.module.parameters()],
                    lambda: [torch.from_numpy(p.data.cpu().numpy()) for p in model.parameters()],
                    lambda: averaged.update_parameters(model) or list(averaged.module.parameters()),
                    lambda: list(copy.deepcopy(model.module).parameters()),
                    lambda: [torch.nn.Parameter(p) for p in model.parameters()],
                    lambda: [torch.nn.Parameter(p, False) for p in model.parameters()]):
            optimizer.zero_grad()
            model(torch.ones(1, 4, 8)).sum().backward()
            optimizer.step()
            hide()
            for values in use():
                self.assertTrue(bool(values.isfinite().all()))
            self.assertIs(type(model.module.a.weight), torch.nn.Parameter)
        optimizer.step()
        weight, frozen = torch.nn.Parameter(model.module.a.weight), torch.nn.Parameter(model.module.b.weight, requires_grad=False)
        self.assertEqual([(type(p), p.requires_grad, p.is_leaf) for p in (weight, frozen)],
                         [(torch.nn.Parameter, True, True), (torch.nn.Parameter, False, True)])

    def test_the_model_is_gone(self):
        """A module that is used on when nobody refers to the model and its optimizer any more: its values were taken as they were."""
        module = Mixed()
        model = self.wrap(module, gather_in_forward=True)
        optimizer = megadp.torch.ShardedAdamW(model)
        hide = self.late(model)
        model(torch.ones(1, 4, 8)).sum().backward()
        optimizer.step()
        hide()
        del model, optimizer, hide
        gc.collect()
        self.assertTrue(bool(module.a.weight.isfinite().all()))
        self.assertTrue(bool(module(torch.ones(1, 4, 8)).isfinite().all()))
        for p in module.parameters():
            self.assertEqual((type(p), "_megadp_gathering" in vars(p)), (torch.nn.Parameter, False))

    def test_interrupted(self):
        """A wait that a signal's handler ends is not over: the next use waits again."""
        model = self.wrap(Mixed(), gather_in_forward=True)
        optimizer = megadp.torch.ShardedAdamW(model)
        hide = self.late(model)
        model(torch.ones(1, 4, 8)).sum().backward()
        optimizer.step()
        hide()
        with unittest.mock.patch.object(model.storage, "wait", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            model.module.a.weight.sum()
        self.assertTrue(bool(model.module.a.weight.isfinite().all()))

    def test_those_that_cannot_be_awaited(self):
        """Compiled layers, and parameters of a class of their own: the step waits, also for who uses the wrapped module directly."""
        class Own(torch.nn.Parameter):
            pass

        def compiled(module):
            module[1] = torch.compile(module[1], backend="eager")
            return {0, 1, 2, 3}

        def subclass(module):
            module[0].weight = Own(module[0].weight.detach().clone())
            return {0}

        for change in (compiled, subclass):
            module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
            expected = change(module)
            model = self.wrap(module, gather_in_forward=True)
            optimizer = megadp.torch.ShardedAdamW(model)
            waited, wait = [], model.storage.wait
            model.storage.wait = lambda number, *, stream=0: waited.append(number) or wait(number, stream=stream)
            model(torch.ones(4, 3)).sum().backward()
            waited.clear()
            optimizer.step()
            self.assertEqual(set(waited), expected)


if __name__ == "__main__":
    unittest.main()
