# SPDX-License-Identifier: Apache-2.0
"""What is registered, how it is laid out, and what that would take: parameters, options of grids and buffers, plans."""
import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Literal, Mapping, NamedTuple, Optional, Sequence, Tuple, TypedDict, Union

from . import _raw
from ._comm import c_text, choice, whole
from ._dtypes import trained_dtype
from ._errors import invalid
from ._library import lib, sized, text_of
from ._optimizer_config import OptimizerOptions, planned_config

if TYPE_CHECKING:
    from typing_extensions import Unpack

PLACEMENTS = {None: _raw.MDP_PLACEMENT_UNSET, "replicated": _raw.MDP_PLACEMENT_REPLICATED, "sharded": _raw.MDP_PLACEMENT_SHARDED,
              "partial_sum": _raw.MDP_PLACEMENT_PARTIAL_SUM, "partial_mean": _raw.MDP_PLACEMENT_PARTIAL_MEAN}
SHARDINGS = {"default": _raw.MDP_SHARDING_DEFAULT, "zero_0": _raw.MDP_SHARDING_ZERO_0, "zero_1": _raw.MDP_SHARDING_ZERO_1,
             "zero_2": _raw.MDP_SHARDING_ZERO_2, "whole": _raw.MDP_SHARDING_WHOLE}
MISSING = {"error": _raw.MDP_MISSING_ERROR, "zero": _raw.MDP_MISSING_ZERO, "skip": _raw.MDP_MISSING_SKIP}
SCALINGS = {"mean": _raw.MDP_SCALING_MEAN, "sum": _raw.MDP_SCALING_SUM, "tokens": _raw.MDP_SCALING_TOKENS}
GRAD_DTYPES = {"f32": _raw.MDP_DTYPE_F32, "same": _raw.MDP_DTYPE_SAME}
WIRE_DTYPES = {"f32": _raw.MDP_DTYPE_F32, "bf16": _raw.MDP_DTYPE_BF16}
AXES = {"tp": _raw.MDP_AXIS_TP, "cp": _raw.MDP_AXIS_CP, "ep": _raw.MDP_AXIS_EP, "dp": _raw.MDP_AXIS_DP, "pp": _raw.MDP_AXIS_PP}
_INT32 = 2**31 - 1
Placement = Literal["replicated", "sharded", "partial_sum", "partial_mean"]
Sharding = Literal["default", "zero_0", "zero_1", "zero_2", "whole"]


class GridOptions(TypedDict, total=False):
    """Keywords of Grid."""

    tp: int
    cp: int
    ep: int
    pp: int
    expert_tp: int
    instances: int
    order: Optional[str]


class BufferOptions(TypedDict, total=False):
    """Keywords of Buffer, and of what makes one."""

    grad_dtype: Literal["f32", "same"]
    wire_dtype: Literal["f32", "bf16"]
    sharding: Sharding
    missing: Literal["error", "zero", "skip"]
    scaling: Literal["mean", "sum", "tokens"]
    bucket_elements: int
    bucket_count: int
    pool_buckets: int
    spill_limit: int
    overlap: bool
    high_bandwidth_padding: bool
    reference_buckets: bool
    ignore_memory: bool
    error_feedback: bool
    check_finite: bool
    check_large: bool


@dataclass(frozen=True)
class Param:
    """One parameter to be registered: dtype "f32", "bf16" or "f16" (or a dtype of that name). uses_per_step: how many put or ready make
    it ready in a microbatch. expert, placement (None, "replicated", "sharded" on shard_dim, in shard_stride pieces a rank, or "partial_sum"
    or "partial_mean": replicated, but each tensor-parallel rank has a part of the gradient): where it lives in a Grid; placement must be
    said when tp or ep is above 1. param_group: index of a parameter group of the optimizer. frozen: not
    trained, the library keeps only its name. own_bucket: a bucket to itself. tie: a name that its copies on other pipeline stages have too:
    their gradients are added up. use_order: parameters are used in ascending order of this, equal ones as registered; Buffer.use_order tells it.
    sharding: "zero_1" or "whole" where it is not the buffer's. cost: with "whole", of the parameter's update, which is balanced over the
    ranks; 0: its elements."""

    name: str
    shape: Tuple[int, ...]
    dtype: Any = "f32"
    uses_per_step: int = 1
    expert: bool = False
    placement: Optional[Placement] = None
    shard_dim: int = 0
    shard_stride: int = 0
    param_group: int = 0
    frozen: bool = False
    own_bucket: bool = False
    tie: Optional[str] = None
    use_order: int = 0
    sharding: Sharding = "default"
    cost: float = 0.0


