#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that docs/tour.md leads somewhere: the files it names exist below src/, and hold the functions that it names after them.

usage: tour.py ROOT | --self-test
"""
import os
import re
import tempfile

import tree

TOUR = "docs/tour.md"
QUOTED = re.compile(r"`([^`]+)`")
FILE = re.compile(r"[a-z_]+(/[a-z_]+)+\.(cc|h|cu|md)")
NAME = re.compile(r"([A-Za-z_]\w*)(::[a-z_]\w*)?")


def check(root):
    """Every name in back-quotes must be in the file named last before it, and each step must name a file."""
    text = tree.read(root, TOUR)
    problems, code, current, files = [], "", None, []
    for quoted in QUOTED.findall(text):
        if FILE.fullmatch(quoted):
            path = quoted if quoted.startswith("docs/") else f"src/{quoted}"
            current = path
            files.append(path)
            if not os.path.exists(os.path.join(root, path)):
                problems.append(f"{TOUR}: there is no {path}")
                code = ""
            else:
                code = tree.read(root, path)
        elif NAME.fullmatch(quoted) and current and code:
            name = quoted.split("::")[-1]
            if not re.search(rf"\b{name}\b", code) or "::" in quoted and quoted not in code:
                problems.append(f"{TOUR}: {current} has no {quoted}")
    steps = [int(number) for number in re.findall(r"^(\d+)\. `", text, re.M)]
    if steps != list(range(1, 16)):
        problems.append(f"{TOUR}: fifteen steps that begin with a file are expected, not {steps}")
    return files, problems


def self_test():
    """A tour whose names exist is right; one that names another file, function or number of steps is not."""
    steps = "".join(f"{n}. `core/a.cc`, `A::put`: something.\n" for n in range(1, 16))
    code = {"src/core/a.cc": "Status A::put() {}\n"}
    failures = []
    for text, right in ((steps, True), (steps.replace("core/a.cc", "core/b.cc", 1), False), (steps.replace("A::put", "B::put", 1), False),
                        (steps.replace("A::put", "pat", 1), False), (steps.split("\n", 1)[1], False)):
        with tempfile.TemporaryDirectory() as root:
            tree.plant(root, {TOUR: text, **code})
            if (not check(root)[1]) != right:
                failures.append(f"should be {'right' if right else 'wrong'}: {text[:60]!r}: {check(root)[1]}")
    return [TOUR], failures


if __name__ == "__main__":
    tree.main(__doc__, "tour", check, self_test)
