#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the raw layer of the bindings from include/megadp.h and the headers that it includes: for each generator/raw_*.py the file that it
names as OUTPUT (relative to this folder), with the text that its emit(header) returns. In every language types and constants are divided
as the headers are: those of megadp_layers.h are in files with "layers" in their names. Functions are together in one file.

usage: generate.py [--check]      (--check: writes nothing; leaves with 1 and says which files are stale)
"""
import importlib
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(HERE, "generator"))

from declarations import read_header  # noqa: E402


def main(check):
    header, stale, count = read_header(), 0, 0
    for name in sorted(os.listdir(os.path.join(HERE, "generator"))):
        if not (name.startswith("raw_") and name.endswith(".py")):
            continue
        count += 1
        module = importlib.import_module(name[: -len(".py")])
        path, text = os.path.join(HERE, module.OUTPUT), module.emit(header)
        old = None
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                old = file.read()
        if old == text:
            continue
        if check:
            print(f"bindings/{module.OUTPUT} is stale; run bindings/generate.py")
            stale += 1
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        print(f"wrote bindings/{module.OUTPUT}")
    if check:
        print(f"{count} cases: {stale} stale")
    return 1 if stale else 0


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    sys.exit(main(bool(sys.argv[1:])))
