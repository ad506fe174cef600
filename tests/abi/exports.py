#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The built library exports what megadp.map lists, which is what megadp.h declares; and it brings no other library but the system's.

usage: exports.py LIBRARY MAP HEADER ABI_TABLE_DIR
"""
import re
import subprocess
import sys

# Of glibc, which every process has. No libstdc++ (ours is inside), no UCX, CUDA, NCCL (loaded by name), no Highway or fmt.
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
LOADER = re.compile(r"ld-linux-[\w-]+\.so\.\d+|ld64\.so\.\d+")


def exported(library):
    """{name: version} of the defined dynamic symbols; the versions' own symbols (type A) are left out."""
    out = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library], capture_output=True, text=True,
                         check=True).stdout
    symbols = {}
    for line in out.splitlines():
        kind, name = line.split()[-2:]
        if kind != "A":
            name, _, version = name.partition("@")
            symbols[name] = version.lstrip("@")
    return symbols


def listed(map_file):
    """{name: version} of the version map."""
    with open(map_file, encoding="utf-8") as file:
        text = re.sub(r"#[^\n]*", "", file.read())
    symbols = {}
    for version, body in re.findall(r"(MEGADP_[\d.]+)\s*\{(.*?)\}", text, re.S):
        body = re.sub(r"local:\s*\*;", "", body).replace("global:", "")
        symbols.update({name.strip(): version for name in body.split(";") if name.strip()})
    return symbols


def dynamic_section(library, tag):
    out = subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout
    return [match for line in out.splitlines() if f"({tag})" in line for match in re.findall(r"\[(.*)\]|Flags: (.*)", line)]


def differences(what_a, a, what_b, b):
    for name in sorted(set(a) - set(b)):
        yield f"{name}: in {what_a}, not in {what_b}"
    for name in sorted(set(b) - set(a)):
        yield f"{name}: in {what_b}, not in {what_a}"


def main(library, map_file, header, table_dir):
    sys.path.insert(0, table_dir)
    import abi_table  # pylint: disable=import-outside-toplevel
    declared = abi_table.read_header(header).functions
    in_map, in_library = listed(map_file), exported(library)
    problems = list(differences("megadp.h", declared, "megadp.map", in_map))
    problems += differences("megadp.map", in_map, "the library", in_library)
    problems += [f"{name}: version {version} in the library, {in_map[name]} in megadp.map"
                 for name, version in in_library.items() if name in in_map and in_map[name] != version]
    needed = [name for name, _ in dynamic_section(library, "NEEDED")]
    problems += [f"needs {name}" for name in needed if name not in SYSTEM_LIBRARIES and not LOADER.fullmatch(name)]
    if [name for name, _ in dynamic_section(library, "SONAME")] != ["libmegadp.so.0"]:
        problems.append("the soname is not libmegadp.so.0")
    if not any("NODELETE" in flags for _, flags in dynamic_section(library, "FLAGS_1")):
        problems.append("the library may be unloaded; it must be linked with -z nodelete")
    print("\n".join(problems) or f"{len(declared)} functions declared, listed and exported; needs {', '.join(needed)}")
    return 1 if problems else 0


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
