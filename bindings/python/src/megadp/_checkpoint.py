# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: all ranks save parameters, optimizer state, arrays and bytes of the caller's; any number of ranks load them."""
import ctypes
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Union

from . import _raw
from ._buffer import Buffer
from ._comm import c_text, choice, whole
from ._errors import MegaDPError, invalid
from ._handles import Handle, inside
from ._library import lib, sized, text_of
from ._optimizer import Optimizer
from ._tensor import operand
from ._waiting import SLICE, Request, run

if TYPE_CHECKING:
    Path = Union[str, "os.PathLike[str]"]
    Bytes = Union[bytes, bytearray, memoryview]

PLACEMENTS = {None: _raw.MDP_PLACEMENT_UNSET, "replicated": _raw.MDP_PLACEMENT_REPLICATED, "sharded": _raw.MDP_PLACEMENT_SHARDED}
_INT32 = 2**31 - 1


@dataclass(frozen=True)
class CheckpointTensor:
    """An array of the caller's in a checkpoint, where ranks are tensor-parallel: placement, shard_dim and shard_stride are as of Param."""

    array: Any
    placement: Optional[Literal["replicated", "sharded"]] = None
    shard_dim: int = 0
    shard_stride: int = 0


def save_checkpoint(directory: "Path", *parts: Union[Buffer, Optimizer], tensors: Optional[Mapping[str, Any]] = None,
                    shared_data: "Bytes" = b"", rank_data: "Bytes" = b"", keep: int = 0, wait: bool = True) -> Optional[Request]:
    """Saves a checkpoint of the parts in `directory`, under the next free number; it is there as a whole or not at all.

    parts: Optimizers, each with its Buffer (all that have parameter groups of one), and Buffers, whose parameters are saved without an
    optimizer's state if their Optimizer is not given too. tensors: arrays of the caller's (frozen parameters, module buffers), by name; a CheckpointTensor where ranks are
    tensor-parallel. shared_data: any bytes, rank 0's count; rank_data: any bytes of this rank; checkpoint_data gives them back. keep: so
    many of the newest checkpoints stay (0: all). To be called between steps. Collective over the world of the parts; blocking: it waits
    for files longer than the timeout. With wait=False it returns a Request when all is copied, and the copy is written while training goes
    on. One is written at a time: the next save or load waits for it. An Optimizer or Buffer that is closed meanwhile, or that nobody refers
    to any more, is kept until it is written, and so is the process. A failure whose Request nobody has waited for is raised by the next
    save, or printed at the end of the process.
    Raises MegaDPError, on all ranks, and older checkpoints stay: INVALID (names that differ or come twice), DESYNC, STATE, SYSTEM (names
    the file), those of a lost communicator."""
    fields = {"keep": whole(keep, "keep", 0, 2**64 - 1)}
    kept = []
    for name, data in (("shared", shared_data), ("rank", rank_data)):
        kept.append(_bytes(data, f"{name}_data"))
        fields.update({f"{name}_data": ctypes.addressof(kept[-1]), f"{name}_bytes": len(kept[-1])})
    request = None if wait else Request()
    handles = _collective(lib.mdp_checkpoint_save, directory, parts, tensors, False, fields, None if request is None else request._out())
    if request is None:
        return None
    _see_through(request, [handle.lend() for handle in handles])
    return request


def _see_through(request: Request, leases: List[Any]) -> None:
    """Keeps the leases, and with them the communicator, until the request has ended; Python waits for such a thread before it ends."""
    def wait() -> None:
        try:
            while not request.ended():
                time.sleep(SLICE)
        except MegaDPError:  # Python has closed all, since its wait for this thread was interrupted
            pass
        leases.clear()

    try:
        threading.Thread(target=wait, name="megadp save", daemon=False).start()  # also from a daemon thread
    except RuntimeError:  # no thread can be had, or Python is ending: then it is written if nothing is closed before
        leases.clear()


