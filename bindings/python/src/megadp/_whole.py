# SPDX-License-Identifier: Apache-2.0
"""Rules of other libraries that need all of a parameter: where they can be taken, and where the library keeps what they keep."""
from typing import Any, Dict, Mapping, NamedTuple, Tuple

from ._buffer import Which
from ._errors import invalid
from ._grid import Grid

MOST = 4  # state arrays of an optimizer, and as many names of what it keeps of single parameters
OWNED_WHOLE = ("whole", "zero_0")  # shardings with which whoever updates a parameter has all of it
SAYS_WHOLE = ('With DataParallel(..., sharding="whole") each parameter has one owner, who updates all of it: there a rule can be taken that goes by '
              "one parameter at a time")


class Keeps(NamedTuple):
    """Of a parameter, under a name. dtype: as the library names it."""

    shape: Tuple[int, ...]
    dtype: str


def arrange(rule: str, kept: Mapping[int, Mapping[str, Keeps]],
            shapes: Mapping[int, Tuple[int, ...]]) -> Tuple[Tuple[str, ...], Dict[str, Dict[Which, Keeps]]]:
    """The names of state arrays, and param_states, of what is kept of each parameter. An array would take memory of all of them: only what
    all have in their own shape is one. Raises MegaDPError: INVALID (too many names)."""
    names = list(dict.fromkeys(name for of in kept.values() for name in of))
    arrays = tuple(name for name in names if all(of.get(name) == Keeps(shapes[i], "float32") for i, of in kept.items()))[:MOST]
    others = [name for name in names if name not in arrays]
    if len(others) > MOST:
        raise invalid(f"{rule} keeps {', '.join(others)} of single parameters; an optimizer has at most {MOST} such names")
    return arrays, {name: {i: of[name] for i, of in kept.items() if name in of} for name in others}


def check_uncut(rule: str, where: Any, params: Mapping[int, Any]) -> None:
    """That no tensor-parallel rank has a part only. params: Params by number. Raises MegaDPError: INVALID."""
    if not (isinstance(where, Grid) and where.coords("tp")[1] > 1):
        return
    for param in params.values():
        if param.placement == "sharded":
            raise invalid(f"parameter {param.name!r} is cut over the tensor-parallel ranks, and {rule} needs all of it: update it by a rule "
                          "that goes element by element")
