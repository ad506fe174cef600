# SPDX-License-Identifier: Apache-2.0
"""Writes the prototypes of megadp.h's functions for the Python binding."""
import re

from raw_python_core import Writer

OUTPUT = "python/src/megadp/_raw_functions.py"

HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
"""megadp.h's functions for ctypes. Written by bindings/generate.py; do not edit. declare() gives the functions of a loaded library their
types. Nothing here loads a library."""
import ctypes

from . import _raw
'''

DECLARE = '''\
def declare(library: ctypes.CDLL) -> None:
    """Gives the functions of `library`, a ctypes.CDLL of libmegadp, their types. AttributeError names the first one that it lacks."""
    for name, (result, parameters) in PROTOTYPES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = parameters
'''


def prototype(writer, function):
    params = ", ".join(writer.expression(param.type) for param in function.params)
    line = f'({writer.expression(function.result)}, [{params}]),\n'
    return f'    "{function.name}": ' + re.sub(r"(?<![.\w])((?!ctypes\b|None\b)[A-Za-z]\w*)", r"_raw.\1", line)


def emit(header):
    writer = Writer(header)
    lines = "".join(prototype(writer, function) for function in header.functions)
    return "\n".join([HEAD, "PROTOTYPES = {\n" + lines + "}\n", "\n" + DECLARE])
