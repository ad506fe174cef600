# SPDX-License-Identifier: Apache-2.0
"""Attention over a sequence that is cut over context-parallel ranks, differentiable, and how inputs are cut."""
import contextlib
from typing import Any, NamedTuple, Optional, Sequence

import torch
from torch.utils.dlpack import from_dlpack

from . import _dlpack, cp
from ._comm import Comm
from ._cp_blocks import check, check_function, clear, own_ranges, tiles
from ._dtypes import TRAINED, named
from ._errors import InvalidError, invalid
from ._tensor import Tensor
from ._torch_eager import eager
from ._torch_linear import _autocast_dtype, _cut
from ._torch_once import once
from ._torch_steps import stream_of


def _turned(x: torch.Tensor) -> torch.Tensor:
    """[batch, heads, positions, ...] as [batch, positions, heads, ...], and back. What has fewer dimensions is refused later."""
    return x.transpose(1, 2) if x.dim() > 2 else x


def _view(tensor: Tensor) -> torch.Tensor:
    """An array of a block, on the same memory."""
    capsule = _dlpack.borrowed(tensor.data, tensor._device, tensor._dtype.dlpack, tensor.shape, tensor.strides)
    return _turned(from_dlpack(capsule))


def _empty(x: torch.Tensor) -> torch.Tensor:
    """To be written, of x's shape. Its memory is [batch, positions, heads, head_dim], which layers before and after take as it is."""
    return _turned(x.new_empty(_turned(x).shape))


class _Call(NamedTuple):
    """All of a call but its tensors."""

    comm: Comm
    function: cp.Function
    config: Any

    def run(self, backward: bool, *tensors: torch.Tensor) -> None:
        q, k, v = tensors[:3]
        stream = torch.cuda.current_stream(q.device) if q.is_cuda else None

        def as_called(block: cp.Block) -> None:
            """With what torch keeps for each thread, since a block may be computed on another one than attention was called on."""
            on_stream = contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)
            with torch.no_grad(), torch.autocast(q.device.type, enabled=False), on_stream:
                self.function(block)

        try:
            cp._attend(self.comm, backward, as_called, self.config, [_turned(x.detach()) for x in tensors], stream_of(q), _view)
        except InvalidError as error:  # which all ranks were told, in the library's layout
            try:
                check(q, k, v, heads=1)
            except InvalidError as ours:
                raise ours from error
            raise


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,  # type: ignore[override, unused-ignore]
                call: _Call) -> torch.Tensor:
        out = _empty(q)
        lse = _turned(torch.empty(_turned(q).shape[:-1], dtype=torch.float32, device=q.device))
        call.run(False, q, k, v, out, lse)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.call = call
        return out

    @staticmethod
    @once("context_parallel_attention")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override, unused-ignore]
        q, k, v, out, lse = ctx.saved_tensors
        grads = [_empty(x) for x in (q, k, v)]
        ctx.call.run(True, q, k, v, out, lse, grad, *grads)
        return (*grads, None)


def _grouped(x: torch.Tensor, at: slice, kv_heads: int) -> torch.Tensor:
    """Positions `at`, as [batch, kv_heads, query heads of each times positions, ...], in float32."""
    return x[:, :, at].to(torch.float32).reshape(x.shape[0], kv_heads, -1, *x.shape[3:])


def _ungrouped(x: torch.Tensor, rows: int) -> torch.Tensor:
    """Back to [batch, heads, positions, ...]."""
    return x.reshape(x.shape[0], -1, rows, x.shape[3])


