#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains one small model on 1 to 4 ranks, cut over tensor-parallel ranks (tp) and not, and compares what the example reports.

  cuts         losses, norms and held-out loss agree to 1e-4 over 50 steps in which the loss falls by a nat; activations shrink
  ways         sharding, microbatches that cut a sequence, and buckets with --tp, and that a run has the same bits twice
  precision    with bf16 parameters and layers every loss is within 0.1 % of f32's, cut or not
  checkpoints  a run of (tp 2, dp 2) goes on from its tenth step on other ranks, cut otherwise
  refusals     what only the ranks can tell, and the library for matrix products that is not there

usage: tensor_parallel_test.py GPT MEGADP
"""
import sys
import tempfile

from grid_runs import (BF16_LIMIT, LIMIT, STEPS, activations, check_refused, compare, compare_bf16, compare_checkpoints, compare_twice, run, train,
                       train_whole)
from runs import apart, check, end


def cut(tp, *more):
    return ["--tp", str(tp), *more]


def compare_cuts():
    whole, fall = train_whole()
    check((whole[0]["tp"], whole[0]["sp"]) == (1, False), f"config says {whole[0]}")
    for tp, dp in ((2, 1), (2, 2), (4, 1), (1, 4)):
        plain = train(tp * dp, *cut(tp), *STEPS)
        compare(f"tp {tp}, dp {dp}", plain, whole)
        config = plain[0]
        check((config["nranks"], config["tp"], config["sp"]) == (tp * dp, tp, False), f"config says {config}")
        check((config["parameters"], config["tokens_per_rank"]) == (whole[0]["parameters"], 24 * 32 // dp), f"config says {config}")
        if tp == 1:
            continue
        rows = train(tp * dp, *cut(tp, "--sp"), *STEPS)
        compare(f"tp {tp}, dp {dp}, sp", rows, whole)
        check((rows[0]["tp"], rows[0]["sp"]) == (tp, True), f"config says {rows[0]}")
        for more in ([], ["--sp"]):
            vocabulary = train(tp * dp, *cut(tp, "--vocab-parallel", *more), *STEPS)
            compare(f"tp {tp}, dp {dp}, vocabulary {more}", vocabulary, whole)
            check(vocabulary[0]["vocab_parallel"] is True, f"config says {vocabulary[0]}")
        sizes = [of * dp / activations(whole) for of in (activations(plain), activations(rows))]
        check(1 / tp < sizes[0] < 0.8 and sizes[1] < 1.02 / tp, f"tp {tp}: {sizes} of the activations, without and with --sp")
    print(f"cuts: the loss falls by {fall:.3f}")
    return whole


def compare_ways(whole):
    short = whole[1][:10]
    for ranks, options in ((4, cut(2, "--sp", "--zero-2", "--microbatches", "3")), (4, cut(2, "--no-shard", "--bucket-size", "1000")),
                           (4, cut(2, "--sp", "--vocab-parallel", "--zero-2", "--microbatches", "3")),
                           (4, cut(4, "--sp", "--microbatches", "24")), (4, cut(2, "--instances", "2", "--no-overlap"))):
        worst = apart(train(ranks, *options, *STEPS)[1][:10], short)
        check(worst <= LIMIT, f"{' '.join(options)}: losses are {worst} from those of one rank")
    for more in ([], ["--sp", "--vocab-parallel"]):
        compare_twice(4, cut(2, *more))


def compare_precision(whole):
    for ranks, options in ((1, []), (2, cut(2)), (4, cut(2)), (2, cut(2, "--sp")), (4, cut(2, "--sp", "--vocab-parallel")), (4, cut(4, "--sp")),
                           (2, cut(2, "--vocab-parallel", "--zero-2", "--microbatches", "3"))):
        compare_bf16(ranks, options, whole)


def are_refused():
    for ranks, options, words in ((3, cut(2), ["--tp 2", "number of ranks, 3"]),
                                  (4, cut(2, "--batch", "5"), ["--batch 5", "4 ranks, --tp 2", "multiple of 2"]),
                                  (4, cut(2, "--batch", "6", "--microbatches", "2"), ["--batch 6", "--microbatches 2", "multiple of 4"])):
        check_refused(ranks, options, words)
    done = run(2, *cut(2), MEGADP_GEMM="no-such-library.so")
    check(done.returncode == 1 and "rank 0: mdp_tp_linear_create" in done.stderr and "no-such-library.so" in done.stderr,
          f"without a library for products: exit code {done.returncode}, {done.stderr}")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    whole = compare_cuts()
    compare_ways(whole)
    compare_precision(whole)
    with tempfile.TemporaryDirectory() as folder:
        compare_checkpoints(folder, (4, cut(2)), [(3, []), (4, cut(4)), (4, cut(4, "--sp"))])
        vocabulary = ["--vocab-parallel"]
        compare_checkpoints(folder, (4, cut(2, *vocabulary)), [(2, cut(2, *vocabulary)), (4, cut(4, "--sp", *vocabulary))])
        narrow = ["--dtype", "bf16"]
        compare_checkpoints(folder, (4, cut(2, *narrow)), [(3, narrow), (4, cut(4, "--sp", *narrow))], BF16_LIMIT)
    are_refused()
    end("tensor parallel")


main()
