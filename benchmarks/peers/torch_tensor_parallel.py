#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A column-parallel linear layer and a row-parallel one after it, forward and backward with all gradients, on CPUs: megadp.torch's layers
beside Megatron-LM's f and g written by hand over torch.distributed (Gloo), torch.distributed.tensor's parallel styles, and nothing but the six
products, by PyTorch. All of them take turns within one run. Prints a line of JSON for each batch and contender: the median and quartiles over
the rounds, each counted as its slowest rank, and what of it is left after the products of the same round.

usage: torch_tensor_parallel.py [--ranks 2] [--rounds 9] [--features 4096] [--batches 16 64 512]   (PYTHONPATH, MEGADP_LIBRARY as for the
binding's tests)
77: no PyTorch, or no megadp.
"""
import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    import megadp
    import megadp.torch
except ImportError as missing:
    print(f"skipped: {missing}", file=sys.stderr)
    sys.exit(77)


class CopyTo(torch.autograd.Function):  # f
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class ReduceFrom(torch.autograd.Function):  # g
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class ByHand(torch.nn.Module):
    """Whole layers' parts of this rank; without `together`, their products alone."""

    def __init__(self, up, down, rank, ranks, together):
        super().__init__()
        self.up = torch.nn.Parameter(up.weight.detach().chunk(ranks, 0)[rank].clone())
        self.down = torch.nn.Parameter(down.weight.detach().chunk(ranks, 1)[rank].clone())
        self.together = together

    def forward(self, x):
        x = CopyTo.apply(x) if self.together else x
        y = torch.nn.functional.linear(torch.nn.functional.linear(x, self.up), self.down)
        return ReduceFrom.apply(y) if self.together else y


class Layers(torch.nn.Module):
    def __init__(self, up, down, comm):
        super().__init__()
        self.up = megadp.torch.ColumnParallelLinear.from_linear(up, comm)
        self.down = megadp.torch.RowParallelLinear.from_linear(down, comm, grad="replicated")

    def forward(self, x):
        return self.down(self.up(x))


def by_dtensor(up, down, ranks):
    layers = torch.nn.Sequential(copy.deepcopy(up), copy.deepcopy(down))
    return parallelize_module(layers, init_device_mesh("cpu", (ranks,)), {"0": ColwiseParallel(), "1": RowwiseParallel()})


def timed(model, x, grad):
    for parameter in model.parameters():
        parameter.grad = None
    x = x.detach().requires_grad_()
    dist.barrier()
    begin = time.perf_counter()
    y = model(x)
    y.backward(grad)
    took = torch.tensor([(time.perf_counter() - begin) * 1e3])
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.item(), y.detach(), x.grad


def run(arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks, width = dist.get_rank(), dist.get_world_size(), arguments.features
    torch.manual_seed(1)
    up, down = torch.nn.Linear(width, width, bias=False), torch.nn.Linear(width, width, bias=False)
    with megadp.Comm() as comm:
        models = {"products": ByHand(up, down, rank, ranks, False), "f and g over Gloo": ByHand(up, down, rank, ranks, True),
                  "torch.distributed.tensor": by_dtensor(up, down, ranks), "megadp": Layers(up, down, comm)}
        for batch in arguments.batches:
            x, grad = torch.randn(batch, width), torch.randn(batch, width)
            times = {name: [] for name in models}
            for number in range(arguments.rounds + 1):
                results = {}
                for name, model in models.items():
                    took, *results[name] = timed(model, x, grad)
                    if number > 0:  # the first warms up
                        times[name].append(took)
            for peer in ("f and g over Gloo", "torch.distributed.tensor"):
                for ours, theirs in zip(results["megadp"], results[peer]):
                    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
            if rank == 0:
                report(times, batch, ranks)
    dist.destroy_process_group()


def report(times, batch, ranks):
    for name, milliseconds in times.items():
        low, median, high = statistics.quantiles(milliseconds, n=4)
        left = statistics.median(took - bare for took, bare in zip(milliseconds, times["products"]))
        print(json.dumps({"batch": batch, "ranks": ranks, "contender": name, "median_ms": round(median, 2),
                          "quartiles_ms": [round(low, 2), round(high, 2)], "left_ms": round(left, 2)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64, 512])
    arguments = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        run(arguments)
        return 0
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(arguments.ranks), *sys.argv]
    return subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS="1"), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
