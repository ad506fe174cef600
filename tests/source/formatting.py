#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that clang-format 14 would change nothing. Leaves with 77 (skipped) where that version is not installed: others differ.

usage: formatting.py ROOT | --self-test ROOT     (ROOT holds .clang-format)
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import tree


def find_formatter():
    for name in ("clang-format-14", "clang-format"):
        if path := shutil.which(name):
            version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
            if re.search(r"version 14\.", version):
                return path
    print("clang-format 14 is not installed")
    sys.exit(77)


def check(root, formatter):
    files = tree.sources(root)
    if not files:
        return files, []
    run = subprocess.run([formatter, "--style=file", "--dry-run", "-Werror", "--ferror-limit=1", *files],
                         cwd=root, capture_output=True, text=True, check=False)
    problems = sorted(set(re.findall(r"^([^\s:]+):\d+:\d+: error", run.stderr, re.M)))
    if run.returncode != 0 and not problems:
        sys.exit(f"clang-format failed:\n{run.stderr}")
    return files, [f"{path}: not as clang-format 14 writes it" for path in problems]


def self_test(root, formatter):
    failures = []
    with tempfile.TemporaryDirectory() as planted:
        shutil.copy(os.path.join(root, ".clang-format"), planted)
        tree.plant(planted, {"src/base/good.cc": "int a = 1;\n", "src/base/bad.cc": "int  a=1 ;\n"})
        found = check(planted, formatter)[1]
        if len(found) != 1 or "bad.cc" not in found[0]:
            failures.append(f"exactly bad.cc should be reported, was: {found}")
    tree.report("formatting, self-test", ["good.cc", "bad.cc"], failures)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--self-test":
        self_test(sys.argv[2], find_formatter())
    elif len(sys.argv) == 2:
        tree.report("formatting", *check(sys.argv[1], find_formatter()))
    else:
        sys.exit(__doc__)
