# SPDX-License-Identifier: Apache-2.0
"""Writes megadp-sys's src/structs.rs: the #[repr(C)] structs, each with a new() that is all zero but for its size."""
from raw_rust import named, rust_type

OUTPUT = "rust/megadp-sys/src/structs.rs"

HEAD = """\
// SPDX-License-Identifier: Apache-2.0
// Written by bindings/generate.py from include/megadp.h. Not to be edited: change the header or bindings/generator/raw_rust_structs.py.
use crate::types::*;
use core::ffi::{c_char, c_void};
"""


def emit_structs(header):
    for name, fields in header.structs.items():
        yield "#[repr(C)]\n#[derive(Clone, Copy, Debug)]"
        yield f"pub struct {name} {{"
        for item in fields:
            yield f"    pub {named(item.name)}: {rust_type(header, item.type)},"
        yield "}\n"
        yield f"impl {name} {{"
        if fields[0].name == "struct_size":
            yield "    /// All zero, but for the struct_size."
            yield "    pub const fn new() -> Self {"
            yield "        // SAFETY: integers, numbers and raw pointers may all be zero."
            yield "        let mut new: Self = unsafe { core::mem::zeroed() };"
            yield "        new.struct_size = core::mem::size_of::<Self>() as u32;"
            yield "        new"
        else:
            yield "    /// All zero."
            yield "    pub const fn new() -> Self {"
            yield "        // SAFETY: integers may all be zero."
            yield "        unsafe { core::mem::zeroed() }"
        yield "    }\n}\n"
        yield f"impl Default for {name} {{"
        yield "    fn default() -> Self {\n        Self::new()\n    }\n}\n"


def emit(header):
    return "\n".join([HEAD, *emit_structs(header)]) + "\n"
