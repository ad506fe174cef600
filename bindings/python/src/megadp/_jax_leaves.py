# SPDX-License-Identifier: Apache-2.0
"""What a pytree of parameters may hold."""
from typing import Any, List, Tuple

import jax

from ._errors import invalid

_KEEP_OUT = ("keep what is not trained (numbers, counters, integers, random keys, functions) out of params, in a pytree of its own, which "
             "save_checkpoint takes as state; of an equinox model: params, static = eqx.partition(model, eqx.is_inexact_array)")


def named_leaves(params: Any, values: bool = False) -> Tuple[List[Tuple[str, Any]], Any]:
    """The leaves with their names, and the tree. values: they are to be read, and not only their shapes and dtypes.
    Raises MegaDPError: INVALID (names a leaf that cannot be trained)."""
    found, tree = jax.tree_util.tree_flatten_with_path(params)
    leaves = [(jax.tree_util.keystr(path) or "params", leaf) for path, leaf in found]
    for name, leaf in leaves:
        _check(name, leaf, values)
    return leaves, tree


def _check(name: str, leaf: Any, values: bool) -> None:
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        what = f"{leaf!r:.40}, a {type(leaf).__name__}"
        trained = " (if it is trained: jax.numpy.float32(...))" if isinstance(leaf, float) else ""
        raise invalid(f"leaf {name!r} of params is {what}, and no array{trained}; {_KEEP_OUT}")
    if isinstance(leaf, jax.ShapeDtypeStruct) and values:
        raise invalid(f"leaf {name!r} of params is {leaf!r:.60}, which has no values; give arrays")
    if not jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact):  # which of those can be trained is the Buffer's to say
        raise invalid(f"leaf {name!r} of params has dtype {leaf.dtype}, which cannot be trained; {_KEEP_OUT}")