def load_checkpoint(directory: "Path", *parts: Union[Buffer, Optimizer], tensors: Optional[Mapping[str, Any]] = None,
                    optional: Union[str, Sequence[str]] = (), params_only: bool = False, load_hyper: bool = False) -> None:
    """Loads the newest checkpoint in `directory`, or the one that is `directory`, into the parts and tensors, which are those of
    save_checkpoint; saved by any number of ranks, with any sharding and buckets. With params_only also a model of whole arrays: a
    safetensors file, an index (.json) of several, or a folder with model.safetensors or its index.

    optional: patterns (as of fnmatch) of names that only the checkpoint or only this program may have. params_only: not the optimizers'
    state; moments are zero then, and no step was taken. load_hyper: also learning rates, groups and what else the optimizers were told. To
    be called between steps. Collective over the world of the parts; blocking: it waits for files longer than the timeout.
    Raises MegaDPError, on all ranks, and nothing has changed: INVALID (another model), UNSUPPORTED (of a later version), SYSTEM, CORRUPT,
    those of a lost communicator. If data turns out CORRUPT, parameters, views, states and steps are STATE until a checkpoint was loaded."""
    patterns = (optional,) if isinstance(optional, str) else tuple(optional)
    for pattern in patterns:
        if "\n" in pattern:
            raise invalid(f"optional has {pattern!r}, with a line feed in it; each is one pattern")
    flags = (_raw.MDP_CHECKPOINT_PARAMS_ONLY if params_only else 0) | (_raw.MDP_CHECKPOINT_LOAD_HYPER if load_hyper else 0)
    fields = {"optional": c_text("\n".join(patterns), "optional") if patterns else None, "flags": flags}
    _collective(lib.mdp_checkpoint_load, directory, parts, tensors, True, fields)


def checkpoint_info(directory: "Path") -> Dict[str, Any]:
    """The manifest of the newest checkpoint in `directory`, or of the one that is `directory`: names and shapes, optimizers, files; and
    "path". Local, any thread. Raises MegaDPError: SYSTEM, CORRUPT, UNSUPPORTED."""
    path = _path(directory)
    found: Dict[str, Any] = text_of(lambda *text: lib.mdp_checkpoint_info(path, *text))
    return found


def checkpoint_data(directory: "Path", rank: int = -1) -> bytes:
    """The rank_data that rank `rank` gave to the newest checkpoint in `directory`; -1: the shared_data. Local, any thread.
    Raises MegaDPError: INVALID (rank), SYSTEM, CORRUPT, UNSUPPORTED."""
    path, number = _path(directory), whole(rank, "rank", -_INT32 - 1, _INT32)
    needed = ctypes.c_size_t()
    room = ctypes.create_string_buffer(0)
    while True:  # a newer checkpoint may have come between two calls
        had = len(room)
        try:
            lib.mdp_checkpoint_data(path, number, room if had else None, had, ctypes.byref(needed))
            return room.raw[:needed.value]
        except MegaDPError:
            if needed.value <= had:
                raise
        room = ctypes.create_string_buffer(needed.value)


def verify_checkpoint(directory: "Path") -> None:
    """Reads all of the newest checkpoint in `directory`, or of the one that is `directory`. checkpoint_damage tells every damage. Local,
    any thread. Raises MegaDPError: CORRUPT (something is damaged), SYSTEM, UNSUPPORTED."""
    lib.mdp_checkpoint_verify(_path(directory), None, 0, None)


def checkpoint_damage(directory: "Path") -> List[str]:
    """Reads all of the newest checkpoint in `directory`, or of the one that is `directory`: a sentence for each damage, or why it cannot be
    read; none if it is whole. Local, any thread. Raises MegaDPError: INVALID (the path)."""
    text = ctypes.create_string_buffer(1 << 20)  # what does not fit is cut off
    try:
        lib.mdp_checkpoint_verify(_path(directory), text, len(text), None)
    except MegaDPError:
        if not text.value:
            raise
    return text.value.decode(errors="replace").splitlines()


