# SPDX-License-Identifier: Apache-2.0
"""Convolutions and pooling of images that are cut over a grid of ranks."""
from typing import Any, Dict, List, Sequence, Tuple, Union

import torch
from torch.autograd.function import once_differentiable

from ._comm import Comm
from ._dtypes import FLOATS, named, one_of
from ._errors import invalid
from ._torch_eager import eager
from ._torch_linear import Shared
from ._torch_steps import stream_of
from .halo import ConvPart, Edge, Halo, Widths, conv_split, each

Parts = Sequence[Sequence[int]]
CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
POOLS = {torch.nn.AvgPool1d: 1, torch.nn.AvgPool2d: 2, torch.nn.AvgPool3d: 3, torch.nn.MaxPool1d: 1, torch.nn.MaxPool2d: 2,
         torch.nn.MaxPool3d: 3}


def spatial_parts(sizes: Sequence[int], grid: Sequence[int]) -> List[List[int]]:
    """Of each dimension the sizes of its parts: as equal as can be, the first ones one longer. Local."""
    return [[size // ranks + (place < size % ranks) for place in range(ranks)] for size, ranks in zip(sizes, grid)]


def spatial_slices(parts: Parts, rank: int) -> Tuple[slice, ...]:
    """What rank `rank` has of an image that is cut into these parts; the last dimension varies fastest with the rank. Local."""
    places = _places([len(sizes) for sizes in parts], rank)
    return tuple(slice(sum(sizes[:place]), sum(sizes[:place + 1])) for sizes, place in zip(parts, places))


def _places(grid: Sequence[int], rank: int) -> List[int]:
    """Of a rank along each dimension."""
    found: List[int] = []
    for ranks in reversed(grid):
        found.insert(0, rank % ranks)
        rank //= ranks
    return found


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


class _Halos(Shared):
    """Those of one layer, by the rest of the shape and the type: made with the first array that needs them."""

    def __init__(self, comm: Comm, grid: Sequence[int], low: Widths, high: Widths, edges: Union[Edge, Sequence[Edge]]) -> None:
        super().__init__(comm)
        self._grid = tuple(grid)
        self._low, self._high, self._edges = (each(value, len(self._grid)) for value in (low, high, edges))
        self._made: Dict[Tuple[Tuple[int, ...], torch.dtype], Halo] = {}

    @eager
    def pad(self, x: torch.Tensor, beyond: float = 0.0) -> torch.Tensor:
        if named(x.dtype) not in FLOATS:
            raise invalid(f"x has dtype {x.dtype}; it {one_of(FLOATS)}")
        key = (tuple(x.shape), x.dtype)
        if key not in self._made:
            others = x.dim() - len(self._grid)
            self._made[key] = Halo(self.comm, [1] * others + list(self._grid), x.shape, [0] * others + self._low,
                                   [0] * others + self._high, ["keep"] * others + self._edges, dtype=x.dtype)
        found: torch.Tensor = _Pad.apply(x, self._made[key], beyond)  # type: ignore[no-untyped-call, unused-ignore]
        return found


class HaloPad(torch.nn.Module):
    """Pads the last dimensions of a part with what the neighbours have, differentiable. grid, low, high, edges: of these dimensions, as
    megadp.Halo takes them. Forward and backward are collective over comm; blocking. The parts' shapes change on all ranks together, or on
    none. A copy uses the same ranks."""

    def __init__(self, comm: Comm, grid: Sequence[int], low: Widths, high: Widths, edges: Union[Edge, Sequence[Edge]] = "keep") -> None:
        super().__init__()
        self._halos = _Halos(comm, grid, low, high, edges)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._halos.pad(x)


class Spatial(torch.nn.Module):
    """A convolution or pooling layer of torch's over images that are cut over a grid of ranks: the outputs of the whole image's layer, each on
    the rank that has the input at its place.

    layer: Conv1d to Conv3d (with padding by zeros), AvgPool1d to 3d, MaxPool1d to 3d. grid: how many ranks cut each image dimension; the last
    varies fastest with the rank. parts: of each dimension the sizes of its parts (spatial_parts makes equal ones). out_parts: those of the
    output, for the next layer. Parameters stay the layer's; each rank's gradients of them are its part of a sum. A copy uses the same ranks.
    Forward and backward are collective over comm; blocking.
    Raises MegaDPError: INVALID (a layer that cannot be cut so, by name; parts that do not fit)."""

    def __init__(self, layer: torch.nn.Module, comm: Comm, grid: Sequence[int], parts: Parts) -> None:
        super().__init__()
        self.layer = layer
        ndim = _dimensions(layer)
        if len(grid) != ndim or len(parts) != ndim or [len(sizes) for sizes in parts] != list(grid):
            raise invalid(f"grid is {tuple(grid)} and parts are {parts}; of this layer's {ndim} dimensions each has as many parts as the grid "
                          "has ranks")
        values = [each(getattr(layer, name, 1), ndim) for name in ("kernel_size", "stride", "dilation", "padding")]
        every = [[conv_split(sizes, place, kernel=k, stride=s, dilation=d, padding=p) for place in range(len(sizes))]
                 for sizes, k, s, d, p in zip(parts, *values)]
        self.out_parts = [[part.output_size for part in cut] for cut in every]
        places = _places(grid, comm.rank)
        self._own: List[ConvPart] = [cut[place] for cut, place in zip(every, places)]
        self._shape = tuple(sizes[place] for sizes, place in zip(parts, places))
        if any(size == 0 for sizes in self.out_parts for size in sizes):
            raise invalid(f"the output's parts would be {self.out_parts}: some ranks had none; use fewer ranks there")
        self._out_shape = tuple(part.output_size for part in self._own)
        # Of the padded part what the windows of these outputs reach.
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
        out = self._call_layer(padded)
        found = tuple(out.shape[-len(self._shape):])
        if found != self._out_shape:
            raise invalid(f"the layer, a {type(self.layer).__name__}, has made an output of {found}, where this rank's part is {self._out_shape}; "
                          "a layer that is cut must pad by its `padding` alone")
        return out

    def _call_layer(self, padded: torch.Tensor) -> torch.Tensor:
        """Itself, so that its hooks run, and the forward of a class that is derived from torch's; without its padding, which came with the halo."""
        layer: Any = self.layer
        padding, layer.padding = layer.padding, 0
        try:
            out: torch.Tensor = layer(padded)
        finally:
            layer.padding = padding
        return out


def _dimensions(layer: torch.nn.Module) -> int:
    """Of the images; or InvalidError."""
    if isinstance(layer, CONVOLUTIONS):
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            raise invalid(f"the convolution has padding {layer.padding!r} of mode {layer.padding_mode!r}; it must be numbers of zeros")
        return len(layer.kernel_size)
    for kind, ndim in POOLS.items():
        if isinstance(layer, kind):
            if layer.ceil_mode or getattr(layer, "return_indices", False):  # type: ignore[truthy-bool, unused-ignore]
                raise invalid("the pooling has ceil_mode or return_indices, which a cut image does not offer")
            if not getattr(layer, "count_include_pad", True) and any(each(layer.padding, ndim)):
                raise invalid("the pooling has count_include_pad=False with padding, which a cut image does not offer")
            return ndim
    raise invalid(f"layer is a {type(layer).__name__}; it must be a convolution, AvgPool or MaxPool of torch.nn")