Params = Union[Mapping[str, Any], Iterable[Any]]


def read_params(params: Params) -> List[Param]:
    """From Params, (name, shape) pairs, or a mapping of names to shapes or to arrays, whose shape and dtype are taken."""
    items: Iterable[Any] = params.items() if isinstance(params, Mapping) else params
    return [item if isinstance(item, Param) else _read_param(item) for item in items]


def _read_param(item: Any) -> Param:
    try:
        name, value = item
    except (TypeError, ValueError):
        raise invalid(f"params holds {item!r}; each must be a Param, or a name and a shape or an array") from None
    if hasattr(value, "shape"):
        return Param(name, tuple(value.shape), getattr(value, "dtype", "f32"))
    return Param(name, tuple(value))


def param_number(param: Union[int, str], index: Mapping[str, int]) -> int:
    """index: the number of each name."""
    if isinstance(param, str):
        if param not in index:
            raise invalid(f"param is {param!r}; no parameter of this name is registered")
        return index[param]
    return whole(param, "param", 0, 2**64 - 1)


def native_params(params: Sequence[Param]) -> Tuple[Any, int]:
    structs = (_raw.mdp_param * max(1, len(params)))()
    for struct, param in zip(structs, params):
        what = f"of parameter {param.name!r}"
        shape = tuple(whole(size, f"a size in shape {what}", -2**63, 2**63 - 1) for size in param.shape)
        flags = (_raw.MDP_PARAM_FROZEN if param.frozen else 0) | (_raw.MDP_PARAM_OWN_BUCKET if param.own_bucket else 0)
        struct.struct_size = ctypes.sizeof(struct)
        struct.dtype = trained_dtype(param.dtype, f"parameter {param.name!r}").code
        struct.name = c_text(param.name, f"the name {what}")
        struct.shape = (ctypes.c_int64 * len(shape))(*shape)
        struct.ndim = len(shape)
        struct.uses_per_step = whole(param.uses_per_step, f"uses_per_step {what}", 1, _INT32)
        struct.param_class = _raw.MDP_PARAM_CLASS_EXPERT if param.expert else _raw.MDP_PARAM_CLASS_DENSE
        struct.placement = choice(param.placement, f"placement {what}", PLACEMENTS)
        struct.shard_dim = whole(param.shard_dim, f"shard_dim {what}", -_INT32, _INT32)
        struct.shard_stride = whole(param.shard_stride, f"shard_stride {what}", -_INT32, _INT32)
        struct.param_group = whole(param.param_group, f"param_group {what}", -_INT32, _INT32)
        struct.use_order = whole(param.use_order, f"use_order {what}", -_INT32 - 1, _INT32)
        struct.flags = flags
        struct.tie = None if param.tie is None else c_text(param.tie, f"the tie {what}")
        struct.sharding = choice(param.sharding, f"sharding {what}", SHARDINGS)
        struct.cost = float(param.cost)
    return structs, len(params)


def grid_config(tp: int = 1, cp: int = 1, ep: int = 1, pp: int = 1, expert_tp: int = 0, instances: int = 1,
                order: Optional[str] = None) -> Any:
    sizes = {name: whole(value, name, -_INT32, _INT32) for name, value in
             (("tp", tp), ("cp", cp), ("ep", ep), ("pp", pp), ("expert_tp", expert_tp), ("instances", instances))}
    return sized(_raw.mdp_grid_config, order=None if order is None else c_text(order, "order"), **sizes)


def buffer_config(grad_dtype: str = "f32", sharding: str = "default", missing: str = "error", scaling: str = "mean",
                  bucket_elements: int = 0, bucket_count: int = 0, pool_buckets: int = 0, spill_limit: int = 0, overlap: bool = True,
                  high_bandwidth_padding: bool = False, reference_buckets: bool = False, ignore_memory: bool = False,
                  wire_dtype: str = "f32", error_feedback: bool = False, check_finite: bool = False, check_large: bool = False) -> Any:
    flags = ((0 if overlap else _raw.MDP_BUFFER_NO_OVERLAP) |
             (_raw.MDP_BUFFER_HIGH_BANDWIDTH_PADDING if high_bandwidth_padding else 0) |
             (_raw.MDP_BUFFER_REFERENCE_BUCKETS if reference_buckets else 0) |
             (_raw.MDP_BUFFER_IGNORE_MEMORY if ignore_memory else 0) |
             (_raw.MDP_BUFFER_ERROR_FEEDBACK if error_feedback else 0) |
             (_raw.MDP_BUFFER_CHECK_FINITE if check_finite else 0) |
             (_raw.MDP_BUFFER_CHECK_LARGE if check_large else 0))
    return sized(_raw.mdp_buffer_config, grad_dtype=choice(grad_dtype, "grad_dtype", GRAD_DTYPES),
                 sharding=choice(sharding, "sharding", SHARDINGS), missing=choice(missing, "missing", MISSING),
                 bucket_elements=whole(bucket_elements, "bucket_elements", 0, 2**64 - 1),
                 bucket_count=whole(bucket_count, "bucket_count", 0, 2**64 - 1),
                 pool_buckets=whole(pool_buckets, "pool_buckets", 0, 2**64 - 1),
                 spill_limit=whole(spill_limit, "spill_limit", 0, 2**64 - 1), flags=flags,
                 scaling=choice(scaling, "scaling", SCALINGS), wire_dtype=choice(wire_dtype, "wire_dtype", WIRE_DTYPES))


