#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A collective by torch.distributed over Gloo, on memory of the caller's, at all sizes from 8 bytes to --mib, in f32: a line of JSON for
each, as `megadp bench collectives --sweep --json` prints and measures them (the mean time of calls one after another, on the slowest rank).

usage: torch_sweep.py --op all_reduce|reduce_scatter|all_gather [--ranks 2] [--mib 64]
77: no PyTorch, or its Gloo has no such collective.
"""
import argparse
import json
import os
import subprocess
import sys
import time

try:
    import torch
    import torch.distributed as dist
except ImportError as missing:
    print(f"skipped: {missing}", file=sys.stderr)
    sys.exit(77)

WARM_UPS, FEWEST_CALLS, MOST_CALLS, SIZE_S, LEAST_BYTES = 3, 3, 5000, 0.2, 8  # as in tools/bench_sweep.cc
OPS = ("all_reduce", "reduce_scatter", "all_gather")


class Collective:
    """One at one size; `expected` is what fill() leads to."""

    def __init__(self, op, count):
        self.rank, self.ranks, self.op = dist.get_rank(), dist.get_world_size(), op
        self.full, self.part = torch.zeros(count), torch.zeros(count // self.ranks)

    def call(self):
        if self.op == "all_reduce":
            dist.all_reduce(self.full)
        elif self.op == "all_gather":
            dist.all_gather_into_tensor(self.full, self.part)
        else:
            dist.reduce_scatter_tensor(self.part, self.full)

    def is_right(self):
        self.full.fill_(self.rank + 1)
        self.part.fill_(self.rank + 1)
        self.call()
        total = self.ranks * (self.ranks + 1) / 2
        if self.op == "all_gather":
            right = torch.equal(self.full.view(self.ranks, -1)[:, -1], torch.arange(1, self.ranks + 1).float())
        else:
            right = bool(((self.full if self.op == "all_reduce" else self.part) == total).all())
        wrong = most_of_all(0 if right else 1)
        self.full.zero_()  # sums of zeros never overflow
        self.part.zero_()
        return wrong == 0


def most_of_all(value):
    all_values = torch.tensor([float(value)], dtype=torch.float64)
    dist.all_reduce(all_values, op=dist.ReduceOp.MAX)
    return all_values.item()


def time_calls(collective, calls):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        collective.call()
    return most_of_all((time.perf_counter() - begin) / calls)


def run(options):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    size, all_right = LEAST_BYTES, True
    while size <= options.mib << 20:
        count = max(size // 4 // ranks, 1) * ranks
        collective = Collective(options.op, count)
        try:
            right = collective.is_right()
        except (RuntimeError, NotImplementedError) as missing:
            print(f"skipped: {options.op}: {missing}", file=sys.stderr)
            return 77
        first = time_calls(collective, WARM_UPS)
        took = time_calls(collective, int(min(max(SIZE_S / max(first, 1e-9), FEWEST_CALLS), MOST_CALLS)))
        if dist.get_rank() == 0:
            line = {"op": options.op, "dtype": "f32", "bytes": count * 4, "us": round(took * 1e6, 3), "right": right, "peer": "gloo"}
            print(json.dumps(line), flush=True)
        size, all_right = size * 2, all_right and right
    dist.destroy_process_group()
    return 0 if all_right else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", choices=OPS, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=int, default=64)
    options = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return run(options)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks), *sys.argv]
    return subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS="1"), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
