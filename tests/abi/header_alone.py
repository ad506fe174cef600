#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""megadp.h alone, and likewise what it includes, under every language standard it promises, all warnings errors; and as SWIG sees it.

usage: header_alone.py INCLUDE_DIR ABI_TABLE_DIR COMPILER_PREFIX | --self-test ... (the same)
COMPILER_PREFIX is gcc or clang, of any version. Leaves with 77 where that is not installed. With `swig` in its place, SWIG reads the header.
"""
import itertools
import os
import shutil
import subprocess
import sys
import tempfile

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wpadded", "-Wundef", "-Wshadow", "-Wconversion", "-Werror"]
C_WARNINGS = ["-Wstrict-prototypes"]
CXX_WARNINGS = ["-Wold-style-cast"]
STANDARDS = (("c", "c99"), ("c", "c11"), ("c++", "c++17"), ("c++", "c++20"))


def program(header, structs, language):
    """A translation unit that includes the header first and twice, and fills every struct with zeros."""
    lines = [f"#include <{header}>", f"#include <{header}>"]
    for number, name in enumerate(structs):
        initialiser = "{}" if language == "c++" else "{0}"
        lines.append(f"extern {name} v{number};")
        lines.append(f"{name} v{number} = {initialiser};")
    return "\n".join(lines + [""])


def compile_alone(compiler, include, headers, structs):
    """What the compilers say; empty when all are content."""
    problems = []
    for header, (language, standard) in itertools.product(headers, STANDARDS):
        command = [compiler, "-x", language, f"-std={standard}", "-fsyntax-only", "-I", include, *WARNINGS,
                   *(C_WARNINGS if language == "c" else CXX_WARNINGS), "-"]
        if language == "c":  # {0} leaves the other fields out on purpose
            command.insert(-1, "-Wno-missing-field-initializers")
            command.insert(-1, "-Wno-missing-braces")
        run = subprocess.run(command, input=program(header, structs, language), capture_output=True, text=True, check=False)
        if run.returncode:
            problems.append(f"{compiler} -std={standard}, {header}:\n{run.stderr}")
    return problems


def swig(include, functions):
    """SWIG must read the header without a warning and wrap every function."""
    with tempfile.TemporaryDirectory() as directory:
        interface = os.path.join(directory, "megadp.i")
        with open(interface, "w", encoding="utf-8") as file:
            # 451: a name set through SWIG is the wrapper's to free; struct fields that borrow strings always draw it.
            file.write('%module megadp\n#pragma SWIG nowarn=451\n%{\n#include "megadp.h"\n%}\n%include <stdint.i>\n%include "megadp.h"\n')
        run = subprocess.run(["swig", "-python", "-Werror", f"-I{include}", "-outdir", directory, "-o",
                              os.path.join(directory, "wrap.c"), interface], capture_output=True, text=True, check=False)
        if run.returncode:
            return [f"swig: {run.stderr}{run.stdout}"]
        with open(os.path.join(directory, "wrap.c"), encoding="utf-8") as file:
            wrapped = file.read()
    return [f"swig wraps no {name}" for name in functions if f"_wrap_{name}(" not in wrapped]


def check(tool, include, headers, table):
    return swig(include, table.functions) if tool == "swig" else compile_alone(tool, include, headers, table.structs)


# A change of one of the headers that each tool must refuse.
PLANTED = {
    "a hole": ("uint32_t struct_size;\n  mdp_rule rule;", "uint32_t struct_size;"),
    "a header that is not included": ("#include <stdint.h>\n", ""),
    "a part that needs megadp.h before it": ('#include "megadp.h"\n', ""),
}
PLANTED_FOR_SWIG = {
    "C that is none": ("typedef struct mdp_comm mdp_comm;", "typedef struct mdp_comm mdp_comm"),
    "a part that SWIG does not see": ('%include "megadp_layers.h"\n', ""),
}


def self_test(tool, include, headers, table):
    texts = {}
    for name in headers:
        with open(os.path.join(include, name), encoding="utf-8") as file:
            texts[name] = file.read()
    failures = []
    for what, (old, new) in (PLANTED_FOR_SWIG if tool == "swig" else PLANTED).items():
        with tempfile.TemporaryDirectory() as directory:
            if sum(text.count(old) for text in texts.values()) != 1:
                failures.append(f"{what}: the text to replace is not in the headers once")
                continue
            for name, text in texts.items():
                with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
                    file.write(text.replace(old, new))
            if not check(tool, directory, headers, table):
                failures.append(f"{what} was not noticed by {tool}")
    return failures


def installed(tool):
    """The program's name: with a version where only such a one is installed, as distributions have clang."""
    return next((name for name in (tool, *(f"{tool}-{version}" for version in range(40, 10, -1))) if shutil.which(name)), None)


def main(arguments):
    planted = arguments[0] == "--self-test"
    include, table_dir, wanted = arguments[1:] if planted else arguments
    tool = installed(wanted)
    if tool is None:
        print(f"{wanted} is not installed")
        return 77
    sys.path.insert(0, table_dir)
    import abi_table  # pylint: disable=import-outside-toplevel
    path = os.path.join(include, "megadp.h")
    headers, table = [os.path.basename(header) for header in abi_table.public_headers(path)], abi_table.read_header(path)
    problems = (self_test if planted else check)(tool, include, headers, table)
    print("\n".join(problems) or f"{tool}: {len(table.structs)} structs, {len(table.functions)} functions, no problem")
    return 1 if problems else 0


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
