# SPDX-License-Identifier: Apache-2.0
"""Writes the enumerations that megadp.h itself declares, for the Python binding."""

OUTPUT = "python/src/megadp/_raw_enums.py"

HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
"""megadp.h's enumerations, as plain integers. Written by bindings/generate.py; do not edit."""
'''


def enumerators(part):
    """The text for those that one of the header's files declares."""
    return "".join(f"{name} = {value}\n" for _, values in part.enums for name, value in values)


def emit(header):
    return HEAD + enumerators(header.parts["megadp.h"])
