# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: attention over a sequence that is cut over ranks, where the attention of a block is a function of the caller's.
Forward and backward are calls of their own, for an autodiff to wrap.

comm is the communicator of the context-parallel ranks, such as Grid.comm("cp"). Its collectives are called in the same order on all of them.
"""
import ctypes
import types
from typing import Any, Callable, Generator, List, Literal, NamedTuple, Optional, Sequence, Tuple

from . import _dlpack, _raw
from ._comm import Comm, choice, whole
from ._errors import MegaDPError
from ._library import lib, sized
from ._pieces import _has_numpy
from ._tensor import Tensor, operand
from ._waiting import run_beside

__all__ = ["Block", "Form", "attention", "attention_backward", "part"]

Form = Literal["auto", "ring", "all_to_all"]
FORMS = {"auto": _raw.MDP_CP_AUTO, "ring": _raw.MDP_CP_RING, "all_to_all": _raw.MDP_CP_ALL_TO_ALL}
_INT32, _INT64 = 2**31 - 1, 2**63 - 1
_ARRAYS = ("q", "k", "v", "out", "lse", "grad_out", "grad_q", "grad_k", "grad_v")  # attention has those up to lse
_WRITTEN = {False: _ARRAYS[3:5], True: _ARRAYS[6:]}  # by whether it is the backward


class Block(NamedTuple):
    """One block of an attention, usable until the function returns. Arrays are [batch, positions, heads, head_dim], lse without the last:
    numpy's; Tensors on a device, or where numpy is not installed.

    causal: a query sees keys up to its own position; q and k begin at the same. q_begin, k_begin: positions in the whole sequence. head_begin: of all
    query heads. Forward: out and lse are to be written, float32, and grad_* are None. Backward: they are given, of all keys, and grad_q, grad_k and
    grad_v are to be written, float32, this block's part. q_bounds, k_bounds: with packed sequences, where they begin and end in q and k."""

    causal: bool
    q_begin: int
    k_begin: int
    head_begin: int
    q: Any
    k: Any
    v: Any
    out: Any
    lse: Any
    grad_out: Optional[Any]
    grad_q: Optional[Any]
    grad_k: Optional[Any]
    grad_v: Optional[Any]
    q_bounds: Optional[Tuple[int, ...]]
    k_bounds: Optional[Tuple[int, ...]]
    stream: int


Function = Callable[[Block], Any]
View = Callable[[Tensor], Any]  # an array of a block, as the function is to get it


def _numpy_view(tensor: Tensor) -> Any:
    return tensor.numpy() if tensor._device[0] == _dlpack.CPU and _has_numpy() else tensor


def _block(address: int, view_of: View) -> Block:
    raw = _raw.mdp_cp_block.from_address(address)
    backward = bool(raw.grad_out)

    def view(name: str) -> Any:
        pointer = getattr(raw, name)
        if not pointer:
            return None
        return view_of(Tensor(pointer.contents, None, readonly=name not in _WRITTEN[backward]))

    def bounds(name: str) -> Optional[Tuple[int, ...]]:
        return tuple(getattr(raw, name)[:raw.bound_count]) if raw.bound_count else None

    arrays: Any = {name: view(name) for name in _ARRAYS}
    return Block(causal=raw.mask == _raw.MDP_CP_MASK_CAUSAL, q_begin=raw.q_begin, k_begin=raw.k_begin, head_begin=raw.head_begin, **arrays,
                 q_bounds=bounds("q_bounds"), k_bounds=bounds("k_bounds"), stream=raw.stream or 0)


# As in _pieces.py: no exception may get into ctypes.
_send = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.py_object, ctypes.c_void_p)(types.GeneratorType.send)
_call = ctypes.cast(_send, _raw.mdp_cp_attention_fn)


