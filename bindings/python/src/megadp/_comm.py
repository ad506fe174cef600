# SPDX-License-Identifier: Apache-2.0
"""Communicators and collectives on the caller's arrays."""
import ctypes
from typing import TYPE_CHECKING, Any, Callable, Literal, Mapping, Optional, Sequence, Tuple, TypedDict

from . import _dlpack, _raw
from ._bootstrap import Bootstrap, Gather
from ._errors import MegaDPError, from_info, invalid
from ._handles import Closable, Handle
from ._library import lib, sized
from ._tensor import operand
from ._waiting import Request, finish, interrupted, run, run_beside, wait_for

if TYPE_CHECKING:
    from typing_extensions import Unpack

Op = Literal["sum", "avg", "max", "min"]
Backend = Literal["auto", "host", "cuda"]
OPS = {"sum": _raw.MDP_OP_SUM, "avg": _raw.MDP_OP_AVG, "max": _raw.MDP_OP_MAX, "min": _raw.MDP_OP_MIN}
BACKENDS = {"auto": _raw.MDP_BACKEND_AUTO, "host": _raw.MDP_BACKEND_HOST, "cuda": _raw.MDP_BACKEND_CUDA}


class CommOptions(TypedDict, total=False):
    """Keywords of Comm, but for who the ranks are."""

    backend: Backend
    device: Optional[int]
    timeout: Optional[float]
    exact_sums: bool
    sockets: bool
    host_threads: int
    threads_always: bool


def choice(value: Any, argument: str, among: Mapping[Any, int]) -> int:
    if value not in among:
        raise invalid(f"{argument} is {value!r}; it must be one of {', '.join(repr(name) for name in among)}")
    return int(among[value])


def whole(value: Any, argument: str, low: int, high: int) -> int:
    """An integer that the C type holds; ctypes would cut it to size."""
    try:
        number = value.__index__()
    except AttributeError:
        raise invalid(f"{argument} is {value!r}; it must be an integer") from None
    if not low <= number <= high:
        raise invalid(f"{argument} is {number}; it must be from {low} to {high}")
    return int(number)


def c_text(value: Any, argument: str) -> bytes:
    """As C takes it, which would end it at a NUL."""
    if "\0" in str(value):
        raise invalid(f"{argument} is {value!r}, with a NUL in it")
    return str(value).encode("utf-8")


def unique_id() -> bytes:
    """A fresh name and secret under which ranks find each other, for one Comm on each rank: made by one rank, carried to the others by the
    caller, kept from strangers. Between nodes, rank 0's address is taken from MEGADP_ROOT where the id is made. Local, any thread.
    Raises MegaDPError: INVALID (MEGADP_ROOT makes no sense), SYSTEM."""
    out = _raw.mdp_unique_id()
    lib.mdp_unique_id_create(ctypes.byref(out))
    return bytes(out)


class Tree:
    """What a communicator and all that is made from it share here: how its blocking calls are run."""

    def __init__(self, comm: Handle, size: int) -> None:
        self.comm = comm
        self.size = size

    def run(self, handle: Handle, function: Any, *arguments: Any) -> None:
        """A call that waits for other ranks. After an interruption nobody could say how far it came, so the library gives the tree up on all
        ranks."""
        run(lambda: handle.call(function, *arguments))

    def make(self, handle: Handle, function: Any, kind: Any, destroy: Any, *arguments: Any) -> Any:
        """As run, for a call whose last argument is a new handle, which is returned; it may be NULL."""
        out = ctypes.POINTER(kind)()
        try:
            run(lambda: handle.call(function, *arguments, ctypes.byref(out)))
        except BaseException:
            if out:  # it was made, and then a signal came
                destroy(out)
            raise
        return out

    def abort(self) -> None:
        try:
            self.comm.call(lib.mdp_comm_abort)
        except MegaDPError:  # closed already, or lost: then there is nobody to tell
            pass


