#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the shape of files: their length, that of their functions, the licence line, a first comment that says what the file is for, a
name that says something.

usage: file_shape.py ROOT | --self-test
"""
import ast
import os
import re

import tree

LIMITS = (("include/megadp.h", 1200), ("tests/", 800), ("", 600))  # the first that matches
FUNCTION_LIMIT = 60  # from the line of its name to its last brace
LICENCE = "SPDX-License-Identifier: Apache-2.0"
EMPTY_NAMES = re.compile(r"(^|_)(utils?|misc|common|helpers?)(_|$)")


def scripts(root):
    found = []
    for folder in ("scripts", "cmake", ".ci", "tests", "src", "tools", "examples", "benchmarks", "bindings"):
        for directory, folders, files in os.walk(os.path.join(root, folder)):
            folders[:] = [name for name in folders if name not in ("target", "node_modules")]  # what cargo and npm leave
            for name in files:
                path = os.path.relpath(os.path.join(directory, name), root)
                if name.endswith((".py", ".sh", ".cmake", ".map", ".jl", ".rs")) or name == "CMakeLists.txt" or folder in ("scripts", ".ci"):
                    if "__pycache__" not in path:
                        found.append(path)
    return sorted(found)


def check_file(path, text):
    lines = text.splitlines()
    limit = next(limit for prefix, limit in LIMITS if path.startswith(prefix))
    if len(lines) > limit:
        yield f"{path}:{limit}: {len(lines)} lines; the limit is {limit}"
    if LICENCE not in "\n".join(lines[:3]):
        yield f"{path}:1: the first lines lack '{LICENCE}'"
    stem = os.path.basename(path).split(".")[0]
    if EMPTY_NAMES.search(stem):
        yield f"{path}:1: the name '{stem}' does not say what the file is for"


def long_blocks(text):
    """(first line, number of lines) of every function above the limit. As clang-format leaves the text, a function ends with a brace that
    stands alone, and its head is the last line before that is not indented deeper. Types and tables end with `};`. Blocks inside of a
    function are shorter than it is; so nothing need be parsed."""
    indented = "\n" + " " * 40
    raw = re.sub(r'R"([^(\s]*)\(.*?\)\1"', lambda match: '""' + indented * match[0].count("\n"), text, flags=re.S)
    lines = [line if not line.startswith("#") else "" for line in tree.without_comments(raw).splitlines()]
    indents = [len(line) - len(line.lstrip()) if line.strip() else None for line in lines]
    found = []
    for end, line in enumerate(lines):
        if line.strip() != "}":
            continue
        begin = next((at for at in range(end - 1, -1, -1) if indents[at] is not None and indents[at] <= indents[end]), end)
        if end - begin + 1 <= FUNCTION_LIMIT or re.match(r"\s*(inline namespace|namespace|extern)\b", lines[begin]):
            continue
        found = [(first, count) for first, count in found if first < begin + 1] + [(begin + 1, end - begin + 1)]
    return found


def long_functions(path, text):
    if path.endswith(tree.SUFFIXES):
        found = long_blocks(text)
    elif path.endswith(".py"):
        functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        found = [(node.lineno, node.end_lineno - node.lineno + 1) for node in functions]
    else:
        found = []
    for line, count in found:
        if count > FUNCTION_LIMIT:
            yield f"{path}:{line}: a function of {count} lines; the limit is {FUNCTION_LIMIT}"


def says_its_purpose(text):
    """A header's first comment goes on after the licence."""
    head = re.match(r"\s*//.*?\n\s*//\s*\S|\s*/\*.*?Apache-2\.0[\s*]*\w", text, re.S)
    return head is not None


def check(root):
    problems = []
    sources = tree.sources(root)
    for path in sources:
        text = tree.read(root, path)
        problems += [*check_file(path, text), *long_functions(path, text)]
        if path.endswith((".h", ".hpp")) and not says_its_purpose(text):
            problems.append(f"{path}:2: no first comment that says what the header is for")
    others = scripts(root)
    for path in others:
        text = tree.read(root, path)
        problems += [*check_file(path, text), *long_functions(path, text)]
    return sources + others, problems


def self_test():
    spdx = "// " + LICENCE + "\n"
    purpose = spdx + "// What it is for.\n"
    body = "  if (a) {\n    b();\n  }\n" * 19
    rest = "namespace n {\n\nint f(int a,\n      int b) {\n%s}\n\n}  // namespace n\n"
    member = "struct A {\n  int f() {\n%s  }\n};\n"
    good = {
        "src/base/a.h": purpose + "int x;\n" * 598,
        "tests/unit/a.cc": spdx + "int x;\n" * 799,
        "include/megadp.h": "/* " + LICENCE + "\n *\n * megadp: for you. */\n" + "int x;\n" * 1197,
        "scripts/a": "#!/bin/sh\n# " + LICENCE + "\n",
        "src/base/f.cc": spdx + rest % body * 2,
        "src/base/m.h": purpose + member % ("    a();\n" * 58),
        "src/base/t.cc": spdx + "const int t[] = {\n" + "    1,\n" * 70 + "};\n",
        "tools/f.py": "# " + LICENCE + "\ndef f():\n" + "    f()\n" * 59,
    }
    bad = {
        "src/base/a.h": purpose + "int x;\n" * 599,
        "src/base/b.h": spdx + "int x;\n",
        "src/base/c.cc": "int x;\n",
        "src/base/text_utils.cc": spdx,
        "src/base/helper.cc": spdx,
        "tests/unit/a.cc": spdx + "int x;\n" * 800,
        "include/megadp.h": "/* " + LICENCE + "\n *\n * megadp: for you. */\n" + "int x;\n" * 1198,
        "scripts/a": "#!/bin/sh\n",
        "bindings/julia/src/a.jl": "# " + LICENCE + "\n" + "a\n" * 600,
        "bindings/rust/a/src/a.rs": spdx + "a;\n" * 600,
        "benchmarks/a.sh": "#!/bin/sh\n",
        "src/base/f.cc": spdx + rest % (body + "#if 0\n"),
        "src/base/r.cc": spdx + rest % (body + '  s = R"(\n}\n)";\n'),
        "src/base/m.h": purpose + member % ("    a();\n" * 59),
        "tools/f.py": "# " + LICENCE + "\ndef f():\n" + "    f()\n" * 60,
    }
    failures = tree.check_rules(check, good, bad)
    return list(good) + list(bad), failures


if __name__ == "__main__":
    tree.main(__doc__, "file shape", check, self_test)
