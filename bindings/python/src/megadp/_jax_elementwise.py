# SPDX-License-Identifier: Apache-2.0
"""Gradient transformations as optax has them (init, update) over shards: their update is taken on the flat pieces that this rank owns, and
what they keep of an element is the library's. That is right where each element goes its own way, which is tried out before. Of others whole
parameters are updated (_jax_whole.py)."""
from typing import Any, Dict, List, NoReturn, Tuple, Union

import jax
import numpy

from . import _dlpack
from ._buffer import Which
from ._errors import MegaDPError, Status, invalid
from ._jax_guarded import Optimizer
from ._jax_mixing import check_mixing
from ._jax_shapes import check_shapes, shaped
from ._jax_update import STEPS, Update, check_tree, functions, read_state
from ._jax_whole import ACROSS, Whole, refuse_whole
from ._pieces import Piece
from ._whole import MOST, OWNED_WHOLE, SAYS_WHOLE, Keeps, check_uncut

# Why these cannot be had on pieces of parameters, by the names of optax's functions.
_REFUSED = {
    "adaptive_grad_clip": "it goes by norms of rows and of whole parameters",
    "centralize": "it goes by the mean of a whole gradient",
    "clip_by_block_rms": "it goes by the norm of a whole parameter; max_grad_norm clips by the norm over all ranks",
    "scale_by_factored_rms": "it factors the second moment by the rows and columns of a matrix",
    "scale_by_muon": "it orthogonalizes whole matrices",
    "scale_by_param_block_norm": "it goes by the norm of a whole parameter",
    "scale_by_param_block_rms": "it goes by the norm of a whole parameter",
    "scale_by_trust_ratio": "its trust ratio goes by the norm of a whole parameter",
}
_SAYS_AVERAGING = "With Averaging the optimizer is the program's own, on each rank, and may be any"


def _is_cut(value: Any) -> bool:
    return bool(value.shape == (6, 11) and value.dtype == numpy.float32)


class Elements:
    """The update of a gradient transformation, on pieces. Raises MegaDPError: INVALID, where that cannot be done."""

    param_states: Dict[str, Dict[Which, Keeps]] = {}
    flat = True

    def __init__(self, transformation: Any, params: Any) -> None:
        self._transformation = transformation
        for name in sorted(functions(transformation.update) & set(_REFUSED)):
            self._refuse(f"{name} is in it: {_REFUSED[name]}")
        self._update = self._try(params)
        self.arrays = self._update.arrays
        if len(self.arrays) > MOST:
            self._refuse(f"it keeps {', '.join(self.arrays)} of each; an optimizer has at most {MOST} such arrays")

    def _refuse(self, why: str) -> NoReturn:
        raise invalid(f"transformation cannot be taken on pieces of parameters: {why}")

    def piece(self, piece: Piece) -> None:
        """An update function of Optimizer.set_update."""
        self._update.take(piece.master, piece.grad, [piece.state[name] for name in self.arrays], piece.step)

    def _try(self, params: Any) -> Update:
        """Some steps of a matrix, and of it in two pieces, which must come to the same."""
        random = numpy.random.default_rng(1)
        start = random.standard_normal((6, 11)).astype(numpy.float32)
        sizes = numpy.array([[100.0], [30], [1], [1], [0.03], [0.01]])  # so that norms of pieces are others than that of the whole
        grads = [(sizes * random.standard_normal((6, 11))).astype(numpy.float32) for _ in range(STEPS)]
        try:
            whole, state = self._walk(jax.numpy.asarray(start), grads)
            courses = zip(*map(jax.tree_util.tree_leaves, state))
            leaves, tree, arrays = read_state(state[0], list(courses), self._refuse_kept, _is_cut)
            for begin, end in ((0, 25), (25, start.size)):
                piece, cut = self._walk(jax.numpy.asarray(start.reshape(-1)[begin:end]), [grad.reshape(-1)[begin:end] for grad in grads])
                found, expected = [piece, *jax.tree_util.tree_leaves(cut[-1])], [whole, *jax.tree_util.tree_leaves(state[-1])]
                for name, mine, theirs in zip(["update", *(leaf.array for leaf in leaves)], found, expected):
                    of_whole = numpy.asarray(theirs).reshape(-1)[begin:end] if name else numpy.asarray(theirs)
                    if not numpy.allclose(mine, of_whole, rtol=1e-4, atol=1e-5 * numpy.abs(of_whole).max(), equal_nan=True):
                        self._refuse(f"in step {STEPS} its {name or 'state'} is not the same where the parameter is cut in two")
            update = Update(self._transformation, leaves, tree, arrays)
            update.check(jax.numpy.asarray(start), grads, self._refuse)
            check_tree(self._transformation, params, True, self._refuse)
            check_mixing(self._transformation, params, self._refuse)
            check_shapes(self._transformation, params, True, self._refuse)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            if isinstance(error, MegaDPError):
                raise
            raise invalid(f"transformation cannot be taken on pieces of parameters: {type(error).__name__}: {error}") from error
        return update

    def _refuse_kept(self, what: str) -> NoReturn:
        self._refuse(f"{what} of a parameter of shape (6, 11); only float32 of that shape can be cut, and only counts of steps are known besides")

    def _walk(self, value: Any, grads: List[Any]) -> Tuple[Any, List[Any]]:
        """The last step's update, and the state before and after each."""
        states, updates = [self._transformation.init(value)], None
        for grad in grads:
            updates, state = self._transformation.update(jax.numpy.asarray(grad), states[-1], value)
            value = value + updates
            states.append(state)
        return updates, states


