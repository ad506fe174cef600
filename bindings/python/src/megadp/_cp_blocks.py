# SPDX-License-Identifier: Apache-2.0
"""What attention over a sequence that is cut over ranks has in common in torch and in JAX: which keys the queries of a block may see, and
what is said of wrong arguments. heads: which dimension of q, k and v that is, 1 in torch and 2 in JAX; the other of the two is positions."""
import math
import numbers
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

from ._comm import Comm
from ._dtypes import TRAINED, named, one_of
from ._errors import invalid
from .cp import Block, Function, part

MOST = 1 << 24  # scores that are held at a time: 64 MiB of them
LAYOUTS = {1: "[batch, heads, positions, head_dim]", 2: "[batch, positions, heads, head_dim]"}


class Tile(NamedTuple):
    """Some queries of a block and the keys that they may see. diagonal: None, or query i sees those up to i + diagonal."""

    q: slice
    k: slice
    diagonal: Optional[int]


def clear(block: Any) -> None:
    """Before its tiles are computed: zeros in gradients, which tiles add to, and the lse of queries that are in no tile."""
    if block.grad_out is None:
        block.lse[...] = -math.inf
    else:
        for grad in (block.grad_q, block.grad_k, block.grad_v):
            grad[...] = 0


def tiles(block: Block, heads: int) -> Iterator[Tile]:
    """All of a block's. Queries without a key are in none."""
    pairs = block.q.shape[0] * block.q.shape[heads]  # scores of a query's position and a key's
    q_bounds, k_bounds = block.q_bounds or (0, block.q.shape[3 - heads]), block.k_bounds or (0, block.k.shape[3 - heads])
    for q_begin, q_end, k_begin, k_end in zip(q_bounds, q_bounds[1:], k_bounds, k_bounds[1:]):
        if k_begin == k_end:
            continue
        rows = max(1, MOST // (pairs * (k_end - k_begin)))
        for begin in range(q_begin, q_end, rows):
            end = min(begin + rows, q_end)
            # With a mask q and k begin at the same position, and so do their sequences.
            yield Tile(slice(begin, end), slice(k_begin, end if block.causal else k_end), begin - k_begin if block.causal else None)


def check(q: Any, k: Any, v: Any, heads: int) -> None:
    """InvalidError where these are no part of an attention."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        if named(array.dtype) not in TRAINED:
            raise invalid(f"{name} has dtype {array.dtype}; it {one_of(TRAINED)}")
        if len(array.shape) != 4 or 0 in array.shape:
            raise invalid(f"{name} has shape {tuple(array.shape)}; it must be {LAYOUTS[heads]}, all of them at least 1")
        if array.dtype != q.dtype:
            raise invalid(f"{name} has dtype {array.dtype} and q {q.dtype}; they must be equal")
    of_q, of_k, of_v = (tuple(array.shape) for array in (q, k, v))
    if of_q[:heads] + of_q[heads + 1:] != of_k[:heads] + of_k[heads + 1:]:
        raise invalid(f"k has shape {of_k} and q {of_q}; only the number of heads, dimension {heads}, may differ")
    if of_v != of_k:
        raise invalid(f"v has shape {of_v}; it must be that of k, {of_k}")
    if of_q[heads] % of_k[heads]:
        raise invalid(f"k has {of_k[heads]} heads and q {of_q[heads]}; each head of k serves equally many of q, so its number must divide "
                      f"{of_q[heads]}")


def check_function(attention: Optional[Function], scale: Optional[float]) -> None:
    """InvalidError where attention is no function, scale no number, or both are given."""
    if attention is not None and not callable(attention):
        raise invalid(f"attention is {attention!r}; it must be a function of a megadp.cp.Block, or None")
    if attention is not None and scale is not None:
        raise invalid(f"scale is {scale!r} beside an attention, which scales by itself: give one of them")
    if scale is not None and not (isinstance(scale, numbers.Real) and math.isfinite(scale)):
        raise invalid(f"scale is {scale!r}; it must be a finite number, or None for 1 / sqrt(head_dim)")


def own_ranges(comm: Comm, shape: Tuple[int, ...], dim: int, causal: bool) -> List[range]:
    """What this rank has along dim of an array of this shape."""
    if not -len(shape) <= dim < len(shape):
        raise invalid(f"dim is {dim}; it must be one of whole's {len(shape)} dimensions, from {-len(shape)} to {len(shape) - 1}")
    return part(comm.size, comm.rank, shape[dim], causal)
