#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that the checks of this folder notice what they are for: each runs on material with one fault planted, and must fail.

usage: planted.py CC HEADER ABI_JSON TABLE ABI_TABLE_DIR
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def fails(*command):
    run = subprocess.run([sys.executable, "-B", *command], capture_output=True, text=True, check=False)
    return run.returncode == 1 and "Traceback" not in run.stderr


def changed_layout(abi_json, table, directory):
    """Yields (what, path) of copies of abi.json with one change each."""
    def change_size(abi): abi["structs"]["mdp_range"]["size"] += 8
    def change_offset(abi): abi["structs"]["mdp_range"]["fields"]["begin"] += 8
    def drop_field(abi): del abi["structs"]["mdp_range"]["fields"]["begin"]
    def change_value(abi): abi["enums"]["MDP_E_PEER"] = -99
    def add_function(abi): abi["functions"].append("mdp_surprise")
    for change in (change_size, change_offset, drop_field, change_value, add_function):
        with open(abi_json, encoding="utf-8") as file:
            abi = json.load(file)
        change(abi)
        path = os.path.join(directory, "abi.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(abi, file)
        yield change.__name__, path


def library(cc, directory, functions, map_text, *flags):
    """A library that exports `functions` under `map_text`."""
    source, script, out = (os.path.join(directory, name) for name in ("a.c", "a.map", "a.so"))
    with open(source, "w", encoding="utf-8") as file:
        file.write("".join(f"void {name}(void); void {name}(void) {{}}\n" for name in functions))
    with open(script, "w", encoding="utf-8") as file:
        file.write(map_text)
    subprocess.run([cc, "-shared", "-fPIC", "-o", out, source, f"-Wl,--version-script={script}", *flags], check=True)
    return out, script


def main(cc, header, abi_json, table, table_dir):
    sys.path.insert(0, table_dir)
    import abi_table  # pylint: disable=import-outside-toplevel
    names = abi_table.read_header(header).functions
    if os.uname().machine == "x86_64":
        layout_runs = changed_layout
    else:
        layout_runs = lambda *_: ()  # the table is for x86_64 alone
    good_map = "MEGADP_0.1 { global: " + "; ".join(names) + "; local: *; };\n"
    good_flags = ("-Wl,-soname,libmegadp.so.0", "-Wl,-z,nodelete")
    failures, shown = [], 0
    with tempfile.TemporaryDirectory() as directory:
        for what, path in layout_runs(abi_json, table, directory):
            shown += 1
            if not fails(os.path.join(HERE, "layout.py"), path, table):
                failures.append(f"layout.py does not notice {what}")
        faults = {
            "a function too many": (names + ["mdp_extra"], good_map.replace("global: ", "global: mdp_extra; "), good_flags),
            "a function that leaks": (names + ["leaked"], good_map.replace("local: *;", ""), good_flags),
            "a function that is missing": (names[1:], good_map, good_flags),
            "a map that lacks one": (names, good_map.replace(names[0] + "; ", ""), good_flags),
            "another soname": (names, good_map, ("-Wl,-soname,libmegadp.so.7", "-Wl,-z,nodelete")),
            "no nodelete": (names, good_map, good_flags[:1]),
            "libstdc++ from outside": (names, good_map, good_flags + ("-Wl,--no-as-needed", "-lstdc++")),
        }
        exports = os.path.join(HERE, "exports.py")
        out, script = library(cc, directory, names, good_map, *good_flags)
        good = subprocess.run([sys.executable, "-B", exports, out, script, header, table_dir], stdout=subprocess.DEVNULL, check=False)
        if good.returncode:
            failures.append("exports.py complains about a library without fault")
        for what, (functions, map_text, flags) in faults.items():
            shown += 1
            if not fails(exports, *library(cc, directory, functions, map_text, *flags), header, table_dir):
                failures.append(f"exports.py does not notice {what}")
    print("\n".join(failures) or f"{shown} planted faults, all noticed")
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
