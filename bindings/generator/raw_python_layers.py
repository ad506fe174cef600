# SPDX-License-Identifier: Apache-2.0
"""Writes what megadp_layers.h declares, enumerations and types, for the Python binding."""
from raw_python_core import types
from raw_python_enums import enumerators

OUTPUT = "python/src/megadp/_raw_layers.py"

HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
"""Enumerations and types of megadp_layers.h for ctypes. Written by bindings/generate.py; do not edit."""
import ctypes

from ._raw_core import *  # noqa: F403
'''


def emit(header):
    part = header.parts["megadp_layers.h"]
    return "\n".join([HEAD, enumerators(part), *types(header, part)])
