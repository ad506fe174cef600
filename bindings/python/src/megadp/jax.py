# SPDX-License-Identifier: Apache-2.0
"""JAX: parameters as a pytree, gradients that leave during backward, also inside jit.

JAX makes its own gradient arrays, so each is copied once into the library's memory (and what comes back once out of it). track() is an
identity whose derivative hands the gradient over by an io_callback; XLA runs it as soon as the gradient is known, while backward goes on.
"""
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import jax
import numpy
from jax.experimental import io_callback

from ._comm import Comm
from ._dtypes import FLOATS, named, one_of
from ._errors import MegaDPError, Status, invalid
from ._grid import Grid
from ._jax_checkpoint import load_checkpoint, save_checkpoint
from ._jax_cp import context_parallel_attention, context_parallel_part, context_parallel_positions
from ._jax_elementwise import elements_of, make_optimizer, refuse_beside
from ._jax_failures import Failures, outside_of_jit, refuse_devices, told_in_python
from ._jax_guarded import Buffer, Optimizer
from ._jax_leaves import named_leaves
from ._jax_spatial import HaloPad
from ._jax_tp import (ParallelLinear, all_to_all_tensor_parallel, copy_to_tensor_parallel, gather_from_tensor_parallel,
                      reduce_from_tensor_parallel, reduce_scatter_to_tensor_parallel, scatter_to_tensor_parallel, vocab_parallel_cross_entropy, vocab_parallel_embedding)
from ._jax_update import compare_moves, moves
from ._optimizer import StepReport
from ._optimizer_config import Rule
from ._params import BufferOptions, Param, Placement
from ._saved import Together
from ._waiting import Request
from .tp import Placed

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Averaging", "DataParallel", "Gradients", "HaloPad", "ParallelLinear", "all_to_all_tensor_parallel", "context_parallel_attention",
           "context_parallel_part", "context_parallel_positions", "copy_to_tensor_parallel",
           "gather_from_tensor_parallel", "load_checkpoint", "reduce_from_tensor_parallel", "reduce_scatter_to_tensor_parallel",
           "save_checkpoint", "scatter_to_tensor_parallel", "vocab_parallel_cross_entropy", "vocab_parallel_embedding"]

# XLA's thread that runs a callback waits in it for another to make the gradient readable: with one thread, as it starts on one processor, for
# ever. XLA asks for this when the program's first array is made.
if len(os.sched_getaffinity(0)) == 1 and "NPROC" not in os.environ:
    os.environ.setdefault("PJRT_NPROC", "2")


def _reporting(report: Callable[[Any], None]) -> Callable[[Any], Any]:
    """The identity; its gradient goes to report() on its way."""
    @jax.custom_vjp
    def identity(value: Any) -> Any:
        return value

    def forward(value: Any) -> Any:
        return value, None

    def backward(_: None, grad: Any) -> Any:
        io_callback(report, None, grad, ordered=False)
        return (grad,)

    identity.defvjp(forward, backward)
    return identity


def _backward_over() -> None:
    """Waits for gradients that are still to be computed, and handed over."""
    jax.effects_barrier()  # type: ignore[no-untyped-call, unused-ignore]


def _check_grad(param: Param, leaf: Any) -> None:
    """What Buffer.put would refuse; it does not wait for values that are still being computed."""
    what = f"grad of parameter {param.name!r}"
    if leaf is None:
        raise invalid(f"{what} is None; it must be an array: jax.numpy.zeros({param.shape}), where the parameter has no part in the loss")
    if numpy.shape(leaf) != param.shape:
        raise invalid(f"{what} has shape {numpy.shape(leaf)}; the parameter has {param.shape}")
    dtype = leaf.dtype if hasattr(leaf, "dtype") else numpy.asarray(leaf).dtype
    if named(dtype) not in FLOATS or not getattr(dtype, "isnative", True):
        raise invalid(f"{what} has dtype {dtype}; it {one_of(FLOATS)}, in this machine's byte order: .astype(numpy.float32), say")
    if getattr(leaf, "is_deleted", bool)() is True:
        raise invalid(f"{what} has been deleted: it was donated to a function (donate_argnums), or delete() was called")


def _placed(value: Union[Placement, Placed]) -> Dict[str, Any]:
    return (Placed(value) if isinstance(value, str) else value)._asdict()


