# SPDX-License-Identifier: Apache-2.0
"""Writes megadp-sys's src/types.rs: the handles, enumerations with their constants, and callbacks that megadp.h itself declares, for a crate
without std."""

OUTPUT = "rust/megadp-sys/src/types.rs"

SCALARS = {
    "char": "c_char", "double": "f64", "float": "f32", "size_t": "usize", "void": "c_void",
    "int8_t": "i8", "int16_t": "i16", "int32_t": "i32", "int64_t": "i64",
    "uint8_t": "u8", "uint16_t": "u16", "uint32_t": "u32", "uint64_t": "u64",
}  # fmt: skip

# Flags are fields and parameters of 64 bits; only the axes of a grid are handed over in 32.
NARROW_FLAGS = {"MDP_AXIS_"}

HEAD = """\
// SPDX-License-Identifier: Apache-2.0
// Written by bindings/generate.py from include/megadp.h. Not to be edited: change the header or bindings/generator/raw_rust.py.
use crate::structs::*;
use core::ffi::{c_char, c_void};
use core::marker::{PhantomData, PhantomPinned};
"""

RESERVED = {"type", "fn", "in", "ref", "match", "move", "use", "impl", "loop", "box"}


def named(name):
    return f"r#{name}" if name in RESERVED else name


def rust_type(header, kind):
    if kind.base in SCALARS:
        text = SCALARS[kind.base]
    elif kind.base in header.handles or kind.base in header.aliases or kind.base in header.structs or kind.base in header.callbacks:
        text = kind.base
    else:
        raise ValueError(f"a type that Rust has no name for: {kind}")
    for depth in range(kind.pointers):
        const = kind.const if depth == 0 else kind.const_outer and depth == kind.pointers - 1
        text = f"*{'const' if const else 'mut'} {text}"
    return f"[{text}; {kind.length}]" if kind.length else text


def signature(header, function):
    params = ", ".join(f"{named(param.name)}: {rust_type(header, param.type)}" for param in function.params)
    nothing = function.result.base == "void" and not function.result.pointers
    return f"({params})" + ("" if nothing else f" -> {rust_type(header, function.result)}")


def emit_callbacks(header, part):
    for name, function in part.callbacks.items():
        yield f'pub type {name} = Option<unsafe extern "C" fn{signature(header, function)}>;'
    yield ""


def emit_handles(part):
    for name in part.handles:
        yield "#[repr(C)]"
        yield f"pub struct {name} {{"
        yield "    _bytes: [u8; 0],"
        yield "    _marker: PhantomData<(*mut u8, PhantomPinned)>,"
        yield "}\n"


def emit_enums(header, part):
    for name, kind in part.aliases.items():
        yield f"pub type {name} = {rust_type(header, kind)};"
    yield ""
    for alias, values in part.enums:
        narrow = any(values[0][0].startswith(prefix) for prefix in NARROW_FLAGS)
        kind = alias or ("u32" if narrow else "u64")
        for name, value in values:
            yield f"pub const {name}: {kind} = {value};"
        yield ""


def emit_types(header, part):
    """The text, in pieces, for what one of the header's files declares."""
    return [*emit_handles(part), *emit_enums(header, part), *emit_callbacks(header, part)]


def emit(header):
    return "\n".join([HEAD, *emit_types(header, header.parts["megadp.h"])]) + "\n"
