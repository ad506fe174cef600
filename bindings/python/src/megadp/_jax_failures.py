# SPDX-License-Identifier: Apache-2.0
"""Steps that end on all ranks alike where one of them could not hand a gradient over in backward. The library's sync tells all ranks what has not
come; of what was refused when it came a second time it does not know. And calls that are refused in what JAX traces: in all of it, or where it would not
run them once."""
import functools
import itertools
import math
import threading
import warnings
import weakref
from typing import Any, Callable, List, NoReturn, Optional, Tuple, TypeVar, Union, cast

import jax
import numpy

from ._buffer import Buffer
from ._comm import Comm
from ._errors import MegaDPError, Status, make_error
from ._grid import Grid

try:
    from jax.extend import core as extended

    _trace_state: Any = extended.get_opaque_trace_state
except (ImportError, AttributeError):  # older JAX's
    _trace_state = None
try:
    _mesh, _manual = jax.sharding.get_abstract_mesh, jax.sharding.AxisType.Manual
except AttributeError:  # older JAX's, whose pmap refuses ordered callbacks itself
    _mesh = _manual = None  # type: ignore[assignment, unused-ignore]

_STALE = ("a function of jax.jit, once compiled, keeps the track() that it was traced with, also where it reads a variable that holds another "
          "DataParallel or Averaging by now: make the function anew with each one, or call jax.clear_caches()")
_INSIDE = ("track() is called in the function that is differentiated, on its argument: jax.grad(lambda p: loss(training.track(p), x))(params); outside "
           "of it, as in jax.grad(loss)(training.track(params), x), it hands nothing over")
_TWICE = "has a gradient already"
_newest: "weakref.WeakValueDictionary[int, Failures]" = weakref.WeakValueDictionary()  # by the thread that made it, which may be a rank
_clock = itertools.count(1)
Function = TypeVar("Function", bound=Callable[..., Any])
with jax.ensure_compile_time_eval():  # this may be imported while a function is traced
    _no_trace = None if _trace_state is None else _trace_state(convention="flax")
knows_traces = _trace_state is not None


def is_traced() -> bool:
    """Whether what is called here is called for a function that is compiled, and not when that runs."""
    if _trace_state is not None and _trace_state(convention="flax") == _no_trace:
        return False
    # jax.grad and jax.vmap outside of jit trace too, but with values: what goes by none of their arguments is computed then.
    with jax.transfer_guard("allow"):
        return isinstance(jax.lax.neg(numpy.float32(0)), jax.core.Tracer)


def outside_of_jit(function: Function) -> Function:
    """Refuses calls while JAX traces a function: parameters would be what they were then for ever, and a step be taken once."""
    @functools.wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        if is_traced():
            name = function.__name__
            instead = "give what it returns to that function as an argument" if name == "read" else "call it before or after that function"
            raise MegaDPError(Status.STATE, f"{name}() is called in a function that JAX traces (jit, scan, shard_map, checkpoint ...), where it would run once, as "
                              f"that is compiled, and not each time that it is called. Of the calls of a training only track() belongs there: {instead}")
        return function(*arguments, **options)

    return cast(Function, checked)


def refuse_devices(call: str) -> None:
    """Refuses what shard_map or pmap would run on each of several devices, in no order between them: one device's call would meet another
    device's on another rank. Raises MegaDPError: UNSUPPORTED."""
    if _mesh is None:
        return
    mesh = _mesh()
    devices = math.prod(size for size, kind in zip(mesh.axis_sizes, mesh.axis_types) if kind == _manual)
    if devices > 1:
        raise MegaDPError(Status.UNSUPPORTED, f"{call} is called in shard_map or pmap over {devices} devices of this rank, each of which would call it by "
                          "itself, in no order between them. Call it outside, in jit, which takes arrays that are cut over devices; or give each "
                          "device a rank of its own")


def refuse_second_runs() -> None:
    """Refuses a collective that JAX may run a second time on one rank alone: it would meet the other ranks' next one.
    Raises MegaDPError: UNSUPPORTED."""
    for option in ("jax_debug_nans", "jax_debug_infs"):
        if getattr(jax.config, option, False):
            raise MegaDPError(Status.UNSUPPORTED, f"{option} is on, with which JAX runs a compiled function again on the rank that has found one, and a "
                              "collective in it would meet the other ranks' next one. Turn it off, or run nothing compiled (with "
                              "jax.disable_jit()), where nothing runs twice; check_finite=True names gradients that are not finite")


def told_in_python(error: MegaDPError, name: str) -> MegaDPError:
    """A put's error, in the words of who differentiates a function."""
    if error.code != Status.STATE:
        return error
    if "is ready already" in error.text:
        text = (f"parameter {name!r} {_TWICE}: the function that track() is in was differentiated twice before a step, or put() called "
                "besides. A first call that is to compile it counts too, a batch that is thrown away does, and jax.vmap counts each element. sync, step and average begin anew "
                "after this, without gradients. Differentiate it once between steps, end what is thrown away by sync() and "
                "buffer.zero_grad(), and say further microbatches by begin_microbatch")
    elif "comes after mdp_grad_sync" in error.text:
        text = (f"a gradient of parameter {name!r} comes after sync() and is left out: step() is to come first, or buffer.zero_grad(), which throws "
                "away what was synced")
    else:
        return error
    return _worded(error, text)


def _worded(error: MegaDPError, text: str) -> MegaDPError:
    return make_error(error.code, text, rank=error.rank, bucket=error.bucket, param=error.param)