def _plain_attention(scale: Optional[float]) -> cp.Function:
    """A function of a block of tensors [batch, heads, positions, head_dim]: scores, a softmax over them and products, in float32."""
    def attend(block: Any) -> None:
        batch, heads, _, size = block.q.shape
        kv_heads, factor = block.k.shape[1], size ** -0.5 if scale is None else scale
        clear(block)
        for q_at, k_at, diagonal in tiles(block, heads=1):
            q, rows = _grouped(block.q, q_at, kv_heads) * factor, q_at.stop - q_at.start
            k, v = (x[:, :, k_at].to(torch.float32) for x in (block.k, block.v))
            p = q @ k.transpose(2, 3)
            if diagonal is not None:
                hidden = torch.ones(rows, p.shape[3], dtype=torch.bool, device=p.device).triu_(diagonal + 1)
                p.view(batch, heads, rows, -1).masked_fill_(hidden, float("-inf"))
            if block.grad_out is None:
                most = p.amax(3, keepdim=True)
                total = p.sub_(most).exp_().sum(3, keepdim=True)
                block.out[:, :, q_at] = _ungrouped(p @ v / total, rows)
                block.lse[:, :, q_at] = _ungrouped(most + total.log(), rows).squeeze(3)
                continue
            p.sub_(_grouped(block.lse, q_at, kv_heads).unsqueeze(3)).exp_()
            grad = _grouped(block.grad_out, q_at, kv_heads)
            delta = (grad * _grouped(block.out, q_at, kv_heads)).sum(3, keepdim=True)
            block.grad_v[:, :, k_at] += p.transpose(2, 3) @ grad
            p.mul_((grad @ v.transpose(2, 3)).sub_(delta))
            block.grad_q[:, :, q_at] = _ungrouped(p @ k * factor, rows)
            block.grad_k[:, :, k_at] += p.transpose(2, 3) @ q

    return attend


@eager
def context_parallel_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, comm: Comm, *, causal: bool = False, form: cp.Form = "auto",
                               bounds: Optional[Sequence[int]] = None, scale: Optional[float] = None,
                               attention: Optional[cp.Function] = None) -> torch.Tensor:
    """The attention of this rank's queries to the keys of all ranks, as torch.nn.functional.scaled_dot_product_attention has it of the whole
    sequence, without dropout.

    q, k and v: this rank's part (context_parallel_part) of [batch, heads, positions, head_dim], float32, bfloat16 or float16, any strides: a
    transposed [batch, positions, heads, head_dim] is not copied. k and v may have fewer heads, whose number divides q's. Under autocast they are
    converted. comm: the context-parallel ranks, such as Grid.comm("cp"). causal: a query sees no later keys; parts are then zig-zag. form:
    "ring", "all_to_all" or "auto". bounds: where packed sequences begin and end in the whole, from 0 on. scale: of scores, the same on
    all ranks; None: 1 / sqrt(head_dim). Returns a tensor like q, its memory [batch, positions, heads, head_dim].

    attention: None, by float32 products of torch's, or a function of a megadp.cp.Block, whose arrays are tensors [batch, heads, positions,
    head_dim], lse without the last; the current stream is the caller's. It must not call megadp, and backward may call it on another thread.

    Differentiable once. Collective over comm, and so is its backward; blocking, on a GPU ordered by the current stream.
    Raises MegaDPError: INVALID (of shapes all ranks are told, the others in the order [batch, positions, heads, head_dim]; of what is no tensor,
    an unknown form or a dtype this rank alone), DESYNC, ABORTED (another rank's attention raised), STATE, those of a lost communicator."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise invalid(f"{name} is a {type(x).__name__}; it must be a torch.Tensor")
    check_function(attention, scale)
    dtype = _autocast_dtype(q.device.type)
    if dtype is not None:
        q, k, v = (x.to(dtype) if named(x.dtype) in TRAINED else x for x in (q, k, v))  # others are refused
    call = _Call(comm, attention or _plain_attention(scale), cp._config(form, causal, bounds))
    found: torch.Tensor = _Attention.apply(q, k, v, call)  # type: ignore[no-untyped-call, unused-ignore]
    return found


def context_parallel_positions(sequence: int, comm: Comm, *, causal: bool = False, device: Any = None) -> torch.Tensor:
    """The positions, int64, that this rank's part has of a sequence of this length, in the order of its part: for position embeddings.
    causal: as context_parallel_attention. Local. Raises MegaDPError: INVALID (a length that does not divide, naming ones that would)."""
    return torch.cat([torch.arange(each.start, each.stop, device=device) for each in cp.part(comm.size, comm.rank, sequence, causal)])


def context_parallel_part(whole: torch.Tensor, comm: Comm, dim: int = 1, *, causal: bool = False) -> torch.Tensor:
    """This rank's part, a copy, of what is the same on all ranks and has a sequence along dim: tokens, labels (shifted before), masks. The loss
    of the whole is the mean of the parts' where each is a mean over as many tokens. causal: as context_parallel_attention. Local.
    Raises MegaDPError: INVALID (a length that does not divide, naming ones that would)."""
    return _cut(whole, own_ranges(comm, whole.shape, dim, causal), dim)
