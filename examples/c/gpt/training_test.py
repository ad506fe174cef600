#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains small models over 1 to 4 ranks and compares what the example reports.

  ranks        the losses of 1, 2, 3 and 4 ranks agree to 1e-4 over 50 steps in which the loss falls by a nat
  ways         sharding, instances, overlap and bucket size change nothing: the parameters have the same bits after every step (f32, bf16)
  precision    bf16 and f16 learn as f32 does; microbatches give the loss of the whole batch
  report       what --json promises is there, and makes sense; the demo has at least 6 buckets

usage: training_test.py GPT MEGADP
"""
import sys

from runs import TEXT, apart, check, end, reports_of, run

SMALL = [*TEXT, "--layers", "2", "--width", "32", "--heads", "2", "--context", "32", "--batch", "24", "--steps", "50", "--timeout", "60"]


def train(ranks, *options, model=SMALL):
    return reports_of(run(model, ranks, *options))


def close(a, b, limit):
    return abs(a - b) <= limit * abs(b)


def compare_ranks():
    runs = {ranks: train(ranks) for ranks in (1, 2, 3, 4)}
    fall = runs[1][1][0]["loss"] - runs[1][1][-1]["loss"]
    check(fall >= 1, f"the loss falls by {fall}, not by a nat")
    for ranks, (_, steps, summary) in runs.items():
        check(apart(steps, runs[1][1]) <= 1e-4, f"the losses of {ranks} ranks are {apart(steps, runs[1][1])} from those of one")
        check(close(summary["heldout_loss"], runs[1][2]["heldout_loss"], 1e-4), f"the held-out loss of {ranks} ranks differs from one's")
        check_report(ranks, *runs[ranks])
    again = train(3)
    check(hashes(again) == hashes(runs[3]), "the same run twice has other bits")
    other = train(3, "--seed", "2")
    check(hashes(other)[0] != hashes(runs[3])[0], "another seed has the same bits")
    start, _, _ = train(2, "--steps", "1", model=TEXT)
    check(start["plan"]["buckets"] >= 6, f"the demo has {start['plan']['buckets']} buckets")
    worst = max(apart(steps, runs[1][1]) for _, steps, _ in runs.values())
    print(f"1 to 4 ranks: the loss falls by {fall:.3f}; largest relative difference {worst:.1e}")
    return runs


def check_report(ranks, start, steps, summary):
    config, plan = start["config"], start["plan"]
    check(config["nranks"] == ranks and config["tokens_per_rank"] == 24 * 32 // ranks, f"config says {config}")
    check([step["step"] for step in steps] == list(range(1, 51)), f"the steps of {ranks} ranks are not 1 to 50")
    for step in steps:
        sound = all(step[key] >= 0 for key in ("comm_ms", "exposed_ms")) and step["tokens_per_s"] > 0 and step["grad_norm"] > 0
        check(sound and len(step["param_hash"]) == 16, f"step {step}")
    check(len({step["param_hash"] for step in steps}) == 50, f"{ranks} ranks: some steps changed no parameter")
    check(summary["buckets"] == 50 * plan["buckets"], f"{summary['buckets']} buckets launched, {plan['buckets']} planned for each of 50 steps")
    check(summary["launched_in_backward"] > 0, "no bucket was launched in backward")
    check(summary["loss_first"] == steps[0]["loss"] and summary["loss_last"] == steps[-1]["loss"], "first or last loss")
    check(0 < summary["heldout_loss"] < 5 and 2 < summary["bigram_loss"] < 3 and len(summary["sample"]) > 100, f"summary {summary}")
    check(all(0 < rank["own_bytes"] < rank["share_bytes"] <= rank["peak_bytes"] for rank in summary["memory"]["ranks"]), f"memory {summary['memory']}")
    check(len(summary["memory"]["ranks"]) == ranks and summary["memory"]["plan_bytes"] > 0, f"memory {summary['memory']}")


def hashes(run):
    return [step["param_hash"] for step in run[1]]


def compare_ways(dtype):
    common = ["--clip", "0", "--dtype", dtype]
    base = train(2, *common)
    for way in (["--no-shard"], ["--no-overlap"], ["--bucket-size", "1000"], ["--bucket-size", "all"],
                ["--no-shard", "--no-overlap", "--bucket-size", "5000"], ["--zero-2"], ["--zero-2", "--bucket-size", "1000"],
                ["--zero-2", "--no-overlap"], ["--whole"], ["--whole", "--bucket-size", "1000"], ["--instances", "2"],
                ["--zero-2", "--instances", "2"], ["--whole", "--instances", "2"]):
        other = train(2, *common, *way)
        same = [a == b for a, b in zip(hashes(base), hashes(other), strict=True)]
        check(all(same), f"{dtype} with {' '.join(way)}: other bits from step {same.index(False) + 1 if not all(same) else 0} on")
        if "--instances" in way:
            state = [run[0]["plan"]["state_bytes"] for run in (base, other)]
            check("--whole" in way or state[1] == 2 * state[0], f"{' '.join(way)}: {state[1]} bytes of state, {state[0]} with one instance")
        if "--no-overlap" in way:
            check(other[2]["launched_in_backward"] == 0, f"{' '.join(way)}: buckets were launched in backward")
    rounded = hashes(train(2, *common, "--bf16-wire"))
    check(rounded[0] != hashes(base)[0] or dtype == "f16", f"{dtype}: --bf16-wire rounds nothing")
    for way in (["--no-shard"], ["--bucket-size", "1000"], ["--bucket-size", "all"], ["--no-overlap"], ["--zero-2"], ["--whole"], ["--instances", "2"],
                ["--check-finite"]):
        check(hashes(train(2, *common, "--bf16-wire", *way)) == rounded, f"{dtype}: other bits with --bf16-wire {' '.join(way)}")
    kept = hashes(train(2, *common, "--bf16-wire", "--error-feedback"))
    check(kept[0] == rounded[0] and (kept[-1] != rounded[-1] or dtype == "f16"), f"{dtype}: --error-feedback changes nothing, or the first step")
    check(hashes(train(2, *common, "--bf16-wire", "--error-feedback", "--no-shard")) == kept, f"{dtype}: other bits with --error-feedback --no-shard")
    # Without the hash that waits for all parameters, they arrive while the next forward runs.
    for more in ([], ["--microbatches", "3"], ["--bucket-size", "1000"]):
        waiting, flowing = train(2, *common, *more), train(2, *common, *more, "--no-hash")
        check([step["loss"] for step in flowing[1]] == [step["loss"] for step in waiting[1]], f"{dtype} {more}: other losses with --no-hash")
        same = flowing[2]["param_hash"] == waiting[2]["param_hash"] == hashes(waiting)[-1]
        check(same and "param_hash" not in flowing[1][0], f"{dtype} {more}: other parameters with --no-hash")
    return base


def compare_precision(whole):
    for ranks, parts in ((1, 4), (2, 3), (4, 2)):
        losses = train(ranks, "--microbatches", str(parts))[1]
        check(apart(losses, whole[1]) <= 1e-4, f"{parts} microbatches on {ranks} ranks: losses {apart(losses, whole[1])} from the whole batch's")
    for dtype in ("bf16", "f16"):
        runs = [train(ranks, "--dtype", dtype) for ranks in (1, 2)]
        for _, steps, summary in runs:
            check(close(summary["loss_last"], whole[2]["loss_last"], 0.05), f"{dtype} ends at {summary['loss_last']}, f32 at {whole[2]['loss_last']}")
        check(apart(runs[0][1], runs[1][1]) <= 0.02, f"{dtype}: 1 and 2 ranks differ by {apart(runs[0][1], runs[1][1])}")
        parts = train(2, "--dtype", dtype, "--microbatches", "3")[1]
        check(apart(parts, runs[1][1]) <= 0.02, f"{dtype}: 3 microbatches differ by {apart(parts, runs[1][1])} from the whole batch")
        check(hashes(train(2, "--dtype", dtype)) == hashes(runs[1]), f"{dtype}: the same run twice has other bits")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    runs = compare_ranks()
    compare_ways("f32")
    compare_ways("bf16")
    compare_precision(runs[1])
    end("training")


main()
