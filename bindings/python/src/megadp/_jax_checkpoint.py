# SPDX-License-Identifier: Apache-2.0
"""A training by megadp.jax.DataParallel in a checkpoint, with the program's other pytrees, to be loaded on any number of ranks."""
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import jax
import numpy

from ._checkpoint import CheckpointTensor, load_checkpoint as load_native, save_checkpoint as save_native
from ._dtypes import DTYPES
from ._errors import invalid
from ._jax_failures import outside_of_jit
from ._saved import VERSION, Together, find_checkpoint, pack, to_bytes, together, unpack, wait_for_last
from ._waiting import Request

if TYPE_CHECKING:
    from ._checkpoint import Path
    from .jax import DataParallel

KIND = "megadp.jax"
_KNOWN = tuple(dtype.name for dtype in DTYPES)  # others are stored as their bytes


@outside_of_jit
def save_checkpoint(directory: "Path", training: "DataParallel", *, state: Any = None, extra: Any = None, keep: int = 0,
                    wait: bool = True) -> Optional[Request]:
    """Saves a training in `directory`, under the next free number: parameters, the optimizer's state and values. On a Grid with tensor-parallel
    ranks parameters are put together by DataParallel's placements, and load at any tensor-parallel size.

    state: a pytree of what else the program goes on from (statistics, random keys, counts), of arrays and numbers; rank 0's values.
    extra: likewise None, bools, numbers, strings, lists, tuples and dicts, of any form. keep: so many of the newest checkpoints stay (0:
    all). To be called between steps. Collective; blocking: it waits for files longer than the timeout. With wait=False it returns a
    Request when all is copied, and the copy is written while training goes on; its wait() says how that ended. One is written at a time,
    and a failure whose Request nobody has waited for is raised by the next save or load. The end of the program waits for the last.
    Raises MegaDPError, and older checkpoints stay: INVALID (a leaf or extra that cannot be saved, by its place), UNSUPPORTED (a grid
    with pipeline-parallel ranks), DESYNC, STATE, SYSTEM (names the file), those of a lost communicator."""
    ranks = _begin("save_checkpoint", training)
    leaves, _ = _leaves(state)
    shared = to_bytes({KIND: VERSION, "extra": pack(extra, "extra"), "dtypes": {name: array.dtype.name for name, _, array in leaves}})
    wait_for_last(training)
    for _, _, array in leaves:  # each rank writes a part of each
        if array.size:
            ranks.comm.broadcast(_stored(array))
    saving = save_native(directory, training.optimizer, tensors=_tensors(leaves, ranks),
                         shared_data=shared if ranks.first else b"", keep=keep, wait=wait)
    training._saving = saving
    return saving


@outside_of_jit
def load_checkpoint(directory: "Path", training: "DataParallel", *, state: Any = None, params_only: bool = False,
                    optional: Union[str, Sequence[str]] = ()) -> Tuple[Any, Any]:
    """Goes on from the newest checkpoint in `directory`, or the one that is `directory`, saved by save_checkpoint on any number of ranks,
    with any sharding and tensor-parallel size. Returns (state, extra); training.read() has the parameters.

    state: a pytree of the form and types of what was saved; it stays as it is. params_only: the optimizer begins anew, with zero moments
    and its own learning rate. optional: patterns (as of fnmatch, such as "state*") of names that only the checkpoint or only this program
    may have; such leaves keep the values that are given. To be called between steps. Collective; blocking: it waits for files longer than
    the timeout.
    Raises MegaDPError, on all ranks, and nothing has changed: INVALID (another pytree, by name), UNSUPPORTED, SYSTEM (no checkpoint),
    CORRUPT (if it turns out half-way: steps are STATE until one was loaded), those of a lost communicator."""
    ranks = _begin("load_checkpoint", training)
    leaves, tree = _leaves(state)
    wait_for_last(training)
    path, saved, saved_by = find_checkpoint(ranks.comm, directory, KIND)
    if not saved_by:
        raise invalid(f"{path} is a model, not a checkpoint: megadp.load_checkpoint(path, training.optimizer, params_only=True) loads it, where its "
                      "arrays have the names of training.buffer.params")
    leaves = [_as_saved(*each, saved["dtypes"]) for each in leaves]
    _compare(leaves, saved["dtypes"], path)
    load_native(path, training.optimizer, tensors=_tensors(leaves, ranks), optional=optional,
                params_only=params_only, load_hyper=not params_only)
    return tree.unflatten([_like(leaf, array) for _, leaf, array in leaves]), unpack(saved["extra"])


