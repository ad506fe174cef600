#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad options and bad texts: each is refused with exit code 2, one line on stderr that names the option and its value, and nothing on stdout.

usage: command_line_test.py GPT GPT_GRADCHECK
"""
import os
import subprocess
import sys
import tempfile

# Launchers and schedulers leave their marks in the environment; here gpt has to run alone.
LAUNCHERS = ("MEGADP_", "OMPI_", "PMI", "PRTE_", "SLURM_", "MASTER_", "TORCHELASTIC_")
ALONE = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS) and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}

BAD_OPTIONS = [  # arguments, what the sentence must hold
    (["--steps", "0"], ["--steps", "0", "1 to"]),
    (["--steps", "ten"], ["--steps", "'ten'"]),
    (["--steps", "-5"], ["--steps", "'-5'"]),
    (["--steps", "5x"], ["--steps", "'5x'"]),
    (["--steps", ""], ["--steps", "''"]),
    (["--steps"], ["--steps", "needs a value"]),
    (["--batch", "99999999999999999999999"], ["--batch", "99999999999999999999999"]),
    (["--layers", "257"], ["--layers", "257", "256"]),
    (["--width", "1e3"], ["--width", "'1e3'"]),
    (["--heads", "5"], ["--heads 5", "--width 96"]),
    (["--context", "1"], ["--context", "1", "2 to"]),
    (["--seed", "0x1"], ["--seed", "'0x1'"]),
    (["--lr", "0"], ["--lr", "0"]),
    (["--lr", "nan"], ["--lr", "'nan'"]),
    (["--clip", "-1"], ["--clip", "-1"]),
    (["--dtype", "f64"], ["--dtype", "'f64'", "bf16"]),
    (["--backend", "gpu"], ["--backend", "'gpu'", "auto, host or cuda"]),
    (["--backend", ""], ["--backend", "''"]),
    (["--bucket-size", "some"], ["--bucket-size", "'some'"]),
    (["--microbatches", "0"], ["--microbatches", "0"]),
    (["--instances", "0"], ["--instances", "0", "1 to"]),
    (["--tp", "0"], ["--tp", "0", "1 to"]),
    (["--tp", "two"], ["--tp", "'two'"]),
    (["--tp", "3"], ["--tp 3", "--heads 4"]),
    (["--tp", "8", "--heads", "4"], ["--tp 8", "--heads 4"]),
    (["--tp", "2"], ["--tp 2", "number of ranks, 1"]),
    (["--sp"], ["--sp needs --tp above 1", "--tp is 1"]),
    (["--sp=1", "--tp", "2"], ["--sp", "'1'"]),
    (["--vocab-parallel"], ["--vocab-parallel needs --tp above 1", "--tp is 1"]),
    (["--tp", "3", "--heads", "6", "--width", "48", "--vocab-parallel"], ["--tp 3 does not divide 64", "--vocab-parallel"]),
    (["--tp", "2", "--sp", "--context", "33"], ["--tp 2", "--context 33", "--sp"]),
    (["--tp", "4", "--dtype", "f16"], ["--dtype f16", "--tp 4"]),
    (["--tp", "2", "--backend", "cuda"], ["--backend cuda", "--tp 2"]),
    (["--cp", "0"], ["--cp", "0", "1 to"]),
    (["--cp", "2"], ["--cp 2", "number of ranks, 1"]),
    (["--cp", "3"], ["--cp 3", "--context 64", "multiple of 6"]),
    (["--cp", "4", "--context", "68"], ["--cp 4", "--context 68", "multiple of 8"]),
    (["--cp", "2", "--tp", "3", "--sp", "--context", "66", "--heads", "6"], ["--context 66", "multiple of 4"]),
    (["--cp", "2", "--tp", "4", "--sp", "--context", "68"], ["--tp 4", "34 characters", "--cp 2", "--context 68", "--sp", "multiple of 8"]),
    (["--cp", "8", "--cp-form", "all-to-all"], ["--cp 8", "4 heads", "--heads 4", "--cp-form all-to-all"]),
    (["--cp", "4", "--tp", "2", "--cp-form", "all-to-all"], ["--cp 4", "2 heads", "--tp 2"]),
    (["--cp-form", "ring"], ["--cp-form ring needs --cp above 1", "--cp is 1"]),
    (["--cp-form", "star"], ["--cp-form", "'star'", "auto, ring or all-to-all"]),
    (["--cp", "2", "--backend", "cuda"], ["--backend cuda", "--cp 2"]),
    (["--timeout", "soon"], ["--timeout", "'soon'"]),
    (["--threads", "0"], ["--threads", "0"]),
    (["--json=yes"], ["--json", "'yes'"]),
    (["--no-shard", "--zero-2"], ["--no-shard, --zero-2 and --whole", "one of them"]),
    (["--whole", "--zero-2"], ["exclude each other"]),
    (["--stochastic-state"], ["--stochastic-state needs --bf16-state"]),
    (["--no-master"], ["--no-master needs --dtype bf16", "--dtype is f32"]),
    (["--resume"], ["--resume needs --save"]),
    (["--save-every", "5"], ["--save-every needs --save"]),
    (["--save", "d", "--save-every", "0"], ["--save-every", "0", "1 to"]),
    (["--no-shards"], ["'--no-shards'", "--help"]),
    (["text.txt"], ["'text.txt'", "--help"]),
    (["--batch", "10", "--microbatches", "3"], ["--batch 10", "--microbatches 3", "multiple of 3"]),
]


def refused(gpt, arguments, wanted):
    done = subprocess.run([gpt, *arguments], env=ALONE, capture_output=True, text=True, timeout=60, check=False)
    lines = done.stderr.splitlines()
    if done.returncode == 2 and not done.stdout and len(lines) == 1 and all(part in lines[0] for part in wanted):
        return True
    print(f"{' '.join(arguments)}: exit code {done.returncode}, wanted 2 and one line with {wanted}\n{done.stderr}{done.stdout}")
    return False


def bad_texts(folder):
    def path(name, content=None):
        at = os.path.join(folder, name)
        if content is not None:
            with open(at, "wb") as file:
                file.write(content)
        return at

    empty = os.path.join(folder, "directory")
    os.mkdir(empty)
    many = os.path.join(folder, "many")
    os.mkdir(many)
    for number in range(300):
        path(os.path.join("many", str(number)), b"%03d\n" % number)
    return [
        (["--text", path("absent")], ["--text", "absent", "No such file"]),
        (["--text", path("empty", b"")], ["--text", "empty", "0 bytes", "1300"]),
        (["--text", path("small", b"ab" * 649 + b"a")], ["--text", "small", "1299 bytes", "--context 64", "1300"]),
        (["--text", empty], ["--text", "directory", "0 bytes"]),
        (["--text", many], ["--text", "many", "1200 bytes"]),
    ]


def train(gpt, folder, *arguments, stdout=subprocess.PIPE):
    """One step on the smallest text that is large enough, with bytes that are no UTF-8."""
    at = os.path.join(folder, "enough")
    with open(at, "wb") as file:
        file.write(b"a\xff" * 650)
    small = ["--text", at, "--steps", "1", "--layers", "1", "--width", "8", "--heads", "1", "--batch", "1", *arguments]
    return subprocess.run([gpt, *small], env=ALONE, stdout=stdout, stderr=subprocess.PIPE, text=True, errors="replace", timeout=60, check=False)


def accepted(gpt, folder, *arguments):
    done = train(gpt, folder, *arguments)
    if done.returncode != 0:
        print(f"a text of 1300 bytes, {arguments}: exit code {done.returncode}\n{done.stderr}")
    return done.returncode == 0


def without_device(gpt, folder):
    """--backend cuda trains where a device is to be had, and otherwise says in one line why not."""
    done = train(gpt, folder, "--backend", "cuda")
    lines = done.stderr.splitlines()
    if done.returncode == 0 or (done.returncode == 1 and len(lines) == 1 and "MDP_E_UNSUPPORTED" in lines[0] and "cuda" in lines[0].lower()):
        return True
    print(f"--backend cuda: exit code {done.returncode}, wanted 0, or 1 and one line that says why\n{done.stderr}")
    return False


def notices_full_disk(gpt, folder, *arguments):
    """What was printed is all that a run leaves behind: where it could not be written, the run has failed."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = train(gpt, folder, *arguments, stdout=full)
    if done.returncode == 1 and "could not be written" in done.stderr:
        return True
    print(f"{arguments} > /dev/full: exit code {done.returncode}, wanted 1 and a sentence\n{done.stderr}")
    return False