class Comm(Closable):
    """This rank in one ordered group of ranks.

    Comm() joins the ranks that a launcher has started (megadp run, torchrun, SLURM, Open MPI, MPICH), a single rank where there is none;
    Comm(id=..., rank=..., size=...) those that have the same unique_id(); Comm(bootstrap=gather, rank=..., size=...) those that can gather
    bytes: gather(mine) returns the bytes of all ranks, in their order. It is called twice, inside this call alone, on a thread of its own,
    and may block: at the timeout it is left to itself. What it carries holds a secret: who reads it may join. Collective over the ranks of
    the job; blocking, at most `timeout` seconds (None: five minutes), which is also how long later collectives wait for another rank. One
    thread at a time may use a communicator and what is made from it, abort and close excepted. Leaving a `with` block by an exception
    aborts on all ranks.

    backend: "auto", "host" or "cuda". device: with CUDA, which of the devices that this process sees (None: by local rank). exact_sums:
    on CUDA, sums in the order and precision of the host. sockets: data of the host goes between nodes over sockets on which both sides
    prove that they know the job's secret, and not over UCX; alike on all ranks. host_threads (0: a share of the processors) work on a long
    array of the host together, while the program waits; with threads_always also while it computes. rank, size: this rank's number and how many there are.
    Raises MegaDPError: INVALID, UNSUPPORTED (backend), TIMEOUT (names the ranks that did not come), PEER, DESYNC, STATE, SYSTEM, MEMORY.
    """

    rank: int
    size: int

    def __init__(self, id: Optional[bytes] = None, rank: Optional[int] = None, size: Optional[int] = None, *, backend: Backend = "auto",
                 device: Optional[int] = None, timeout: Optional[float] = None, exact_sums: bool = False, sockets: bool = False,
                 host_threads: int = 0, threads_always: bool = False, bootstrap: Optional[Gather] = None) -> None:
        given = None
        if id is not None:
            if len(id) != ctypes.sizeof(_raw.mdp_unique_id):
                raise invalid(f"id has {len(id)} bytes; it must be the {ctypes.sizeof(_raw.mdp_unique_id)} that unique_id() returns")
            if rank is None or size is None:
                raise invalid("with an id, rank and size must be given too")
            given = ctypes.byref(_raw.mdp_unique_id.from_buffer_copy(id))
        if bootstrap is not None and (rank is None or size is None):
            raise invalid("with a bootstrap, rank and size must be given too")
        flags = ((_raw.MDP_COMM_SET_DEVICE if device is not None else 0) | (_raw.MDP_COMM_EXACT_SUMS if exact_sums else 0) |
                 (_raw.MDP_COMM_SOCKETS if sockets else 0) | (_raw.MDP_COMM_THREADS_ALWAYS if threads_always else 0))
        most = 2**31 - 1
        config = sized(_raw.mdp_comm_config, backend=choice(backend, "backend", BACKENDS), rank=whole(rank or 0, "rank", -1, most),
                       size=whole(size or 0, "size", 0, most), device=whole(device or 0, "device", -1, most),
                       host_threads=whole(host_threads, "host_threads", -1, most), timeout_ns=nanoseconds(timeout, "timeout"), flags=flags, interrupted=interrupted)

        meeting = Bootstrap(bootstrap, size or 0) if bootstrap is not None else None
        if meeting is not None:
            config.bootstrap = ctypes.pointer(meeting.struct)

        out = ctypes.POINTER(_raw.mdp_comm)()

        def create() -> Any:
            return lib.mdp_comm_create(ctypes.byref(config), given, ctypes.byref(out))

        def destroy() -> None:  # where it was made, and then a signal came; once, by whichever thread
            if out:
                for made in unwanted:
                    lib.mdp_comm_destroy(made)

        unwanted = iter([out])
        try:
            if meeting is None:
                run(create)
            else:
                run_beside(create, destroy)
        except MegaDPError as failure:
            raise failure from (meeting.error if meeting is not None else None)
        except BaseException:
            destroy()
            raise
        self._take(out)

    @classmethod
    def from_environment(cls, **options: "Unpack[CommOptions]") -> "Comm":
        """Comm(**options), spelled out: the ranks that a launcher has started."""
        return cls(**options)

    @classmethod
    def from_id(cls, id: bytes, rank: int, size: int, **options: "Unpack[CommOptions]") -> "Comm":
        """Comm(id, rank, size, **options), spelled out: the ranks that have the same unique_id()."""
        return cls(id, rank, size, **options)

    def _take(self, pointer: Any) -> None:
        self._own(pointer, lib.mdp_comm_destroy)
        self.rank = lib.mdp_comm_rank(pointer)
        self.size = lib.mdp_comm_size(pointer)
        self._tree = Tree(self._handle, self.size)

    @classmethod
    def _of(cls, pointer: Any) -> "Comm":
        comm = cls.__new__(cls)
        comm._take(pointer)
        return comm

    def __repr__(self) -> str:
        return f"<megadp.Comm rank {self.rank} of {self.size}{', closed' if self.closed else ''}>"

    def __deepcopy__(self, memo: Any) -> "Comm":
        """Itself: a module that holds one can be copied, and its copy uses the same ranks."""
        return self

    def __exit__(self, kind: Optional[type], error: Optional[BaseException], traceback: Any) -> None:
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            self._tree.abort()
        self.close()

    def split(self, color: int, key: int = 0) -> Optional["Comm"]:
        """Cuts the communicator: ranks with the same color (>= 0) form a new one, ordered by key, then by rank; None where color < 0.
        Collective; blocking. Raises MegaDPError: INVALID, STATE, those of a lost communicator."""
        low, high = -2**31, 2**31 - 1
        pointer = self._tree.make(self._handle, lib.mdp_comm_split, _raw.mdp_comm, lib.mdp_comm_destroy, whole(color, "color", low, high),
                                  whole(key, "key", low, high))
        return Comm._of(pointer) if pointer else None

    def world_rank(self, rank: Optional[int] = None) -> int:
        """The rank in the world (the communicator that was not split) of rank `rank` of this one, or of this rank itself: the number that
        every MegaDPError names. Local, any thread. Raises MegaDPError: INVALID, STATE."""
        number: int = self._call(lib.mdp_comm_world_rank, self.rank if rank is None else whole(rank, "rank", -1, 2**31 - 1))
        return number

    @property
    def error(self) -> Optional[MegaDPError]:
        """The failure that made this communicator unusable, None while there is none. Local, any thread."""
        found = sized(_raw.mdp_error_info)
        self._call(lib.mdp_comm_error_info, ctypes.byref(found))
        return from_info(found) if found.status != _raw.MDP_OK else None

    def fileno(self) -> int:
        """A file descriptor for select, asyncio or another event loop: readable while a request has finished that nobody has asked about.
        Only requests made after the first call of this count. The library's own: never read or close it. Local."""
        out = ctypes.c_int32()
        self._call(lib.mdp_comm_event_fd, ctypes.byref(out))
        return out.value

    def abort(self) -> None:
        """Makes the communicator unusable on all ranks: their calls end with ABORTED, naming this rank. Does not block, any thread."""
        self._call(lib.mdp_comm_abort)

    def barrier(self, *, wait: bool = True) -> Optional[Request]:
        """Returns when all ranks have called it and this rank's earlier collectives have finished; with wait=False, a Request at once that
        says so. Collective."""
        return finish(wait_for(self._call, lib.mdp_barrier), wait)

    def all_reduce(self, array: Any, out: Any = None, op: Op = "sum", *, stream: int = 0, wait: bool = True) -> Optional[Request]:
        """out = op ("sum", "avg", "max", "min") over the ranks of array; in place where out is None.

        For this and the other collectives: arrays are dense and row-major, of any kind that has DLPack, the array interfaces or the
        buffer protocol, of dtype float32, bfloat16, float16, float64, int64 or uint8, alike on all ranks; nothing is copied. wait=False
        returns a Request at once, and the arrays must be left alone until it has finished. stream: with CUDA, a cudaStream_t.
        Collective. Raises MegaDPError: INVALID, UNSUPPORTED, STATE, DESYNC, PEER, TIMEOUT, ABORTED."""
        return self._move(lib.mdp_all_reduce, array, array if out is None else out, wait, stream, choice(op, "op", OPS))

    def reduce_scatter(self, array: Any, out: Any, op: Op = "sum", *, stream: int = 0, wait: bool = True) -> Optional[Request]:
        """out = op over the ranks of their piece number <this rank>; array has `size` times the elements of out. See all_reduce."""
        return self._move(lib.mdp_reduce_scatter, array, out, wait, stream, choice(op, "op", OPS))

    def all_gather(self, array: Any, out: Any, *, stream: int = 0, wait: bool = True) -> Optional[Request]:
        """out = the arrays of all ranks in rank order; it has `size` times the elements of array. See all_reduce."""
        return self._move(lib.mdp_all_gather, array, out, wait, stream)

    def all_to_all(self, array: Any, out: Any = None, *, stream: int = 0, wait: bool = True) -> Optional[Request]:
        """Piece r of array becomes piece <this rank> of rank r's out; in place where out is None. See all_reduce."""
        return self._move(lib.mdp_all_to_all, array, array if out is None else out, wait, stream)

    def broadcast(self, array: Any, root: int = 0, *, stream: int = 0, wait: bool = True) -> Optional[Request]:
        """array = rank root's, on all ranks. See all_reduce."""
        tensor, keep = operand(array, "array", writable=True, stream=stream)
        return self._start(lib.mdp_broadcast, (ctypes.byref(tensor), whole(root, "root", -1, 2**31 - 1), stream or None), tensor, keep, wait)

    def reduce_scatter_v(self, array: Any, out: Any, counts: Sequence[int], op: Op = "sum", *, stream: int = 0,
                         wait: bool = True) -> Optional[Request]:
        """As reduce_scatter with pieces of different sizes: counts[r] elements for rank r, the same list on all ranks. Arrays of the host."""
        return self._move(lib.mdp_reduce_scatter_v, array, out, wait, stream, self._counts(counts, "counts"), choice(op, "op", OPS))

    def all_gather_v(self, array: Any, out: Any, counts: Sequence[int], *, stream: int = 0, wait: bool = True) -> Optional[Request]:
        """As all_gather with pieces of different sizes: counts[r] elements of rank r, the same list on all ranks. Arrays of the host."""
        return self._move(lib.mdp_all_gather_v, array, out, wait, stream, self._counts(counts, "counts"))

    def all_to_all_v(self, array: Any, counts: Sequence[int], out: Any, out_counts: Sequence[int], *, stream: int = 0,
                     wait: bool = True) -> Optional[Request]:
        """As all_to_all with pieces of different sizes, never in place: counts[r] elements go to rank r, out_counts[r] come from it. Arrays of
        the host."""
        (source, keep_source), (target, keep_target) = operand(array, "array", stream=stream), operand(out, "out", writable=True, stream=stream)
        arguments = (ctypes.byref(source), self._counts(counts, "counts"), ctypes.byref(target), self._counts(out_counts, "out_counts"),
                     stream or None)
        return self._start(lib.mdp_all_to_all_v, arguments, source, (keep_source, keep_target), wait)

    def send(self, array: Any, rank: int, *, stream: int = 0, wait: bool = True) -> Optional[Request]:
        """Sends array to another rank, which receives as much of the same dtype; no other rank takes part. It may wait for the receiver.
        Arrays of the host; see all_reduce."""
        tensor, keep = operand(array, "array", stream=stream)
        return self._start(lib.mdp_send, (ctypes.byref(tensor), peer(rank, "rank"), stream or None), tensor, keep, wait)

    def recv(self, array: Any, rank: int, *, stream: int = 0, wait: bool = True) -> Optional[Request]:
        """array = what another rank sends this one: the first that was not received yet. See send."""
        tensor, keep = operand(array, "array", writable=True, stream=stream)
        return self._start(lib.mdp_recv, (ctypes.byref(tensor), peer(rank, "rank"), stream or None), tensor, keep, wait)

    def send_recv(self, array: Any, to: Optional[int], out: Any, source: Optional[int], *, stream: int = 0,
                  wait: bool = True) -> Optional[Request]:
        """Sends array to rank `to` and receives out from rank `source`, both at once. None for a rank leaves that half out, and its array may
        be None too. See send."""
        sent, keep_sent = (None, None) if to is None else operand(array, "array", stream=stream)
        received, keep_received = (None, None) if source is None else operand(out, "out", writable=True, stream=stream)
        arguments = (None if sent is None else ctypes.byref(sent), -1 if to is None else peer(to, "to"),
                     None if received is None else ctypes.byref(received), -1 if source is None else peer(source, "source"), stream or None)
        return self._start(lib.mdp_send_recv, arguments, sent or received, (keep_sent, keep_received), wait)

    def _counts(self, values: Sequence[int], argument: str) -> Any:
        counts = [whole(value, argument, 0, 2**64 - 1) for value in values]
        if len(counts) != self.size:
            raise invalid(f"{argument} has {len(counts)} numbers; it has one for each of the {self.size} ranks")
        return (ctypes.c_uint64 * self.size)(*counts)

    def _move(self, function: Any, array: Any, out: Any, wait: bool, stream: int, *more: Any) -> Optional[Request]:
        source, keep_source = operand(array, "array", writable=out is array, stream=stream)
        target, keep_target = (source, None) if out is array else operand(out, "out", writable=True, stream=stream)
        arguments = (ctypes.byref(source), ctypes.byref(target), *more, stream or None)
        return self._start(function, arguments, source, (keep_source, keep_target), wait)

    def _start(self, function: Callable[..., Any], arguments: Tuple[Any, ...], tensor: Any, keep: Any, wait: bool) -> Optional[Request]:
        if wait and (self.size == 1 or tensor is None or tensor.device_type == _dlpack.CUDA):
            self._tree.run(self._handle, function, *arguments, None)
            return None
        return finish(wait_for(self._call, function, *arguments, keep=(keep,)), wait)


def peer(rank: int, argument: str) -> int:
    return whole(rank, argument, 0, 2**31 - 1)


def nanoseconds(seconds: Optional[float], argument: str) -> int:
    if seconds is None:
        return 0
    if not 0 < seconds < 2**63 / 1e9:
        raise invalid(f"{argument} is {seconds!r} seconds; it must be above 0, or None for the default")
    return max(1, int(seconds * 1e9))
