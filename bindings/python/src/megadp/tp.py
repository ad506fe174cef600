# SPDX-License-Identifier: Apache-2.0
"""Tensor and sequence parallelism: operators between what is replicated and what is cut over ranks, linear layers cut by columns or rows,
and embeddings and the cross-entropy of a vocabulary that is cut. Forward and backward are calls of their own, for an autodiff to wrap;
megadp.torch and megadp.jax have done so.

comm is the communicator of the tensor-parallel ranks, such as Grid.comm("tp"). Its collectives are called in the same order on all of them.
"""
import ctypes
from typing import Any, Literal, NamedTuple, Optional, Sequence, Tuple, overload

from . import _raw
from ._buffer import Buffer, Which
from ._comm import Comm, choice, whole
from ._dtypes import BY_CODE, INTEGERS, trained_dtype
from ._errors import invalid
from ._handles import Closable
from ._library import lib, sized
from ._params import Placement
from ._tensor import operand

__all__ = ["CrossEntropy", "Embedding", "Grad", "Placed", "Region", "Split", "TpLinear", "TpSaved", "part_slices", "region", "region_shape",
           "set_check_replicated"]

Region = Literal["copy", "reduce", "scatter", "gather", "reduce_scatter", "exchange"]
Split = Literal["column", "row"]
Grad = Literal["partial", "replicated"]
REGIONS = {"copy": _raw.MDP_TP_COPY, "reduce": _raw.MDP_TP_REDUCE, "scatter": _raw.MDP_TP_SCATTER, "gather": _raw.MDP_TP_GATHER,
           "reduce_scatter": _raw.MDP_TP_REDUCE_SCATTER, "exchange": _raw.MDP_TP_EXCHANGE}
GRADS = {None: _raw.MDP_TP_GRAD_UNSET, "partial": _raw.MDP_TP_GRAD_PARTIAL, "replicated": _raw.MDP_TP_GRAD_REPLICATED}
SPLITS = {"column": _raw.MDP_TP_COLUMN, "row": _raw.MDP_TP_ROW}
_INT32, _INT64 = 2**31 - 1, 2**63 - 1


_checking = False  # what check_replicated=None says


def set_check_replicated(on: bool) -> None:
    """From now on layers that are made and operators that are called, those of megadp.torch and megadp.jax too, compare over the ranks what should
    be the same on all of them, or, with False, do so no longer: for debugging, since each comparison is a collective. check_replicated=True or
    False of one of them counts more. The same on all ranks. Local; for this process."""
    global _checking
    _checking = on


def checks_replicated(said: Optional[bool] = None) -> bool:
    return _checking if said is None else said


class Placed(NamedTuple):
    """How tensor-parallel ranks hold a parameter: fields of Param."""

    placement: Placement
    shard_dim: int = 0
    shard_stride: int = 0


def region(comm: Comm, kind: Region, array: Any, out: Any, *, dim: int = 0, to_dim: int = 0, grad: Optional[Grad] = None,
           parts: Optional[Sequence[int]] = None, to_parts: Optional[Sequence[int]] = None, backward: bool = False,
           check_replicated: Optional[bool] = None, stream: int = 0) -> None:
    """out = what the operator makes of array; with backward=True the gradient of the operator's input, out, from that of its output, array.

    kind: "copy" (replicated, the same on), "reduce" (to the sum over ranks, on all), "scatter" (each rank keeps its part), "gather" (all
    parts together), "reduce_scatter" (this rank's part of the sum), "exchange" (cut along dim to cut along to_dim, an all-to-all). dim is
    cut over the ranks, in equal parts or in those of sizes parts[rank]; dimensions count from the outermost, 0. grad: of what comes out
    replicated (copy, reduce, gather) the gradient that comes back is a part on each rank ("partial": they are summed), or the same on
    all ("replicated"); it must be said. Arrays have any strides, and do not overlap. check_replicated=True compares over the ranks what should be
    the same on all, for debugging; None: as set_check_replicated says. Collective over comm; blocking.
    Raises MegaDPError: INVALID (shapes, sizes that do not divide; an operand that is not replicated, on all ranks), those of a lost
    communicator."""
    cut, to_cut = (None if sizes is None else comm._counts(sizes, name) for sizes, name in ((parts, "parts"), (to_parts, "to_parts")))
    config = sized(_raw.mdp_tp_region_config, region=choice(kind, "kind", REGIONS), grad=choice(grad, "grad", GRADS),
                   dim=whole(dim, "dim", -_INT32, _INT32), to_dim=whole(to_dim, "to_dim", -_INT32, _INT32), parts=cut, to_parts=to_cut,
                   flags=_raw.MDP_TP_REGION_CHECK_REPLICATED if checks_replicated(check_replicated) else 0)
    source, _keep_source = operand(array, "array", stream=stream)
    target, _keep_target = operand(out, "out", writable=True, stream=stream)
    comm._tree.run(comm._handle, lib.mdp_tp_region_bwd if backward else lib.mdp_tp_region_fwd, ctypes.byref(config), ctypes.byref(source),
                   ctypes.byref(target), stream or None)


