# SPDX-License-Identifier: Apache-2.0
"""Names of element types, in the library, in DLPack and in the array interfaces."""
from typing import Any, Dict, Iterable, NamedTuple, Optional, Tuple

from . import _raw
from ._errors import invalid


class DType(NamedTuple):
    code: int                # mdp_dtype
    name: str                # as numpy has it
    size: int                # bytes of an element
    dlpack: Tuple[int, int]  # code and bits
    typestr: str             # of __array_interface__; the bits where numpy has no such type
    format: str              # of memoryview; it cannot show half-width floats, so these are their bits


DTYPES = (
    DType(_raw.MDP_DTYPE_F32, "float32", 4, (2, 32), "<f4", "f"),
    DType(_raw.MDP_DTYPE_BF16, "bfloat16", 2, (4, 16), "<u2", "H"),
    DType(_raw.MDP_DTYPE_F16, "float16", 2, (2, 16), "<f2", "H"),
    DType(_raw.MDP_DTYPE_F64, "float64", 8, (2, 64), "<f8", "d"),
    DType(_raw.MDP_DTYPE_I64, "int64", 8, (0, 64), "<i8", "q"),
    DType(_raw.MDP_DTYPE_U8, "uint8", 1, (1, 8), "|u1", "B"),
)
BY_CODE: Dict[int, DType] = {dtype.code: dtype for dtype in DTYPES}
BY_DLPACK: Dict[Tuple[int, int], DType] = {dtype.dlpack: dtype for dtype in DTYPES}
BY_TYPESTR: Dict[str, DType] = {dtype.typestr: dtype for dtype in DTYPES if dtype.name != "bfloat16"}
BY_FORMAT: Dict[str, DType] = {**{dtype.format: dtype for dtype in DTYPES if dtype.format != "H"}, "e": BY_CODE[_raw.MDP_DTYPE_F16],
                              "l": BY_CODE[_raw.MDP_DTYPE_I64]}
SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64", "int64": "i64", "uint8": "u8"}
BY_NAME: Dict[str, DType] = {**{dtype.name: dtype for dtype in DTYPES}, **{SHORT[dtype.name]: dtype for dtype in DTYPES}}


# What parameters may be; what gradients and values of parameters may be; what numbers of rows and classes are.
TRAINED, FLOATS, INTEGERS = DTYPES[:3], DTYPES[:4], DTYPES[4:5]


def one_of(among: Iterable[DType]) -> str:
    *first, last = (dtype.name for dtype in among)
    return f"must be {', '.join(first)} or {last}" if first else f"must be {last}"


def _name_of(value: Any) -> str:
    return str(value if isinstance(value, str) else getattr(value, "name", None) or getattr(value, "__name__", None) or value)


def named(value: Any) -> Optional[DType]:
    """The type that a string ("f32", "float32") or another library's dtype (numpy's, torch's, ml_dtypes') names; None: the library has no such."""
    return BY_NAME.get(_name_of(value).rpartition(".")[2])


def trained_dtype(value: Any, argument: str) -> DType:
    """The same, of a parameter."""
    found = named(value)
    if found is None or found not in TRAINED:
        raise invalid(f"{argument} has dtype {_name_of(value)!r}; it {one_of(TRAINED)} (an array: .astype(numpy.float32); a torch module: module.float())")
    return found
