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
import json
import os
import shutil
import subprocess
import sys
import tempfile

TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "LICENSE")
SMALL = ["--text", TEXT, "--layers", "2", "--width", "32", "--heads", "4", "--context", "32", "--batch", "24", "--timeout", "60"]
STEPS = ["--steps", "50"]
LIMIT = 1e-4
BF16_LIMIT = 1e-3
problems = []
checks = 0


def check(true, sentence):
    global checks
    checks += 1
    if not true:
        problems.append(sentence)
        print("WRONG:", sentence)


def run(ranks, *options, **variables):
    command = [sys.argv[2], "run", "--no-prefix", "-n", str(ranks), "--", sys.argv[1], *SMALL, "--json", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env={**os.environ, **variables})


def train(ranks, *options):
    done = run(ranks, *options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(done.args)}: exit code {done.returncode}\n{done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines[0]["config"], lines[1:-1], lines[-1]["summary"]


def apart(one, other, key="loss"):
    """The largest relative difference of any step of two runs."""
    return max(abs(a[key] - b[key]) / abs(b[key]) for a, b in zip(one, other, strict=True))


def cut(tp, *more):
    return ["--tp", str(tp), *more]


def compare(name, run_of_it, whole):
    for key in ("loss", "grad_norm"):
        worst = apart(run_of_it[1], whole[1], key)
        check(worst <= LIMIT, f"{name}: {key} is {worst} from that of one rank")
    check(apart([run_of_it[2]], [whole[2]], "heldout_loss") <= LIMIT, f"{name}: held-out loss {run_of_it[2]['heldout_loss']}")
    # A token that rounding decides is rare: the first ones show whether the right rows are read.
    check(run_of_it[2]["sample"][:20] == whole[2]["sample"][:20], f"{name}: the sample begins {run_of_it[2]['sample'][:20]!r}")


def activations(of):
    return of[2]["memory"]["activation_bytes"]


def compare_cuts():
    whole = train(1, *STEPS)
    fall = whole[1][0]["loss"] - whole[1][-1]["loss"]
    check(fall >= 1, f"the loss falls by {fall}, not by a nat")
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
        twice = [train(4, *cut(2, *more), "--steps", "5") for _ in range(2)]
        hashes = [[step["param_hash"] for step in steps] for _, steps, _ in twice]
        check(hashes[0] == hashes[1] and len(set(hashes[0])) == 5, f"{more}: the same run twice has hashes {hashes}")


def compare_precision(whole):
    for ranks, options in ((1, []), (2, cut(2)), (4, cut(2)), (2, cut(2, "--sp")), (4, cut(2, "--sp", "--vocab-parallel")), (4, cut(4, "--sp")),
                           (2, cut(2, "--vocab-parallel", "--zero-2", "--microbatches", "3"))):
        config, steps, summary = train(ranks, "--dtype", "bf16", *options, *STEPS)
        worst = apart(steps, whole[1])
        check(0 < worst <= BF16_LIMIT, f"bf16 on {ranks} ranks {options}: losses are {worst} from those of f32")
        held = abs(summary["heldout_loss"] - whole[2]["heldout_loss"]) / whole[2]["heldout_loss"]
        check(held <= BF16_LIMIT, f"bf16 on {ranks} ranks {options}: the held-out loss is {held} from that of f32")
        check(config["dtype"] == "bf16", f"config says {config}")


def compare_checkpoints(folder, first, others, limit=LIMIT):
    """The last of the others is as the first."""
    directory = os.path.join(folder, "saved")
    common = ["--steps", "20", "--save", directory]
    _, steps, _ = train(4, *first, *common, "--save-every", "10")
    shutil.rmtree(os.path.join(directory, "checkpoint-000002"))
    for ranks, options in [*others, (4, first)]:
        _, rest, _ = train(ranks, *options, *common, "--resume")
        shutil.rmtree(os.path.join(directory, "checkpoint-000002"))
        worst = apart(rest, steps[10:])
        check(worst <= limit, f"{ranks} ranks {options} went on from 4 ranks {first}: losses {worst} apart")
    check([step["param_hash"] for step in rest] == [step["param_hash"] for step in steps[10:]], "the same ranks went on to other bits")


def are_refused():
    for ranks, options, words in ((3, cut(2), ["--tp 2", "number of ranks, 3"]),
                                  (4, cut(2, "--batch", "5"), ["--batch 5", "4 ranks, --tp 2", "multiple of 2"]),
                                  (4, cut(2, "--batch", "6", "--microbatches", "2"), ["--batch 6", "--microbatches 2", "multiple of 4"])):
        done = run(ranks, *options)
        said = [line for line in done.stderr.splitlines() if line.startswith("gpt:")]
        good = done.returncode == 2 and not done.stdout and len(said) == 1 and all(word in said[0] for word in words)
        check(good, f"{ranks} ranks {options}: exit code {done.returncode}, {done.stderr}{done.stdout}")
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
        compare_checkpoints(folder, cut(2), [(3, []), (4, cut(4)), (4, cut(4, "--sp"))])
        shutil.rmtree(os.path.join(folder, "saved"))
        vocabulary = ["--vocab-parallel"]
        compare_checkpoints(folder, cut(2, *vocabulary), [(2, cut(2, *vocabulary)), (4, cut(4, "--sp", *vocabulary))])
        shutil.rmtree(os.path.join(folder, "saved"))
        narrow = ["--dtype", "bf16"]
        compare_checkpoints(folder, cut(2, *narrow), [(3, narrow), (4, cut(4, "--sp", *narrow))], BF16_LIMIT)
    are_refused()
    print(f"tensor parallel: {checks} checks, {len(problems)} wrong")
    sys.exit(1 if problems else 0)


main()
