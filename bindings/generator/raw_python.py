# SPDX-License-Identifier: Apache-2.0
"""Writes the raw layer of the Python binding: megadp.h as ctypes structs."""
import textwrap

OUTPUT = "python/src/megadp/_raw.py"

HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
"""megadp.h for ctypes. Written by bindings/generate.py; do not edit.

Enumerations are plain integers, structs are ctypes.Structure, handles are pointers to opaque structs. _raw_functions.py has the functions.
Nothing here loads a library.
"""
import ctypes

from ._raw_enums import *  # noqa: F403
'''

SCALARS = {
    "char": "ctypes.c_char", "double": "ctypes.c_double", "float": "ctypes.c_float", "size_t": "ctypes.c_size_t", "int": "ctypes.c_int",
    **{f"{sign}int{bits}_t": f"ctypes.c_{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class Writer:
    """Turns types of declarations.py into ctypes expressions."""

    def __init__(self, header):
        self.header = header
        self.structs = set(header.structs) | set(header.handles)

    def expression(self, kind):
        if kind.length:
            return f"{self.expression(type(kind)(kind.base, kind.pointers, kind.const))} * {kind.length}"
        alias = self.header.aliases.get(kind.base)
        if alias is not None:
            return self.expression(type(kind)(alias.base, alias.pointers + kind.pointers, kind.const))
        if kind.base == "void":
            return self.pointers("ctypes.c_void_p", kind.pointers - 1) if kind.pointers else "None"
        if kind.base == "char" and kind.pointers:
            return self.pointers("ctypes.c_char_p", kind.pointers - 1)
        if kind.base in SCALARS:
            return self.pointers(SCALARS[kind.base], kind.pointers)
        if kind.base in self.structs or kind.base in self.header.callbacks:
            return self.pointers(kind.base, kind.pointers)
        raise ValueError(f"raw_python.py has no ctypes type for {kind}")

    @staticmethod
    def pointers(name, count):
        return "ctypes.POINTER(" * count + name + ")" * count

    def callback(self, name, function):
        # The text is borrowed and may hold NULs: c_void_p, so that ctypes does not copy up to the first of them.
        params = ["ctypes.c_void_p" if p.type.pointers else self.expression(p.type) for p in function.params]
        return f"{name} = ctypes.CFUNCTYPE({', '.join([self.expression(function.result), *params])})\n"

    def struct(self, name, fields):
        lines = [f"class {name}(ctypes.Structure):\n    _fields_ = [\n"]
        lines += [f'        ("{field.name}", {self.expression(field.type)}),\n' for field in fields]
        return "".join([*lines, "    ]\n"])


def emit(header):
    writer = Writer(header)
    parts = [HEAD]
    parts.append("# The type that values of each enumeration are passed as.\nALIASES = {\n"
                 + "".join(f'    "{name}": {writer.expression(kind)},\n' for name, kind in header.aliases.items()) + "}\n")
    for name in header.handles:
        parts.append(f'\nclass {name}(ctypes.Structure):\n    """Opaque."""\n')
    parts.append("\n" + "".join(writer.callback(*item) for item in header.callbacks.items()))  # before the structs that hold them
    for name, fields in header.structs.items():
        parts.append("\n" + writer.struct(name, fields))
    parts.append("STRUCTS = (\n" + textwrap.fill(", ".join(header.structs), 140, initial_indent="    ", subsequent_indent="    ") + ")\n")
    return "\n".join(parts)
