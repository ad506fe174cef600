# SPDX-License-Identifier: Apache-2.0
"""The update of a gradient transformation, as optax has them (init, update), of one array: what it keeps comes from the library, and goes
back there."""
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Sequence, Set, Tuple

import jax
import numpy

from ._comm import Comm
from ._errors import MegaDPError, invalid

STEPS = 4  # that are tried out
_MORE_STEPS = 200  # that are compared after them
_TAKEN = (6, 7, 98, 100, 511, 1000, 4095, 10000, 99999)  # counts that are tried out besides, in no order with what may begin again at a step
_COMPARED = sorted({round(2 ** (k / 4)) for k in range(67)})  # counts of steps at which ranks are compared: none is far from an end of a schedule
_WIDTH = 64  # elements of what is updated for that


def check_tree(transformation: Any, tree: Any, flat: bool, refuse: Callable[[str], NoReturn]) -> None:
    """That each leaf of a pytree like this goes the way that it goes by itself, flat or in its shape: what a transformation decides by a
    leaf's path or its dimensions, it would decide otherwise. Small arrays stand for the leaves, alike for all of as many dimensions."""
    random = numpy.random.default_rng(2)
    named, structure = jax.tree_util.tree_flatten_with_path(tree)
    sizes = [(3, 2, 2, *(numpy.ndim(leaf) - 3) * [1])[:numpy.ndim(leaf)] for _, leaf in named]
    values = {size: [jax.numpy.asarray(random.standard_normal(size), numpy.float32) for _ in range(3)] for size in dict.fromkeys(sizes)}

    def walk(of: Callable[[int], Any]) -> Any:
        value = start = of(0)
        state = transformation.init(start)
        for grad in (of(1), of(2)):
            updates, state = transformation.update(grad, state, value)
            value = jax.tree.map(jax.numpy.add, value, updates)
        return value

    together = jax.tree_util.tree_leaves(walk(lambda i: jax.tree_util.tree_unflatten(structure, [values[size][i] for size in sizes])))
    shaped = {size: [value.reshape(-1) if flat else value for value in given] for size, given in values.items()}
    alone = {size: walk(given.__getitem__) for size, given in shaped.items()}
    for (path, _), size, found in zip(named, sizes, together):
        if not numpy.allclose(found, alone[size].reshape(size), rtol=1e-4, atol=1e-5, equal_nan=True):
            refuse(f"{jax.tree_util.keystr(path) or 'params'} goes another way in the pytree than by itself. Masks and labels cannot go by names "
                   f"{'or dimensions here, as each rank updates pieces' if flat else 'here, as each parameter is updated by itself'}")


def functions(update: Any) -> Set[str]:
    """The names of the functions that an update was made by, and those that it calls."""
    found: Set[str] = set()
    seen: Set[int] = set()
    waiting: List[Any] = [update]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, (list, tuple)):
            waiting.extend(each)
        elif isinstance(each, dict):
            waiting.extend(each.values())
        elif callable(each):
            found.add(getattr(each, "__qualname__", "").partition(".")[0])
            for cell in getattr(each, "__closure__", None) or ():
                try:
                    waiting.append(cell.cell_contents)
                except ValueError:  # nothing in it yet
                    continue
    return found


class Leaf(NamedTuple):
    """Of the state: an array, by its name, of its first values' shape and type; a count of steps, or what never changes (without a name)."""

    array: str
    is_count: bool
    value: Any