class Gradients:
    """What Averaging and DataParallel have in common: a pytree's gradients on their way into `buffer`, which may be used directly."""

    def __init__(self, comm: Union[Comm, Grid], params: Any, use_order: Optional[Sequence[int]], options: BufferOptions,
                 placements: Any = None) -> None:
        named, self._tree = named_leaves(params)
        orders = [0] * len(named) if use_order is None else use_order
        if len(orders) != len(named):
            raise invalid(f"use_order has {len(orders)} entries; params has {len(named)} leaves")
        self._last_first = sorted(range(len(named)), key=lambda i: (orders[i], i), reverse=True)
        placed = [{}] * len(named) if placements is None else list(map(_placed, self._tree.flatten_up_to(placements)))
        self.buffer = Buffer(comm, [Param(name, tuple(value.shape), value.dtype, use_order=order, **where)
                                    for (name, value), order, where in zip(named, orders, placed)], **options)
        self._dtypes = [value.dtype for _, value in named]
        self._failures = Failures(self.buffer, comm, options.get("missing", "error"))
        self._identities = [_reporting(self._putting(i)) for i in range(len(named))]

    def _putting(self, number: int) -> Callable[[Any], None]:
        def put(grad: Any) -> None:  # on a thread of XLA's, which would make its own kind of error of an exception
            try:
                self._put(number, grad)
                self._failures.came()
            except BaseException as error:
                self._failures.note_put(error)

        return put

    def _put(self, number: int, grad: Any) -> None:
        try:
            self.buffer.put(number, numpy.asarray(grad))
        except MegaDPError as error:
            raise told_in_python(error, self.buffer.params[number].name) from None
        self._failures.has_come = True

    def track(self, params: Any) -> Any:
        """The same pytree; in the backward pass each gradient goes to its bucket as soon as it is known. To be called once in the function
        that is differentiated, inside or outside of jit (all other calls: outside), on what the rest of it uses. A parameter that is used several
        times is summed up by JAX and leaves once; one that is not used has no gradient (missing="zero" or "skip" allow that). What jax.grad returns stays this
        rank's own gradient; step takes the mean over the ranks, and average returns it. A function of jax.jit, once compiled, keeps this
        track: with the next DataParallel or Averaging make it anew, or call jax.clear_caches()."""
        refuse_devices("track()")
        self._failures.tracked = True
        leaves = self._tree.flatten_up_to(params)
        return self._tree.unflatten([identity(leaf) for identity, leaf in zip(self._identities, leaves)])

    @outside_of_jit
    def put(self, grads: Any) -> None:
        """The plain path: puts a whole pytree of gradients, the last used first. Instead of track. Local.
        Raises MegaDPError: INVALID (a shape is not the parameter's, a dtype is none of a gradient's, an array was donated; nothing has been put
        then), STATE, as Buffer.put."""
        leaves: List[Any] = self._tree.flatten_up_to(grads)
        for param, leaf in zip(self.buffer.params, leaves):
            _check_grad(param, leaf)
        for number in self._last_first:
            self._put(number, leaves[number])

    @outside_of_jit
    def begin_microbatch(self, last: bool) -> None:
        """Says whether the microbatch that begins is the last one of the step; waits for the gradients of the one before. What a put of them
        has raised is told at the end of the step, where all ranks are (sync). Local."""
        self._failures.asked = True
        _backward_over()
        try:
            self.buffer.begin_microbatch(last)
        except MegaDPError as error:
            if self._failures.mine is not None:  # says more of what happened
                raise self._failures.mine from error
            raise

    @outside_of_jit
    def sync(self) -> None:
        """Ends backward: waits for gradients that are still to be computed, then as Buffer.sync. Collective; blocking.
        Raises what a put in the backward pass raised, as where the function was differentiated twice, which is STATE on the other ranks; and
        MegaDPError. After STATE and NUMERIC that all ranks are told (they name one), and after a put's, the step has begun anew."""
        self._sync()
        self._failures.raise_late()

    def _sync(self, skips: bool = False) -> None:
        """skips: a step follows that gradients which are not finite make all ranks skip."""
        self._failures.asked = True
        _backward_over()
        try:
            self.buffer.sync()
        except MegaDPError as error:
            if not (skips and error.code == Status.NUMERIC):
                self._failures.begin_anew(error)
        self._failures.agree("after the sync")

    @outside_of_jit
    def use_order(self) -> List[int]:
        """In which order the last synced step's gradients came, as Buffer.use_order tells it: the option use_order of the next Averaging or
        DataParallel of the same pytree. Collective over the world; blocking."""
        return self.buffer.use_order()


