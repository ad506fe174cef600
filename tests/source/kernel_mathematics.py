#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the CUDA kernels compute nothing of their own: elements go through base/math.h, which the host uses too, so that both give
the same bits. In what runs on the device (src/cuda/plugin/*_work.h, functions marked __global__) no value declared float or double stands
beside an operator, no function of CUDA's mathematics is called, and the build asks for neither contraction nor fast mathematics.

usage: kernel_mathematics.py ROOT | --self-test
"""
import os
import re
import tempfile

import tree

FOLDER = "src/cuda/plugin"
FORBIDDEN = re.compile(r"\b(?:__f(?:ma|add|sub|mul|div|rcp|sqrt|rsqrt)\w*|__d(?:add|mul|div|sqrt)\w*|__fdividef|fmaf?|rsqrtf?|sqrtf?|"
                       r"(?:exp|log|pow|sin|cos|tanh|div|rcp)f|__half\w*|__nv_bfloat\w*|__h(?:add|mul|sub|fma)\w*|asm)\b")
FORBIDDEN_HEADERS = ("cuda_fp16.h", "cuda_bf16.h", "math.h", "cmath", "math_functions.h")
FORBIDDEN_FLAGS = re.compile(r"use_fast_math|--?ftz=true|--?prec-(?:div|sqrt)=false|--?fmad=true")
DECLARED = re.compile(r"\b(?:float|double|Value)\s+(?:const\s+)?(\w+)(?=\s*[=;,)\[{])")
POINTER = re.compile(r"\b(?:float|double|T|To|From|Grad|Param)\s*(?:const\s*)?\*\s*(?:const\s+)?(\w+)")


def body_after(text, start):
    """The text of the brace-enclosed body that begins behind `start`, with where it begins."""
    begin = text.index("{", text.index(")", text.rindex("(", start, text.index("{", start))))
    depth = 0
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return begin, text[begin:at]
    return begin, text[begin:]


def device_code(path, text):
    """(offset, text) of what runs on the device."""
    if path.endswith("_work.h"):
        return [(0, text)]
    return [body_after(text, match.start()) for match in re.finditer(r"\b__global__\b", text)]


def complaints(path, text):
    text = tree.without_comments(text)
    for number, name, _ in tree.includes(text):
        if name in FORBIDDEN_HEADERS:
            yield number, f"<{name}> is not for kernels: base/math.h is"
    values, arrays = ("|".join(sorted(set(pattern.findall(text)))) or "(?!)" for pattern in (DECLARED, POINTER))
    # A value, an element of one, or an element behind a pointer, with an operator before or after.
    operand = rf"(?:(?:\w+(?:\.|->))*\b(?:(?:{values})\b(?:\[[^\]]*\])?|(?:{arrays})\[[^\]]*\])(?:\.at\[[^\]]*\])?)"
    arithmetic = re.compile(rf"(?<![\w.>]){operand}\s*(?:[-+*/]=?|\+\+|--)(?!>)|(?<=[\w)\]] [-+*/] ){operand}|[-+*/]=\s*{operand}")
    for begin, code in device_code(path, text):
        lines = {text.count("\n", 0, begin + match.start()) + 1: match[0].strip() for match in arithmetic.finditer(code)}
        yield from ((line, f"arithmetic of its own: '{what}'") for line, what in lines.items())
        for match in FORBIDDEN.finditer(code):
            yield text.count("\n", 0, begin + match.start()) + 1, f"mathematics of its own: {match[0]}"


def check(root):
    problems, files = [], [path for path in tree.sources(root) if path.startswith(FOLDER + "/") and path.endswith(("_work.h", ".cu", ".cuh"))]
    for path in files:
        problems += [f"{path}:{line}: {what}" for line, what in complaints(path, tree.read(root, path))]
    build = f"{FOLDER}/CMakeLists.txt"
    if os.path.exists(os.path.join(root, build)):
        flags = re.sub(r"#[^\n]*", "", tree.read(root, build))
        if "--fmad=false" not in flags:
            problems.append(f"{build}: kernels are compiled without --fmad=false")
        problems += [f"{build}: {match[0]} changes the bits" for match in FORBIDDEN_FLAGS.finditer(flags)]
    return files, problems


def self_test():
    kernel = "__global__ void __launch_bounds__(64) k(float* p, int n) {\n%s\n}\n"
    good = {
        f"{FOLDER}/a_work.h": "struct A { float* p; double sum; };\nfloat f(float x, int i) { return add(x, p[i + 1]); }\n",
        f"{FOLDER}/a.cu": "int n = 3; double whole = 2; double host() { return whole * n; }\n" + kernel % "double t = add(p[n * 2], 1); use(t);",
        f"{FOLDER}/CMakeLists.txt": "target_compile_options(x --fmad=false)\n",
    }
    bad = {
        f"{FOLDER}/b_work.h": "float f(float x, float y) { return x + y; }\n",
        f"{FOLDER}/c_work.h": "struct A { double sum; };\nvoid f(A& a, int n) { a.sum *= n; }\n",
        f"{FOLDER}/d_work.h": "#include <cuda_fp16.h>\n",
        f"{FOLDER}/b.cu": kernel % "double t = 0; t += p[0];",
        f"{FOLDER}/c.cu": kernel % "float t = rsqrtf(p[0]);",
        f"{FOLDER}/d.cu": kernel % "p[0] = fmaf(p[1], p[2], p[3]);",
        f"{FOLDER}/e.cu": kernel % "float t[4]; p[0] = 2 * t[1];",
        f"{FOLDER}/CMakeLists.txt": "target_compile_options(x --fmad=false --use_fast_math)\n",
    }
    failures = tree.check_rules(check, good, bad)
    with tempfile.TemporaryDirectory() as root:
        tree.plant(root, {f"{FOLDER}/CMakeLists.txt": "# --fmad=false\n"})
        if len(check(root)[1]) != 1:
            failures.append("a build without --fmad=false should be reported")
    return list(good) + list(bad), failures


if __name__ == "__main__":
    tree.main(__doc__, "kernels' mathematics", check, self_test)