def export_checkpoint(directory: "Path", path: "Path", *, most_bytes: int = 0) -> None:
    """Writes the newest checkpoint's parameters and tensors, whole and under their names, as an ordinary safetensors file, which other
    libraries read; with more than most_bytes of data (0: any) as several with an index, path + ".index.json". Nothing is written over.
    load_checkpoint takes it with params_only. Local, any thread. Raises MegaDPError: INVALID (path, or it is there), SYSTEM, CORRUPT,
    UNSUPPORTED."""
    most = whole(most_bytes, "most_bytes", 0, 2**64 - 1)
    lib.mdp_checkpoint_export(_path(directory), _path(path, "path"), most)


def _path(directory: "Path", argument: str = "directory") -> bytes:
    try:
        path = os.fsencode(directory)
    except TypeError:
        raise invalid(f"{argument} is {directory!r}; it must be a path") from None
    if b"\0" in path:
        raise invalid(f"{argument} is {directory!r}, with a NUL in it")
    return path


def _bytes(data: "Bytes", argument: str) -> Any:
    try:
        return (ctypes.c_char * memoryview(data).nbytes).from_buffer_copy(memoryview(data).tobytes())
    except TypeError:
        raise invalid(f"{argument} is a {type(data).__name__}; it must be bytes") from None


def _pairs(parts: Sequence[Any]) -> List[Tuple[Buffer, Optional[Optimizer]]]:
    """Each buffer with its optimizer, or with each of its optimizers, that are among the parts."""
    found: Dict[Buffer, List[Optimizer]] = {}
    for i, part in enumerate(parts):
        if not isinstance(part, (Buffer, Optimizer)):
            raise invalid(f"parts[{i}] is a {type(part).__name__}; it must be a Buffer or an Optimizer")
        listed = found.setdefault(part if isinstance(part, Buffer) else part._buffer, [])
        if isinstance(part, Optimizer) and part not in listed:
            listed.append(part)
    pairs: List[Tuple[Buffer, Optional[Optimizer]]] = []
    for buffer, listed in found.items():
        pairs += [(buffer, optimizer) for optimizer in listed] or [(buffer, None)]
    return pairs


def _native_tensors(tensors: Optional[Mapping[str, Any]], writable: bool) -> Tuple[Any, int, Any]:
    """Structs, how many, and what keeps their memory alive."""
    given = tensors or {}
    structs = (_raw.mdp_checkpoint_tensor * max(1, len(given)))()
    kept = []
    for struct, (name, value) in zip(structs, given.items()):
        what = f"of tensor {name!r}"
        about = value if isinstance(value, CheckpointTensor) else CheckpointTensor(value)
        tensor, keep = operand(about.array, f"tensor {name!r}", writable)
        kept.append((tensor, keep))
        struct.struct_size = ctypes.sizeof(struct)
        struct.name = c_text(name, f"the name {what}")
        struct.placement = choice(about.placement, f"placement {what}", PLACEMENTS)
        struct.tensor = ctypes.pointer(tensor)
        struct.shard_dim = whole(about.shard_dim, f"shard_dim {what}", -_INT32, _INT32)
        struct.shard_stride = whole(about.shard_stride, f"shard_stride {what}", -_INT32, _INT32)
    return structs, len(given), kept


def _collective(function: Any, directory: "Path", parts: Sequence[Any], tensors: Optional[Mapping[str, Any]], writable: bool,
                fields: Dict[str, Any], *more: Any) -> List[Handle]:
    """The handles of the parts."""
    path, pairs = _path(directory), _pairs(parts)
    arrays, count, _keep = _native_tensors(tensors, writable)
    handles = [each._handle for pair in pairs for each in pair if each is not None]

    def call(*pointers: Any) -> None:
        pointer_of = {id(handle): pointer for handle, pointer in zip(handles, pointers)}
        structs = (_raw.mdp_checkpoint_part * max(1, len(pairs)))()
        for struct, (buffer, optimizer) in zip(structs, pairs):
            struct.struct_size = ctypes.sizeof(struct)
            struct.buffer = pointer_of[id(buffer._handle)]
            if optimizer is not None:
                struct.optimizer = pointer_of[id(optimizer._handle)]
        config = sized(_raw.mdp_checkpoint_config, directory=path, parts=structs, part_count=len(pairs), tensors=arrays, tensor_count=count,
                       **fields)
        function(ctypes.byref(config), *more)

    run(lambda: inside(handles, call))
    return handles
