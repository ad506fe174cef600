# SPDX-License-Identifier: Apache-2.0
"""Writes megadp-sys's src/layers.rs: what megadp_layers.h declares, but for functions."""
from raw_rust import emit_types
from raw_rust_defaults import emit_defaults
from raw_rust_structs import emit_structs

OUTPUT = "rust/megadp-sys/src/layers.rs"

HEAD = """\
// SPDX-License-Identifier: Apache-2.0
// Written by bindings/generate.py from include/megadp_layers.h. Not to be edited: change the header or bindings/generator/raw_rust_layers.py.
use crate::structs::*;
use crate::types::*;
use core::ffi::c_void;
use core::marker::{PhantomData, PhantomPinned};
"""


def emit(header):
    part = header.parts["megadp_layers.h"]
    return "\n".join([HEAD, *emit_types(header, part), *emit_structs(header, part), *emit_defaults(part)]) + "\n"
