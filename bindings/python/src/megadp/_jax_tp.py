# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism in JAX: linear layers cut over ranks, operators between what is replicated and what is cut, embeddings and cross-entropies
of a vocabulary that is cut, with their gradients.

Each is a jax.custom_vjp whose two halves are ordered io_callbacks: XLA runs these one after another in the order of the program, inside jit
and outside, so that collectives come in the same order on all ranks. Arrays go through the memory of the host. JAX refuses
ordered effects in jax.checkpoint (remat) and in vmap, and so these functions there; in shard_map and pmap, where their order is each device's
own, they are refused here.
"""
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, TypeVar, Union

import jax
import numpy
from jax.experimental import io_callback

from ._comm import Comm
from ._errors import invalid
from ._jax_failures import is_traced, refuse_devices, refuse_second_runs
from .tp import CrossEntropy, Embedding, Grad, Placed, Region, Split, TpLinear, checks_replicated, region, region_shape, share_of_others

Arrays = Tuple[Any, ...]
Made = TypeVar("Made")
_MOST = 4096


def _frozen(value: Any) -> Any:
    """An option that the program cannot change any more: tuples in the place of lists and of arrays with values."""
    if isinstance(value, (numpy.ndarray, jax.Array)) and not isinstance(value, jax.core.Tracer):
        value = numpy.asarray(value).tolist()
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def _typed(value: Any) -> Any:
    """As a key: 1, 1.0 and True are not the same, since some of them are refused."""
    return (tuple, *map(_typed, value)) if isinstance(value, tuple) else (type(value), value)


def _kept(owner: Any, key: Arrays, make: Callable[[], Made]) -> Made:
    """make(), made once for each key (of frozen options, shapes and dtypes) of an owner, a communicator or a layer.

    Outside of jit JAX compiles of each callback that is new to it, and keeps that for ever, 1.5 MiB. What is made is in the owner's own dict, and
    goes with it. There are as many as shapes and options are given, for each of which JAX compiles in any case; where all calls give new
    ones, as an attention that is a new function in each, all are forgotten when they are _MOST."""
    made: Dict[Any, Made] = vars(owner).setdefault("_made_for_jax", {})
    typed = _typed(key)
    try:
        found = made.get(typed)
        has_hash = True
    except TypeError:
        found, has_hash = None, False
    if found is None:
        found = make()
        if len(made) >= _MOST:
            made.clear()
        if has_hash:
            found = made.setdefault(typed, found)  # another thread may have been first
    return found


def _on_host(ranks: int, call: Callable[..., Any], shapes: Sequence[Tuple[int, ...]], dtype: Any) -> Callable[..., List[Any]]:
    """A function of JAX's arrays, by one callback: call(outputs, arguments) on numpy arrays, outputs of these shapes, collective over so many
    ranks. dtype: theirs, or a list of one for each."""
    dtypes = dtype if isinstance(dtype, list) else [dtype] * len(shapes)

    def run(*given: Any) -> List[Any]:
        outputs = list(map(numpy.empty, shapes, dtypes))
        call(outputs, list(map(numpy.asarray, given)))
        return outputs

    told = [jax.ShapeDtypeStruct(*each) for each in zip(shapes, dtypes)]  # type: ignore[no-untyped-call, unused-ignore]

    def called(*arguments: Any) -> List[Any]:
        refuse_devices("a collective of megadp.jax")
        if ranks > 1 and is_traced():
            refuse_second_runs()
        found: List[Any] = io_callback(run, told, *arguments, ordered=True)
        return found

    return called


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
        self._ranks = comm.size
        self._native = TpLinear(comm, split, in_features, out_features, bias=bias, sequence=sequence, gather_output=gather_output,
                                whole_input=whole_input, transposed=transposed, blocks=blocks, grad=grad, dtype=dtype,
                                check_replicated=check_replicated)
        self._cuts_bias = split == "column"
        self._cut_dim = 0 if (split == "column") != transposed else 1
        self.weight_shape, self.bias_shape = self._native.weight_shape, self._native.bias_shape

    def _differentiable(self, shape: Tuple[int, ...], dtype: Any) -> Callable[[Any, Arrays], Any]:
        """Of inputs of this shape and dtype."""
        native, of_params = self._native, [each for each in (self.weight_shape, self.bias_shape) if each is not None]

        def call_forward(outputs: List[Any], given: List[Any]) -> None:
            native.forward(given[0], outputs[0], weight=given[1], bias=given[2] if len(given) > 2 else None, save=False)

        def call_backward(outputs: List[Any], given: List[Any]) -> None:
            native.backward(given[0], outputs[0], x=given[1], weight=given[2], grad_weight=outputs[1],
                            grad_bias=outputs[2] if len(outputs) > 2 else None)

        on_host = _on_host(self._ranks, call_forward, [native.out_shape(shape)], dtype)
        back_on_host = _on_host(self._ranks, call_backward, [shape, *of_params], dtype)

        @jax.custom_vjp
        def apply(x: Any, params: Arrays) -> Any:
            return on_host(x, *params)[0]

        def forward(x: Any, params: Arrays) -> Tuple[Any, Any]:
            return apply(x, params), (x, params[0])

        def backward(kept: Any, grad: Any) -> Tuple[Any, Arrays]:
            of_x, *of_params = back_on_host(grad, *kept)
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
        x = jax.numpy.asarray(x)
        return _kept(self, (x.shape, x.dtype), lambda: self._differentiable(x.shape, x.dtype))(x, tuple(map(jax.numpy.asarray, given)))

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
    x = jax.numpy.asarray(x)
    for name in ("dim", "to_dim"):
        if name in options and options[name] < 0:  # as JAX counts
            options[name] += x.ndim
    options = {name: _frozen(value) for name, value in options.items()}
    checks = checks_replicated()
    return _kept(comm, (kind, checks, x.shape, x.dtype, *options.items()),
                 lambda: _region_of(comm, kind, checks, x.shape, x.dtype, options))(x)


def _region_of(comm: Comm, kind: Region, checks: bool, shape: Tuple[int, ...], dtype: Any, options: Dict[str, Any]) -> Callable[[Any], Any]:
    """Of arrays of this shape and dtype."""
    cut: Dict[str, Any] = {name: value for name, value in options.items() if name != "grad"}

    def half(to: Tuple[int, ...], backward: bool) -> Callable[..., List[Any]]:
        def call(outputs: List[Any], given: List[Any]) -> None:
            region(comm, kind, given[0], outputs[0], backward=backward, check_replicated=checks, **options)

        return _on_host(comm.size, call, [to], dtype)

    is_there = kind in ("copy", "reduce") and options["grad"] == "replicated"
    on_host = None if kind == "copy" and not checks else half(region_shape(comm, kind, shape, **cut), False)
    back_on_host = None if is_there and not checks else half(shape, True)

    @jax.custom_vjp
    def apply(values: Any) -> Any:
        return values if on_host is None else on_host(values)[0]

    def forward(values: Any) -> Tuple[Any, None]:
        return apply(values), None

    def backward(_: None, grad: Any) -> Tuple[Any]:
        return (grad if back_on_host is None else back_on_host(grad)[0],)

    apply.defvjp(forward, backward)
    return apply


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
    ids, weight = jax.numpy.asarray(ids), jax.numpy.asarray(weight)
    return _kept(comm, ("embedding", checks_replicated(), weight.shape, weight.dtype, ids.shape, grad, sequence),
                 lambda: _embedding_of(comm.size, Embedding(comm, weight.shape[0] * comm.size, grad=grad, sequence=sequence),
                                       weight.shape, weight.dtype, ids.shape))(weight, ids)


def _embedding_of(ranks: int, table: Embedding, shape: Tuple[int, ...], dtype: Any, of_ids: Tuple[int, ...]) -> Callable[[Any, Any], Any]:
    """Of weights of this shape and dtype, and ids of that shape."""
    def call_forward(outputs: List[Any], given: List[Any]) -> None:
        table.forward(given[1], given[0], outputs[0])

    def call_backward(outputs: List[Any], given: List[Any]) -> None:
        table.backward(given[1], given[0], outputs[0])

    on_host = _on_host(ranks, call_forward, [table.out_shape(of_ids, shape[1])], dtype)
    back_on_host = _on_host(ranks, call_backward, [shape], dtype)

    @jax.custom_vjp
    def apply(values: Any, rows: Any) -> Any:
        return on_host(values, rows)[0]

    def forward(values: Any, rows: Any) -> Tuple[Any, Any]:
        return apply(values, rows), rows

    def backward(rows: Any, grad: Any) -> Tuple[Any, Any]:
        return back_on_host(grad, rows)[0], _no_gradient(rows)

    apply.defvjp(forward, backward)
    return apply


def vocab_parallel_cross_entropy(logits: Any, targets: Any, comm: Comm, *, ignore_index: int = -100, label_smoothing: float = 0.0,
                                 z_loss: float = 0.0, classes: int = 0) -> Any:
    """The losses, float32 and the same on all ranks, of logits whose last dimension, the classes, is cut over the ranks of comm, the same number
    on each; the gradient that comes back must be the same on all ranks too. targets, integers that number the whole's classes, have the
    other dimensions; one that is ignore_index has no loss and no gradient. classes: how many there are (0: as many as all ranks have
    columns); columns beyond are padding, and do not count. label_smoothing: every class, the target too, gets label_smoothing / classes, as
    optax.smooth_labels has it. z_loss: adds z_loss * logsumexp(logits)^2. Collective; blocking; backward is local.
    Raises MegaDPError: INVALID (options, targets of another type; what is found in a callback comes as JAX's own error)."""
    _check_integers(targets, "targets")
    logits, targets = jax.numpy.asarray(logits), jax.numpy.asarray(targets)
    label_smoothing, z_loss = _frozen(label_smoothing), _frozen(z_loss)

    def make() -> Callable[[Any, Any], Any]:
        others = share_of_others(label_smoothing, classes or logits.shape[-1] * comm.size)
        return _cross_entropy_of(comm.size, CrossEntropy(comm, classes, ignore_index, others, z_loss), logits.shape, logits.dtype, targets.shape)

    key = (checks_replicated(), logits.shape, logits.dtype, targets.shape, ignore_index, label_smoothing, z_loss, classes)
    return _kept(comm, ("cross entropy", *key), make)(logits, targets)


def _cross_entropy_of(ranks: int, loss: CrossEntropy, shape: Tuple[int, ...], dtype: Any, of_targets: Tuple[int, ...]) -> Callable[[Any, Any], Any]:
    """Of logits of this shape and dtype, and targets of that shape."""
    def call_forward(outputs: List[Any], given: List[Any]) -> None:
        loss.forward(given[0], given[1], outputs[0], outputs[1])

    def call_backward(outputs: List[Any], given: List[Any]) -> None:
        loss.backward(given[0], given[1], given[2], given[3], outputs[0])

    both = _on_host(ranks, call_forward, [of_targets, (*of_targets, 2)], numpy.float32)
    back_on_host = _on_host(ranks, call_backward, [shape], dtype)

    @jax.custom_vjp
    def apply(values: Any, wanted: Any) -> Any:
        return both(values, wanted)[0]

    def forward(values: Any, wanted: Any) -> Tuple[Any, Any]:
        losses, saved = both(values, wanted)
        return losses, (values, wanted, saved)

    def backward(kept: Any, grad: Any) -> Tuple[Any, Any]:
        return back_on_host(*kept, grad)[0], _no_gradient(kept[1])

    apply.defvjp(forward, backward)
    return apply


def _check_integers(values: Any, argument: str) -> None:
    if not jax.numpy.issubdtype(values.dtype, jax.numpy.integer):
        raise invalid(f"{argument} has dtype {values.dtype}; it must be int64, or other integers")


def _no_gradient(integers: Any) -> Any:
    return numpy.zeros(integers.shape, jax.dtypes.float0)
