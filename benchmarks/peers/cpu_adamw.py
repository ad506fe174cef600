#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""AdamW by one process on the processors, of one array of f32 with f32 moments, and after each step a copy of the parameter to bf16, timed
apart: the peers of `megadp bench step --param-dtype bf16`, whose update writes the bf16 parameter itself. One line of JSON.

usage: cpu_adamw.py torch|deepspeed [--numel 67108864] [--threads 1] [--rounds 7]
torch: torch.optim.AdamW(fused=True); deepspeed: DeepSpeedCPUAdam, which builds its op with ninja when it is first used.
77: the library is not installed, or its op cannot be built.
"""
import argparse
import json
import os
import statistics
import sys
import time

WARM_UPS = 3
SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}  # as `megadp bench step`


def make_optimizer(name, param):
    import torch
    if name == "torch":
        return torch.optim.AdamW([param], fused=True, **SETTINGS), f"PyTorch {torch.__version__}"
    import deepspeed
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    return DeepSpeedCPUAdam([param], **SETTINGS), f"DeepSpeed {deepspeed.__version__}"


def milliseconds(work):
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3


def measure(options):
    import torch
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    param = torch.nn.Parameter(torch.rand(options.numel))
    param.grad = torch.rand(options.numel)
    half = torch.zeros(options.numel, dtype=torch.bfloat16)
    optimizer, peer = make_optimizer(options.contender, param)
    steps, copies = [], []
    for number in range(options.rounds + WARM_UPS):
        step, copy = milliseconds(optimizer.step), milliseconds(lambda: half.copy_(param.detach()))
        if number >= WARM_UPS:
            steps.append(step)
            copies.append(copy)
    both = [step + copy for step, copy in zip(steps, copies)]
    return {"peer": peer, "numel": options.numel, "threads": options.threads, "rounds": options.rounds,
            "step_ms": round(statistics.median(steps), 3), "copy_ms": round(statistics.median(copies), 3),
            "step_and_copy_ms": round(statistics.median(both), 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=["torch", "deepspeed"])
    parser.add_argument("--numel", type=int, default=1 << 26)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # before OpenMP's runtime is loaded
    try:
        figures = measure(options)
    except (ImportError, RuntimeError) as missing:
        print(f"skipped: {missing}", file=sys.stderr)
        return 77
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
