# SPDX-License-Identifier: Apache-2.0
"""Convolutions and pooling of images that are cut over a grid of ranks."""
from typing import Any, Dict, List, Sequence, Tuple

import torch
from torch.autograd.function import once_differentiable

from ._comm import Comm
from ._errors import invalid
from ._torch_steps import stream_of
from .halo import ConvPart, Edge, Halo, Widths, conv_split

Parts = Sequence[Sequence[int]]
CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
POOLS = {torch.nn.AvgPool1d: 1, torch.nn.AvgPool2d: 2, torch.nn.AvgPool3d: 3, torch.nn.MaxPool1d: 1, torch.nn.MaxPool2d: 2,
         torch.nn.MaxPool3d: 3}
_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64"}


def spatial_parts(sizes: Sequence[int], grid: Sequence[int]) -> List[List[int]]:
    """Of each dimension the sizes of its parts: as equal as can be, the first ones one longer. Local."""
    return [[size // ranks + (place < size % ranks) for place in range(ranks)] for size, ranks in zip(sizes, grid)]


def spatial_slices(parts: Parts, rank: int) -> Tuple[slice, ...]:
    """What rank `rank` has of an image that is cut into these parts; the last dimension varies fastest with the rank. Local."""
    found: List[slice] = []
    for sizes in reversed(parts):
        place, rank = rank % len(sizes), rank // len(sizes)
        found.insert(0, slice(sum(sizes[:place]), sum(sizes[:place + 1])))
    return tuple(found)


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, halo: Halo, beyond: float) -> torch.Tensor:  # type: ignore[override, unused-ignore]
        ctx.halo = halo
        padded = x.new_full(halo.padded_shape, beyond)
        padded[halo.inside] = x.detach()
        halo.exchange(padded, stream=stream_of(x))
        return padded

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override, unused-ignore]
        padded = grad.detach().clone(memory_format=torch.contiguous_format)
        ctx.halo.exchange(padded, backward=True, stream=stream_of(grad))
        return padded[ctx.halo.inside].clone(), None, None


class _Halos:
    """Those of one layer, by the rest of the shape and the type: made with the first array that needs them."""

    def __init__(self, comm: Comm, grid: Sequence[int], low: Sequence[int], high: Sequence[int], edges: Any) -> None:
        self._comm, self._grid, self._low, self._high, self._edges = comm, tuple(grid), tuple(low), tuple(high), edges
        self._made: Dict[Any, Halo] = {}

    def pad(self, x: torch.Tensor, beyond: float = 0.0) -> torch.Tensor:
        if x.dtype not in _NAMES:
            raise invalid(f"x has dtype {x.dtype}; it must be float32, bfloat16, float16 or float64")
        key = (tuple(x.shape), x.dtype)
        if key not in self._made:
            others = x.dim() - len(self._grid)
            edges = ["keep"] * others + ([self._edges] * len(self._grid) if isinstance(self._edges, str) else list(self._edges))
            self._made[key] = Halo(self._comm, [1] * others + list(self._grid), x.shape, [0] * others + list(self._low),
                                   [0] * others + list(self._high), edges, dtype=_NAMES[x.dtype])
        found: torch.Tensor = _Pad.apply(x, self._made[key], beyond)  # type: ignore[no-untyped-call, unused-ignore]
        return found


class HaloPad(torch.nn.Module):
    """Pads the last dimensions of a part with what the neighbours have, differentiable. grid, low, high, edges: of these dimensions, as
    megadp.Halo takes them. Forward and backward are collective over comm; blocking. The parts' shapes change on all ranks together, or on
    none."""

    def __init__(self, comm: Comm, grid: Sequence[int], low: Widths, high: Widths, edges: Edge = "keep") -> None:
        super().__init__()
        wide = [[width] * len(grid) if isinstance(width, int) else width for width in (low, high)]
        self._halos = _Halos(comm, grid, wide[0], wide[1], edges)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._halos.pad(x)


