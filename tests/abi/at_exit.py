#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nothing of the library is destroyed when the process exits: a program may end while threads of the library still work.

usage: at_exit.py OBJECT...
       at_exit.py --self-test CXX
"""
import os
import subprocess
import sys
import tempfile

# What nvcc puts into each of its objects takes the kernels back at exit.
NVCC = ".cu.o"
# Frees nothing: it holds the exit up while a thread is inside a call of the driver's, which the driver's own end would pull away.
WAITS = "cuda/at_work.cc.o"


def registers(path):
    """Whether the object asks for something to be called at exit: the destructor of a static, or a function given to atexit."""
    out = subprocess.run(["nm", "--undefined-only", path], capture_output=True, text=True, check=True).stdout
    wanted = {line.split()[-1] for line in out.splitlines()}
    return bool(wanted & {"__cxa_atexit", "atexit"})


def main(objects):
    objects = [path for path in objects if not path.endswith((NVCC, WAITS))]
    guilty = [path for path in objects if registers(path)]
    for path in guilty:
        print(f"{path}: a static with a destructor; make it a reference to something that is never freed, and say who may still use it")
    if not guilty:
        print(f"{len(objects)} objects, none of which does anything at exit")
    return 1 if guilty else 0


def self_test(cxx):
    sources = {
        "global.cc": ("#include <string>\nstd::string a(100, 'a');\n", True),
        "local.cc": ("#include <string>\nconst std::string& f() { static const std::string a(100, 'a'); return a; }\n", True),
        "function.cc": ("#include <cstdlib>\nvoid f() { std::atexit([] {}); }\n", True),
        "kept.cc": ("#include <string>\nconst std::string& f() { static const auto& a = *new std::string(100, 'a'); return a; }\n", False),
        "thread.cc": ("#include <string>\nstd::string& f() { thread_local std::string a(100, 'a'); return a; }\n", False),
    }
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (text, expected) in sources.items():
            source = os.path.join(folder, name)
            with open(source, "w", encoding="utf-8") as file:
                file.write(text)
            subprocess.run([cxx, "-std=c++20", "-O2", "-fPIC", "-c", source, "-o", source + ".o"], check=True)
            if registers(source + ".o") != expected:
                wrong.append(f"{name}: said to register {'nothing' if expected else 'something'} at exit")
    print("\n".join(wrong) or f"{len(sources)} objects, each told right")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(self_test(sys.argv[2]) if sys.argv[1] == "--self-test" else main(sys.argv[1:]))
