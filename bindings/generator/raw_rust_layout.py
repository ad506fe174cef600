# SPDX-License-Identifier: Apache-2.0
"""Writes megadp-sys's src/layout.rs, for its test: the same tables as abi.json has, as the Rust compiler sees them; of structs and values
those of megadp.h itself."""
from raw_rust import named

OUTPUT = "rust/megadp-sys/src/layout.rs"

HEAD = """\
// SPDX-License-Identifier: Apache-2.0
// Written by bindings/generate.py from include/megadp.h. Not to be edited: change the header or bindings/generator/raw_rust_layout.py.
use core::mem::{align_of, offset_of, size_of};

/// name, size, alignment, [(field, offset)]
pub(crate) type Struct = (&'static str, usize, usize, &'static [(&'static str, usize)]);
"""


def emit_structs(part):
    yield "pub(crate) const STRUCTS: &[Struct] = &["
    for name, fields in part.structs.items():
        yield f'    ("{name}", size_of::<super::{name}>(), align_of::<super::{name}>(), &['
        yield from (f'        ("{item.name}", offset_of!(super::{name}, {named(item.name)})),' for item in fields)
        yield "    ]),"
    yield "];\n"


def emit_values(part):
    yield "pub(crate) const VALUES: &[(&str, i64)] = &["
    for _, values in part.enums:
        yield from (f'    ("{name}", super::{name} as i64),' for name, _ in values)
    yield "];\n"


def emit_functions(header):
    yield "/// Their addresses: a test that reads them does not link where one is not exported."
    yield f"pub(crate) fn functions() -> [(&'static str, *const ()); {len(header.functions)}] {{\n    ["
    yield from (f'        ("{function.name}", super::{function.name} as *const ()),' for function in header.functions)
    yield "    ]\n}"


def emit(header):
    part = header.parts["megadp.h"]
    return "\n".join([HEAD, *emit_structs(part), *emit_values(part), *emit_functions(header)]) + "\n"