class Spatial(torch.nn.Module):
    """A convolution or pooling layer of torch's over images that are cut over a grid of ranks: the outputs of the whole image's layer, each on
    the rank that has the input at its place.

    layer: Conv1d to Conv3d (with padding by zeros), AvgPool1d to 3d, MaxPool1d to 3d. grid: how many ranks cut each image dimension; the last
    varies fastest with the rank. parts: of each dimension the sizes of its parts (spatial_parts makes equal ones). out_parts: those of the
    output, for the next layer. Parameters stay the layer's; each rank's gradients of them are its part of a sum. Forward and backward are
    collective over comm; blocking.
    Raises MegaDPError: INVALID (a layer that cannot be cut so, by name; parts that do not fit)."""

    def __init__(self, layer: torch.nn.Module, comm: Comm, grid: Sequence[int], parts: Parts) -> None:
        super().__init__()
        self.layer = layer
        ndim = _dimensions(layer)
        if len(grid) != ndim or len(parts) != ndim or [len(sizes) for sizes in parts] != list(grid):
            raise invalid(f"grid is {tuple(grid)} and parts are {parts}; of this layer's {ndim} dimensions each has as many parts as the grid "
                          "has ranks")
        values = [_each(getattr(layer, name, 1), ndim) for name in ("kernel_size", "stride", "dilation", "padding")]
        every = [[conv_split(sizes, place, kernel=k, stride=s, dilation=d, padding=p) for place in range(len(sizes))]
                 for sizes, k, s, d, p in zip(parts, *values)]
        self.out_parts = [[part.output_size for part in cut] for cut in every]
        self._parts = [list(sizes) for sizes in parts]
        places = [0] * ndim
        rank = comm.rank
        for dim in reversed(range(ndim)):
            places[dim], rank = rank % grid[dim], rank // grid[dim]
        self._own: List[ConvPart] = [cut[place] for cut, place in zip(every, places)]
        self._shape = tuple(sizes[place] for sizes, place in zip(parts, places))
        if any(size == 0 for sizes in self.out_parts for size in sizes):
            raise invalid(f"the output's parts would be {self.out_parts}: some ranks had none; use fewer ranks there")
        self._reach = [(part.output_size - 1) * s + d * (k - 1) + 1 for part, k, s, d in zip(self._own, *values[:3])]
        largest = isinstance(layer, (torch.nn.MaxPool1d, torch.nn.MaxPool2d, torch.nn.MaxPool3d))
        self._beyond = float("-inf") if largest else 0.0
        self._halos = _Halos(comm, grid, [part.low for part in self._own], [part.high for part in self._own], "keep" if largest else "zero")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if tuple(x.shape[-len(self._shape):]) != self._shape:
            raise invalid(f"x has shape {tuple(x.shape)}; its last dimensions must be this rank's part, {self._shape}")
        padded = self._halos.pad(x, self._beyond)
        for dim, (part, reach) in enumerate(zip(self._own, self._reach)):
            padded = padded.narrow(dim - len(self._shape), part.first, reach)
        return _without_padding(self.layer, padded)


def _each(value: Any, ndim: int) -> List[int]:
    return [value] * ndim if isinstance(value, int) else list(value)


def _dimensions(layer: torch.nn.Module) -> int:
    """Of the images; or InvalidError."""
    if isinstance(layer, CONVOLUTIONS):
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            raise invalid(f"the convolution has padding {layer.padding!r} of mode {layer.padding_mode!r}; it must be numbers of zeros")
        return len(layer.kernel_size)
    for kind, ndim in POOLS.items():
        if isinstance(layer, kind):
            if layer.ceil_mode or getattr(layer, "return_indices", False):  # type: ignore[truthy-bool]
                raise invalid("the pooling has ceil_mode or return_indices, which a cut image does not offer")
            if hasattr(layer, "count_include_pad") and not layer.count_include_pad and any(_each(layer.padding, ndim)):  # type: ignore
                raise invalid("the pooling has count_include_pad=False with padding, which a cut image does not offer")
            return ndim
    raise invalid(f"layer is a {type(layer).__name__}; it must be a convolution, AvgPool or MaxPool of torch.nn")


def _without_padding(layer: torch.nn.Module, padded: torch.Tensor) -> torch.Tensor:
    functional = torch.nn.functional
    if isinstance(layer, CONVOLUTIONS):
        call: Any = getattr(functional, f"conv{len(layer.kernel_size)}d")
        found: torch.Tensor = call(padded, layer.weight, layer.bias, layer.stride, 0, layer.dilation, layer.groups)
        return found
    ndim = _dimensions(layer)
    if hasattr(layer, "dilation"):
        call = getattr(functional, f"max_pool{ndim}d")
        found = call(padded, layer.kernel_size, layer.stride, 0, layer.dilation)
    else:
        call = getattr(functional, f"avg_pool{ndim}d")
        divisor = {} if getattr(layer, "divisor_override", None) is None else {"divisor_override": layer.divisor_override}
        found = call(padded, layer.kernel_size, layer.stride, 0, **divisor)
    return found
