#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains one small model on 1 to 8 ranks, its sequences cut over context-parallel ranks (cp) and not, and compares what the example reports.

  cuts         losses, norms, held-out loss and sample agree to 1e-4 over 50 steps in which the loss falls by a nat, in both forms of the
               attention; activations shrink
  ways         with rows, vocabulary, sharding, microbatches and types cut otherwise; and that a run has the same bits twice
  checkpoints  a run of (tp 1, cp 2, dp 1) goes on from its tenth step on other grids
  refusals     what only the ranks can tell

usage: context_parallel_test.py GPT MEGADP
"""
import sys
import tempfile

from grid_runs import (BF16_LIMIT, LIMIT, STEPS, activations, check_refused, compare, compare_bf16, compare_checkpoints, compare_twice, train,
                       train_whole)
from runs import apart, check, end

GRIDS = [(1, 2, 1), (1, 4, 1), (2, 2, 1), (1, 2, 2)]  # tp, cp, dp
FORMS = ["ring", "all-to-all"]


def cut(cp, *more):
    return ["--cp", str(cp), *more]


def compare_cuts():
    whole, fall = train_whole()
    check((whole[0]["cp"], whole[0]["cp_form"]) == (1, "auto"), f"config says {whole[0]}")
    sizes = {}
    for tp, cp, dp in GRIDS:
        for form in FORMS:
            name = f"tp {tp}, cp {cp}, dp {dp}, {form}"
            it = train(tp * cp * dp, *cut(cp, "--tp", str(tp), "--cp-form", form), *STEPS)
            compare(name, it, whole)
            config = it[0]
            check((config["nranks"], config["tp"], config["cp"], config["cp_form"]) == (tp * cp * dp, tp, cp, form), f"config says {config}")
            check(config["tokens_per_rank"] == 24 * 32 // (cp * dp), f"{name}: config says {config}")
            sizes[tp, cp, dp] = activations(it) * cp * dp / activations(whole)
    check(all(size < 1 for size in sizes.values()), f"activations of all ranks, beside one rank's: {sizes}")
    print(f"cuts: the loss falls by {fall:.3f}")
    return whole


def compare_ways(whole):
    short = whole[1][:10]
    for ranks, options in ((4, cut(2, "--tp", "2", "--sp")), (4, cut(2, "--tp", "2", "--vocab-parallel")),
                           (4, cut(2, "--tp", "2", "--sp", "--vocab-parallel", "--zero-2", "--microbatches", "3")),
                           (4, cut(4, "--microbatches", "24", "--no-shard", "--bucket-size", "1000")),
                           (4, cut(2, "--instances", "2", "--no-overlap")), (8, cut(2, "--tp", "2", "--sp", "--instances", "2", "--zero-2"))):
        worst = apart(train(ranks, *options, *STEPS)[1][:10], short)
        check(worst <= LIMIT, f"{' '.join(options)}: losses are {worst} from those of one rank")
    # Segments and rows of which 3 ranks have a third, and samples that are longer than what they are cut into.
    odd = ["--context", "36", "--heads", "6", "--width", "48", "--batch", "6", "--steps", "10"]
    thirds = train(1, *odd)
    compare("cp 3", train(3, *cut(3), *odd), thirds)
    compare("tp 3, cp 2", train(6, *cut(2, "--tp", "3", "--sp"), *odd), thirds)
    for ranks, options in ((2, cut(2)), (4, cut(2, "--tp", "2", "--sp", "--vocab-parallel"))):
        compare_twice(ranks, options)
        compare_bf16(ranks, options, whole)
    worst = apart(train(2, *cut(2, "--dtype", "f16"), *STEPS)[1], whole[1])
    check(0 < worst <= BF16_LIMIT, f"f16: losses are {worst} from those of f32")


def are_refused():
    for ranks, options, words in ((3, cut(2), ["--cp 2 does", "number of ranks, 3"]),
                                  (6, cut(2, "--tp", "2"), ["--tp 2 times --cp 2", "number of ranks, 6"]),
                                  (4, cut(2, "--batch", "5"), ["--batch 5", "4 ranks, --cp 2", "multiple of 2"]),
                                  (4, cut(2, "--tp", "2", "--batch", "5", "--microbatches", "2"),
                                   ["--batch 5", "4 ranks, --tp 2, --cp 2", "multiple of 2"])):
        check_refused(ranks, options, words)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    compare_ways(compare_cuts())
    with tempfile.TemporaryDirectory() as folder:
        compare_checkpoints(folder, (2, cut(2)), [(1, []), (4, cut(2, "--tp", "2")), (4, cut(4, "--cp-form", "all-to-all"))])
    are_refused()
    end("context parallel")


main()
