# SPDX-License-Identifier: Apache-2.0
"""Runs of the example, and what was wrong with them: what its tests share. They are called with GPT MEGADP."""
import json
import os
import subprocess
import sys

# The text is of the project, and long settled: what a machine has by default is its own affair.
TEXT = ["--text", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "LICENSE")]
problems = []
checks = 0


def check(true, sentence):
    global checks
    checks += 1
    if not true:
        problems.append(sentence)
        print("WRONG:", sentence)


def end(name):
    print(f"{name}: {checks} checks, {len(problems)} wrong")
    sys.exit(1 if problems else 0)


def run(model, ranks, *options, **variables):
    command = [sys.argv[2], "run", "--no-prefix", "-n", str(ranks), "--", sys.argv[1], *model, "--json", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env={**os.environ, **variables})


def reports_of(done):
    """What it says as it starts, of each step, and in the end."""
    if done.returncode != 0:
        sys.exit(f"{' '.join(done.args)}: exit code {done.returncode}\n{done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines[0], lines[1:-1], lines[-1]["summary"]


def apart(one, other, key="loss"):
    """The largest relative difference of any step of two runs."""
    return max(abs(a[key] - b[key]) / abs(b[key]) for a, b in zip(one, other, strict=True))