class Failures:
    """What puts of one buffer have raised, on this rank and on the others. Beginning with one is collective where `where` is a Grid."""

    def __init__(self, buffer: Buffer, where: Union[Comm, Grid], missing: str = "error") -> None:
        self.mine: Optional[BaseException] = None
        self.asked = False  # whether a call that takes gradients, or tells microbatches, has ever come
        self.has_come = self.tracked = False  # whether a gradient has ever come, and track() was ever called
        self._warned = False
        self._missing = missing
        self._buffer, self._where = buffer, where
        self._maker = threading.get_ident()
        self._begun = self._ended = 0  # by _clock: when a step's first gradient came, and when gradients were last synced
        self._made = next(_clock)
        _newest[self._maker] = self
        self.world = where if isinstance(where, Comm) else where.comm("tp-cp-dp-pp")
        self._lock = threading.Lock()
        self._agreed: Tuple[str, int] = ("", 0)
        self._on: List[int] = []  # the ranks that have one, as was agreed

    def note(self, error: BaseException) -> None:
        """Any thread. The first one is kept."""
        with self._lock:
            self.mine = self.mine or error

    def came(self) -> None:
        """A gradient, in backward."""
        if self._begun <= self._ended:
            self._begun = next(_clock)

    def note_put(self, error: BaseException) -> None:
        """Of a put in backward. Where a newer buffer of the same pytree has been stepped since this one's first gradient, and this one not since
        that was made, it is told there: here nobody asks."""
        self.note(error)
        self._tell_newer(error)
        self._warn_of_untaken(error)

    def _tell_newer(self, error: BaseException) -> None:
        newer = _newest.get(self._maker)
        if newer is None or newer is self or self._ended > newer._made or not isinstance(error, MegaDPError) or error.code != Status.STATE or _shapes(newer) != _shapes(self):
            return
        if self._buffer.closed or newer._where is self._where and newer._ended > self._begun:
            newer.note(MegaDPError(Status.STATE, "gradients have gone to an earlier DataParallel or Averaging of the same pytree, which is "
                                   f"{'closed' if self._buffer.closed else 'not stepped'}: {_STALE}"))

    def _warn_of_untaken(self, error: BaseException) -> None:
        """Who takes track() for what averages the gradients that jax.grad returns calls nothing that could tell of puts, and each rank would train
        alone without a word. Where a call has ever taken gradients, the next one tells."""
        if self.asked or self._warned or not isinstance(error, MegaDPError) or error.code != Status.STATE or _TWICE not in error.text:
            return
        try:
            if self._buffer.stats().syncs > 0:  # the buffer, or an optimizer of it, is used directly
                return
        except MegaDPError:  # one of its calls is under way
            return
        self._warned = True
        warnings.warn("gradients are left out: those of the backward pass before have not been taken. track() hands this rank's gradients over to "
                      "step(), sync() or, of an Averaging, average(), one of which is to be called after each backward pass; what jax.grad and "
                      "jax.value_and_grad return is this rank's own, and no mean over the ranks", stacklevel=2)

    def warn_of_none(self) -> None:
        """At the end of a step for which this rank had no gradient, though it calls track(): where they may be missing nothing else tells."""
        if self.has_come or not self.tracked or self._warned or self._missing == "error":
            return
        self._warned = True
        warnings.warn(f"a step has ended without any gradient of this rank's, which missing={self._missing!r} allows. {_INSIDE}", stacklevel=4)

    def agree(self, when: str) -> None:
        """Ends the step on all ranks where one of them has a failure: what came before it would not be the sum that was meant. One exchange
        for each sync, so that who calls again what another thread's call made it leave goes on where it was. Collective; blocking.
        Raises this rank's failure, or STATE."""
        self._ended = next(_clock)
        number = (when, self._buffer.stats().syncs)
        if number != self._agreed:
            failed = numpy.full(self.world.size, self.mine is not None, numpy.uint8)
            if self.world.size > 1:
                self.world.all_gather(failed[:1].copy(), failed)
            self._agreed, self._on = number, [int(rank) for rank in failed.nonzero()[0]]
        if not self._on:
            return
        try:
            self._buffer.sync()  # what is launched is to end; there may have been one, which this is then
        except MegaDPError as error:
            if not _was_told(error):
                raise
        self._buffer.begin_microbatch(True)
        rank, self._on = self.world.world_rank(self._on[0]), []
        self.raise_late()
        raise MegaDPError(Status.STATE, f"rank {rank} could not hand over a gradient in backward, as the error there says; the step has begun anew "
                          "on all ranks, without gradients", rank=rank)

    def begin_anew(self, error: MegaDPError) -> NoReturn:
        """After a failure that all ranks were told, and that has not lost them to each other. One that names no rank is this rank's alone, as where
        another thread's call is under way: nothing has been done, and the gradients are there for the next call. Raises it, or this rank's."""
        if _was_told(error):
            self._buffer.begin_microbatch(True)
            self.raise_late(error)
            if "never became ready" in error.text:
                inside = "" if self.has_come or not self.tracked else f"{_INSIDE}. "
                raise _worded(error, f"{error.text}. {inside}If the function that is differentiated uses all of params: {_STALE}") from None
        raise error

    def raise_late(self, besides: Optional[MegaDPError] = None) -> None:
        """Raises this rank's failure, if there is one."""
        with self._lock:
            failure, self.mine = self.mine, None
        if failure is not None:
            raise failure from (besides or failure.__cause__)


def _shapes(failures: Failures) -> Any:
    return [(param.name, param.shape) for param in failures._buffer.params]


def _was_told(error: MegaDPError) -> bool:
    return error.code in (Status.STATE, Status.NUMERIC, Status.INVALID) and error.rank is not None
