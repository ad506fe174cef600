# SPDX-License-Identifier: Apache-2.0
"""Gradient transformations as optax has them (init, update) whose update needs all of a parameter, on parameters that have one owner each.
That is right where each parameter goes its own way, which is tried out before."""
from typing import Any, Dict, List, NoReturn, Tuple

import jax
import numpy

from ._dtypes import DTYPES
from ._errors import MegaDPError, invalid
from ._jax_shapes import check_shapes
from ._jax_update import STEPS, Update, check_tree, read_state, refuse_keys
from ._pieces import Piece
from ._whole import Keeps, arrange

# Why these cannot be had on parameters one by one either, by the names of optax's functions, and what is there instead.
ACROSS = {
    "apply_if_finite": "each rank would see its own gradients only; a step with loss_scale, or with a scaler, is skipped on all ranks",
    "clip_by_global_norm": "it goes by the norm of all gradients; leave it out and say max_grad_norm, which clips by that norm over all ranks",
    "normalize_by_update_norm": "it goes by the norm of all updates; max_grad_norm clips by the norm of all gradients over all ranks",
}
_SIZES = (6, 11, 3, 2)


def _is_kept(value: Any) -> bool:
    return value.dtype.name in (dtype.name for dtype in DTYPES)


def refuse_whole(why: str) -> NoReturn:
    raise invalid(f"transformation cannot be taken on parameters one by one: {why}")


class Whole:
    """The update of a gradient transformation, on whole parameters. Raises MegaDPError: INVALID, where that cannot be done."""

    flat = False

    def __init__(self, transformation: Any, params: Any) -> None:
        shapes = [tuple(numpy.shape(leaf)) for leaf in jax.tree_util.tree_leaves(params)]
        self._transformation, self._shapes = transformation, dict(enumerate(shapes))
        self._updates: Dict[Tuple[int, ...], Update] = {}
        kept: Dict[Tuple[int, ...], Dict[str, Keeps]] = {}
        try:
            for ndim in sorted({len(shape) for shape in shapes}):
                self._try(ndim)
            check_tree(transformation, params, False, refuse_whole)
            check_shapes(transformation, params, False, refuse_whole)
            for shape in dict.fromkeys(shape for shape in shapes if 0 not in shape):  # others are never updated
                self._updates[shape], kept[shape] = self._read(shape)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            if isinstance(error, MegaDPError):
                raise
            raise invalid(f"transformation cannot be taken on parameters one by one: {type(error).__name__}: {error}") from error
        self.arrays, self.param_states = arrange("the transformation", {i: kept[shape] for i, shape in self._shapes.items() if shape in kept},
                                                 self._shapes)

    def piece(self, piece: Piece) -> None:
        """An update function of Optimizer.set_update."""
        update = self._updates[self._shapes[piece.param]]
        states = [piece.shaped(name) if name in self.arrays else piece.param_states[name] for name in update.arrays]
        update.take(piece.shaped("master"), piece.shaped("grad"), states, piece.step)

    def _read(self, shape: Tuple[int, ...]) -> Tuple[Update, Dict[str, Keeps]]:
        """From some steps of a parameter of this shape: what is kept may go by sizes."""
        random = numpy.random.default_rng(1)
        value = jax.numpy.asarray(random.standard_normal(shape, numpy.float32))
        first = state = self._transformation.init(value)
        courses: List[List[Any]] = [[leaf] for leaf in jax.tree_util.tree_leaves(first)]
        for _ in range(STEPS):
            grad = jax.numpy.asarray(random.standard_normal(shape, numpy.float32))
            updates, state = self._transformation.update(grad, state, value)
            value = value + updates
            for course, leaf in zip(courses, jax.tree_util.tree_leaves(state)):
                if numpy.shape(leaf) == ():
                    course.append(leaf)

        def refuse(what: str) -> NoReturn:
            refuse_whole(f"{what} of a parameter; only {', '.join(dtype.name for dtype in DTYPES)} and counts of steps can be kept")

        leaves, tree, arrays = read_state(first, courses, refuse, _is_kept)
        if not self._updates:  # what is counted does not go by shapes
            Update(self._transformation, leaves, tree, arrays).check(value, [grad], refuse_whole)
        keeps = {leaf.array: Keeps(tuple(leaf.value.shape), leaf.value.dtype.name) for leaf in leaves if leaf.array}
        return Update(self._transformation, [leaf._replace(value=None) if leaf.array else leaf for leaf in leaves], tree, arrays), keeps

    def _try(self, ndim: int) -> None:
        """Some steps of two parameters, and of each by itself, which must come to the same."""
        random = numpy.random.default_rng(1)
        shape = [*_SIZES, *(ndim - len(_SIZES)) * [2]][:ndim]
        starts = {name: jax.numpy.asarray(random.standard_normal(shape, numpy.float32)) for name in ("a", "b")}
        sizes = {"a": 100.0, "b": 0.01}  # so that the norm of both is not that of one
        grads = [{name: jax.numpy.asarray(size * random.standard_normal(shape), numpy.float32) for name, size in sizes.items()}
                 for _ in range(STEPS)]
        both = self._walk(starts, grads)
        for name, start in starts.items():
            alone, beside = self._walk(start, [each[name] for each in grads]), numpy.asarray(both[name])
            if not numpy.allclose(alone, beside, rtol=1e-4, atol=1e-5 * numpy.abs(beside).max(), equal_nan=True):
                refuse_whole(f"after {STEPS} steps of two parameters they are not what they are where each is updated by itself. Clipping by a norm "
                        "of all is max_grad_norm's")

    def _walk(self, params: Any, grads: List[Any]) -> Any:
        state = self._transformation.init(params)
        refuse_keys(state, refuse_whole)
        for grad in grads:
            updates, state = self._transformation.update(grad, state, params)
            params = jax.tree.map(jax.numpy.add, params, updates)
        return params
