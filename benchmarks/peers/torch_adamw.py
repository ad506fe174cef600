#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's fused AdamW on one GPU, beside its own copy: one line of JSON, in the terms of `megadp bench step --json`. Bytes are what must be
read and written, each element once. With half-width parameters PyTorch keeps moments of the same width and no fp32 values, so that bytes per
second can be compared but times cannot.

usage: torch_adamw.py [--numel N] [--dtype f32|bf16|f16] [--rounds N]      77: no PyTorch, or no device
"""
import argparse
import json
import statistics
import sys

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}", file=sys.stderr)
    sys.exit(77)

WARM_UPS = 5


def timings(work, rounds):
    """Milliseconds of each round, by events of the stream."""
    for _ in range(WARM_UPS):
        work()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(rounds)]
    for begin, end in events:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in events]


def figures(moved, milliseconds):
    median = statistics.median(milliseconds)
    return {"bytes": moved, "min_ms": min(milliseconds), "median_ms": median, "bytes_per_s": moved / (median * 1e-3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numel", type=int, default=1 << 24)
    parser.add_argument("--dtype", choices=["f32", "bf16", "f16"], default="f32")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no device", file=sys.stderr)
        sys.exit(77)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[options.dtype]
    torch.manual_seed(1)
    param = torch.nn.Parameter(torch.randn(options.numel, device="cuda", dtype=dtype))
    param.grad = torch.randn(options.numel, device="cuda", dtype=dtype)
    adamw = torch.optim.AdamW([param], lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)
    step_bytes = options.numel * param.element_size() * 7  # gradient read; parameter and both moments read and written
    stepped = figures(step_bytes, timings(adamw.step, options.rounds))
    source = torch.randn(step_bytes // 8, device="cuda")
    target = torch.empty_like(source)
    copied = figures(source.numel() * 8, timings(lambda: target.copy_(source), options.rounds))
    print(json.dumps({"peer": f"PyTorch {torch.__version__}", "device": torch.cuda.get_device_name(), "numel": options.numel,
                      "dtype": options.dtype, "rounds": options.rounds, "adamw": stepped, "copy": copied,
                      "adamw_to_copy": stepped["bytes_per_s"] / copied["bytes_per_s"]}))


main()
