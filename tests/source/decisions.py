#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what was decided for the whole of src/ and a compiler does not see.

- A thread starts in one place, base/thread.cc: without the program's signals, and with a rounding mode of its own.
- One word for one thing: names that were replaced do not come back (the glossary is in docs/design.md).
- No text is built on paths that succeed: in the files of the step, only a statement that makes a failure or returns builds text.
- The public headers stay short enough to be read: at most 70 words of comment a function, over both.

usage: decisions.py ROOT | --self-test
"""
import re

import tree

STARTS_THREAD = re.compile(r"\bpthread_create\b|\bstd::j?thread\b(?!::)|\bstd::async\b")
THREADS_START_IN = "src/base/thread.cc"

# What was said before, and the word for it now.
REPLACED = {
    "Tree": "Context", "GridComm": "ProcessGrid", "Guest": "Client", "Reception": "Listener", "Guard": "AuthKey", "Meeting": "JoinRequest",
    "Party": "JoinResult", "Parts": "SharedMemory", "Roll": "submissions", "Show": "SendPart", "meet_showing": "end_exchange",
    "WindowCall": "WindowOp", "Held": "Replica", "Finding": "Explanation", "Kept": "KeepAlive", "Card": "DeviceCard",
    "Doomed": "DeferredFree", "Unseen": "PendingOutcome", "Lent": "DlpackOwner", "turned_dim": "transposed_dim", "spans_hosts": "spans_nodes",
}
NAME = re.compile(r"\b(" + "|".join(REPLACED) + r")\b")

# What runs in every step, or in every turn of a collective.
STEP_FILES = re.compile(r"src/host/(kernels\w*|copy_\w+|window_collectives|staged_collectives|sync|member|stream|\w+_transport)\.cc"
                        r"|src/core/(transfer|grad|grad_sync|optimizer_step)\.cc")
BUILDS_TEXT = re.compile(r"\b(text|describe)\(")
MAY_BUILD_TEXT = re.compile(r"\breturn\b|\bCode::|with_context|\b(bad_state|failed|set_problem|log)\(|\bsentence \+?=|\.broken = |= \[|, \["
                            r"|\bmore\b|among them")  # the last two: parts of a failure's sentence


PUBLIC = "include/"
MOST_WORDS = 70


def check_public(texts):
    words = sum(len(re.findall(r"[\w'-]+", comment)) for text in texts for comment in re.findall(r"/\*.*?\*/", text, re.S))
    functions = sum(len(re.findall(r"^MDP_API ", text, re.M)) for text in texts)
    if words > MOST_WORDS * functions:
        yield f"{PUBLIC}: {words} words for {functions} functions, which is more than {MOST_WORDS} each: long articles go into docs/"


def statements(text):
    """The statements of a file without comments, each with the number of its last line."""
    line, begin = 1, 0
    for at, letter in enumerate(text):
        line += letter == "\n"
        if letter in ";{}" and text[at - 1] != '"':
            yield line, text[begin : at + 1]
            begin = at + 1


def check_file(path, text):
    code = tree.without_comments(text)
    for number, line in enumerate(code.splitlines(), 1):
        if path != THREADS_START_IN and (match := STARTS_THREAD.search(line)):
            yield f"{path}:{number}: {match[0]}: threads start in {THREADS_START_IN} alone"
        if match := NAME.search(re.sub(r'"(\\.|[^"\\])*"', '""', line)):
            yield f"{path}:{number}: {match[0]} is called {REPLACED[match[0]]}"
    if STEP_FILES.fullmatch(path):
        for number, statement in statements(code):
            if BUILDS_TEXT.search(statement.replace(".text()", "")) and not MAY_BUILD_TEXT.search(statement):
                yield f"{path}:{number}: text is built where nothing has failed: {' '.join(statement.split())[:80]}"


def check(root):
    files = [path for path in tree.sources(root) if path.startswith(("src/", PUBLIC))]
    problems = [problem for path in files if not path.startswith(PUBLIC) for problem in check_file(path, tree.read(root, path))]
    return files, [*problems, *check_public([tree.read(root, path) for path in files if path.startswith(PUBLIC)])]


def self_test():
    """Every rule, broken once in a tree of its own, must be reported; a tree that keeps them must not."""
    good = {
        "src/base/thread.cc": "pthread_create(&thread, nullptr, &run, start);\n",
        "src/core/a.cc": "// A Tree of old.\nstd::thread::id id;\nconst char* x = \"Guest\";\n",
        "src/host/sync.cc": "if (late) return Status(Code::timeout, text(1, 2));\nwait([&] { return describe(operation); });\n",
        "src/core/plan.cc": "name = text(1);\n",
        "include/megadp.h": "/* " + "word " * 140 + "*/\nMDP_API int a(void);\n",
        "include/megadp_layers.h": "MDP_API int b(void);\n",
    }
    bad = {
        "src/core/b.cc": "std::thread t([] {});\n",
        "src/host/b.cc": "pthread_create(&thread, nullptr, &run, start);\n",
        "src/core/c.cc": "Tree& tree();\n",
        "src/host/sync.cc": "const std::string during = describe(operation);\n",
        "src/core/grad.cc": "wait(text(\"bucket \", bucket));\n",
        "include/megadp.h": "/* " + "word " * 71 + "*/\nMDP_API int a(void);\n",
        "include/megadp_layers.h": "/* " + "word " * 71 + "*/\nMDP_API int a(void);\n",
    }
    failures = tree.check_rules(check, good, bad)
    return list(good) + list(bad), failures


if __name__ == "__main__":
    tree.main(__doc__, "decisions", check, self_test)
