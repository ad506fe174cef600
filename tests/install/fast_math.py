#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Configures a project that compiles everything with -ffast-math and has megadp as a part: with it, NaN gradients were taken and steps said
that all was well. No source of the library may see it, and a source that does is refused by a sentence.

usage: fast_math.py CMAKE C++
"""
import json
import os
import shlex
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
LOOSE = "-ffast-math;-ffinite-math-only;-fassociative-math;-freciprocal-math;-fno-signed-zeros"
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(parent LANGUAGES CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:{loose}>" $<$<COMPILE_LANGUAGE:CUDA>:--use_fast_math>)
add_subdirectory({root} megadp)
"""
SIGNS = ("__FAST_MATH__", "__FINITE_MATH_ONLY__ 1", "__ASSOCIATIVE_MATH__", "__RECIPROCAL_MATH__", "__NO_SIGNED_ZEROS__")


def said_by(command, **others):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False, **others)
    return done.returncode, done.stdout


def check_compilers(build):
    """Of each command only what comes before its source, since the macros are the compiler's own."""
    seen = set()
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        for entry in json.load(file):
            if "/megadp_print_abi.dir/" in entry["command"]:
                continue
            if entry["file"].endswith(".cu"):
                assert "use_fast_math" not in entry["command"], entry["command"]
                continue
            words = shlex.split(entry["command"])
            options = tuple(word for word in words[:words.index("-o")] if word[:2] in ("-f", "-O"))
            if options not in seen:
                seen.add(options)
                status, macros = said_by([words[0], *options, "-dM", "-E", "-x", "c++", os.devnull])
                found = [sign for sign in SIGNS if sign in macros]
                assert status == 0 and "__FINITE_MATH_ONLY__ 0" in macros and not found, (entry["file"], found)
    assert seen, "no source was seen"


def check_linker(build):
    """The start-up code that makes the processor flush subnormals is not linked in."""
    with open(os.path.join(build, "megadp", "src", "CMakeFiles", "megadp.dir", "link.txt"), encoding="utf-8") as file:
        status, said = said_by([*shlex.split(file.readline()), "-###"], cwd=os.path.join(build, "megadp", "src"))
    assert status == 0 and "crti.o" in said and "crtfastmath" not in said, said


def main():
    cmake, compiler = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="utf-8") as file:
            file.write(PROJECT.format(loose=LOOSE, root=ROOT))
        build = os.path.join(folder, "build")
        status, said = said_by([cmake, "-G", "Unix Makefiles", "-S", folder, "-B", build, "-DCMAKE_BUILD_TYPE=Release",
                                "-DCMAKE_CXX_COMPILER=" + compiler, "-DCMAKE_CXX_FLAGS=-Ofast -ffast-math",
                                "-DCMAKE_CUDA_FLAGS=-use_fast_math", "-DCMAKE_CUDA_FLAGS_RELEASE=-O3 --use_fast_math",
                                "-DCMAKE_CXX_FLAGS_RELEASE=-Ofast", "-DMEGADP_TOOLS=OFF"])
        assert status == 0, said
        check_compilers(build)
        check_linker(build)
    for option in ("-ffast-math", "-Ofast", "-ffinite-math-only", "-funsafe-math-optimizations"):
        status, said = said_by([compiler, "-std=c++20", option, "-fsyntax-only", "-I", os.path.join(ROOT, "src"), "-x", "c++", "-"],
                               input='#include "base/status.h"\n')
        assert status != 0 and "megadp must be compiled without -ffast-math" in said, said
    print("-ffast-math does not reach the library")


if __name__ == "__main__":
    main()
