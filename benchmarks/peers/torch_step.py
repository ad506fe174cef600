#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One training step of a 28 M parameter MLP (6 x [768 -> 3072 -> 768], fp32, AdamW) on CPUs: megadp.torch beside DistributedDataParallel with
fused AdamW, with ZeroRedundancyOptimizer, and beside a rank by itself. All of them take turns within one run, a few steps each, so that a
machine that is busy is busy for all; each keeps a model of its own, and all see the same data. Prints a line of JSON for each:
median, lower and upper quartile of rank 0's step times in milliseconds, and how far the losses are from plain DDP's.

usage: torch_step.py [--ranks 2] [--rounds 8] [--steps 4] [--batch 64]      (PYTHONPATH, MEGADP_LIBRARY as for the binding's tests)
77: no PyTorch, or no megadp.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    import megadp
    import megadp.torch
except ImportError as missing:
    print(f"skipped: {missing}", file=sys.stderr)
    sys.exit(77)

BLOCKS, WIDTH, INNER = 6, 768, 3072
LR, DECAY = 1e-4, 0.01


def fresh_model():
    torch.manual_seed(1)
    layers = []
    for _ in range(BLOCKS):
        layers += [torch.nn.Linear(WIDTH, INNER), torch.nn.GELU(), torch.nn.Linear(INNER, WIDTH)]
    return torch.nn.Sequential(*layers)


def by_itself(_):
    model = fresh_model()
    return model, torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY, fused=True)


def with_ddp(_):
    model = DistributedDataParallel(fresh_model())
    return model, torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY, fused=True)


def with_zero(_):
    model = DistributedDataParallel(fresh_model())
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=LR, weight_decay=DECAY, fused=True)


def with_megadp(comm, gather_in_forward=False):
    model = megadp.torch.DataParallel(fresh_model(), comm, gather_in_forward=gather_in_forward)
    return model, megadp.torch.ShardedAdamW(model, lr=LR, weight_decay=DECAY)


def with_megadp_gathering(comm):
    return with_megadp(comm, gather_in_forward=True)


CONTENDERS = {"by itself": by_itself, "DDP": with_ddp, "DDP + ZeRO": with_zero, "megadp": with_megadp,
              "megadp, gather_in_forward": with_megadp_gathering}


class Turn:
    """One contender: its model, its times, its losses."""

    def __init__(self, make, comm):
        self.model, self.optimizer = make(comm)
        self.milliseconds, self.losses = [], []

    def step(self, x, y):
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.milliseconds.append((time.perf_counter() - begin) * 1e3)
        self.losses.append(loss.detach())

    def finish(self):
        """What is still gathered belongs to the last step."""
        begin = time.perf_counter()
        if hasattr(self.model, "wait"):
            self.model.wait()
        self.milliseconds[-1] += (time.perf_counter() - begin) * 1e3


def run(arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    with megadp.Comm() as comm:
        turns = {name: Turn(make, comm) for name, make in CONTENDERS.items()}
        for number in range(arguments.rounds + 1):
            data = torch.randn(arguments.steps, ranks, arguments.batch, WIDTH, generator=torch.Generator().manual_seed(number))
            for turn in turns.values():
                dist.barrier()
                for t in range(arguments.steps):
                    turn.step(data[t, rank], data[t, rank].flip(-1))
                turn.finish()
                if number == 0:
                    turn.milliseconds.clear()  # warming up
        report(turns, rank, ranks)
    dist.destroy_process_group()


def report(turns, rank, ranks):
    means = {}
    for name, turn in turns.items():
        losses = torch.stack(turn.losses).double()
        dist.all_reduce(losses)
        means[name] = losses / ranks
    for name, turn in turns.items():
        low, median, high = statistics.quantiles(turn.milliseconds, n=4)
        line = {"contender": name, "ranks": ranks, "steps": len(turn.milliseconds), "median_ms": round(median, 1),
                "quartiles_ms": [round(low, 1), round(high, 1)], "first_loss": means[name][0].item(), "last_loss": means[name][-1].item()}
        if name != "by itself":  # that one sees its own rows only
            line["loss_difference"] = (means[name] - means["DDP"]).abs().max().item()
        if rank == 0:
            print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    arguments = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        run(arguments)
        return 0
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(arguments.ranks), *sys.argv]
    return subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS="1"), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
