# SPDX-License-Identifier: Apache-2.0
"""Writes the raw layer of the Python binding: what its modules hold, under one name."""
import textwrap

from raw_python_core import Writer

OUTPUT = "python/src/megadp/_raw.py"

HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
"""megadp.h for ctypes. Written by bindings/generate.py; do not edit.

Enumerations are plain integers, structs are ctypes.Structure, handles are pointers to opaque structs. _raw_functions.py has the functions.
Nothing here loads a library.
"""
import ctypes

from ._raw_core import *  # noqa: F403
from ._raw_enums import *  # noqa: F403
from ._raw_layers import *  # noqa: F403
'''


def emit(header):
    writer = Writer(header)
    aliases = "".join(f'    "{name}": {writer.expression(kind)},\n' for name, kind in header.aliases.items())
    structs = textwrap.fill(", ".join(header.structs), 140, initial_indent="    ", subsequent_indent="    ")
    return "\n".join([HEAD, f"# The type that values of each enumeration are passed as.\nALIASES = {{\n{aliases}}}",
                      f"STRUCTS = (\n{structs})\n"])
