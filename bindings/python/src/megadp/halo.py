# SPDX-License-Identifier: Apache-2.0
"""Arrays cut over a grid of ranks: halos of what the neighbours have, and how convolutions are cut. megadp.torch has them as modules."""
import ctypes
from typing import Any, List, Literal, NamedTuple, Optional, Sequence, Tuple, Union

from . import _raw
from ._comm import Comm, choice, whole
from ._dtypes import DTYPES, named, one_of
from ._errors import invalid
from ._handles import Closable, keep
from ._library import lib, sized
from ._tensor import Tensor, operand

__all__ = ["ConvPart", "Edge", "Halo", "conv_split"]

Edge = Literal["keep", "zero", "periodic", "reflect"]
EDGES = {"keep": _raw.MDP_EDGE_KEEP, "zero": _raw.MDP_EDGE_ZERO, "periodic": _raw.MDP_EDGE_PERIODIC, "reflect": _raw.MDP_EDGE_REFLECT}
Widths = Union[int, Sequence[int]]
_INT64 = 2**63 - 1


class ConvPart(NamedTuple):
    """Of one rank, along one dimension."""

    low: int           # of the halo, the same on all ranks
    high: int
    output_begin: int  # of the whole output
    output_size: int
    first: int         # where the first window begins in the padded part
    inside_begin: int  # of these outputs those that need no halo
    inside_size: int
    whole_output: int


def conv_split(parts: Sequence[int], part: int, *, kernel: int, stride: int = 1, dilation: int = 1,
               padding: Union[int, Tuple[int, int]] = 0) -> ConvPart:
    """How an input that is cut along one dimension into these parts is convolved or pooled by the rank that has number `part`: each output by
    the rank that has the element at output * stride, by the last one beyond. padding: zeros on both sides, or before and behind the whole.
    Local, pure. Raises MegaDPError: INVALID (a window longer than the padded input)."""
    before, behind = (padding, padding) if isinstance(padding, int) else padding
    values = {"kernel": kernel, "stride": stride, "dilation": dilation, "padding_low": before, "padding_high": behind}
    config = sized(_raw.mdp_conv_config, **{name: whole(value, name, -_INT64, _INT64) for name, value in values.items()})
    sizes = _list(parts, "parts")
    out = sized(_raw.mdp_conv_part)
    lib.mdp_conv_split(ctypes.byref(config), sizes, len(sizes), whole(part, "part", -2**31, 2**31 - 1), ctypes.byref(out))
    return ConvPart(*(getattr(out, name) for name in ConvPart._fields))


def _list(values: Sequence[int], argument: str) -> Any:
    return (ctypes.c_int64 * len(values))(*(whole(value, f"{argument}[{i}]", -_INT64, _INT64) for i, value in enumerate(values)))


def each(value: Any, ndim: int) -> List[Any]:
    """What is said once for all dimensions, or once for each."""
    return list(value) if hasattr(value, "__len__") and not isinstance(value, str) else [value] * ndim


