# SPDX-License-Identifier: Apache-2.0
"""Attention over a sequence that is cut over context-parallel ranks, differentiable in JAX: as the functions of _jax_tp, by ordered
callbacks. And how inputs are cut."""
from typing import Any, Callable, List, Optional, Sequence, Tuple

import jax
import numpy

from . import cp
from ._comm import Comm
from ._errors import invalid
from ._cp_blocks import check, check_function, clear, own_ranges, tiles
from ._jax_tp import _cut, _kept, _on_host


def _grouped(array: Any, at: slice, kv_heads: int) -> Any:
    """Positions `at`, as [batch, kv_heads, query heads of each times positions, head_dim or 1], dense, in float32."""
    batch, _, heads, size = array.shape
    taken = numpy.asarray(array[:, at], numpy.float32).reshape(batch, -1, kv_heads, heads // kv_heads, size)
    return taken.transpose(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, size)


def _ungrouped(array: Any, heads: int) -> Any:
    """Back to [batch, positions, heads, head_dim or 1]."""
    batch, kv_heads, _, size = array.shape
    return array.reshape(batch, kv_heads, heads // kv_heads, -1, size).transpose(0, 3, 1, 2, 4).reshape(batch, -1, heads, size)


def _plain_attention(scale: Optional[float]) -> cp.Function:
    """A function of a block of numpy arrays [batch, positions, heads, head_dim]: scores, a softmax over them and products, in float32."""
    def attend(block: Any) -> None:
        heads, size = block.q.shape[2:]
        kv_heads, factor = block.k.shape[2], numpy.float32(size ** -0.5 if scale is None else scale)
        clear(block)
        for q_at, k_at, diagonal in tiles(block, heads=2):
            q = _grouped(block.q, q_at, kv_heads) * factor
            k, v = (numpy.asarray(x[:, k_at], numpy.float32).swapaxes(1, 2) for x in (block.k, block.v))
            p = q @ k.swapaxes(2, 3)
            if diagonal is not None:
                hidden = ~numpy.tri(q_at.stop - q_at.start, p.shape[3], diagonal, dtype=bool)
                numpy.copyto(p, -numpy.inf, where=numpy.tile(hidden, (heads // kv_heads, 1)))
            if block.grad_out is None:
                most = p.max(3, keepdims=True)
                total = numpy.exp(p - most, out=p).sum(3, keepdims=True)
                block.out[:, q_at] = _ungrouped(p @ v / total, heads)
                block.lse[:, q_at] = _ungrouped(most + numpy.log(total), heads)[..., 0]
                continue
            numpy.exp(p - _grouped(block.lse[..., None], q_at, kv_heads), out=p)
            grad = _grouped(block.grad_out, q_at, kv_heads)
            delta = (grad * _grouped(block.out, q_at, kv_heads)).sum(3, keepdims=True)
            block.grad_v[:, k_at] += (p.swapaxes(2, 3) @ grad).swapaxes(1, 2)
            p *= grad @ v.swapaxes(2, 3) - delta
            block.grad_q[:, q_at] = _ungrouped(p @ k * factor, heads)
            block.grad_k[:, k_at] += (p.swapaxes(2, 3) @ q).swapaxes(1, 2)

    return attend


def context_parallel_attention(q: Any, k: Any, v: Any, comm: Comm, *, causal: bool = False, form: cp.Form = "auto",
                               bounds: Optional[Sequence[int]] = None, scale: Optional[float] = None,
                               attention: Optional[cp.Function] = None) -> Any:
    """The attention of this rank's queries to the keys of all ranks, as jax.nn.dot_product_attention has it of the whole sequence. Inside jit
    and outside.

    q, k and v: this rank's part (context_parallel_part) of [batch, positions, heads, head_dim], float32, bfloat16 or float16. k and v may
    have fewer heads, whose number divides q's. comm: the context-parallel ranks, such as Grid.comm("cp"). causal: a query sees no later keys;
    parts are then zig-zag. form: "ring", "all_to_all" or "auto". bounds: where packed sequences begin and end in the whole, from 0 on, numbers
    that are known when the function is traced. scale: of scores, a number that is known then, the same on all ranks; None: 1 / sqrt(head_dim).
    Returns an array like q.

    attention: None, by float32 products of numpy's, or a function of a megadp.cp.Block of numpy arrays. It must not call JAX or megadp.

    Differentiable once, in reverse. Collective over comm, and so is its backward, in the order of the program; blocking.
    Raises MegaDPError: INVALID (arguments; what is found in a callback comes as JAX's own error)."""
    check(q, k, v, heads=2)
    if isinstance(scale, jax.Array) and scale.shape == ():
        if isinstance(scale, jax.core.Tracer):
            raise invalid(f"scale is {scale}, which has no value yet where the function is traced, as jax.numpy.float32(...) in jit; there it must be "
                          "a number of Python's or numpy's")
        scale = float(scale)
    check_function(attention, scale)
    config = cp._config(form, causal, bounds)
    q, k, v = map(jax.numpy.asarray, (q, k, v))
    key = ("attention", q.shape, k.shape, q.dtype, form, bool(causal), None if bounds is None else tuple(map(int, bounds)), scale, attention)
    shapes, dtype = [q.shape, k.shape, v.shape], q.dtype
    return _kept(comm, key, lambda: _attention_of(comm, attention or _plain_attention(scale), config, shapes, dtype))(q, k, v)


def _attention_of(comm: Comm, function: cp.Function, config: Any, shapes: Sequence[Tuple[int, ...]], dtype: Any) -> Callable[..., Any]:
    """Of q, k and v of these shapes."""
    def half(is_backward: bool, shapes: Sequence[Tuple[int, ...]], dtype: Any) -> Callable[..., List[Any]]:
        def call(outputs: List[Any], arrays: List[Any]) -> None:
            cp._attend(comm, is_backward, function, config, [*arrays, *outputs])

        return _on_host(comm.size, call, shapes, dtype)

    on_host, back_on_host = half(False, [shapes[0], shapes[0][:-1]], [dtype, numpy.float32]), half(True, shapes, dtype)

    @jax.custom_vjp
    def apply(*given: Any) -> Any:
        return on_host(*given)[0]

    def forward(*given: Any) -> Tuple[Any, Any]:
        out, lse = on_host(*given)
        return out, (*given, out, lse)

    def backward(kept: Any, grad: Any) -> Tuple[Any, ...]:
        return tuple(back_on_host(*kept, grad))

    apply.defvjp(forward, backward)
    return apply


def context_parallel_positions(sequence: int, comm: Comm, *, causal: bool = False) -> Any:
    """The positions, integers, that this rank's part has of a sequence of this length, in the order of its part: for position embeddings.
    causal: as context_parallel_attention. Local. Raises MegaDPError: INVALID (a length that does not divide, naming ones that would)."""
    return jax.numpy.concatenate([jax.numpy.arange(each.start, each.stop) for each in cp.part(comm.size, comm.rank, sequence, causal)])


def context_parallel_part(whole: Any, comm: Comm, dim: int = 1, *, causal: bool = False) -> Any:
    """This rank's part of what is the same on all ranks and has a sequence along dim: tokens, labels (shifted before), masks. The loss of the
    whole is the mean of the parts' where each is a mean over as many tokens. causal: as context_parallel_attention. Local.
    Raises MegaDPError: INVALID (a length that does not divide, naming ones that would)."""
    return _cut(whole, own_ranges(comm, whole.shape, dim, causal), dim)
