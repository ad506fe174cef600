# SPDX-License-Identifier: Apache-2.0
"""Writes megadp-sys's src/functions.rs: the extern "C" functions."""
from raw_rust import signature

OUTPUT = "rust/megadp-sys/src/functions.rs"

HEAD = """\
// SPDX-License-Identifier: Apache-2.0
// Written by bindings/generate.py from include/megadp.h. Not to be edited: change the header or bindings/generator/raw_rust_functions.py.
use crate::layers::*;
use crate::structs::*;
use crate::types::*;
use core::ffi::{c_char, c_void};
"""


def wrapped(line, limit=120):
    """One declaration, broken after the comma that fits last."""
    lines = []
    while len(line) > limit:
        at = line.rindex(", ", 0, limit) + 1
        lines.append(line[:at])
        line = " " * 8 + line[at + 1 :]
    return "\n".join([*lines, line])


def emit_functions(header):
    yield 'unsafe extern "C" {'
    for function in header.functions:
        yield wrapped(f"    pub fn {function.name}{signature(header, function)};")
    yield "}\n"


def emit(header):
    return "\n".join([HEAD, *emit_functions(header)]) + "\n"
