#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One training step of a 28 M parameter MLP (6 x [768 -> 3072 -> 768], fp32, AdamW) on CPUs, each rank with a thread and rows of its own:
megadp.torch beside DistributedDataParallel with fused AdamW, with ZeroRedundancyOptimizer, and FSDP2; beside ranks side by side that say
nothing to each other ("apart"), which is what the machine can do without communication; and beside a rank alone on the machine. Every
contender has processes of its own, so that no allocator, cache or page of one helps another; they take turns, so that what else the machine
does meets them all. Prints a line of JSON for each: of every run the median step of its slowest rank, in milliseconds, the median of these,
and how far the losses are from DDP's.

usage: torch_step.py [--ranks 2] [--runs 5] [--steps 16] [--batch 64] [--only NAME ..]
PYTHONPATH and MEGADP_LIBRARY are as for the binding's tests.
77: no PyTorch. A contender that cannot be had is named, with the reason, and the others go on.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

BLOCKS, WIDTH, INNER = 6, 768, 3072
LR, DECAY = 1e-4, 0.01
WARM_UPS = 4
LONGEST_S = 240  # of one run
MISSING = 77


def fresh_model():
    import torch
    torch.manual_seed(1)
    layers = []
    for _ in range(BLOCKS):
        layers += [torch.nn.Linear(WIDTH, INNER), torch.nn.GELU(), torch.nn.Linear(INNER, WIDTH)]
    return torch.nn.Sequential(*layers)


def fused_adamw(model):
    import torch
    return torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY, fused=True)


def by_itself():
    model = fresh_model()
    return model, fused_adamw(model)


def with_ddp():
    from torch.nn.parallel import DistributedDataParallel
    model = DistributedDataParallel(fresh_model())
    return model, fused_adamw(model)


def with_zero():
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    model = DistributedDataParallel(fresh_model())
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=LR, weight_decay=DECAY, fused=True)


def with_fsdp2():
    """Each linear layer gathered when it is used, as the documentation of fully_shard does with the blocks of a transformer."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model = fresh_model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, fused_adamw(model)


def with_megadp(gather_in_forward=False):
    import megadp
    import megadp.torch
    model = megadp.torch.DataParallel(fresh_model(), megadp.Comm(), gather_in_forward=gather_in_forward)
    return model, megadp.torch.ShardedAdamW(model, lr=LR, weight_decay=DECAY)


def with_megadp_gathering():
    return with_megadp(gather_in_forward=True)


# How it is made, and whether it is one rank whatever number there is of the others'.
CONTENDERS = {"apart": (by_itself, False), "alone": (by_itself, True), "DDP": (with_ddp, False), "DDP + ZeRO": (with_zero, False),
              "FSDP2": (with_fsdp2, False), "megadp": (with_megadp, False), "megadp, gather_in_forward": (with_megadp_gathering, False)}
OWN_ROWS = ("apart", "alone")  # what they learn from is not what the others learn from


def train(model, optimizer, rank, ranks, options):
    """Milliseconds of each step, and its loss. The same data for all contenders."""
    import torch
    import torch.distributed as dist
    generator = torch.Generator().manual_seed(0)
    took, losses = [], []
    for number in range(WARM_UPS + options.steps):
        x = torch.randn(ranks, options.batch, WIDTH, generator=generator)[rank]
        y = x.flip(-1)
        if number == WARM_UPS:
            dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if number == WARM_UPS + options.steps - 1 and hasattr(model, "wait"):
            model.wait()  # what is still gathered belongs to the last step
        took.append((time.perf_counter() - begin) * 1e3)
        losses.append(loss.detach())
    return took[WARM_UPS:], torch.stack(losses).double()


def run_as_rank(options):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    try:
        model, optimizer = CONTENDERS[options.contender][0]()
    except ImportError as missing:
        print(f"skipped: {missing}", file=sys.stderr)
        return MISSING
    took, losses = train(model, optimizer, rank, ranks, options)
    slowest = torch.tensor([statistics.median(took)], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    dist.all_reduce(losses)
    if rank == 0:
        line = {"contender": options.contender, "torch": torch.__version__, "ms": slowest.item(), "losses": (losses / ranks).tolist()}
        print(json.dumps(line), flush=True)
    dist.destroy_process_group()
    del model, optimizer
    # Gloo's thread may still let go of the last tensors. If the interpreter is being finalized, it cannot have its lock, and aborts.
    os._exit(0)


def start(name, options):
    """A run of one contender: its figures, or why there are none."""
    ranks = 1 if CONTENDERS[name][1] else options.ranks
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), os.path.abspath(__file__),
               "--contender", name, "--steps", str(options.steps), "--batch", str(options.batch)]
    with subprocess.Popen(command, env=dict(os.environ, OMP_NUM_THREADS="1"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as started:
        try:
            out, err = started.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            started.terminate()  # torchrun then ends the ranks, which would go on without it
            started.communicate()
            return f"no end within {LONGEST_S} s"
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if started.returncode == 0 and lines:
        return json.loads(lines[-1])
    reasons = [line for line in err.splitlines() if line.startswith("skipped: ") or ("Error: " in line and "ChildFailedError" not in line)]
    reasons += [line for line in err.splitlines() if "(exitcode: " in line]
    return reasons[0].strip() if reasons else f"exit status {started.returncode}"


def report(name, runs, reference, options):
    of_runs = [run["ms"] for run in runs]
    line = {"contender": name, "ranks": 1 if CONTENDERS[name][1] else options.ranks, "median_ms": round(statistics.median(of_runs), 1),
            "runs_ms": [round(ms, 1) for ms in of_runs], "first_loss": runs[0]["losses"][0], "last_loss": runs[0]["losses"][-1],
            "torch": runs[0]["torch"]}
    if reference and name not in OWN_ROWS:
        line["loss_difference"] = max(abs(a - b) for run in runs for a, b in zip(run["losses"], reference[0]["losses"]))
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), metavar="NAME")
    parser.add_argument("--contender", choices=list(CONTENDERS), help=argparse.SUPPRESS)  # what the ranks are started with
    options = parser.parse_args()
    if options.contender:
        return run_as_rank(options)
    if subprocess.run([sys.executable, "-c", "import torch"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        print("skipped: no PyTorch", file=sys.stderr)
        return MISSING
    runs, failed = {name: [] for name in options.only}, {}
    for number in range(options.runs):
        turn = number % len(options.only)
        for name in options.only[turn:] + options.only[:turn]:
            if name in failed:
                continue
            outcome = start(name, options)
            if isinstance(outcome, str):
                failed[name] = outcome
            else:
                runs[name].append(outcome)
    for name in options.only:
        if name in failed:
            print(json.dumps({"contender": name, "failed": failed[name]}), flush=True)
        else:
            report(name, runs[name], runs.get("DDP"), options)
    return 1 if any(not reason.startswith("skipped: ") for reason in failed.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
