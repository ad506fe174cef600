# SPDX-License-Identifier: Apache-2.0
"""Writes megadp.h's enumerations for the Python binding."""

OUTPUT = "python/src/megadp/_raw_enums.py"

HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
"""megadp.h's enumerations, as plain integers. Written by bindings/generate.py; do not edit."""
'''


def emit(header):
    return HEAD + "".join(f"{name} = {value}\n" for _, values in header.enums for name, value in values)
