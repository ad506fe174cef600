# SPDX-License-Identifier: Apache-2.0
"""Parameters and gradients, and the calls of one training step up to the optimizer."""
import ctypes
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union, overload

from . import _dlpack, _raw
from ._comm import Comm, c_text, whole
from ._dtypes import FLOATS
from ._errors import MegaDPError, invalid
from ._grid import Grid
from ._handles import Closable
from ._library import lib, sized
from ._params import BufferOptions, Param, Params, buffer_config, native_params, param_number, read_params, read_struct
from ._tensor import Tensor, operand
from ._waiting import Request, finish, run, wait_for

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray
    from typing_extensions import Unpack

Array = TypeVar("Array")
_ALL = 2**(8 * ctypes.sizeof(ctypes.c_size_t)) - 1
Which = Union[int, str]  # a parameter, by index at registration or by name


def _on_comm(comm: Any, *arguments: Any) -> Any:
    return lib.mdp_buffer_register(comm, None, *arguments)


def _on_grid(grid: Any, *arguments: Any) -> Any:
    return lib.mdp_buffer_register(None, grid, *arguments)


class Range(NamedTuple):
    """One owned piece of one parameter; as mdp_range in megadp.h."""

    arena: int
    bucket: int
    param: int
    begin: int
    end: int
    param_begin: int


class Stats(NamedTuple):
    """Sums since registration; as mdp_stats_report in megadp.h."""

    comm_ns: int
    exposed_ns: int
    bytes: int
    buckets: int
    launched_in_backward: int
    syncs: int
    host_syncs: int
    spill_peak_bytes: int
    large_gradients: int


class Bucket(NamedTuple):
    """The last step's times of one bucket, CLOCK_MONOTONIC (time.monotonic_ns) in nanoseconds; as mdp_bucket_report in megadp.h."""

    state: int
    ready_ns: int
    reduce_begin_ns: int
    reduce_end_ns: int
    gather_begin_ns: int
    gather_end_ns: int
    sync_ns: int


class GradSummary(NamedTuple):
    """Of a set of reduced gradients: L2 norm, largest magnitude (NaN is none), how many elements are zero, and how many not finite."""

    norm: float
    inf_norm: float
    zeros: int
    nonfinite: int


