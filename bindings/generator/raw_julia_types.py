# SPDX-License-Identifier: Apache-2.0
"""Writes the types of the raw layer of the Julia binding that megadp.h itself declares: handles, aliases, structs as immutable bits,
constants. Its names for the types of C are those of raw_julia_functions.py too."""

OUTPUT = "julia/src/raw_types.jl"

HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
# Written by bindings/generate.py from include/megadp.h; not to be edited.

'''
NUMBERS = {"int32_t": "Int32", "uint32_t": "UInt32", "int64_t": "Int64", "uint64_t": "UInt64", "uint8_t": "UInt8", "size_t": "Csize_t",
           "double": "Cdouble", "float": "Cfloat", "char": "UInt8", "void": "Cvoid"}
RENAMED = {"begin": "start", "end": "stop"}  # words of Julia that the header has as names


def julia_type(header, type_):
    """A type as ccall takes it."""
    if type_.length:
        return f"NTuple{{{type_.length}, {NUMBERS[type_.base]}}}"
    if type_.base in header.callbacks:
        return "Ptr{Cvoid}"
    pointers = type_.pointers
    base = type_.base
    if base in header.aliases and header.aliases[base].pointers:
        pointers += header.aliases[base].pointers
        base = header.aliases[base].base
    text = NUMBERS.get(base, base)
    for _ in range(pointers):
        text = f"Ptr{{{text}}}"
    return text


def argument_type(header, type_):
    return "Cstring" if type_.base == "char" and type_.pointers == 1 and type_.const else julia_type(header, type_)


def structs(header, part):
    for name, fields in part.structs.items():
        yield f"struct {name}"
        named = [(RENAMED.get(f.name, f.name), julia_type(header, f.type)) for f in fields]
        yield from (f"    {field}::{type_}" for field, type_ in named)
        yield "end"
        if named[0][0] == "struct_size" and not any("NTuple" in type_ for _, type_ in named):
            zeros = ", ".join(f"{field} = {'C_NULL' if 'Ptr' in type_ else '0'}" for field, type_ in named[1:])
            values = ", ".join(field for field, _ in named[1:])
            yield f"{name}(; {zeros}) ="
            yield f"    {name}(sizeof({name}), {values})"
        yield ""


def constants(header, part):
    for alias, values in part.enums:
        wanted = NUMBERS[header.aliases[alias].base] if alias else "Int"
        yield from (f"const {name} = {wanted}({value})" for name, value in values)
        yield ""


def types(header, part):
    """The text for what one of the header's files declares."""
    lines = [f"mutable struct {name} end" for name in part.handles] + [""]
    lines += [f"const {name} = {julia_type(header, type_)}" for name, type_ in part.aliases.items()] + [""]
    return "\n".join([*lines, *structs(header, part), *constants(header, part)])


def emit(header):
    return HEAD + types(header, header.parts["megadp.h"])