def refuse_keys(state: Any, refuse: Callable[[str], NoReturn]) -> None:
    """Random keys, which are no arrays that could be kept, and by which each parameter would have another noise than in the pytree."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if jax.numpy.issubdtype(getattr(leaf, "dtype", numpy.float32), jax.dtypes.prng_key):
            refuse(f"it keeps {jax.tree_util.keystr(path)}, a random key ({leaf.dtype})")


def read_state(first: Any, courses: Sequence[Sequence[Any]], refuse: Callable[[str], NoReturn],
               stored: Callable[[Any], bool]) -> Tuple[List[Leaf], Any, Tuple[str, ...]]:
    """The leaves of a state, its tree and the names of what is stored. courses: of each leaf its values before and after each of the steps,
    or the first alone of what is no number. stored: whether the library can keep such values."""
    refuse_keys(first, refuse)
    named, tree = jax.tree_util.tree_flatten_with_path(first)
    found: List[Leaf] = []
    names: Dict[str, int] = {}
    for (path, _), course in zip(named, courses):
        value = jax.numpy.asarray(course[0])
        if value.shape == () and [float(each) for each in course] == list(range(STEPS + 1)):
            found.append(Leaf("", True, value))
        elif value.shape == () and all(numpy.array_equal(each, value) for each in course):
            found.append(Leaf("", False, value))
        elif stored(value):
            name = next((key.name for key in reversed(path) if hasattr(key, "name")), "array")
            names[name] = names.get(name, 0) + 1
            found.append(Leaf(name if names[name] == 1 else f"{name}.{names[name]}", False, value))
        else:
            begins = value.shape == () and [float(each) - float(value) for each in course] == list(range(STEPS + 1))
            refuse(f"it keeps {jax.tree_util.keystr(path)} ({value.shape}, {value.dtype}{f', a count that begins at {value}' if begins else ''})")
    return found, tree, tuple(leaf.array for leaf in found if leaf.array)


class Update:
    """Steps of one form of state."""

    def __init__(self, transformation: Any, leaves: List[Leaf], tree: Any, arrays: Tuple[str, ...]) -> None:
        self._init, self._update = transformation.init, transformation.update
        self._leaves, self._tree, self.arrays = leaves, tree, arrays
        self._first, self._later = jax.jit(self._begin), jax.jit(self._go_on)

    def check(self, value: Any, grads: Sequence[Any], refuse: Callable[[str], NoReturn]) -> None:
        """That what was learnt from a few steps holds for more: counts go on by one, and what has not changed does not matter later either."""
        theirs, state = value, self._init(value)
        mine = [value, *(each for leaf, each in zip(self._leaves, jax.tree_util.tree_leaves(state)) if leaf.array)]
        step, counts = jax.jit(self._step), jax.jit(self._counts)
        for taken in range(_MORE_STEPS):
            grad = jax.numpy.asarray(grads[taken % len(grads)])
            theirs, state = step(theirs, grad, state)
            mine = self._first(mine[0], grad) if taken == 0 else self._later(mine[0], grad, *mine[1:], taken)
        if not numpy.allclose(mine[0], theirs, rtol=1e-3, atol=1e-4 * numpy.abs(numpy.asarray(theirs)).max(), equal_nan=True):
            refuse(f"after {_MORE_STEPS} steps parameters are not what its first {STEPS} let expect: it keeps more than arrays and counts of steps")
        for taken in _TAKEN:
            for found in counts(mine[0], grad, *mine[1:], taken):
                if int(found) != taken + 1:
                    refuse(f"it keeps a count that is {int(found)} after {taken + 1} steps (gradients are accumulated by begin_microbatch)")

    def take(self, master: Any, grad: Any, states: List[Any], step: int) -> None:
        """Step number `step`, in place, of numpy arrays. The first makes the state, as the transformation does."""
        copied = [jax.numpy.array(each) for each in (master, grad, *states)]  # jax.numpy.asarray may look at the same memory
        if step == 1:
            found = self._first(*copied[:2])
        else:
            found = self._later(*copied, step - 1)
        for to, values in zip((master, *states), [numpy.asarray(each) for each in found]):
            to[...] = values

    def _begin(self, master: Any, grad: Any) -> List[Any]:
        return self._stepped(master, grad, self._init(master))

    def _go_on(self, master: Any, grad: Any, *more: Any) -> List[Any]:
        return self._stepped(master, grad, self._state(more))

    def _state(self, more: Sequence[Any]) -> Any:
        """more: arrays, and how many steps were taken."""
        states, taken = dict(zip(self.arrays, more)), more[-1]
        leaves = [states[leaf.array] if leaf.array else jax.numpy.asarray(taken, leaf.value.dtype) if leaf.is_count else leaf.value
                  for leaf in self._leaves]
        return jax.tree_util.tree_unflatten(self._tree, leaves)

    def _step(self, master: Any, grad: Any, state: Any) -> Tuple[Any, Any]:
        updates, state = self._update(grad, state, master)
        return master + updates, state

    def _stepped(self, master: Any, grad: Any, state: Any) -> List[Any]:
        master, state = self._step(master, grad, state)
        leaves = jax.tree_util.tree_leaves(state)
        return [master, *(value for leaf, value in zip(self._leaves, leaves) if leaf.array)]

    def _counts(self, master: Any, grad: Any, *more: Any) -> List[Any]:
        _, state = self._step(master, grad, self._state(more))
        return [value for leaf, value in zip(self._leaves, jax.tree_util.tree_leaves(state)) if leaf.is_count]


def moves(transformation: Any, flat: bool) -> Any:
    """What a small array, and if not `flat` a matrix, is moved by at each of _COMPARED, a row for each, from one state but for its counts: roundings
    would add up over several steps. What fails moves by nan. The same arrays on all ranks, though their parameters may have other shapes."""
    random = numpy.random.default_rng(3)
    found = []
    for shape in ((_WIDTH,),) if flat else ((_WIDTH,), (8, _WIDTH // 8)):
        sizes = numpy.resize([1, 100, 0.01, 30, 0.1], shape)  # so that clips are seen
        value, *grads = [jax.numpy.asarray(by * random.standard_normal(shape), numpy.float32) for by in (1, sizes, sizes)]
        rows = numpy.full((len(_COMPARED), _WIDTH), numpy.nan)
        try:
            move = _mover(transformation, value, *grads)
            for row, taken in zip(rows, _COMPARED):
                row[:] = numpy.ravel(move(taken))
        except MegaDPError:
            raise
        except Exception:  # of the program's, as of a table that has come to its end
            pass
        found.append(rows)
    return numpy.concatenate(found)


def _mover(transformation: Any, value: Any, first: Any, second: Any) -> Callable[[int], Any]:
    """The second step's update, as if so many had been taken."""
    begun = transformation.init(value)
    _, state = transformation.update(first, begun, value)
    leaves, tree = jax.tree_util.tree_flatten(jax.tree.map(jax.numpy.asarray, state))
    counted = [leaf.shape == () and (float(was), float(leaf)) == (0, 1) for was, leaf in zip(jax.tree_util.tree_leaves(begun), leaves)]

    def move(taken: Any) -> Any:
        then = [jax.numpy.asarray(taken, leaf.dtype) if is_count else leaf for is_count, leaf in zip(counted, leaves)]
        return transformation.update(second, jax.tree_util.tree_unflatten(tree, then), value)[0]

    return jax.jit(move)


