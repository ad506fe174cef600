# SPDX-License-Identifier: Apache-2.0
"""Writes the types that megadp.h itself declares, as ctypes structs, for the Python binding."""

OUTPUT = "python/src/megadp/_raw_core.py"

HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
"""The types of megadp.h for ctypes. Written by bindings/generate.py; do not edit."""
import ctypes
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


def types(header, part):
    """The parts of the text for what one of the header's files declares."""
    writer = Writer(header)
    for name in part.handles:
        yield f'\nclass {name}(ctypes.Structure):\n    """Opaque."""\n'
    yield "\n" + "".join(writer.callback(*item) for item in part.callbacks.items())  # before the structs that hold them
    for name, fields in part.structs.items():
        yield "\n" + writer.struct(name, fields)


def emit(header):
    return "\n".join([HEAD, *types(header, header.parts["megadp.h"])])
