#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run that is saved on the way and goes on from there takes the steps that it takes without: bit for bit on as many ranks, and to rounding
on others.

usage: resume_test.py GPT MEGADP
"""
import os
import shutil
import sys
import tempfile

import runs
from runs import TEXT, check, end

SMALL = [*TEXT, "--layers", "1", "--width", "32", "--heads", "2", "--context", "32", "--batch", "12", "--steps", "12", "--timeout", "60"]
HALF = 6


def run(ranks, *options):
    return runs.run(SMALL, ranks, *options)


def steps_of(done):
    return runs.reports_of(done)[1]


def saved_half_way(folder, ranks, *options):
    """The steps of a whole run, and the directory with the checkpoint that it made half-way."""
    directory = os.path.join(folder, "-".join(["run", str(ranks), *(option.strip("-") for option in options)]))
    steps = steps_of(run(ranks, *options, "--save", directory, "--save-every", str(HALF)))
    check(sorted(os.listdir(directory)) == ["checkpoint-000001", "checkpoint-000002"], f"{directory} has {os.listdir(directory)}")
    shutil.rmtree(os.path.join(directory, "checkpoint-000002"))
    return steps, directory


def goes_on(folder, ranks, *options):
    whole, directory = saved_half_way(folder, ranks, *options)
    rest = steps_of(run(ranks, *options, "--save", directory, "--resume"))
    for step in (*whole, *rest):
        for key in ("tokens_per_s", "comm_ms", "exposed_ms"):
            del step[key]
    check(rest == whole[HALF:], f"{ranks} ranks {options}: other steps after it has gone on: {rest[0]}, not {whole[HALF]}")


def goes_on_elsewhere(folder):
    whole, directory = saved_half_way(folder, 2, "--clip", "0")
    for ranks, *options in ((1,), (3, "--zero-2"), (4, "--no-shard"), (4, "--instances", "2")):
        rest = steps_of(run(ranks, "--clip", "0", *options, "--save", directory, "--resume"))
        shutil.rmtree(os.path.join(directory, "checkpoint-000002"))
        worst = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(rest, whole[HALF:], strict=True))
        check(worst <= 1e-4, f"on {ranks} ranks {options} losses are {worst} from those of 2")


def is_refused(folder):
    directory = os.path.join(folder, "new")
    done = run(2, "--save", directory, "--resume")
    check(len(steps_of(done)) == 12 and "begins with step 1" in done.stderr, f"--resume without a checkpoint: {done.stderr}")
    done = run(1, "--save", directory, "--resume")
    check(done.returncode == 1 and "has taken 12 of 12 steps" in done.stderr, f"a run that is through: {done.returncode} {done.stderr}")
    other = os.path.join(folder, "other.txt")
    with open(TEXT[1], "rb") as file, open(other, "wb") as reversed_file:
        reversed_file.write(file.read()[::-1])
    for text, words in ((other, "it has learned another text"), (__file__, "this is another model")):
        done = run(1, "--save", directory, "--resume", "--steps", "20", "--text", text)
        check(done.returncode == 1 and words in done.stderr, f"another text: {done.returncode} {done.stderr}")
    done = run(2, "--save", "/dev/null", "--save-every", "3")
    check(done.returncode == 1 and "Not a directory" in done.stderr, f"--save /dev/null: {done.returncode} {done.stderr}")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        for ranks, *options in ((1,), (2,), (2, "--zero-2"), (2, "--dtype", "f16"), (2, "--dtype", "bf16", "--no-shard"),
                                (2, "--microbatches", "2", "--bf16-wire")):
            goes_on(folder, ranks, *options)
        goes_on_elsewhere(folder)
        is_refused(folder)
    end("resume")


main()
