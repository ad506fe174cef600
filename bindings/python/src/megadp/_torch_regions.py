# SPDX-License-Identifier: Apache-2.0
"""Operators between what is replicated and what is cut over tensor-parallel ranks, differentiable: Megatron-LM's mappings, along any
dimension."""
from typing import Any, Dict, Optional, Sequence

import torch
from torch.autograd.function import once_differentiable

from ._comm import Comm
from ._torch_eager import eager
from ._torch_steps import stream_of
from .tp import Grad, Region, checks_replicated, region, region_shape


class _Region(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, comm: Comm, kind: Region,  # type: ignore[override, unused-ignore]
                options: Dict[str, Any]) -> torch.Tensor:
        ctx.comm, ctx.kind, ctx.shape, ctx.options = comm, kind, x.shape, options
        if kind == "copy" and not checks_replicated():  # it is there
            return x.view_as(x)
        out = x.new_empty(region_shape(comm, kind, x.shape, **{name: value for name, value in options.items() if name != "grad"}))
        region(comm, kind, x.detach(), out, stream=stream_of(x), **options)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override, unused-ignore]
        if ctx.kind in ("copy", "reduce") and ctx.options["grad"] == "replicated" and not checks_replicated():
            return grad, None, None, None
        out = grad.new_empty(ctx.shape)
        region(ctx.comm, ctx.kind, grad.detach(), out, backward=True, stream=stream_of(grad), **ctx.options)
        return out, None, None, None


@eager
def _apply(x: torch.Tensor, comm: Comm, kind: Region, **options: Any) -> torch.Tensor:
    for name in ("dim", "to_dim"):
        if name in options and options[name] < 0:  # as torch counts
            options[name] += x.dim()
    found: torch.Tensor = _Region.apply(x, comm, kind, options)  # type: ignore[no-untyped-call, unused-ignore]
    return found


def copy_to_tensor_parallel(x: torch.Tensor, comm: Comm, grad: Grad = "partial") -> torch.Tensor:
    """x, which is the same on all ranks, for each rank's part of the model: gradients that come back are parts of a sum, and are summed.
    comm: the tensor-parallel ranks, as for all of these functions, and grad: as megadp.tp.region. Backward collective; blocking."""
    return _apply(x, comm, "copy", grad=grad)


def reduce_from_tensor_parallel(x: torch.Tensor, comm: Comm, grad: Grad = "replicated") -> torch.Tensor:
    """The sum of x over ranks, on all of them, for what is the same on all: so are the gradients that come back. Collective; blocking."""
    return _apply(x, comm, "reduce", grad=grad)


def scatter_to_tensor_parallel(x: torch.Tensor, comm: Comm, dim: int = -1, parts: Optional[Sequence[int]] = None) -> torch.Tensor:
    """This rank's part along dim of x, which is the same on all ranks; parts: sizes, one a rank (None: equal ones). Backward collective;
    blocking."""
    return _apply(x, comm, "scatter", dim=dim, parts=parts)


def gather_from_tensor_parallel(x: torch.Tensor, comm: Comm, dim: int = -1, *, grad: Grad,
                                parts: Optional[Sequence[int]] = None) -> torch.Tensor:
    """The parts along dim of all ranks together. grad: what comes back is the same on all ranks ("replicated": a loss that all of them
    compute alike), or a part on each ("partial": each rank's part of the model goes on with it). Collective; blocking."""
    return _apply(x, comm, "gather", dim=dim, parts=parts, grad=grad)


def reduce_scatter_to_tensor_parallel(x: torch.Tensor, comm: Comm, dim: int = 0, parts: Optional[Sequence[int]] = None) -> torch.Tensor:
    """This rank's part along dim of the sum of x over ranks. Collective; blocking."""
    return _apply(x, comm, "reduce_scatter", dim=dim, parts=parts)


def all_to_all_tensor_parallel(x: torch.Tensor, comm: Comm, dim: int, to_dim: int, parts: Optional[Sequence[int]] = None,
                               to_parts: Optional[Sequence[int]] = None) -> torch.Tensor:
    """What is cut along dim comes out whole there, and cut along to_dim: from the sequence to heads and back. Collective; blocking."""
    return _apply(x, comm, "exchange", dim=dim, to_dim=to_dim, parts=parts, to_parts=to_parts)
