#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares abi.json, as this build's compiler sees megadp.h, with the table of record. The table changes with the ABI and never otherwise.

usage: layout.py ABI_JSON TABLE [--update]     77: another kind of machine than the table's
"""
import json
import sys

WHERE = "x86_64"


def rows(abi):
    """The table's lines, one fact each."""
    for struct, about in abi["structs"].items():
        yield f"struct {struct} size {about['size']} align {about['align']}"
        yield from (f"field {struct}.{field} {offset}" for field, offset in about["fields"].items())
    yield from (f"type {name} size {size}" for name, size in abi["types"].items())
    yield from (f"value {name} {value}" for name, value in abi["enums"].items())
    yield from (f"function {name}" for name in abi["functions"])


def main(abi_json, table, *options):
    with open(abi_json, encoding="utf-8") as file:
        abi = json.load(file)
    if abi["arch"] != WHERE:
        print(f"the table is for {WHERE}, this machine is {abi['arch']}")
        return 77
    now = list(rows(abi))
    if "--update" in options:
        with open(table, "w", encoding="utf-8") as file:
            file.write(f"# SPDX-License-Identifier: Apache-2.0\n# The ABI on {WHERE}. tests/abi/layout.py compares; --update rewrites.\n")
            file.write("\n".join(now) + "\n")
        return 0
    with open(table, encoding="utf-8") as file:
        record = [line.rstrip("\n") for line in file if line.strip() and not line.startswith("#")]
    gone = [f"in the table of record only: {row}" for row in record if row not in set(now)]
    new = [f"in this build only: {row}" for row in now if row not in set(record)]
    print("\n".join(gone + new) or f"{len(record)} facts agree")
    return 1 if gone or new else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
