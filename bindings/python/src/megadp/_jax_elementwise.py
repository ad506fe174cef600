# SPDX-License-Identifier: Apache-2.0
"""Gradient transformations as optax has them (init, update) over shards: their update is taken on the flat pieces that this rank owns, and
what they keep of an element is the library's. That is right where each element goes its own way, which is tried out before."""
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Set, Tuple

import jax
import numpy

from . import _dlpack
from ._errors import MegaDPError, Status, invalid
from ._optimizer import Optimizer
from ._pieces import Piece

_OF_ALL = "max_grad_norm clips by the norm over all ranks; leave it to that"
# Why these cannot be had on pieces of parameters, by the names of optax's functions.
_REFUSED = {
    "adaptive_grad_clip": "it goes by norms of rows and of whole parameters; max_grad_norm clips by the norm over all ranks",
    "apply_if_finite": "each rank would see its own gradients only; a step with loss_scale, or with a scaler, is skipped on all ranks",
    "centralize": "it goes by the mean of a whole gradient",
    "clip_by_block_rms": "it goes by the norm of a whole parameter; max_grad_norm clips by the norm over all ranks",
    "clip_by_global_norm": _OF_ALL,
    "normalize_by_update_norm": "it goes by the norm of all updates",
    "scale_by_factored_rms": "it factors the second moment by the rows and columns of a matrix",
    "scale_by_muon": "it orthogonalizes whole matrices",
    "scale_by_param_block_norm": "it goes by the norm of a whole parameter",
    "scale_by_param_block_rms": "it goes by the norm of a whole parameter",
    "scale_by_trust_ratio": "its trust ratio goes by the norm of a whole parameter",
}
_STEPS = 4  # that are tried out


def _functions(update: Any) -> Set[str]:
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


class _Leaf(NamedTuple):
    """Of the state: an array like the parameter by its name, a count of steps, or what never changes."""

    array: str
    is_count: bool
    value: Any


class Elements:
    """The update of a gradient transformation, on pieces. Raises MegaDPError: INVALID, where that cannot be done."""

    def __init__(self, transformation: Any) -> None:
        if not (callable(getattr(transformation, "init", None)) and callable(getattr(transformation, "update", None))):
            raise invalid(f"transformation is {transformation!r}; it must have init and update, as optax.GradientTransformation has")
        self._init: Callable[..., Any] = transformation.init
        self._update: Callable[..., Any] = transformation.update
        for name in sorted(_functions(self._update) & set(_REFUSED)):
            self._refuse(f"{name} is in it: {_REFUSED[name]}")
        self._leaves, self._tree, self.arrays = self._try()
        self._first, self._later = jax.jit(self._begin), jax.jit(self._go_on)

    def _refuse(self, why: str) -> NoReturn:
        raise invalid(f"transformation cannot be taken on pieces of parameters: {why}")

    def piece(self, piece: Piece) -> None:
        """An update function of Optimizer.set_update."""
        states = [piece.state[name] for name in self.arrays]
        self.update(piece.master, piece.grad, states, piece.step)

    def update(self, master: Any, grad: Any, states: List[Any], step: int) -> None:
        """Step number `step` of a piece, in place, of numpy arrays. The first makes the state, as the transformation does."""
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

    def _try(self) -> Tuple[List[_Leaf], Any, Tuple[str, ...]]:
        """Some steps of a matrix, and of it in two pieces, which must come to the same."""
        random = numpy.random.default_rng(1)
        start = random.standard_normal((6, 11)).astype(numpy.float32)
        sizes = numpy.array([[100.0], [30], [1], [1], [0.03], [0.01]])  # so that norms of pieces are others than that of the whole
        grads = [(sizes * random.standard_normal((6, 11))).astype(numpy.float32) for _ in range(_STEPS)]
        try:
            whole, state = self._walk(jax.numpy.asarray(start), grads)
            leaves, tree, arrays = self._read(state)
            for begin, end in ((0, 25), (25, start.size)):
                piece, cut = self._walk(jax.numpy.asarray(start.reshape(-1)[begin:end]), [grad.reshape(-1)[begin:end] for grad in grads])
                found, expected = [piece, *jax.tree_util.tree_leaves(cut[-1])], [whole, *jax.tree_util.tree_leaves(state[-1])]
                for name, mine, theirs in zip(["update", *(leaf.array for leaf in leaves)], found, expected):
                    of_whole = numpy.asarray(theirs).reshape(-1)[begin:end] if name else numpy.asarray(theirs)
                    if not numpy.allclose(mine, of_whole, rtol=1e-4, atol=1e-5 * numpy.abs(of_whole).max(), equal_nan=True):
                        self._refuse(f"in step {_STEPS} its {name or 'state'} is not the same where the parameter is cut in two")
        except (TypeError, ValueError) as error:
            if isinstance(error, MegaDPError):
                raise
            raise invalid(f"transformation cannot be taken on pieces of parameters: {error}") from error
        return leaves, tree, arrays

    def _walk(self, value: Any, grads: List[Any]) -> Tuple[Any, List[Any]]:
        """The last step's update, and the state before and after each."""
        states, updates = [self._init(value)], None
        for grad in grads:
            updates, state = self._update(jax.numpy.asarray(grad), states[-1], value)
            value = value + updates
            states.append(state)
        return updates, states

    def _read(self, states: List[Any]) -> Tuple[List[_Leaf], Any, Tuple[str, ...]]:
        named, tree = jax.tree_util.tree_flatten_with_path(states[0])
        courses = list(zip(*map(jax.tree_util.tree_leaves, states)))
        found: List[_Leaf] = []
        names: Dict[str, int] = {}
        for (path, _), course in zip(named, courses):
            first = jax.numpy.asarray(course[0])
            if first.shape == (6, 11) and first.dtype == numpy.float32:
                name = next((key.name for key in reversed(path) if hasattr(key, "name")), "array")
                names[name] = names.get(name, 0) + 1
                found.append(_Leaf(name if names[name] == 1 else f"{name}.{names[name]}", False, None))
            elif first.shape == () and [float(value) for value in course] == list(range(_STEPS + 1)):
                found.append(_Leaf("", True, first))
            elif all(numpy.array_equal(value, course[0]) for value in course) and first.shape == ():
                found.append(_Leaf("", False, first))
            else:
                self._refuse(f"it keeps {jax.tree_util.keystr(path)} ({first.shape}, {first.dtype}) of a parameter of shape (6, 11); only float32 of "
                             "that shape can be cut, and only counts of steps are known besides")
        return found, tree, tuple(leaf.array for leaf in found if leaf.array)


def refuse_beside(values: Dict[str, Any]) -> None:
    """Options of the library's rules beside a transformation, which has its own. Raises MegaDPError: INVALID."""
    given = [name for name, value in values.items() if value is not None]
    if given:
        raise invalid(f"{given[0]} is {values[given[0]]!r} beside a transformation, which has values of its own: give it there")


def make_optimizer(buffer: Any, elements: Elements, max_grad_norm: float, average_decay: float) -> Optimizer:
    """Collective; blocking. Raises MegaDPError: UNSUPPORTED (a device), as Optimizer."""
    if buffer._device[0] != _dlpack.CPU:
        raise MegaDPError(Status.UNSUPPORTED, "a transformation works in the host's memory; this communicator's is a device's")
    optimizer = Optimizer(buffer, rule="caller", state=elements.arrays, max_grad_norm=max_grad_norm, average_decay=average_decay)
    optimizer.set_update(elements.piece)
    return optimizer