_LEAVES: Tuple[Any, ...] = (jax.Array, numpy.ndarray, numpy.generic, bool, int, float, complex)


_KINDS: Dict[type, Any] = {bool: numpy.bool_, int: numpy.integer, float: numpy.floating}


def _begin(call: str, training: "DataParallel") -> Together:
    if not hasattr(training, "optimizer"):
        raise invalid(f"training is a {type(training).__name__}; it must be a megadp.jax.DataParallel (with Averaging each rank has all of "
                      "parameters and state, so one rank saves them as without this library)")
    return together(training, call)


def _leaves(state: Any) -> Tuple[List[Tuple[str, Any, Any]], Any]:
    """((name, leaf, its values in memory of their own) of each leaf, the tree)."""
    named, tree = jax.tree_util.tree_flatten_with_path(state)
    names = [f"state{jax.tree_util.keystr(path)}" for path, _ in named]
    return [(name, leaf, _values(name, leaf)) for name, (_, leaf) in zip(names, named)], tree


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and bool(jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _values(name: str, leaf: Any) -> Any:
    if not isinstance(leaf, _LEAVES):
        raise invalid(f"{name} is a {type(leaf).__name__}; leaves of state are arrays and numbers, and extra takes strings")
    try:
        values = numpy.array(jax.random.key_data(leaf) if _is_key(leaf) else leaf, order="C")
    except OverflowError:
        values = numpy.empty((), object)
    if values.dtype.hasobject or values.dtype.names:
        raise invalid(f"{name} is {leaf!r:.60}, whose elements are not numbers of a fixed size; extra takes any integer")
    if not values.dtype.isnative:
        raise invalid(f"{name} has dtype {values.dtype.str}, which is not in this machine's byte order: .astype(numpy.{values.dtype.name})")
    return values


def _as_saved(name: str, leaf: Any, array: Any, saved: Mapping[str, str]) -> Tuple[str, Any, Any]:
    """A number of Python's has no size of its own: a count that began as 0 is int32 once a function of jit has returned it."""
    was = saved.get(name, array.dtype.name)
    same = type(leaf) in _KINDS and jax.numpy.issubdtype(jax.numpy.dtype(was), _KINDS[type(leaf)])
    return name, leaf, numpy.array(array, jax.numpy.dtype(was)) if same else array


def _stored(array: Any) -> Any:
    """A view of a type that the library has."""
    if array.dtype.name in _KNOWN:
        return array
    return array.reshape(-1).view(numpy.uint8).reshape(*array.shape, array.dtype.itemsize)


def _tensors(leaves: Sequence[Tuple[str, Any, Any]], ranks: Together) -> Dict[str, CheckpointTensor]:
    return {name: CheckpointTensor(_stored(array), "replicated" if ranks.tp > 1 else None) for name, _, array in leaves}


def _like(leaf: Any, values: Any) -> Any:
    if _is_key(leaf):
        return jax.random.wrap_key_data(jax.numpy.asarray(values), impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array):
        return jax.device_put(leaf.at[...].set(values) if leaf.weak_type else values, leaf.sharding)  # set() keeps that its type is weak
    return values if isinstance(leaf, numpy.ndarray) else values[()] if isinstance(leaf, numpy.generic) else type(leaf)(values.item())


def _compare(leaves: Sequence[Tuple[str, Any, Any]], saved: Mapping[str, str], path: str) -> None:
    """Bytes do not say what they are of."""
    for name, _, array in leaves:
        was, now = saved.get(name, array.dtype.name), array.dtype.name
        if was != now and not (was in _KNOWN and now in _KNOWN):
            raise invalid(f"{name!r} is {now} here and {was} in {path}; only float32, bfloat16 and float16 are cast. Give state with "
                          f"{was} there: numpy.zeros({tuple(array.shape)}, {was!r}), say")
