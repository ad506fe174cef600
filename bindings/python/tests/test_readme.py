# SPDX-License-Identifier: Apache-2.0
"""The README's examples, as printed: the first a program of its own, those of the frameworks with what they take for granted before."""
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

import support


BEFORE_TORCH = """\
import torch, megadp, megadp.torch
torch.manual_seed(1)
comm = megadp.Comm()
model = torch.nn.Linear(8, 1)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(2 + comm.rank))
batches, criterion = 300 * [(x, x.sum(1, keepdim=True))], torch.nn.MSELoss()
first = criterion(model(x), batches[0][1]).item()
"""
BEFORE_OPTIMIZERS = """\
import math, megadp, numpy as np
comm = megadp.Comm()
x = np.random.default_rng(comm.rank).standard_normal((64, 8), dtype=np.float32)
y = x @ np.arange(24, dtype=np.float32).reshape(8, 3) / 12 - 1
first = np.square(y).mean()
"""
BEFORE_JAX = """\
import jax, megadp, megadp.jax
comm = megadp.Comm()
params = {"b": jax.numpy.zeros(()), "w": jax.numpy.zeros(8)}
def loss(p, x, y):
    return ((x @ p["w"] + p["b"] - y) ** 2).mean()
x = jax.random.normal(jax.random.key(comm.rank), (64, 8))
batches = 300 * [(x, x.sum(1))]
first = float(loss(params, x, batches[0][1]))
"""
BEFORE_TENSOR_PARALLEL = """\
import torch, megadp, megadp.torch
comm = megadp.Comm()
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(2))
batches, criterion = 300 * [(x, x.sum(1, keepdim=True))], torch.nn.MSELoss()
first = batches[0][1].square().mean().item()
"""
BEFORE_CONTEXT_PARALLEL = """\
import torch, megadp, megadp.torch
torch.manual_seed(1)
comm, length = megadp.Comm(), 12
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.head, self.places = torch.nn.Linear(8, 24), torch.nn.Linear(16, 1), torch.nn.Embedding(length, 8)
    def forward(self, x, positions, attend):
        q, k, v = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in self.qkv(x + self.places(positions)).chunk(3, -1))
        return self.head(torch.cat([x, attend(q, k, v).transpose(1, 2).flatten(2)], -1))
model, criterion = Model(), torch.nn.MSELoss()
x = torch.randn(16, length, 8, generator=torch.Generator().manual_seed(2))
batches = 300 * [(x, x.sum(-1, keepdim=True))]
first = batches[0][1].square().mean().item()
"""
AFTER_TORCH = "print('fell by', first - loss.item())\n"
AFTER_OPTIMIZERS = "assert report.loss_scale > 1024\nprint('fell by', first - np.square(error / report.loss_scale).mean())\n"
AFTER_OWN_RULE = "print('fell by', first - np.square(error).mean())\n"
AFTER_JAX = "print('fell by', first - float(loss(training.read(), x, y)))\n"


class Readme(unittest.TestCase):
    def framework(self, name, before, after, entry="DataParallel"):
        """Both ranks see the loss fall. entry: what the example is known by."""
        for needed in re.findall(r"^import (\w+)", before, re.M):
            if importlib.util.find_spec(needed) is None:
                self.skipTest(f"{needed} is not installed")
        with open(os.path.join(support.PACKAGE, "README.md"), encoding="utf-8") as file:
            blocks = re.findall(r"```python\n(.*?)```", file.read(), re.S)
        program = before + next(block for block in blocks if f"{name}.{entry}(" in block) + after
        ended = support.run_ranks(2, ["-c", program])
        out = support.check_ended(self, ended)
        falls = [float(number) for number in re.findall(r"fell by (\S+)", out)]
        self.assertEqual(len(falls), 2, out)
        self.assertGreater(min(falls), 1.5, out)

    def test_torch(self):
        self.framework("megadp.torch", BEFORE_TORCH, AFTER_TORCH)

    def test_tensor_parallel(self):
        reason = support.no_products()
        if reason:
            self.skipTest(reason)
        self.framework("megadp.torch", BEFORE_TENSOR_PARALLEL, AFTER_TORCH, "ColumnParallelLinear")

    def test_context_parallel(self):
        self.framework("megadp.torch", BEFORE_CONTEXT_PARALLEL, AFTER_TORCH, "context_parallel_attention")

    def test_several_optimizers(self):
        self.framework("megadp.torch", BEFORE_TORCH, AFTER_TORCH, "GradScaler")

    def test_optimizers(self):
        self.framework("megadp", BEFORE_OPTIMIZERS, AFTER_OPTIMIZERS, "step_many")

    def test_own_rule(self):
        self.framework("optimizer", BEFORE_OPTIMIZERS, AFTER_OWN_RULE, "set_update")

    def test_jax(self):
        self.framework("megadp.jax", BEFORE_JAX, AFTER_JAX)

    def test_optax(self):
        self.framework("megadp.jax", "import optax\n" + BEFORE_JAX, AFTER_JAX.replace("training.read()", "params"), "Averaging")

    def test_first_example(self):
        with open(os.path.join(support.PACKAGE, "README.md"), encoding="utf-8") as file:
            text = file.read()
        program = re.search(r"```python\n(.*?)```", text, re.S)[1]
        command = shlex.split(re.search(r"```sh\n(.*?)```", text, re.S)[1])
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "train.py"), "w", encoding="utf-8") as file:
                file.write(program)
            self.assertEqual((command[0], "python"), (os.path.basename(support.PROGRAM), command[4]))
            path = os.pathsep.join([os.path.dirname(sys.executable), os.path.dirname(support.PROGRAM), os.environ["PATH"]])
            ended = subprocess.run(command, cwd=folder, env=support.environment(PATH=path), text=True, timeout=support.PATIENCE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out = support.check_ended(self, ended)
        numbers = [float(number) for number in re.findall(r"-?\d+\.\d*", out)]
        self.assertEqual(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 3], out)


if __name__ == "__main__":
    unittest.main()