def region_shape(comm: Comm, kind: Region, shape: Sequence[int], dim: int = 0, to_dim: int = 0, parts: Optional[Sequence[int]] = None,
                 to_parts: Optional[Sequence[int]] = None) -> Tuple[int, ...]:
    """Of what the operator makes of an array of this shape, as region takes it, on this rank. Local. Raises MegaDPError: INVALID."""
    found = list(shape)
    for value, name in ((dim, "dim"), (to_dim, "to_dim")):
        if not 0 <= whole(value, name, -_INT32, _INT32) < max(1, len(found)):
            raise invalid(f"{name} is {value}; the array has {len(found)} dimensions")

    for sizes, name in ((parts, "parts"), (to_parts, "to_parts")):
        if sizes is not None:
            comm._counts(sizes, name)

    def becomes_part(axis: int, sizes: Optional[Sequence[int]]) -> None:  # what does not divide is refused by region
        found[axis] = found[axis] // comm.size if sizes is None else sizes[comm.rank]

    if kind in ("scatter", "reduce_scatter"):
        becomes_part(dim, parts)
    elif kind in ("gather", "exchange"):
        found[dim] = found[dim] * comm.size if parts is None else sum(parts)
    if kind == "exchange":
        becomes_part(to_dim, to_parts)
    return tuple(found)


def part_slices(size: int, rank: int, features: int, blocks: Sequence[int] = ()) -> Tuple[slice, ...]:
    """Which of a whole layer's features rank `rank` of `size` has, one after another: a slice of each block, of one where nothing is fused.
    Local. Raises MegaDPError: INVALID (sizes that do not divide or add up)."""
    found, at = [], 0
    for block in blocks or (features,):
        if block % size:
            raise invalid(f"{block} features cannot be cut evenly over {size} ranks")
        part = block // size
        found.append(slice(at + rank * part, at + (rank + 1) * part))
        at += block
    if at != features:
        raise invalid(f"the sum of blocks is {at}; the layer has {features} features there")
    return tuple(found)


class TpSaved(Closable):
    """A copy of a forward's input, for one backward. close() drops it with its memory, used or not."""

    @classmethod
    def _of(cls, pointer: Any) -> "TpSaved":
        saved = cls.__new__(cls)
        saved._own(pointer, lib.mdp_tp_saved_free)
        return saved


