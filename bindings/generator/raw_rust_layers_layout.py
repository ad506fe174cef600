# SPDX-License-Identifier: Apache-2.0
"""Writes megadp-sys's src/layers_layout.rs, for its test: what raw_rust_layout.py writes of megadp.h, of megadp_layers.h."""
from raw_rust_layout import emit_structs, emit_values

OUTPUT = "rust/megadp-sys/src/layers_layout.rs"

HEAD = """\
// SPDX-License-Identifier: Apache-2.0
// Written by bindings/generate.py from include/megadp_layers.h. Not to be edited: change the header or
// bindings/generator/raw_rust_layers_layout.py.
use crate::layout::Struct;
use core::mem::{align_of, offset_of, size_of};
"""


def emit(header):
    part = header.parts["megadp_layers.h"]
    return "\n".join([HEAD, *emit_structs(part), *emit_values(part)])