class Halo(Closable):
    """Exchanges of the edges of arrays that are cut over a grid of ranks.

    grid: how many ranks cut each dimension (1: it is not cut); the last varies fastest with the rank. shape: of this rank's part, without
    halo. low, high: widths of the halo before and behind it, one for all dimensions or one each. edges: what is beyond an end of the whole
    array, for all dimensions or each: "keep" (what the caller has put there), "zero", "periodic", or "reflect" (mirrored at the outermost
    element). faces: without edges and corners, for star-shaped stencils. dtype: "f32", "bf16", "f16", "f64", "i64" or "u8", or numpy's or
    torch's; fields: how many arrays are exchanged at a time. staggered: for each field and dimension whether it is longer by one element, as one
    that lies on the faces of cells is. arrays: how many the library makes, for array(), shaped as the fields are in turn. Collective over comm;
    blocking. comm may be closed afterwards.

    padded_shapes: of the fields, part and halo; padded_shape: of one that is not staggered. inside: slices of the part in it. coords, begins,
    whole: of each dimension this rank's place in the grid, where its part begins, and the size of the whole array.
    Raises MegaDPError: INVALID (a grid that is not of comm's size; parts that do not fit; a reflected halo as wide as the whole), DESYNC, those
    of a lost communicator.
    """

    def __init__(self, comm: Comm, grid: Sequence[int], shape: Sequence[int], low: Widths = 0, high: Widths = 0,
                 edges: Union[Edge, Sequence[Edge]] = "keep", *, faces: bool = False, dtype: Any = "f32", fields: int = 1,
                 staggered: Optional[Sequence[Sequence[int]]] = None, arrays: int = 0) -> None:
        ndim = len(grid)
        if len(shape) != ndim:
            raise invalid(f"shape has {len(shape)} dimensions and grid {ndim}; they must have as many")
        lows, highs, all_edges = (each(value, ndim) for value in (low, high, edges))
        for name, values in (("low", lows), ("high", highs), ("edges", all_edges)):
            if len(values) != ndim:
                raise invalid(f"{name} has {len(values)} values and grid {ndim}; it must be one value, or one for each dimension")
        count = whole(fields, "fields", 0, 2**32 - 1)
        longer = [[0] * ndim] * max(1, count) if staggered is None else [list(values) for values in staggered]
        if len(longer) != max(1, count) or any(len(values) != ndim for values in longer):
            raise invalid(f"staggered is {staggered!r}; it must have {ndim} numbers, 0 or 1, for each of {max(1, count)} fields")
        elements = named(dtype)
        if elements is None:
            raise invalid(f"dtype is {dtype!r}; it {one_of(DTYPES)}")
        config = sized(_raw.mdp_halo_config, dtype=elements.code, ndim=ndim, fields=count,
                       grid=_list(grid, "grid"), shape=_list(shape, "shape"), low=_list(lows, "low"), high=_list(highs, "high"),
                       edges=(ctypes.c_uint32 * ndim)(*(choice(edge, f"edges[{d}]", EDGES) for d, edge in enumerate(all_edges))),
                       flags=_raw.MDP_HALO_FACES if faces else 0, arrays=whole(arrays, "arrays", 0, _INT64),
                       staggered=_list([value for values in longer for value in values], "staggered"))
        self._tree = comm._tree
        self._own(self._tree.make(comm._handle, lib.mdp_halo_create, _raw.mdp_halo, lib.mdp_halo_destroy, ctypes.byref(config)),
                  lib.mdp_halo_destroy)
        lists = [(ctypes.c_int64 * ndim)() for _ in range(3)]
        self._tree.run(self._handle, lib.mdp_halo_place, *lists)
        self.coords, self.begins, self.whole = (tuple(values) for values in lists)
        self.padded_shape = tuple(before + size + behind for before, size, behind in zip(lows, shape, highs))
        self.padded_shapes = tuple(tuple(size + more for size, more in zip(self.padded_shape, values)) for values in longer)
        self.inside = tuple(slice(before, before + size) for before, size in zip(lows, shape))

    def array(self, index: int = 0) -> Tensor:
        """One of the padded arrays that the library has made, zero at first. Much that neighbours on the node need of these they read there, so
        that nothing is packed; finish then waits until all have read. Local. Raises MegaDPError: INVALID."""
        view = sized(_raw.mdp_tensor)
        self._tree.run(self._handle, lib.mdp_halo_array, whole(index, "index", 0, _INT64), ctypes.byref(view))
        return Tensor(view, self._handle.lend())

    def start(self, *fields: Any, backward: bool = False, stream: int = 0) -> None:
        """Sends off what the neighbours need of these padded arrays, of any strides; nothing is copied here. Until finish only their inside may
        be read. Then their halos are what its owners have; with backward=True, the adjoint, what is in the halos is added to where it came
        from, in the order of ranks, and is 0. Collective over comm, but waits for neighbours alone, that are two exchanges behind.
        Raises MegaDPError: INVALID (shapes, dtypes), STATE (it was started), those of a lost communicator."""
        operands = [operand(field, f"fields[{i}]", writable=True, stream=stream) for i, field in enumerate(fields)]
        tensors = (_raw.mdp_tensor * len(operands))(*(tensor for tensor, _ in operands))
        arguments = (tensors, len(operands), _raw.MDP_HALO_BACKWARD if backward else 0, stream or None)
        keep(self._shared.kept, (operands, tensors), lambda: self._tree.run(self._handle, lib.mdp_halo_start, *arguments))

    def finish(self, stream: int = 0) -> None:
        """Waits for the neighbours; where the fields are arrays that the library has made, also until they have read them: several halos in
        flight must then be finished in one order on all ranks. Raises MegaDPError: STATE (it was not started), DESYNC (one of them went the other
        way), those of a lost communicator."""
        self._tree.run(self._handle, lib.mdp_halo_finish, stream or None)
        self._shared.kept.clear()  # until here the memory was the library's

    def exchange(self, *fields: Any, backward: bool = False, stream: int = 0) -> None:
        """start and finish."""
        self.start(*fields, backward=backward, stream=stream)
        self.finish(stream)
