# SPDX-License-Identifier: Apache-2.0
"""Which files of the tree are ours to check, what they include, and how a check of them reports."""
import os
import re
import sys
import tempfile

FOLDERS = ("include", "src", "tools", "examples", "tests", "benchmarks", "bindings")
SUFFIXES = (".h", ".c", ".cc", ".cpp", ".hpp", ".cu", ".cuh")


def sources(root):
    """Paths relative to `root`, with forward slashes, of all C and C++ files of the project."""
    found = []
    for folder in FOLDERS:
        for directory, subfolders, files in os.walk(os.path.join(root, folder)):
            subfolders[:] = sorted(name for name in subfolders if not name.startswith((".", "build")))
            found += [os.path.relpath(os.path.join(directory, name), root) for name in sorted(files) if name.endswith(SUFFIXES)]
    return found


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def without_comments(text):
    """Comments become white space, line numbers stay. String literals are kept, so that a // in one is not taken for a comment."""
    pattern = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.S)
    return pattern.sub(lambda match: match[0] if match[0][0] in "\"'" else re.sub(r"[^\n]", " ", match[0]), text)


def includes(text):
    """(line number, name, whether in angle brackets) of every #include."""
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', line)
        if match:
            yield number, match[1] or match[2], match[1] is None


def plant(root, files):
    """Writes `files` (path -> text) under `root`: the material of a self-test."""
    for path, text in files.items():
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)


def check_rules(check, good, bad, beside=()):
    """What is wrong with `check`, which takes a root: a tree that keeps its rules (`good`: path -> text) must not be reported, and each file
    of `bad`, in a tree of its own with nothing but the files `beside` it, must be reported once."""
    failures = []
    with tempfile.TemporaryDirectory() as root:
        plant(root, good)
        failures += [f"a rule that was kept is reported: {problem}" for problem in check(root)[1]]
    for path, text in bad.items():
        with tempfile.TemporaryDirectory() as root:
            plant(root, {**dict(beside), path: text})
            if len(problems := check(root)[1]) != 1:
                shown = text if len(text) < 200 else text[:200] + "..."
                failures.append(f"{path} with {shown!r} should be reported once, was: {problems}")
    return failures


def main(usage, what, check, self_test):
    """The command line of a check: ROOT, or --self-test."""
    if len(sys.argv) != 2:
        sys.exit(usage)
    if sys.argv[1] == "--self-test":
        report(f"{what}, self-test", *self_test())
    else:
        report(what, *check(sys.argv[1]))


def report(what, files, problems):
    """Prints the problems and leaves with 1, or says how many files were looked at. No files at all is a failure too."""
    for problem in problems:
        print(problem)
    if not files:
        sys.exit(f"{what}: no source file was found")
    if problems:
        sys.exit(f"{what}: {len(problems)} problem(s) in {len(files)} files")
    print(f"{what}: {len(files)} files, no problem")
