# SPDX-License-Identifier: Apache-2.0
"""One small model, trained on ranks that are cut into grids: what tensor_parallel_test.py and context_parallel_test.py compare."""
import os
import shutil

import runs
from runs import TEXT, apart, check

SMALL = [*TEXT, "--layers", "2", "--width", "32", "--heads", "4", "--context", "32", "--batch", "24", "--timeout", "60"]
STEPS = ["--steps", "50"]
LIMIT = 1e-4
BF16_LIMIT = 1e-3


def run(ranks, *options, **variables):
    return runs.run(SMALL, ranks, *options, **variables)


def train(ranks, *options):
    start, steps, summary = runs.reports_of(run(ranks, *options))
    return start["config"], steps, summary


def compare(name, run_of_it, whole):
    for key in ("loss", "grad_norm"):
        worst = apart(run_of_it[1], whole[1], key)
        check(worst <= LIMIT, f"{name}: {key} is {worst} from that of one rank")
    check(apart([run_of_it[2]], [whole[2]], "heldout_loss") <= LIMIT, f"{name}: held-out loss {run_of_it[2]['heldout_loss']}")
    # A token that rounding decides is rare: the first ones show whether the right rows are read.
    check(run_of_it[2]["sample"][:20] == whole[2]["sample"][:20], f"{name}: the sample begins {run_of_it[2]['sample'][:20]!r}")


def train_whole():
    """On one rank, for the others to be compared with; and by how much the loss falls."""
    whole = train(1, *STEPS)
    fall = whole[1][0]["loss"] - whole[1][-1]["loss"]
    check(fall >= 1, f"the loss falls by {fall}, not by a nat")
    return whole, fall


def activations(of):
    return of[2]["memory"]["activation_bytes"]


def compare_bf16(ranks, options, whole):
    config, steps, summary = train(ranks, "--dtype", "bf16", *options, *STEPS)
    worst = apart(steps, whole[1])
    check(0 < worst <= BF16_LIMIT, f"bf16 on {ranks} ranks {options}: losses are {worst} from those of f32")
    held = abs(summary["heldout_loss"] - whole[2]["heldout_loss"]) / whole[2]["heldout_loss"]
    check(held <= BF16_LIMIT, f"bf16 on {ranks} ranks {options}: the held-out loss is {held} from that of f32")
    check(config["dtype"] == "bf16", f"config says {config}")


def compare_checkpoints(folder, first, others, limit=LIMIT):
    """Each is (ranks, options). All go on from the tenth step of the first; the last of them is as the first."""
    directory = os.path.join(folder, "saved")
    common = ["--steps", "20", "--save", directory]
    _, steps, _ = train(first[0], *first[1], *common, "--save-every", "10")
    shutil.rmtree(os.path.join(directory, "checkpoint-000002"))
    for ranks, options in [*others, first]:
        _, rest, _ = train(ranks, *options, *common, "--resume")
        shutil.rmtree(os.path.join(directory, "checkpoint-000002"))
        worst = apart(rest, steps[10:])
        check(worst <= limit, f"{ranks} ranks {options} went on from {first[0]} ranks {first[1]}: losses {worst} apart")
    check([step["param_hash"] for step in rest] == [step["param_hash"] for step in steps[10:]], "the same ranks went on to other bits")
    shutil.rmtree(directory)


def compare_twice(ranks, options):
    twice = [train(ranks, *options, "--steps", "5") for _ in range(2)]
    hashes = [[step["param_hash"] for step in steps] for _, steps, _ in twice]
    check(hashes[0] == hashes[1] and len(set(hashes[0])) == 5, f"{options}: the same run twice has hashes {hashes}")


def check_refused(ranks, options, words):
    done = run(ranks, *options)
    said = [line for line in done.stderr.splitlines() if line.startswith("gpt:")]
    good = done.returncode == 2 and not done.stdout and len(said) == 1 and all(word in said[0] for word in words)
    check(good, f"{ranks} ranks {options}: exit code {done.returncode}, {done.stderr}{done.stdout}")
