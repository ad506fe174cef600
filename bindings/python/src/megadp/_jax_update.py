# SPDX-License-Identifier: Apache-2.0
"""The update of a gradient transformation, as optax has them (init, update), of one array: what it keeps comes from the library, and goes
back there."""
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Sequence, Set, Tuple

import jax
import numpy

from ._errors import invalid

STEPS = 4  # that are tried out


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


def read_state(first: Any, courses: Sequence[Sequence[Any]], refuse: Callable[[str], NoReturn],
               stored: Callable[[Any], bool]) -> Tuple[List[Leaf], Any, Tuple[str, ...]]:
    """The leaves of a state, its tree and the names of what is stored. courses: of each leaf its values before and after each of the steps,
    or the first alone of what is no number. stored: whether the library can keep such values."""
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
            refuse(f"it keeps {jax.tree_util.keystr(path)} ({value.shape}, {value.dtype})")
    return found, tree, tuple(leaf.array for leaf in found if leaf.array)


class Update:
    """Steps of one form of state."""

    def __init__(self, transformation: Any, leaves: List[Leaf], tree: Any, arrays: Tuple[str, ...]) -> None:
        self._init, self._update = transformation.init, transformation.update
        self._leaves, self._tree, self.arrays = leaves, tree, arrays
        self._first, self._later = jax.jit(self._begin), jax.jit(self._go_on)

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
        states, taken = dict(zip(self.arrays, more)), more[-1]
        leaves = [states[leaf.array] if leaf.array else jax.numpy.asarray(taken, leaf.value.dtype) if leaf.is_count else leaf.value
                  for leaf in self._leaves]
        return self._stepped(master, grad, jax.tree_util.tree_unflatten(self._tree, leaves))

    def _stepped(self, master: Any, grad: Any, state: Any) -> List[Any]:
        updates, state = self._update(grad, state, master)
        leaves = jax.tree_util.tree_leaves(state)
        return [master + updates, *(value for leaf, value in zip(self._leaves, leaves) if leaf.array)]
