# SPDX-License-Identifier: Apache-2.0
"""What attention over a sequence that is cut over ranks has in common in torch and in JAX: which keys the queries of a block may see, what is
said of wrong arguments, and the attention of a block with numpy."""
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


def tiles(block: Block, positions: Tuple[int, int], pairs: int) -> Iterator[Tile]:
    """All of a block's. positions: of its q and k. pairs: how many scores there are of a query's position and a key's. Queries without a
    key are in none."""
    q_bounds, k_bounds = block.q_bounds or (0, positions[0]), block.k_bounds or (0, positions[1])
    for q_begin, q_end, k_begin, k_end in zip(q_bounds, q_bounds[1:], k_bounds, k_bounds[1:]):
        if k_begin == k_end:
            continue
        rows = max(1, MOST // (pairs * (k_end - k_begin)))
        for begin in range(q_begin, q_end, rows):
            end = min(begin + rows, q_end)
            # With a mask q and k begin at the same position, and so do their sequences.
            yield Tile(slice(begin, end), slice(k_begin, end if block.causal else k_end), begin - k_begin if block.causal else None)


def check(q: Any, k: Any, v: Any, heads: int) -> None:
    """InvalidError where these are no part of an attention. heads: which of their dimensions that is."""
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
    """InvalidError where they are not what they are meant to be, or both are given."""
    if attention is not None and not callable(attention):
        raise invalid(f"attention is {attention!r}; it must be a function of a megadp.cp.Block, or None")
    if attention is not None and scale is not None:
        raise invalid(f"scale is {scale!r} beside an attention, which scales by itself: give one of them")
    if scale is not None and not (isinstance(scale, numbers.Real) and math.isfinite(scale)):
        raise invalid(f"scale is {scale!r}; it must be a finite number, or None for 1 / sqrt(head_dim)")


def own_ranges(comm: Comm, shape: Tuple[int, ...], dim: int, causal: bool) -> List[range]:
    """What this rank has along dim of an array of this shape."""
    if not -len(shape) <= dim < len(shape):
        raise invalid(f"dim is {dim}; whole has {len(shape)} dimensions")
    return part(comm.size, comm.rank, shape[dim], causal)


def numpy_attention(scale: Optional[float] = None) -> Function:
    """A function of a block of numpy arrays: scores, a softmax over them and products, in float32. scale: None: 1 / sqrt(head_dim)."""
    import numpy

    def grouped(array: Any, at: slice, kv_heads: int) -> Any:
        """Positions `at`, as [batch, kv_heads, query heads of each times positions, head_dim or 1], dense."""
        batch, _, heads = array.shape[:3]
        taken = numpy.asarray(array[:, at], numpy.float32).reshape(batch, -1, kv_heads, heads // kv_heads, array.shape[3])
        return taken.transpose(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, array.shape[3])

    def ungrouped(array: Any, heads: int) -> Any:
        """Back to [batch, positions, heads, ...]."""
        batch, kv_heads, _, size = array.shape
        return array.reshape(batch, kv_heads, heads // kv_heads, -1, size).transpose(0, 3, 1, 2, 4).reshape(batch, -1, heads, size)

    def of_keys(array: Any, at: slice) -> Any:
        return numpy.asarray(array[:, at], numpy.float32).transpose(0, 2, 1, 3)

    def attend(block: Any) -> None:
        batch, length, heads, size = block.q.shape
        kv_heads, factor = block.k.shape[2], numpy.float32(size ** -0.5 if scale is None else scale)
        for written in (block.grad_q, block.grad_k, block.grad_v):
            if written is not None:
                written[...] = 0
        if block.grad_out is None:
            block.lse[...] = -numpy.inf
        for q_at, k_at, diagonal in tiles(block, (length, block.k.shape[1]), batch * heads):
            q, k, v = grouped(block.q, q_at, kv_heads) * factor, of_keys(block.k, k_at), of_keys(block.v, k_at)
            p = q @ k.swapaxes(2, 3)
            if diagonal is not None:
                hidden = ~numpy.tri(q_at.stop - q_at.start, p.shape[3], diagonal, dtype=bool)
                numpy.copyto(p, -numpy.inf, where=numpy.tile(hidden, (heads // kv_heads, 1)))
            if block.grad_out is None:
                most = p.max(3, keepdims=True)
                total = numpy.exp(p - most, out=p).sum(3, keepdims=True)
                block.out[:, q_at] = ungrouped(p @ v / total, heads)
                block.lse[:, q_at] = ungrouped(most + numpy.log(total), heads)[..., 0]
                continue
            numpy.exp(p - grouped(block.lse[..., None], q_at, kv_heads), out=p)
            grad = grouped(block.grad_out, q_at, kv_heads)
            delta = (grad * grouped(block.out, q_at, kv_heads)).sum(3, keepdims=True)
            block.grad_v[:, k_at] += (p.swapaxes(2, 3) @ grad).transpose(0, 2, 1, 3)
            p *= grad @ v.swapaxes(2, 3) - delta
            block.grad_q[:, q_at] = ungrouped(p @ k * factor, heads)
            block.grad_k[:, k_at] += (p.swapaxes(2, 3) @ q).transpose(0, 2, 1, 3)

    return attend