def refuse_beside(values: Dict[str, Any]) -> None:
    """Options of the library's rules beside a transformation, which has its own. Raises MegaDPError: INVALID."""
    given = [name for name, value in values.items() if value is not None]
    if given:
        raise invalid(f"{given[0]} is {values[given[0]]!r} beside a transformation, which has values of its own: give it there")


def elements_of(transformation: Any, sharding: str, params: Any) -> Union[Elements, Whole]:
    """On pieces if that is right, also where parameters are whole; else on whole parameters, where they are.
    Raises MegaDPError: INVALID."""
    if not (callable(getattr(transformation, "init", None)) and callable(getattr(transformation, "update", None))):
        raise invalid(f"transformation is {transformation!r}; it must have init and update, as optax.GradientTransformation has")
    for name in sorted(functions(transformation.update) & set(ACROSS)):
        raise invalid(f"transformation cannot be taken on shards: {name} is in it: {ACROSS[name]}")
    try:
        return Elements(transformation, params)
    except MegaDPError as error:
        refused = error
    if sharding in OWNED_WHOLE:
        try:
            return Whole(transformation, params)
        except MegaDPError as error:
            refused = error
    can_be_whole = sharding not in OWNED_WHOLE and _can_be_whole(transformation, params)
    raise invalid(f"{refused.text}. {SAYS_WHOLE if can_be_whole else _SAYS_AVERAGING}") from refused.__cause__


def _can_be_whole(transformation: Any, params: Any) -> bool:
    """Tried out on smaller parameters, which take no time."""
    try:
        check_shapes(transformation, params, False, refuse_whole)
        Whole(transformation, jax.tree.map(lambda leaf: shaped(tuple(min(size, 8) for size in numpy.shape(leaf))), params))
    except Exception:  # a function of the program's
        return False
    return True


def make_optimizer(buffer: Any, where: Any, elements: Union[Elements, Whole], max_grad_norm: float, average_decay: float) -> Optimizer:
    """Collective; blocking. Raises MegaDPError: UNSUPPORTED (a device), as Optimizer."""
    if isinstance(elements, Whole):
        check_uncut("the transformation", where, dict(enumerate(buffer.params)))
    if buffer._device[0] != _dlpack.CPU:
        raise MegaDPError(Status.UNSUPPORTED, "a transformation works in the host's memory; this communicator's is a device's")
    optimizer = Optimizer(buffer, rule="caller", state=elements.arrays, max_grad_norm=max_grad_norm, average_decay=average_decay,
                          param_states=elements.param_states)
    optimizer.set_update(elements.piece)
    return optimizer
