# SPDX-License-Identifier: Apache-2.0
"""Writes megadp-sys's src/defaults.rs: of each struct of structs.rs a new() that is all zero but for its size, and Default by it."""
OUTPUT = "rust/megadp-sys/src/defaults.rs"

HEAD = """\
// SPDX-License-Identifier: Apache-2.0
// Written by bindings/generate.py from include/megadp.h. Not to be edited: change the header or bindings/generator/raw_rust_defaults.py.
use crate::structs::*;
"""


def emit_defaults(part):
    for name, fields in part.structs.items():
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
    return "\n".join([HEAD, *emit_defaults(header.parts["megadp.h"])]) + "\n"