def compare_moves(mine: Any, comm: Comm) -> None:
    """With the first rank's. Other processors round pow and cos otherwise, which a bias correction makes most of in early steps, and now and then
    an element by more, as where a state is bfloat16. Collective; blocking. Raises MegaDPError, on all ranks: INVALID."""
    first = mine.copy()
    comm.broadcast(first)
    close = numpy.resize(1e-4 + 1e-3 / numpy.array(_COMPARED), (len(mine), 1))
    with numpy.errstate(invalid="ignore"):
        least = 1e-6 * numpy.abs(first[numpy.isfinite(first)]).max(initial=0)
        alike = (mine == first) | (numpy.abs(mine - first) <= close * numpy.abs(first) + least) | (numpy.isnan(mine) & numpy.isnan(first))
    apart = numpy.flatnonzero((~alike).sum(1) > _WIDTH // 16)
    row = int(apart[0]) if apart.size else -1
    column = int(numpy.flatnonzero(~alike[row])[0]) if apart.size else 0
    every = numpy.empty((comm.size, 3))
    comm.all_gather(numpy.array([row, column, mine[row, column]]), every)
    rank = next((rank for rank in range(comm.size) if every[rank, 0] >= 0), None)
    if rank is None:
        return
    row, column = map(int, every[rank, :2])
    raise invalid(f"transformation is not alike on all ranks: in step {_COMPARED[row % len(_COMPARED)] + 1} the same gradient moves an element by "
                  f"{first[row, column]:.6g} on rank {comm.world_rank(0)} and by {every[rank, 2]:.6g} on rank {comm.world_rank(rank)}. Give all ranks the "
                  "same kind, numbers and schedules, which go by steps that all ranks have, not by this rank's share of the data")
