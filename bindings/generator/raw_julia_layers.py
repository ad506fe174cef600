# SPDX-License-Identifier: Apache-2.0
"""Writes the types of the raw layer of the Julia binding that megadp_layers.h declares."""
from raw_julia_types import HEAD, types

OUTPUT = "julia/src/raw_layers.jl"


def emit(header):
    return HEAD.replace("megadp.h", "megadp_layers.h") + types(header, header.parts["megadp_layers.h"])
