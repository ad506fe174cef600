#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The suppression files may name other people's libraries, never our own code.

usage: suppressions.py FILE... | --self-test
"""
import re
import sys

THIRD_PARTIES = r"lib(ucp|ucs|uct|ucm|mpi|open-pal|open-rte|pmix|mpich|openblas|dnnl|gomp|ibverbs|rdmacm|nl|event)[\w+.-]*|rc::"


def complaints(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line and not line.startswith("#"):
            kind, _, pattern = line.partition(":")
            if not pattern or not re.match(THIRD_PARTIES, pattern):
                yield f"{name}:{number}: '{line}' does not begin with the name of a known third party"
            elif re.search("mdp|megadp", pattern):
                yield f"{name}:{number}: '{line}' may hide a bug of megadp"
            elif not kind:
                yield f"{name}:{number}: '{line}' has no kind"


def main(arguments):
    if arguments == ["--self-test"]:
        wrong = [line for line in ("race:megadp::Stream", "leak:mdp_comm_create", "race:*", "leak:", "race:libucp*megadp")
                 if not list(complaints("x", line))]
        wrong += [line for line in ("# a reason", "", "leak:libucp.so.0", "race:libopenblas.so.0") if list(complaints("x", line))]
        problems = [f"judged wrongly: {line!r}" for line in wrong]
    else:
        problems = []
        for name in arguments:
            with open(name, encoding="utf-8") as file:
                problems += complaints(name, file.read())
    print("\n".join(problems) or "no problem")
    return 1 if problems else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