class TpLinear(Closable):
    """A linear layer y = x W^T + b, whose weight of [out_features, in_features] is cut over the ranks of comm; nothing is initialised.

    split: "column" (out_features: each rank computes some features of y) or "row" (in_features: each computes a part of the sum that makes
    y). bias: it has one, which is added once. transposed: the weight is [in_features, out_features]. sequence: x (column) or y (row) is cut
    along its first dimension outside the layer. gather_output: y of column is whole on all ranks. whole_input: x of row is whole on all
    ranks, each takes its part. blocks: sizes, along the cut dimension, of what is fused (q, k, v): each is cut by itself, and a rank holds
    its parts of all, one after another. grad: the gradient of a y that is replicated (row without sequence, gather_output) is "partial", a
    part on each rank, or "replicated"; it must be said then. dtype: of all operands, "f32" or "bf16". check_replicated: as region.

    buffer: holds the weight and the bias, each this rank's part, under the names or numbers `weight` and `bias_param`, of placement
    "sharded" (the bias of row: "replicated", with sequence "partial_sum"). Without it they are arrays of the caller's, as what is frozen
    is. slices: of the cut features those that are this rank's. weight_shape, bias_shape: this rank's parts. bias_placement: of the bias.
    Collective over comm, with equal arguments; blocking. comm may be closed afterwards.
    Raises MegaDPError: INVALID (sizes that do not divide; a parameter's shape, dtype or placement), UNSUPPORTED (no library for matrix
    products was found), DESYNC, those of a lost communicator.
    """

    def __init__(self, comm: Comm, split: Split, in_features: int, out_features: int, *, bias: bool = False, sequence: bool = False,
                 gather_output: bool = False, whole_input: bool = False, transposed: bool = False, blocks: Sequence[int] = (),
                 grad: Optional[Grad] = None, buffer: Optional[Buffer] = None, weight: Which = 0, bias_param: Which = 0, dtype: Any = "f32",
                 check_replicated: Optional[bool] = None) -> None:
        flags = ((_raw.MDP_TP_LINEAR_BIAS if bias else 0) | (_raw.MDP_TP_LINEAR_TRANSPOSED if transposed else 0) |
                 (_raw.MDP_TP_LINEAR_SEQUENCE if sequence else 0) | (_raw.MDP_TP_LINEAR_GATHER_OUTPUT if gather_output else 0) |
                 (_raw.MDP_TP_LINEAR_WHOLE_INPUT if whole_input else 0) |
                 (_raw.MDP_TP_LINEAR_CHECK_REPLICATED if checks_replicated(check_replicated) else 0))
        sizes = [whole(block, f"blocks[{i}]", -_INT64, _INT64) for i, block in enumerate(blocks)]
        config = sized(_raw.mdp_tp_linear_config, split=choice(split, "split", SPLITS),
                       in_features=whole(in_features, "in_features", -_INT64, _INT64),
                       out_features=whole(out_features, "out_features", -_INT64, _INT64),
                       blocks=(ctypes.c_int64 * len(sizes))(*sizes) if sizes else None, block_count=len(sizes),
                       weight=_number(buffer, weight, "weight"), bias=_number(buffer, bias_param, "bias_param"),
                       dtype=trained_dtype(dtype, "the layer").code, grad=choice(grad, "grad", GRADS), flags=flags)

        def create(over: Any, *arguments: Any) -> Any:
            def with_buffer(held: Any) -> Any:
                config.buffer = held
                return lib.mdp_tp_linear_create(over, *arguments)

            return lib.mdp_tp_linear_create(over, *arguments) if buffer is None else buffer._call(with_buffer)

        self._tree = comm._tree
        self._own(self._tree.make(comm._handle, create, _raw.mdp_tp_linear, lib.mdp_tp_linear_destroy, ctypes.byref(config)),
                  lib.mdp_tp_linear_destroy)
        column = split == "column"
        self.slices = part_slices(comm.size, comm.rank, out_features if column else in_features, sizes)
        outs, ins = (out_features // comm.size, in_features) if column else (out_features, in_features // comm.size)
        self.weight_shape = (ins, outs) if transposed else (outs, ins)
        self.bias_shape: Optional[Tuple[int]] = (outs,) if bias else None
        self._column, self._size, self._blocks = column, comm.size, sizes
        self._cut_dim = 0 if column != transposed else 1
        self._sequence = sequence and comm.size > 1
        self._features_out = out_features if gather_output else outs
        self.bias_placement = (Placed("sharded", 0, max(1, len(sizes))) if column else Placed("partial_sum" if sequence else "replicated"))

    @property
    def weight_placement(self) -> Placed:
        """Of the weight, in a Param or a checkpoint. Raises MegaDPError: INVALID (blocks of different sizes: no placement describes them)."""
        if len(set(self._blocks)) > 1:
            raise invalid(f"blocks are {tuple(self._blocks)}; a placement describes blocks of equal sizes, also in checkpoints: make a layer of "
                          "each size")
        return Placed("sharded", self._cut_dim, max(1, len(self._blocks)))

    def out_shape(self, x_shape: Sequence[int]) -> Tuple[int, ...]:
        """Of the output for an input of this shape, on this rank. Local."""
        shape = list(x_shape)
        if shape:
            shape[-1] = self._features_out
        if self._sequence and len(shape) > 1:
            shape[0] = shape[0] * self._size if self._column else shape[0] // self._size
        return tuple(shape)

    @overload
    def forward(self, x: Any, out: Any, *, weight: Any = None, bias: Any = None, save: Literal[True] = True, stream: int = 0) -> TpSaved: ...

    @overload
    def forward(self, x: Any, out: Any, *, weight: Any = None, bias: Any = None, save: Literal[False], stream: int = 0) -> None: ...

    def forward(self, x: Any, out: Any, *, weight: Any = None, bias: Any = None, save: bool = True, stream: int = 0) -> Optional[TpSaved]:
        """out = x W^T + bias; features are the last dimension, the sequence is the first. weight, bias: None for parameters of the buffer, whose
        values are waited for. Returns a copy of x for backward; with save=False None, and the caller keeps x. Arrays have any strides and
        the layer's dtype, and out does not overlap the others. Collective over comm; blocking.
        Raises MegaDPError: INVALID (shapes, dtypes), STATE, those of a lost communicator."""
        with_inputs = _operands((("x", x), ("weight", weight), ("bias", bias)), stream)
        target, _keep = operand(out, "out", writable=True, stream=stream)
        saved = ctypes.POINTER(_raw.mdp_tp_saved)()
        try:
            self._tree.run(self._handle, lib.mdp_tp_linear_fwd, *with_inputs.references, ctypes.byref(target), stream or None,
                           ctypes.byref(saved) if save else None)
        except BaseException:
            if saved:  # it was made, and then a signal came
                lib.mdp_tp_saved_free(saved)
            raise
        return TpSaved._of(saved) if save else None

    def backward(self, grad_out: Any, grad_x: Any = None, *, saved: Optional[TpSaved] = None, x: Any = None, weight: Any = None,
                 grad_weight: Any = None, grad_bias: Any = None, add: bool = False, stream: int = 0) -> None:
        """The gradients, from that of out. Either saved or x is given, neither if the weight needs no gradient. Those that are None are not
        computed; those of the buffer's parameters always are, written where they belong and counted as ready. weight: as in forward.
        add: what is there of grad_weight and grad_bias, which have the layer's dtype or float32, is added to. Collective over comm;
        blocking. Raises MegaDPError: INVALID (shapes, dtypes), STATE (saved was used, or is another layer's; as Buffer.acquire), those of
        a lost communicator."""
        inputs = _operands((("x", x), ("weight", weight), ("grad_out", grad_out)), stream)
        outputs = _operands((("grad_x", grad_x), ("grad_weight", grad_weight), ("grad_bias", grad_bias)), stream, writable=True)
        flags = _raw.MDP_GRAD_ADD if add else 0

        def call(layer: Any, kept: Any) -> Any:
            return lib.mdp_tp_linear_bwd(layer, kept, *inputs.references, *outputs.references, flags, stream or None)

        def with_saved(layer: Any) -> Any:
            return call(layer, None) if saved is None else saved._call(lambda kept: call(layer, kept))

        self._tree.run(self._handle, with_saved)


class Embedding:
    """Rows of a table whose `rows` rows are cut over the ranks of comm, one rank's after another's; weight, [rows / size, features], is this
    rank's part.

    sequence: the output is cut along its first dimension. grad: of an output that is not, the gradient is "partial", a part on each rank, or
    "replicated"; it must be said then. check_replicated: as region. comm stays open. Holds no arrays. Local.
    Raises MegaDPError: INVALID.
    """

    def __init__(self, comm: Comm, rows: int, *, grad: Optional[Grad] = None, sequence: bool = False, check_replicated: Optional[bool] = None) -> None:
        self._config = sized(_raw.mdp_tp_embedding_config, rows=whole(rows, "rows", -_INT64, _INT64), grad=choice(grad, "grad", GRADS),
                             flags=(_raw.MDP_TP_EMBEDDING_SEQUENCE if sequence else 0) |
                                   (_raw.MDP_TP_EMBEDDING_CHECK_REPLICATED if checks_replicated(check_replicated) else 0))
        self._comm, self._sequence = comm, sequence
        self.rows = rows // comm.size  # what does not divide is refused by forward

    def out_shape(self, ids_shape: Sequence[int], features: int) -> Tuple[int, ...]:
        """Of the output for ids of this shape, on this rank. Local."""
        shape = [*ids_shape, features]
        if self._sequence and len(shape) > 1:
            shape[0] //= self._comm.size
        return tuple(shape)

    def forward(self, ids: Any, weight: Any, out: Any = None, *, stream: int = 0) -> Any:
        """Rows `ids`, which are the same on all ranks, of the whole table: out, or a new numpy array, of ids' shape and features. Arrays have
        any strides; ids are integers (int64; others are converted). Collective over comm; blocking.
        Raises MegaDPError: INVALID (shapes, dtypes, rows that do not divide; on the host an id that is not in the table: on a GPU its row is
        NaN), those of a lost communicator."""
        rows, _keep_rows = _integers(ids, "ids", stream)
        table, _keep_table = operand(weight, "weight", stream=stream)
        if out is None:
            out = _empty(self.out_shape(rows.shape[:rows.ndim], table.shape[table.ndim - 1] if table.ndim else 1), table.dtype)
        target, _keep = operand(out, "out", writable=True, stream=stream)
        comm = self._comm
        comm._tree.run(comm._handle, lib.mdp_tp_embedding_fwd, ctypes.byref(self._config), ctypes.byref(rows), ctypes.byref(table),
                       ctypes.byref(target), stream or None)
        return out

    def backward(self, ids: Any, grad_output: Any, grad_weight: Any = None, add: bool = False, *, stream: int = 0) -> Any:
        """The gradient of this rank's part of the table, from that of out: grad_weight, or a new numpy array of grad_output's type. Each row is
        summed in float32, in the order of ids; rows that none asked for are zero. add: what is there of grad_weight is added to. Collective
        over comm; blocking. Raises MegaDPError: as forward."""
        rows, _keep_rows = _integers(ids, "ids", stream)
        given, _keep_given = operand(grad_output, "grad_output", stream=stream)
        if grad_weight is None:
            if add:
                raise invalid("add is True and grad_weight is None; it must be the array that is added to")
            grad_weight = _empty((self.rows, given.shape[given.ndim - 1] if given.ndim else 1), given.dtype)
        target, _keep = operand(grad_weight, "grad_weight", writable=True, stream=stream)
        comm = self._comm
        comm._tree.run(comm._handle, lib.mdp_tp_embedding_bwd, ctypes.byref(self._config), ctypes.byref(rows), ctypes.byref(given),
                       ctypes.byref(target), _raw.MDP_GRAD_ADD if add else 0, stream or None)
        return grad_weight


class CrossEntropy:
    """The cross-entropy of logits whose last dimension, the classes, is cut over the ranks of comm: the same number on each, one rank's after
    another's. No rank sees the whole.

    classes: how many there are (0: as many as all ranks have columns); columns beyond are padding, and do not count. ignore_index: a target
    without loss and gradient. label_smoothing: the target has probability 1 - label_smoothing, each other class label_smoothing / (classes -
    1). z_loss: adds z_loss * log(sum of exp(logits))^2. check_replicated: as region. comm stays open. Holds no arrays. Local.
    Raises MegaDPError: INVALID.
    """

    def __init__(self, comm: Comm, classes: int = 0, ignore_index: Optional[int] = None, label_smoothing: float = 0.0, z_loss: float = 0.0,
                 check_replicated: Optional[bool] = None) -> None:
        ignored = 0 if ignore_index is None else whole(ignore_index, "ignore_index", -_INT64 - 1, _INT64)
        self._config = sized(_raw.mdp_tp_cross_entropy_config, classes=whole(classes, "classes", -_INT64, _INT64), ignore_index=ignored,
                             label_smoothing=label_smoothing, z_loss=z_loss,
                             flags=(0 if ignore_index is None else _raw.MDP_TP_CROSS_ENTROPY_IGNORE) |
                                   (_raw.MDP_TP_CROSS_ENTROPY_CHECK_REPLICATED if checks_replicated(check_replicated) else 0))
        self._comm = comm

    def forward(self, logits: Any, targets: Any, losses: Any = None, saved: Any = None, *, stream: int = 0) -> Tuple[Any, Any]:
        """(losses, saved) of this rank's logits, [.., columns], and targets, [..], which are the same on all ranks: integers (int64; others are
        converted) that number the whole's classes. losses: float32 as targets, the same on all ranks; saved: float32, [.., 2], for backward.
        Those that are None are new numpy arrays. Collective over comm; blocking.
        Raises MegaDPError: INVALID (shapes, dtypes; on the host a target that is no class: on a GPU its loss is NaN), those of a lost
        communicator."""
        x, _keep_x = operand(logits, "logits", stream=stream)
        wanted, _keep_wanted = _integers(targets, "targets", stream)
        shape = tuple(wanted.shape[:wanted.ndim])
        losses = _empty(shape) if losses is None else losses
        saved = _empty((*shape, 2)) if saved is None else saved
        to, _keep_to = operand(losses, "losses", writable=True, stream=stream)
        kept, _keep_kept = operand(saved, "saved", writable=True, stream=stream)
        comm = self._comm
        comm._tree.run(comm._handle, lib.mdp_tp_cross_entropy_fwd, ctypes.byref(self._config), ctypes.byref(x), ctypes.byref(wanted),
                       ctypes.byref(to), ctypes.byref(kept), stream or None)
        return losses, saved

    def backward(self, logits: Any, targets: Any, saved: Any, grad_losses: Any, grad_logits: Any = None, *, stream: int = 0) -> Any:
        """The gradient of this rank's logits, from that of the losses, float32: grad_logits, which may be logits itself, or a new numpy array.
        Any number of times. Local. Raises MegaDPError: as forward."""
        x, _keep_x = operand(logits, "logits", stream=stream)
        wanted, _keep_wanted = _integers(targets, "targets", stream)
        kept, _keep_kept = operand(saved, "saved", stream=stream)
        given, _keep_given = operand(grad_losses, "grad_losses", stream=stream)
        if grad_logits is None:
            grad_logits = _empty(x.shape[:x.ndim], x.dtype)
        target, _keep = operand(grad_logits, "grad_logits", writable=True, stream=stream)
        comm = self._comm
        comm._tree.run(comm._handle, lib.mdp_tp_cross_entropy_bwd, ctypes.byref(self._config), ctypes.byref(x), ctypes.byref(wanted),
                       ctypes.byref(kept), ctypes.byref(given), ctypes.byref(target), stream or None)
        return grad_logits


def share_of_others(label_smoothing: float, classes: int) -> float:
    """CrossEntropy's label_smoothing where every class, the target too, is to have label_smoothing / classes, as torch and optax have it."""
    if not 0 <= label_smoothing <= 1:
        raise invalid(f"label_smoothing is {label_smoothing}; it must be from 0 to 1")
    return label_smoothing * (classes - 1) / classes if classes > 0 else 0.0


def _integers(array: Any, argument: str, stream: int) -> Tuple[Any, Any]:
    dtype = getattr(array, "dtype", None)
    if getattr(dtype, "kind", "") in ("i", "u") and hasattr(array, "astype"):  # as numpy's; as it is where it is int64
        array = array.astype("int64", copy=False)
    return operand(array, argument, stream=stream, among=INTEGERS)


def _empty(shape: Sequence[int], code: int = _raw.MDP_DTYPE_F32) -> Any:
    """A new numpy array of an mdp_dtype."""
    import numpy

    if code != _raw.MDP_DTYPE_BF16:
        return numpy.empty(tuple(shape), BY_CODE[code].name)
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError("numpy has no bfloat16 of its own: install ml_dtypes, or give the array that is to be written") from None
    return numpy.empty(tuple(shape), ml_dtypes.bfloat16)


def _number(buffer: Optional[Buffer], param: Which, argument: str) -> int:
    if buffer is not None:
        return buffer._number(param)
    if isinstance(param, str):
        raise invalid(f"{argument} is {param!r}, a parameter of a buffer; none is given")
    return whole(param, argument, 0, 2**64 - 1)


class _Operands:
    """References to mdp_tensor for a call, NULL for None, and what keeps the arrays alive until it has returned."""

    def __init__(self, references: Sequence[Any], keep: Sequence[Any]) -> None:
        self.references = references
        self._keep = keep


def _operands(named: Sequence[Tuple[str, Any]], stream: int, writable: bool = False) -> _Operands:
    taken: Sequence[Tuple[Any, Any]] = [(None, None) if array is None else operand(array, name, writable, stream) for name, array in named]
    return _Operands([None if struct is None else ctypes.byref(struct) for struct, _ in taken], taken)
