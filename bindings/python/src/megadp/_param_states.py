# SPDX-License-Identifier: Apache-2.0
"""What the owner of a whole parameter keeps for an update of the caller's, of any size: bytes to the library, typed arrays here."""
import ctypes
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple, Union

from . import _raw
from ._comm import c_text, whole
from ._dtypes import DTYPES, DType, named, one_of
from ._errors import invalid

# By name, then by parameter (its name or number): shape and dtype.
ParamStates = Mapping[str, Mapping[Union[int, str], Tuple[Sequence[int], Any]]]


class ParamState(NamedTuple):
    shape: Tuple[int, ...]
    dtype: DType

    def bytes(self) -> int:
        count = self.dtype.size
        for size in self.shape:
            count *= size
        return count


def read_param_states(given: ParamStates, number_of: Callable[[Any], int]) -> Dict[str, Dict[int, ParamState]]:
    """number_of: of a parameter that is named. Raises MegaDPError: INVALID."""
    if not isinstance(given, Mapping) or not all(isinstance(of, Mapping) for of in given.values()):
        raise invalid(f"param_states is {given!r}; it must be a mapping of names to mappings of parameters to a shape and a dtype")
    return {name: {number_of(param): _read(entry, f"param_states[{name!r}][{param!r}]") for param, entry in of.items()}
            for name, of in given.items()}


def _read(entry: Any, what: str) -> ParamState:
    try:
        shape, kind = entry
        sizes: List[Any] = list(shape)
    except (TypeError, ValueError):
        raise invalid(f"{what} is {entry!r}; it must be a shape and a dtype, such as ((3, 4), 'f32')") from None
    dtype = named(kind)
    if dtype is None:
        raise invalid(f"{what} has dtype {kind!r}; it {one_of(DTYPES)}")
    return ParamState(tuple(whole(size, f"a size in the shape of {what}", 0, 2**62) for size in sizes), dtype)


def native_param_states(states: Mapping[str, Mapping[int, ParamState]], params: int) -> Any:
    """An array of mdp_param_state; None if there are none. params: how many the buffer has."""
    if not states:
        return None
    structs = (_raw.mdp_param_state * len(states))()
    for struct, (name, of) in zip(structs, states.items()):
        struct.struct_size = ctypes.sizeof(struct)
        struct.name = c_text(name, "a name in param_states")
        struct.bytes = (ctypes.c_uint64 * max(1, params))(*(of[number].bytes() if number in of else 0 for number in range(params)))
    return structs