def axes_code(axes: str, expert: bool) -> int:
    """The axes that "dp" or "dp-cp" names, on the dense or the expert grid."""
    code = _raw.MDP_AXIS_EXPERT_GRID if expert else 0
    for name in axes.split("-"):
        code |= choice(name, f"an axis in {axes!r}", AXES)
    return code


class Plan(NamedTuple):
    """Memory of one rank, in bytes, before rounding each allocation up to a page; as mdp_plan_report in megadp.h."""

    param_bytes: int
    grad_bytes: int
    grad_shard_bytes: int
    master_bytes: int
    state_bytes: int
    scratch_bytes: int
    padding_elements: int
    buckets: int
    owned_elements: int
    communicator_bytes: int
    spill_bytes: int
    feedback_bytes: int
    average_bytes: int


def read_struct(struct: Any, kind: Any) -> Any:
    return kind(**{name: getattr(struct, name) for name in kind._fields})


def plan(params: Params, world: int = 1, rank: int = 0, grid: Optional[GridOptions] = None,
         optimizer: Optional[OptimizerOptions] = None, **options: "Unpack[BufferOptions]") -> Plan:
    """What a Buffer of these parameters and an Optimizer would allocate on one rank of a world. grid: the arguments of Grid. optimizer: those
    of Optimizer, such as {"rule": "lion", "state_dtype": "bf16"}; it has all groups. None: AdamW in float32. options: those of Buffer.
    Local, any thread, nothing is allocated. Raises MegaDPError: INVALID, UNSUPPORTED."""
    listed = read_params(params)
    structs, count = native_params(listed)
    out = sized(_raw.mdp_plan_report)
    lib.mdp_plan(ctypes.byref(grid_config(**(grid or {}))), whole(world, "world", -_INT32, _INT32), whole(rank, "rank", -_INT32, _INT32),
                 ctypes.byref(buffer_config(**options)), structs, count, _planned(optimizer, listed), ctypes.byref(out))
    found: Plan = read_struct(out, Plan)
    return found


def plan_layout(params: Params, world: int = 1, grid: Optional[GridOptions] = None, optimizer: Optional[OptimizerOptions] = None,
                **options: "Unpack[BufferOptions]") -> Dict[str, Any]:
    """The whole layout: arenas with the place of every parameter, the buckets, the ranges that each rank owns, the bytes of each rank, as
    mdp_plan_json tells it. Arguments as plan. Local, any thread."""
    listed = read_params(params)
    structs, count = native_params(listed)
    of_grid, of_buffer, of_optimizer = grid_config(**(grid or {})), buffer_config(**options), _planned(optimizer, listed)
    found: Dict[str, Any] = text_of(lambda *text: lib.mdp_plan_json(
        ctypes.byref(of_grid), whole(world, "world", -_INT32, _INT32), ctypes.byref(of_buffer), structs, count, of_optimizer, *text))
    return found


def _planned(optimizer: Optional[OptimizerOptions], params: Sequence[Param]) -> Any:
    if optimizer is None:
        return None
    index = {param.name: number for number, param in enumerate(params)}
    return ctypes.byref(planned_config(lambda param: param_number(param, index), len(params), **optimizer))


def grid_groups(axes: str, world: int, grid: Optional[GridOptions] = None, expert: bool = False) -> List[List[int]]:
    """All groups that the axes ("dp", "dp-cp") span in a world of this size. grid: the arguments of Grid. Local, any thread."""
    config = grid_config(**(grid or {}))
    found: List[List[int]] = text_of(lambda *text: lib.mdp_grid_groups_json(
        ctypes.byref(config), whole(world, "world", -_INT32, _INT32), axes_code(axes, expert), *text))
    return found
