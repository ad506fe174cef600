# SPDX-License-Identifier: Apache-2.0
"""Attention over a sequence that is cut over context-parallel ranks, differentiable in JAX: as the functions of _jax_tp, by ordered
callbacks. And how inputs are cut."""
from typing import Any, List, Optional, Sequence, Tuple

import jax
import numpy

from . import cp
from ._comm import Comm
from ._cp_blocks import check, check_function, numpy_attention, own_ranges
from ._jax_tp import _on_host


def context_parallel_attention(q: Any, k: Any, v: Any, comm: Comm, *, causal: bool = False, form: cp.Form = "auto",
                               bounds: Optional[Sequence[int]] = None, scale: Optional[float] = None,
                               attention: Optional[cp.Function] = None) -> Any:
    """The attention of this rank's queries to the keys of all ranks, as jax.nn.dot_product_attention has it of the whole sequence. Inside jit
    and outside.

    q, k and v: this rank's part (context_parallel_part) of [batch, positions, heads, head_dim], float32, bfloat16 or float16. k and v may
    have fewer heads, whose number divides q's. comm: the context-parallel ranks, such as Grid.comm("cp"). causal: a query sees no later keys;
    parts are then zig-zag. form: "ring", "all_to_all" or "auto". bounds: where packed sequences begin and end in the whole, from 0 on, numbers
    that are known when the function is traced. scale: of scores, the same on all ranks; None: 1 / sqrt(head_dim). Returns an array like q.

    attention: None, by float32 products of numpy's, or a function of a megadp.cp.Block of numpy arrays. It must not call JAX or megadp.

    Differentiable once, in reverse. Collective over comm, and so is its backward, in the order of the program; blocking.
    Raises MegaDPError: INVALID (arguments; what is found in a callback comes as JAX's own error)."""
    check(q, k, v, heads=2)
    check_function(attention, scale)
    function, config = attention or numpy_attention(scale), cp._config(form, causal, bounds)

    def both(*given: Any) -> List[Any]:
        def call(outputs: List[Any], arrays: List[Any]) -> None:
            cp._forward(comm, function, config, [*arrays, *outputs])

        return _on_host(call, [given[0].shape, given[0].shape[:-1]], [given[0].dtype, numpy.float32], *given)

    @jax.custom_vjp
    def apply(*given: Any) -> Any:
        return both(*given)[0]

    def forward(*given: Any) -> Tuple[Any, Any]:
        out, lse = both(*given)
        return out, (*given, out, lse)

    def backward(kept: Any, grad: Any) -> Tuple[Any, ...]:
        def call(outputs: List[Any], arrays: List[Any]) -> None:
            cp._backward(comm, function, config, [*arrays, *outputs])

        return tuple(_on_host(call, [each.shape for each in kept[:3]], kept[0].dtype, *kept, grad))

    apply.defvjp(forward, backward)
    return apply(q, k, v)


def context_parallel_positions(sequence: int, comm: Comm, *, causal: bool = False) -> Any:
    """The positions, integers, that this rank's part has of a sequence of this length, in the order of its part: for position embeddings.
    causal: as context_parallel_attention. Local. Raises MegaDPError: INVALID (a length that does not divide, naming ones that would)."""
    return jax.numpy.concatenate([jax.numpy.arange(each.start, each.stop) for each in cp.part(comm.size, comm.rank, sequence, causal)])


def context_parallel_part(whole: Any, comm: Comm, dim: int = 1, *, causal: bool = False) -> Any:
    """This rank's part of what is the same on all ranks and has a sequence along dim: tokens, labels (shifted before), masks. The loss of the
    whole is the mean of the parts' where each is a mean over as many tokens. causal: as context_parallel_attention. Local.
    Raises MegaDPError: INVALID (a length that does not divide, naming ones that would)."""
    ranges = own_ranges(comm, whole.shape, dim, causal)
    return jax.numpy.concatenate([jax.lax.slice_in_dim(whole, each.start, each.stop, axis=dim) for each in ranges], dim)