def _blocks(function: Function, view_of: View, raised: List[BaseException]) -> Generator[int, Optional[int], None]:
    """Is sent the address of an mdp_cp_block, and answers 0, or 1 where the function has raised."""
    answer = 0
    while True:
        try:
            while True:
                address = yield answer
                function(_block(address or 0, view_of))
                answer = 0
        except GeneratorExit:
            return
        except BaseException as error:
            answer = 1
            raised.append(error)


def _config(form: Form, causal: bool, bounds: Optional[Sequence[int]]) -> Any:
    given = None if bounds is None else [whole(bound, "bounds", -_INT64, _INT64) for bound in bounds]
    return sized(_raw.mdp_cp_config, form=choice(form, "form", FORMS), flags=_raw.MDP_CP_CAUSAL if causal else 0,
                 bounds=None if given is None else (ctypes.c_int64 * len(given))(*given), bound_count=0 if given is None else len(given))


def part(size: int, rank: int, sequence: int, causal: bool = False) -> List[range]:
    """The positions that rank `rank` of `size` has of a sequence, in the order of its part: one range, or with causal=True two. Local.
    Raises MegaDPError: INVALID (a sequence that does not divide, naming ones that would)."""
    found = (ctypes.c_int64 * 4)()
    lib.mdp_cp_part(ctypes.byref(_config("auto", causal, None)), whole(size, "size", -_INT32, _INT32), whole(rank, "rank", -_INT32, _INT32),
                    whole(sequence, "sequence", -_INT64, _INT64), found)
    return [each for each in (range(found[0], found[1]), range(found[2], found[3])) if len(each) > 0]


def _attend(comm: Comm, backward: bool, function: Function, config: Any, arrays: Sequence[Any], stream: int = 0,
            view_of: View = _numpy_view) -> None:
    """arrays: those of attention or, backward, of attention_backward, in their order."""
    call = lib.mdp_cp_attention_bwd if backward else lib.mdp_cp_attention_fwd
    taken = [operand(array, name, writable=name in _WRITTEN[backward], stream=stream) for name, array in zip(_ARRAYS, arrays)]
    raised: List[BaseException] = []
    generator = _blocks(function, view_of, raised)
    next(generator)
    try:
        run_beside(lambda: comm._handle.call(call, ctypes.byref(config), _call, ctypes.c_void_p(id(generator)),
                                             *(ctypes.byref(tensor) for tensor, _keep in taken), stream or None))
    except MegaDPError as error:
        if not raised:
            raise
        if raised[0].__cause__ is None and raised[0].__context__ is None:
            raised[0].__cause__ = error
        raise raised[0]


def attention(comm: Comm, function: Function, q: Any, k: Any, v: Any, out: Any, lse: Any, *, causal: bool = False, form: Form = "auto",
              bounds: Optional[Sequence[int]] = None, stream: int = 0) -> None:
    """out and lse ([batch, sequence, heads], float32) from each rank's part of q, k and v, [batch, sequence, heads, head_dim], which part tells of.
    k and v may have fewer heads. function(block) computes a Block. bounds: where packed sequences begin and end in the whole, from 0 on.
    What the function raises comes out, on the other ranks ABORTED; the communicator stays. Collective over comm; blocking.
    Raises MegaDPError, on all ranks: INVALID, DESYNC, ABORTED."""
    _attend(comm, False, function, _config(form, causal, bounds), (q, k, v, out, lse), stream)


def attention_backward(comm: Comm, function: Function, q: Any, k: Any, v: Any, out: Any, lse: Any, grad_out: Any, grad_q: Any, grad_k: Any,
                       grad_v: Any, *, causal: bool = False, form: Form = "auto", bounds: Optional[Sequence[int]] = None,
                       stream: int = 0) -> None:
    """grad_q, grad_k and grad_v from grad_out and what attention was given and has written. As attention otherwise."""
    _attend(comm, True, function, _config(form, causal, bounds), (q, k, v, out, lse, grad_out, grad_q, grad_k, grad_v), stream)
