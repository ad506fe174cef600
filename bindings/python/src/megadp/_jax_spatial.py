# SPDX-License-Identifier: Apache-2.0
"""Halos of arrays that are cut over a grid of ranks, differentiable in JAX: as the functions of _jax_tp, by ordered callbacks."""
from typing import Any, Dict, List, Sequence, Tuple, Union

import jax

from ._comm import Comm
from ._jax_tp import _on_host
from .halo import Edge, Halo, Widths


class HaloPad:
    """pad(x) is a part with what the neighbours have around it, differentiable; inside jit and outside. Arguments as megadp.Halo takes them,
    for all of x's dimensions: a grid of (1, 2, 2, 1) cuts the images of a batch of NHWC. edges: not "keep"; those of dimensions without a
    halo do not matter. Forward and backward are collective over comm, in the order of
    the program; blocking."""

    def __init__(self, comm: Comm, grid: Sequence[int], low: Widths, high: Widths, edges: Union[Edge, Sequence[Edge]] = "zero") -> None:
        self._comm, self._grid, self._low, self._high, self._edges = comm, tuple(grid), low, high, edges
        self._made: Dict[Tuple[Any, str], Halo] = {}

    def _halo(self, shape: Tuple[int, ...], dtype: Any) -> Halo:
        key = (tuple(shape), str(dtype))
        if key not in self._made:  # while the function is traced, which all ranks do in one order
            self._made[key] = Halo(self._comm, self._grid, shape, self._low, self._high, self._edges, dtype=dtype)
        return self._made[key]

    def __call__(self, x: Any) -> Any:
        halo = self._halo(x.shape, x.dtype)

        def padded(outputs: List[Any], given: List[Any]) -> None:
            outputs[0][...] = 0
            outputs[0][halo.inside] = given[0]
            halo.exchange(outputs[0])

        def unpadded(outputs: List[Any], given: List[Any]) -> None:
            whole = given[0].copy()
            halo.exchange(whole, backward=True)
            outputs[0][...] = whole[halo.inside]

        @jax.custom_vjp
        def apply(values: Any) -> Any:
            return _on_host(padded, [halo.padded_shape], values.dtype, values)[0]

        def forward(values: Any) -> Tuple[Any, None]:
            return apply(values), None

        def backward(_: None, grad: Any) -> Tuple[Any]:
            return (_on_host(unpadded, [x.shape], grad.dtype, grad)[0],)

        apply.defvjp(forward, backward)
        return apply(x)