class Buffer(Closable):
    """Parameters and their gradients in memory of the library: laid out, cut into buckets, sharded over the ranks; zeroed.

    where: a Comm, whose ranks are then all data-parallel, or a Grid. params: Params, (name, shape) pairs, or a mapping of names to shapes
    or arrays, in the order of the forward pass. grad_dtype: "f32" or "same". sharding: "zero_1" (default), "zero_0", "zero_2", or
    "whole", where each parameter is owned by one rank, for updates that need all of it. missing:
    what sync does about a parameter without a gradient: "error", "zero" or "skip". bucket_elements, bucket_count: where buckets end (0: the
    library decides). pool_buckets, spill_limit: with zero_2, see mdp_buffer_config in megadp.h. overlap=False launches
    everything at sync. scaling: what the sum of gradients is divided by: the number of ranks ("mean"), nothing ("sum"), or "tokens" (see
    tokens). wire_dtype="bf16": float32 gradients are sent as bfloat16, rounded once by each rank, and summed in float32;
    error_feedback=True adds to the next step's gradient what rounding lost. check_finite=True looks for non-finite gradients before they
    are reduced (see sync), check_large=True warns of a gradient with 10 times the largest norm of its first 100.
    ignore_memory=True, on any rank, takes memory also where the system says that there is too little. A parameter is named by its index
    or its name in all methods.
    Collective over the world, with registrations alike within a data-parallel group; blocking.
    Raises MegaDPError: INVALID (names the parameter), UNSUPPORTED, DESYNC (names the first difference and two ranks), STATE, MEMORY,
    SYSTEM, those of a lost communicator.
    """

    def __init__(self, where: Union[Comm, Grid], params: Params, **options: "Unpack[BufferOptions]") -> None:
        self.params: Tuple[Param, ...] = tuple(read_params(params))
        self._index: Dict[str, int] = {param.name: i for i, param in enumerate(self.params)}
        config = buffer_config(**options)
        structs, count = native_params(self.params)
        self._tree = where._tree
        self._own(self._tree.make(where._handle, _on_comm if isinstance(where, Comm) else _on_grid, _raw.mdp_buffer, lib.mdp_buffer_destroy,
                                  ctypes.byref(config), structs, count), lib.mdp_buffer_destroy)
        place = next((i for i, param in enumerate(self.params) if not param.frozen), None)
        self._device = (_dlpack.CPU, 0) if place is None else self.param(place)._device
        self._on_host = self._device[0] == _dlpack.CPU

    def __len__(self) -> int:
        return len(self.params)

    def index(self, name: str) -> int:
        """The index of the parameter of that name: its place in `params`, and what Range.param and MegaDPError.param say. Local.
        Raises MegaDPError: INVALID, STATE."""
        found = ctypes.c_size_t()
        self._call(lib.mdp_buffer_find, c_text(name, "name"), ctypes.byref(found))
        return found.value

    def _number(self, param: Which) -> int:
        return param_number(param, self._index)

    # Memory

    def param(self, param: Which, readonly: bool = False) -> Tensor:
        """The parameter's memory. To be written between a step and the next forward only, before changed(). Local.
        Raises MegaDPError: INVALID, STATE (frozen parameters have no memory here; forked child)."""
        return self._view(lib.mdp_buffer_param_view, param, readonly)

    def grad(self, param: Which, readonly: bool = False) -> Tensor:
        """The gradient's memory. To be written before ready(); means something after sync(): with zero_0 all of it, with zero_1 the owned
        ranges. Over several microbatches the caller adds into it. Local. Raises as param; UNSUPPORTED (zero_2: see acquire)."""
        return self._view(lib.mdp_buffer_grad_view, param, readonly)

    def owned_grad(self, param: Which) -> Tensor:
        """What this rank owns of a reduced gradient: one dimension, from Range.param_begin on, float32 with zero_2; empty if it owns nothing.
        After sync and before the step; may be written, followed by grads_changed. Local. Raises MegaDPError: INVALID, STATE."""
        out, lease = sized(_raw.mdp_tensor), self._handle.lend()
        self._call(lib.mdp_grad_owned, self._number(param), ctypes.byref(out))
        return Tensor(out, lease)

    def _view(self, function: Any, param: Which, readonly: bool) -> Tensor:
        out = sized(_raw.mdp_tensor)
        lease = self._handle.lend()
        self._call(function, self._number(param), ctypes.byref(out))
        return Tensor(out, lease, readonly, lendable=True)

    def owned(self) -> List[Range]:
        """The ranges of elements whose optimizer state this rank keeps, by arena, in order of position. Local."""
        needed = ctypes.c_size_t()
        try:
            self._call(lib.mdp_buffer_owned, None, 0, ctypes.byref(needed))
        except MegaDPError:
            if needed.value == 0:
                raise
        ranges = (_raw.mdp_range * max(1, needed.value))()
        ranges[0].struct_size = ctypes.sizeof(_raw.mdp_range)
        self._call(lib.mdp_buffer_owned, ranges, needed.value, ctypes.byref(needed))
        return [read_struct(ranges[i], Range) for i in range(needed.value)]

    @overload
    def read(self, param: Which, out: None = None, *, stream: int = 0) -> "NDArray[numpy.float32]": ...

    @overload
    def read(self, param: Which, out: Array, *, stream: int = 0) -> Array: ...

    def read(self, param: Which, out: Any = None, *, stream: int = 0) -> Any:
        """Copies a parameter into `out` (its shape, any strides, float32, bfloat16, float16 or float64), or into a new float32 numpy
        array, and returns that. Waits as wait does. Local."""
        number = self._number(param)
        if out is None:
            import numpy

            out = numpy.empty(self.params[number].shape if number < len(self.params) else (), numpy.float32)
        tensor, _keep = self._operand(number, out, "out", stream, writable=True)
        run(lambda: self._call(lib.mdp_param_read, number, ctypes.byref(tensor), stream or None))
        return out

    def _operand(self, number: int, array: Any, argument: str, stream: int, writable: bool = False) -> Tuple[Any, Any]:
        name = self.params[number].name if number < len(self.params) else number
        return operand(array, f"{argument} of parameter {name!r}", writable, stream, FLOATS)

    def write(self, param: Which, array: Any, *, stream: int = 0) -> None:
        """Copies an array into a parameter, as read does the other way. What is written must be the same on all ranks of the data-parallel
        group (or be followed by broadcast). Waits as wait does. Local."""
        number = self._number(param)
        tensor, _keep = self._operand(number, array, "array", stream)
        run(lambda: self._call(lib.mdp_param_write, number, ctypes.byref(tensor), stream or None))

    def changed(self) -> None:
        """To be called after parameters were written through param(): the optimizer's masters follow at the next step, where they do
        not round to what was written. Local."""
        self._call(lib.mdp_param_changed)

    def broadcast(self, root: int = 0, *, wait: bool = True) -> Optional[Request]:
        """Copies all parameters from rank `root` of each data-parallel group to its other ranks. wait=False returns a Request at once; until
        it has finished, parameters are neither read nor written. Collective over the world."""
        return finish(wait_for(self._call, lib.mdp_buffer_broadcast, whole(root, "root", -1, 2**31 - 1)), wait)

    def verify(self) -> None:
        """Compares all parameters, bit for bit, over each data-parallel group, over tensor-parallel ranks what is not sharded, and what is
        tied; of the latter two also reduced gradients. Collective; blocking; slow: for checks.
        Raises MegaDPError: DESYNC (names the first parameter that differs, and two ranks), STATE, those of a lost communicator."""
        self._tree.run(self._handle, lib.mdp_buffer_verify)

    # A step

    def begin_microbatch(self, last: bool) -> None:
        """Says whether the microbatch that begins is the last one of the step. Without this call every step has one. Local."""
        run(lambda: self._call(lib.mdp_microbatch_begin, 1 if last else 0))

    def wait(self, param: Optional[Which] = None, *, stream: int = 0) -> None:
        """Returns when the parameter (None: every parameter) holds its values after the last step. Local; waits for the gather of its
        bucket, at most for the communicator's timeout. Any thread."""
        number = _ALL if param is None else self._number(param)
        run(lambda: self._call(lib.mdp_param_wait, number, stream or None))

    def put(self, param: Which, grad: Any, *, add: bool = False, more: bool = False, stream: int = 0) -> None:
        """Copies a gradient into its slot, cast to the gradient's dtype, and counts it as ready. The parameter's shape, any strides,
        float32, bfloat16, float16 or float64. The first one of a step replaces what is in the slot (unless add), later ones are added.
        more: not ready yet. The array may be reused when this returns. Local; any thread, several at a time for different parameters.
        Raises MegaDPError: INVALID (shape), STATE (frozen; too often; after sync; skipped), those of a lost communicator."""
        number = self._number(param)
        tensor, _keep = self._operand(number, grad, "grad", stream)
        flags = (_raw.MDP_GRAD_ADD if add else 0) | (_raw.MDP_GRAD_MORE if more else 0)
        run(lambda: self._call(lib.mdp_grad_put, number, ctypes.byref(tensor), flags, stream or None))

    def acquire(self, param: Which, *, stream: int = 0) -> Tuple[Tensor, bool]:
        """Lends the memory where the gradient goes, until ready or release; and whether to write it (True) or to add to it. The parameter's
        shape, the gradient's dtype (float32 with zero_2, a half-width gradient and uses_per_step above 1). Local; any thread.
        Raises MegaDPError: STATE (as put), MEMORY (spill_limit), those of a lost communicator."""
        number = self._number(param)
        out, first, lease = sized(_raw.mdp_tensor), ctypes.c_int32(), self._handle.lend()
        self._call(lib.mdp_grad_acquire, number, ctypes.byref(out), ctypes.byref(first), stream or None)
        return Tensor(out, lease), bool(first.value)

    def release(self, param: Which) -> None:
        """Gives back what acquire lent: if it was to be written, as if nothing had been; what was added to another stays in it. Local.
        Raises MegaDPError: STATE (it was not lent)."""
        self._call(lib.mdp_grad_release, self._number(param))

    def ready(self, param: Which, *, stream: int = 0) -> None:
        """The gradient was written into grad(param), or what acquire lent; counts it as ready. Local, does not block. Any thread."""
        self._call(lib.mdp_grad_ready, self._number(param), stream or None)

    def skip(self, param: Which) -> None:
        """This rank has no gradient of the parameter in this microbatch. Local, does not block. Any thread."""
        self._call(lib.mdp_grad_skip, self._number(param))

    def tokens(self, count: float) -> None:
        """With scaling "tokens": over how many tokens (or samples) this rank's losses of the step are summed. Steps and norms divide by the
        sum over the data-parallel ranks, by 1 if that is 0; reduced gradients stay sums. Ranks that share a batch (tp, pp) say the same, or
        one does. Once a step, before sync. Local; with half-width gradients on all ranks before the first one, collective over the world:
        there reductions divide. Raises MegaDPError: INVALID (count), STATE, those of a lost communicator."""
        self._tree.run(self._handle, lib.mdp_grad_tokens, float(count))

    def zero_grad(self, *, stream: int = 0) -> None:
        """Sets all gradients to zero and begins the step anew. Not needed between steps, unless the caller adds into grad(). Local."""
        run(lambda: self._call(lib.mdp_buffer_zero_grad, stream or None))

    def sync(self, *, stream: int = 0, wait: bool = True) -> Optional[Request]:
        """Ends backward: launches what is left, waits until every bucket is reduced, and agrees with all ranks on what was missing or
        skipped. For who looks at reduced gradients before the step, which calls it otherwise. wait=False returns a Request at once.
        Collective over the world.
        Raises MegaDPError: STATE (a parameter never became ready: names it and the rank, on all ranks; nothing has changed, and zero_grad
        on all ranks begins the step anew), NUMERIC (check_finite, on all ranks: names parameter, element, value, microbatch and rank; a
        step may follow, which is skipped if it has a loss scale), those of a lost communicator."""
        if wait and (self._tree.size == 1 or not self._on_host):
            self._tree.run(self._handle, lib.mdp_grad_sync, stream or None, None)
            return None
        return finish(wait_for(self._call, lib.mdp_grad_sync, stream or None), wait)

    # Reduced gradients: between sync and the step

    def grad_norm(self, params: Optional[Iterable[Which]] = None) -> float:
        """The L2 norm of the reduced gradients (of the listed parameters; None: of all) over the whole model, each element counted once,
        as Optimizer.step counts it. Infinite or NaN where a gradient is not finite, on all ranks. After sync and before the step.
        Collective over the world, with the same list on ranks that share parameters.
        Raises MegaDPError: INVALID (frozen, unknown or listed twice), STATE, those of a lost communicator."""
        norm = ctypes.c_double()
        self._tree.run(self._handle, lib.mdp_grad_norm, *self._listed(params), ctypes.byref(norm))
        return norm.value

    def grad_summaries(self, sets: Optional[Sequence[Optional[int]]] = None, count: int = 1) -> List[GradSummary]:
        """Of each of `count` sets of parameters norms, and numbers of zeros, over the whole model, as grad_norm counts it: sets[i] is the set
        that parameter i is in, None: in none; without sets all are in the first. After sync and before the step. Every rank gets the same.
        Collective over the world, with the same count. Raises MegaDPError: INVALID, STATE, MEMORY, those of a lost communicator."""
        if sets is not None and len(sets) != len(self.params):
            raise invalid(f"sets has {len(sets)} entries; there are {len(self.params)} parameters")
        wanted = whole(count, "count", 1, 2**24)
        numbers = None if sets is None else (ctypes.c_size_t * max(len(sets), 1))(
            *(_ALL if one is None else whole(one, f"sets[{i}]", 0, wanted - 1) for i, one in enumerate(sets)))
        out = (_raw.mdp_grad_summary * wanted)()
        for one in out:
            one.struct_size = ctypes.sizeof(one)
        self._tree.run(self._handle, lib.mdp_grad_summarize, numbers, wanted, out)
        return [read_struct(one, GradSummary) for one in out]

    def scale_grads(self, factor: float, params: Optional[Iterable[Which]] = None, *, stream: int = 0) -> None:
        """Multiplies reduced gradients (of the listed parameters; None: all) by a factor, in place: what grad() shows and the step uses.
        With "zero_1" what this rank owns of them. After sync and before the step. Local; to be called alike on all ranks.
        Raises MegaDPError: INVALID (as grad_norm; a factor that is not finite), STATE, those of a lost communicator."""
        self._call(lib.mdp_grad_scale, *self._listed(params), float(factor), stream or None)

    def grads_changed(self, *, stream: int = 0) -> None:
        """To be called after reduced gradients were written through grad(), between sync and the step. Local.
        Raises MegaDPError: STATE, those of a lost communicator."""
        self._call(lib.mdp_grad_changed, stream or None)

    def _listed(self, params: Optional[Iterable[Which]]) -> Tuple[Any, int]:
        if params is None:
            return None, 0
        numbers = [self._number(param) for param in ([params] if isinstance(params, str) else params)]
        return (ctypes.c_size_t * max(len(numbers), 1))(*numbers), len(numbers)  # where none is listed, still an array: NULL means all

    # Looking

    @property
    def bucket_count(self) -> int:
        """How many buckets there are; bucket() takes their numbers. Local."""
        params, buckets = ctypes.c_size_t(), ctypes.c_size_t()
        self._call(lib.mdp_buffer_counts, ctypes.byref(params), ctypes.byref(buckets))
        return buckets.value

    def stats(self) -> Stats:
        """Counters since registration. Local."""
        out = sized(_raw.mdp_stats_report)
        self._call(lib.mdp_buffer_stats, ctypes.byref(out))
        found: Stats = read_struct(out, Stats)
        return found

    def use_order(self) -> List[int]:
        """Of each parameter the Param.use_order with which the last synced step's gradients would have filled bucket after bucket; for the
        next time that they are registered. The same on all ranks of a stage. Collective over the world; blocking.
        Raises MegaDPError: STATE (no sync yet), UNSUPPORTED (ranks of a stage hold different experts), those of a lost communicator."""
        found = (ctypes.c_int32 * max(len(self.params), 1))()
        self._tree.run(self._handle, lib.mdp_buffer_use_order, found, len(self.params))
        return list(found[:len(self.params)])

    def bucket(self, number: int) -> Bucket:
        """The last step's times of a bucket, by its number in launch order. Local. Raises MegaDPError: INVALID, STATE."""
        out = sized(_raw.mdp_bucket_report)
        self._call(lib.mdp_buffer_bucket, whole(number, "number", 0, _ALL), ctypes.byref(out))
        found: Bucket = read_struct(out, Bucket)
        return found
