# SPDX-License-Identifier: Apache-2.0
"""Halos of arrays that are cut over a grid of ranks, differentiable in JAX: as the functions of _jax_tp, by ordered callbacks."""
from typing import Any, Callable, List, Sequence, Tuple, Union

import jax

from ._comm import Comm
from ._jax_tp import _kept, _on_host
from .halo import Edge, Halo, Widths


class HaloPad:
    """pad(x) is a part with what the neighbours have around it, differentiable; inside jit and outside. Arguments as megadp.Halo takes them,
    for all of x's dimensions: a grid of (1, 2, 2, 1) cuts the images of a batch of NHWC. edges: not "keep"; those of dimensions without a
    halo do not matter. Forward and backward are collective over comm, in the order of
    the program; blocking."""

    def __init__(self, comm: Comm, grid: Sequence[int], low: Widths, high: Widths, edges: Union[Edge, Sequence[Edge]] = "zero") -> None:
        self._comm, self._grid, self._low, self._high, self._edges = comm, tuple(grid), low, high, edges

    def __call__(self, x: Any) -> Any:
        x = jax.numpy.asarray(x)
        # Halos are made while the function is traced, which all ranks do in one order.
        return _kept(self, (x.shape, x.dtype), lambda: self._differentiable(x.shape, x.dtype))(x)

    def _differentiable(self, shape: Tuple[int, ...], dtype: Any) -> Callable[[Any], Any]:
        """Of parts of this shape and dtype."""
        halo = Halo(self._comm, self._grid, shape, self._low, self._high, self._edges, dtype=dtype)

        def padded(outputs: List[Any], given: List[Any]) -> None:
            outputs[0][...] = 0
            outputs[0][halo.inside] = given[0]
            halo.exchange(outputs[0])

        def unpadded(outputs: List[Any], given: List[Any]) -> None:
            whole = given[0].copy()
            halo.exchange(whole, backward=True)
            outputs[0][...] = whole[halo.inside]

        ranks = self._comm.size
        on_host, back_on_host = _on_host(ranks, padded, [halo.padded_shape], dtype), _on_host(ranks, unpadded, [shape], dtype)

        @jax.custom_vjp
        def apply(values: Any) -> Any:
            return on_host(values)[0]

        def forward(values: Any) -> Tuple[Any, None]:
            return apply(values), None

        def backward(_: None, grad: Any) -> Tuple[Any]:
            return (back_on_host(grad)[0],)

        apply.defvjp(forward, backward)
        return apply
