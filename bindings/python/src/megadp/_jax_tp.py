# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism in JAX: linear layers cut over ranks, operators between what is replicated and what is cut, embeddings and cross-entropies
of a vocabulary that is cut, with their gradients.

Each is a jax.custom_vjp whose two halves are ordered io_callbacks: XLA runs these one after another in the order of the program, inside jit
and outside, so that collectives come in the same order on all ranks. Arrays go through the memory of the host. JAX refuses
ordered effects in jax.checkpoint (remat) and in vmap, and so these functions there.
"""
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Union

import jax
import numpy
from jax.experimental import io_callback

from ._comm import Comm
from ._errors import invalid
from .tp import CrossEntropy, Embedding, Grad, Placed, Region, Split, TpLinear, checks_replicated, region, region_shape, share_of_others

Arrays = Tuple[Any, ...]


def _on_host(call: Callable[..., Any], shapes: Sequence[Tuple[int, ...]], dtype: Any, *arguments: Any) -> List[Any]:
    """call(outputs, arguments) on numpy arrays, outputs of these shapes. dtype: theirs, or a list of one for each."""
    dtypes = dtype if isinstance(dtype, list) else [dtype] * len(shapes)

    def run(*given: Any) -> List[Any]:
        outputs = list(map(numpy.empty, shapes, dtypes))
        call(outputs, list(map(numpy.asarray, given)))
        return outputs

    told = [jax.ShapeDtypeStruct(*each) for each in zip(shapes, dtypes)]  # type: ignore[no-untyped-call, unused-ignore]
    found: List[Any] = io_callback(run, told, *arguments, ordered=True)
    return found


def _cut(whole: Any, parts: Iterable[Union[slice, range]], dim: int) -> Any:
    """Some parts along dim, one after another."""
    return jax.numpy.concatenate([jax.lax.slice_in_dim(whole, part.start, part.stop, axis=dim) for part in parts], dim)


class ParallelLinear:
    """A linear layer cut over the tensor-parallel ranks of comm: layer(x, weight, bias), of this rank's parts, is differentiable in all of
    them. Options: as megadp.TpLinear; transposed (True): weights are [in_features, out_features], as JAX has them.

    part(weight, bias) cuts whole arrays; placements are those of the parts, for megadp.jax.DataParallel on a Grid; weight_shape and bias_shape
    their shapes. The calls are collective and blocking, forward and backward, in the order of the program; before comm is used otherwise,
    jax.effects_barrier() waits for them. Collective over comm; blocking. Raises MegaDPError: as TpLinear.
    """

    def __init__(self, comm: Comm, split: Split, in_features: int, out_features: int, *, bias: bool = True, sequence: bool = False,
                 gather_output: bool = False, whole_input: bool = False, transposed: bool = True, blocks: Sequence[int] = (),
                 grad: Optional[Grad] = None, dtype: Any = "f32", check_replicated: Optional[bool] = None) -> None:
        self._native = TpLinear(comm, split, in_features, out_features, bias=bias, sequence=sequence, gather_output=gather_output,
                                whole_input=whole_input, transposed=transposed, blocks=blocks, grad=grad, dtype=dtype,
                                check_replicated=check_replicated)
        self._cuts_bias = split == "column"
        self._cut_dim = 0 if (split == "column") != transposed else 1
        self.weight_shape, self.bias_shape = self._native.weight_shape, self._native.bias_shape
        self._apply = self._differentiable()

    def _differentiable(self) -> Callable[[Any, Arrays], Any]:
        native = self._native

        @jax.custom_vjp
        def apply(x: Any, params: Arrays) -> Any:
            def call(outputs: List[Any], given: List[Any]) -> None:
                native.forward(given[0], outputs[0], weight=given[1], bias=given[2] if len(given) > 2 else None, save=False)

            return _on_host(call, [native.out_shape(x.shape)], x.dtype, x, *params)[0]

        def forward(x: Any, params: Arrays) -> Tuple[Any, Any]:
            return apply(x, params), (x, params)

        def backward(kept: Any, grad: Any) -> Tuple[Any, Arrays]:
            x, params = kept

            def call(outputs: List[Any], given: List[Any]) -> None:
                native.backward(given[0], outputs[0], x=given[1], weight=given[2], grad_weight=outputs[1],
                                grad_bias=outputs[2] if len(outputs) > 2 else None)

            of_x, *of_params = _on_host(call, [x.shape, *(p.shape for p in params)], x.dtype, grad, x, params[0])
            return of_x, tuple(of_params)

        apply.defvjp(forward, backward)
        return apply

    def __call__(self, x: Any, weight: Any, bias: Any = None) -> Any:
        if (bias is None) != (self.bias_shape is None):
            raise invalid("the layer has " + ("no bias, and one is given" if self.bias_shape is None else "a bias, and none is given"))
        given = (weight,) if bias is None else (weight, bias)
        for values, shape, name in zip(given, (self.weight_shape, self.bias_shape), ("weight", "bias")):
            if values.shape != shape or values.dtype != x.dtype:
                raise invalid(f"{name} is {values.dtype} of shape {values.shape}; this rank's part has {shape}, and x is {x.dtype}")
        return self._apply(x, given)

    def part(self, weight: Any, bias: Any = None) -> Arrays:
        """This rank's parts of a whole layer's weight and bias (None: of the weight alone, a tuple of one). Local."""
        slices = self._native.slices
        own = _cut(weight, slices, self._cut_dim)
        return (own,) if bias is None else (own, _cut(bias, slices, 0) if self._cuts_bias else bias)

    @property
    def placements(self) -> Tuple[Placed, ...]:
        """Of the weight and, where there is one, the bias. Raises MegaDPError: INVALID (blocks of different sizes)."""
        return (self._native.weight_placement, self._native.bias_placement)[:1 if self.bias_shape is None else 2]


def _region(x: Any, comm: Comm, kind: Region, **options: Any) -> Any:
    for name in ("dim", "to_dim"):
        if name in options and options[name] < 0:  # as JAX counts
            options[name] += x.ndim
    checks = checks_replicated()
    cut: Dict[str, Any] = {name: value for name, value in options.items() if name != "grad"}

    def half(values: Any, shape: Tuple[int, ...], backward: bool) -> Any:
        def call(outputs: List[Any], given: List[Any]) -> None:
            region(comm, kind, given[0], outputs[0], backward=backward, check_replicated=checks, **options)

        return _on_host(call, [shape], values.dtype, values)[0]

    @jax.custom_vjp
    def apply(values: Any) -> Any:
        return values if kind == "copy" and not checks else half(values, region_shape(comm, kind, values.shape, **cut), False)

    def forward(values: Any) -> Tuple[Any, None]:
        return apply(values), None

    def backward(_: None, grad: Any) -> Tuple[Any]:
        is_there = kind in ("copy", "reduce") and options["grad"] == "replicated"
        return (grad if is_there and not checks else half(grad, x.shape, True),)

    apply.defvjp(forward, backward)
    return apply(x)


def copy_to_tensor_parallel(x: Any, comm: Comm, grad: Grad = "partial") -> Any:
    """x, which is the same on all ranks, for each rank's part of the model: gradients that come back are parts of a sum, and are summed.
    comm: the tensor-parallel ranks, as for all of these functions, and grad: as megadp.tp.region. Backward collective; blocking."""
    return _region(x, comm, "copy", grad=grad)


def reduce_from_tensor_parallel(x: Any, comm: Comm, grad: Grad = "replicated") -> Any:
    """The sum of x over ranks, on all of them, for what is the same on all: so are the gradients that come back. Collective; blocking."""
    return _region(x, comm, "reduce", grad=grad)


def scatter_to_tensor_parallel(x: Any, comm: Comm, dim: int = -1, parts: Optional[Sequence[int]] = None) -> Any:
    """This rank's part along dim of x, which is the same on all ranks; parts: sizes, one a rank (None: equal ones). Backward collective;
    blocking."""
    return _region(x, comm, "scatter", dim=dim, parts=parts)


def gather_from_tensor_parallel(x: Any, comm: Comm, dim: int = -1, *, grad: Grad, parts: Optional[Sequence[int]] = None) -> Any:
    """The parts along dim of all ranks together. grad: what comes back is the same on all ranks ("replicated": a loss that all of them
    compute alike), or a part on each ("partial": each rank's part of the model goes on with it). Collective; blocking."""
    return _region(x, comm, "gather", dim=dim, parts=parts, grad=grad)


def reduce_scatter_to_tensor_parallel(x: Any, comm: Comm, dim: int = 0, parts: Optional[Sequence[int]] = None) -> Any:
    """This rank's part along dim of the sum of x over ranks. Collective; blocking."""
    return _region(x, comm, "reduce_scatter", dim=dim, parts=parts)


def all_to_all_tensor_parallel(x: Any, comm: Comm, dim: int, to_dim: int, parts: Optional[Sequence[int]] = None,
                               to_parts: Optional[Sequence[int]] = None) -> Any:
    """What is cut along dim comes out whole there, and cut along to_dim: from the sequence to heads and back. Collective; blocking."""
    return _region(x, comm, "exchange", dim=dim, to_dim=to_dim, parts=parts, to_parts=to_parts)


def vocab_parallel_embedding(ids: Any, weight: Any, comm: Comm, *, grad: Grad = "replicated", sequence: bool = False) -> Any:
    """Rows `ids`, integers that are the same on all ranks, of a table whose rows are cut over the ranks of comm, the same number on each; weight,
    [rows / size, features], is this rank's part, of placement Placed("sharded", 0). The output is whole on all ranks, and grad is as
    megadp.tp.region; with sequence it is cut along its first dimension. Collective; blocking, and so is its backward.
    Raises MegaDPError: INVALID (ids of another type; what is found in a callback comes as JAX's own error)."""
    _check_integers(ids, "ids")
    table = Embedding(comm, weight.shape[0] * comm.size, grad=grad, sequence=sequence)

    @jax.custom_vjp
    def apply(values: Any, rows: Any) -> Any:
        def call(outputs: List[Any], given: List[Any]) -> None:
            table.forward(given[1], given[0], outputs[0])

        return _on_host(call, [table.out_shape(rows.shape, values.shape[1])], values.dtype, values, rows)[0]

    def forward(values: Any, rows: Any) -> Tuple[Any, Any]:
        return apply(values, rows), rows

    def backward(rows: Any, grad_out: Any) -> Tuple[Any, Any]:
        def call(outputs: List[Any], given: List[Any]) -> None:
            table.backward(given[1], given[0], outputs[0])

        return _on_host(call, [weight.shape], grad_out.dtype, grad_out, rows)[0], _no_gradient(rows)

    apply.defvjp(forward, backward)
    return apply(weight, ids)


def vocab_parallel_cross_entropy(logits: Any, targets: Any, comm: Comm, *, ignore_index: int = -100, label_smoothing: float = 0.0,
                                 z_loss: float = 0.0, classes: int = 0) -> Any:
    """The losses, float32 and the same on all ranks, of logits whose last dimension, the classes, is cut over the ranks of comm, the same number
    on each; the gradient that comes back must be the same on all ranks too. targets, integers that number the whole's classes, have the
    other dimensions; one that is ignore_index has no loss and no gradient. classes: how many there are (0: as many as all ranks have
    columns); columns beyond are padding, and do not count. label_smoothing: every class, the target too, gets label_smoothing / classes, as
    optax.smooth_labels has it. z_loss: adds z_loss * logsumexp(logits)^2. Collective; blocking; backward is local.
    Raises MegaDPError: INVALID (options, targets of another type; what is found in a callback comes as JAX's own error)."""
    _check_integers(targets, "targets")
    loss = CrossEntropy(comm, classes, ignore_index, share_of_others(label_smoothing, classes or logits.shape[-1] * comm.size), z_loss)

    def both(values: Any, wanted: Any) -> List[Any]:
        def call(outputs: List[Any], given: List[Any]) -> None:
            loss.forward(given[0], given[1], outputs[0], outputs[1])

        return _on_host(call, [wanted.shape, (*wanted.shape, 2)], numpy.float32, values, wanted)

    @jax.custom_vjp
    def apply(values: Any, wanted: Any) -> Any:
        return both(values, wanted)[0]

    def forward(values: Any, wanted: Any) -> Tuple[Any, Any]:
        losses, saved = both(values, wanted)
        return losses, (values, wanted, saved)

    def backward(kept: Any, grad: Any) -> Tuple[Any, Any]:
        values, wanted, _ = kept

        def call(outputs: List[Any], given: List[Any]) -> None:
            loss.backward(given[0], given[1], given[2], given[3], outputs[0])

        return _on_host(call, [values.shape], values.dtype, *kept, grad)[0], _no_gradient(wanted)

    apply.defvjp(forward, backward)
    return apply(logits, targets)


def _check_integers(values: Any, argument: str) -> None:
    if not jax.numpy.issubdtype(values.dtype, jax.numpy.integer):
        raise invalid(f"{argument} has dtype {values.dtype}; it must be int64, or other integers")


def _no_gradient(integers: Any) -> Any:
    return numpy.zeros(integers.shape, jax.dtypes.float0)
