# SPDX-License-Identifier: Apache-2.0
"""Writes megadp-sys's src/structs.rs: the #[repr(C)] structs of megadp.h itself. What they are at first is in raw_rust_defaults.py."""
from raw_rust import named, rust_type

OUTPUT = "rust/megadp-sys/src/structs.rs"

HEAD = """\
// SPDX-License-Identifier: Apache-2.0
// Written by bindings/generate.py from include/megadp.h. Not to be edited: change the header or bindings/generator/raw_rust_structs.py.
use crate::types::*;
use core::ffi::{c_char, c_void};
"""


def emit_structs(header, part):
    for name, fields in part.structs.items():
        yield "#[repr(C)]\n#[derive(Clone, Copy, Debug)]"
        yield f"pub struct {name} {{"
        for item in fields:
            yield f"    pub {named(item.name)}: {rust_type(header, item.type)},"
        yield "}\n"


def emit(header):
    return "\n".join([HEAD, *emit_structs(header, header.parts["megadp.h"])]) + "\n"
