#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every function that libmegadp.so exports is called by the C suites in this folder.

usage: coverage.py MEGADP_MAP FOLDER
"""
import pathlib
import re
import sys


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def main(map_file, folder):
    exported = set(re.findall(r"^\s*(mdp_\w+);", pathlib.Path(map_file).read_text(encoding="utf-8"), re.M))
    sources = [without_comments(path.read_text(encoding="utf-8")) for path in sorted(pathlib.Path(folder).glob("*.c"))]
    # Strings are left out: a function's name in a table of sentences is no call.
    code = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', "\n".join(sources))
    called = set(re.findall(r"\b(mdp_\w+)\s*\(", code))
    missing = sorted(exported - called)
    for name in missing:
        print(f"{name}: exported, and called by no suite in {folder}")
    print(f"{len(exported) - len(missing)} of {len(exported)} exported functions are called")
    # An empty ledger or an empty folder would prove nothing.
    return 1 if missing or len(exported) < 50 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