class Averaging(Gradients):
    """Averages the gradients of one pytree of parameters over all ranks of a communicator, for an optimizer of one's own (optax).

    params: a pytree of arrays, float32, bfloat16 or float16; only its shapes and dtypes are taken: the program keeps parameters and
    optimizer state, and begins with the same ones on all ranks. use_order: of each leaf when it is used, as use_order() of an earlier one
    says (JAX puts a dict's leaves in alphabetical order; None: they are used in the order of the pytree). options: those of Buffer; all
    ranks get all of the gradient (sharding "zero_0"). Memory: that of the parameters and of their gradients.
    Collective; blocking. Raises MegaDPError, as Buffer.
    """

    def __init__(self, comm: Comm, params: Any, *, use_order: Optional[Sequence[int]] = None, **options: "Unpack[BufferOptions]") -> None:
        if options.setdefault("sharding", "zero_0") != "zero_0":
            raise invalid(f"sharding is {options['sharding']!r}; to average gradients it must be 'zero_0', since all ranks get all of them")
        if options.get("scaling") == "tokens":
            raise invalid("scaling is 'tokens', by which a step divides; here there is none: divide the losses, or what average() returns")
        super().__init__(comm, params, use_order, options)

    @outside_of_jit
    def average(self, grads: Any = None) -> Any:
        """The mean of all ranks' gradients, as a pytree of JAX arrays of their own; the step is over then. grads: this rank's, of the
        pytree's shape, handed over here, the last used first; full buckets are reduced meanwhile. None: track has handed them over. dtypes
        are those of grads, or else of the parameters. After begin_microbatch(last=False) they are sums over the microbatches, handed over by
        put or track. Outside of jit. Collective; blocking.
        Raises as sync and put; what cannot be put on one rank is STATE on the others."""
        self._failures.asked = True
        dtypes = self._dtypes
        if grads is not None:
            try:
                self.put(grads)
                dtypes = [jax.numpy.result_type(leaf) for leaf in self._tree.flatten_up_to(grads)]
            except Exception as error:  # also another pytree's, which is jax's to tell
                if isinstance(error, MegaDPError) and error.code not in (Status.STATE, Status.INVALID):
                    raise
                self._failures.note(error)  # the other ranks are told at the sync
        self.sync()
        self._failures.warn_of_none()
        # Copies: the memory is the next step's.
        leaves = [numpy.array(self.buffer.grad(i, readonly=True).numpy(), dtype) for i, dtype in enumerate(dtypes)]
        self.buffer.begin_microbatch(True)
        return self._tree.unflatten([jax.numpy.asarray(leaf) for leaf in leaves])