def gradcheck_notices_full_disk(gradcheck):
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([gradcheck], env=ALONE, stdout=full, stderr=subprocess.PIPE, text=True, timeout=240, check=False)
    if done.returncode == 1 and "could not be written" in done.stderr:
        return True
    print(f"{gradcheck} > /dev/full: exit code {done.returncode}, wanted 1 and a sentence\n{done.stderr}")
    return False


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    gpt, gradcheck = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        cases = BAD_OPTIONS + bad_texts(folder)
        wrong = sum(not refused(gpt, arguments, wanted) for arguments, wanted in cases) 
        wrong += sum(not accepted(gpt, folder, *more) for more in ([], ["--backend", "host"], ["--backend=auto"]))
        wrong += not without_device(gpt, folder)
        wrong += sum(not notices_full_disk(gpt, folder, *more) for more in ([], ["--json"], ["--help"]))
        wrong += not gradcheck_notices_full_disk(gradcheck)
    shown = subprocess.run([gpt, "--help"], env=ALONE, capture_output=True, text=True, timeout=60, check=True).stdout
    for option in ("--text", "--steps", "--batch", "--dtype", "--backend", "staged through the host", "--bucket-size", "--tp", "--sp", "--vocab-parallel", "--cp ", "--cp-form",
                   "--json"):
        if option not in shown:
            wrong += 1
            print(f"--help does not tell of {option}")
    print(f"command line of gpt: {len(cases) + 9} cases, {wrong} wrong")
    sys.exit(1 if wrong else 0)


main()