class DataParallel(Gradients):
    """Trains one pytree of parameters on all ranks of a communicator, or as a Grid cuts them (Grid(comm, instances=...)).

    params: a pytree of arrays, float32, bfloat16 or float16; rank 0's values go to all ranks. use_order: of each leaf when it is used, as
    use_order() of an earlier one says; buckets then fill one after another (JAX puts a dict's leaves in alphabetical order; None: they
    are used in the order of the pytree). placements: on a Grid with tensor-parallel ranks a pytree like params of how these hold each:
    "replicated", "partial_sum", or what ParallelLinear.placements says; each data-parallel group then begins with the values of its first
    rank. optimizer options (rule, lr, betas, eps, weight_decay, momentum, max_grad_norm, average_decay) and options of Buffer may be given. buffer and
    optimizer are there to be used directly.
    transformation: in place of a rule one of optax's (rmsprop, adabelief, nadamw, a chain of such ...), on this rank's shard of fp32
    masters; its arrays, at most 4, are the optimizer's state. With sharding="whole" (or "zero_0") it may also go by all of a parameter (lamb,
    lars, adafactor, contrib.muon ...): its owner updates it in its shape, and keeps what is kept of it, at most 4 names besides. Without it
    such a one is refused by name, or by what a trial finds, as are masks and labels by sizes or shapes; what goes by several parameters at
    once (clip_by_global_norm) always is: clip by max_grad_norm. It is compiled: a variable of Python's that a rate reads stays as it was at the first
    steps, and jax.pure_callback reads it anew. Ranks whose updates differ, as by schedules of other lengths, are INVALID. On the host only.
    Collective; blocking.
    Raises MegaDPError, as Buffer and Optimizer.
    """

    def __init__(self, comm: Union[Comm, Grid], params: Any, *, rule: Optional[Rule] = None, lr: Optional[float] = None,
                 betas: Optional[Tuple[float, float]] = None, eps: Optional[float] = None, weight_decay: float = 0.0,
                 momentum: Optional[float] = None, max_grad_norm: float = 0.0, average_decay: float = 0.0, transformation: Any = None,
                 use_order: Optional[Sequence[int]] = None, placements: Any = None, **options: "Unpack[BufferOptions]") -> None:
        named_leaves(params, values=True)
        if transformation is not None:
            refuse_beside(dict(rule=rule, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay or None, momentum=momentum))
        self._elements = None if transformation is None else elements_of(transformation, options.get("sharding", "default"), params)
        super().__init__(comm, params, use_order, options, placements)
        for number, value in enumerate(self._tree.flatten_up_to(params)):
            self.buffer.write(number, numpy.asarray(value))
        self.buffer.broadcast()
        self._where = comm
        self._comm = comm if isinstance(comm, Comm) else comm.comm("dp-cp")
        self._together: Optional[Together] = None
        self._saving: Optional[Request] = None  # the last checkpoint that was to be written meanwhile
        if self._elements is not None:
            self.optimizer = make_optimizer(self.buffer, comm, self._elements, max_grad_norm, average_decay)
            self._compare(transformation, self._elements.flat)
        else:
            self.optimizer = Optimizer(self.buffer, rule=rule or "adamw", lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
                                       momentum=momentum, max_grad_norm=max_grad_norm, average_decay=average_decay)

    def _compare(self, transformation: Any, flat: bool) -> None:
        """Ranks that update parts of one parameter by other rates would mix them without a word. Stages of a pipeline may differ."""
        is_cut = isinstance(self._where, Grid) and self._where.coords("pp")[1] > 1
        comm = self._comm if is_cut else self._failures.world
        if comm.size > 1:
            compare_moves(moves(transformation, flat), comm)

    @outside_of_jit
    def read(self) -> Any:
        """The parameters after the last step, as JAX arrays of their own. Waits for each while the next are still gathered. Local."""
        leaves = []
        for number, dtype in enumerate(self._dtypes):
            values = numpy.empty(self.buffer.params[number].shape, dtype)
            leaves.append(jax.numpy.asarray(self.buffer.read(number, values)))
        return self._tree.unflatten(leaves)

    @contextmanager
    @outside_of_jit
    def averaged(self) -> Iterator[None]:
        """As Optimizer.averaged: in it read() gives the averages of the parameters. Collective at both ends; blocking."""
        with self.optimizer.averaged():
            yield

    @outside_of_jit
    def step(self, lr: Optional[float] = None, loss_scale: Optional[float] = None, *,
             grad_divisor: Optional[float] = None, unchecked: bool = False) -> Optional[StepReport]:
        """sync, then a step of the optimizer; with loss_scale, or a scaler of optimizer, a gradient that is not finite makes all ranks skip it. Returns when
        its report is known; parameters are still gathered, and read waits for them. Collective; blocking.
        unchecked: as of Optimizer.step, which syncs then.
        Raises as sync and Optimizer.step; after STATE, NUMERIC and INVALID nothing has changed, and the next step can begin: if a put in backward failed
        on some rank, on all of them. Where another thread's call is under way, this one can be called again."""
        self._failures.asked = True
        if self._elements is not None:
            refuse_beside(dict(lr=lr))
        if unchecked:
            _backward_over()
            self._failures.agree("before a step that syncs")
        else:
            self._sync(skips=loss_scale is not None or self.optimizer._scales)
        try:
            report = self.optimizer.step(lr, loss_scale, grad_divisor=grad_divisor, unchecked=unchecked, wait=False)
        except MegaDPError as error:
            self._failures.begin_anew(error)
        self._failures.raise_late()
        self._failures.warn_of_none()
        return report
