# SPDX-License-Identifier: Apache-2.0
"""What .grad of a wrapped parameter is: a tensor that knows which reduced gradient it stands for.

Scripts read and change .grad between backward and step: torch.nn.utils.clip_grad_norm_, GradScaler, norms for a log. At that time buckets
are still being reduced, and afterwards a rank holds its shard only. So every function that gets such a tensor comes here first, by
__torch_function__, and is one of these: it looks at no values; it takes a norm; it scales; it changes every element by itself; or it reads
values, which is right only where all of them are on this rank, and refused otherwise.
"""
import ctypes
import math
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from . import _dlpack
from ._errors import MegaDPError, Status, invalid
from ._torch_eager import eager

if TYPE_CHECKING:
    from ._torch_steps import Gradients

_NO_VALUES = frozenset((
    "size", "stride", "dim", "ndimension", "numel", "nelement", "element_size", "is_contiguous", "is_floating_point", "is_complex",
    "is_signed", "is_conj", "is_neg", "is_inference", "is_same_size", "data_ptr", "storage_offset", "get_device", "requires_grad_",
    "has_names", "__len__", "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_empty",
    "new_zeros", "new_ones", "new_full", "new_tensor", "result_type", "can_cast",
    # torch.compile describes the .grad of each parameter that it meets, and nn.Module's conversions look at it too.
    "_is_view", "untyped_storage", "_is_zerotensor", "_is_functional_tensor", "_has_compatible_shallow_copy_type", "is_set_to", "is_shared",
    "is_pinned", "is_coalesced", "sparse_dim", "dense_dim", "dim_order"))
_CONVERSIONS = frozenset(("to", "type", "type_as", "cpu", "cuda", "float", "double", "half", "bfloat16", "contiguous"))  # which may change nothing
_VALUE_ATTRIBUTES = frozenset(("T", "mT", "H", "mH", "real", "imag"))  # the others are about the tensor, not about what is in it
_NORMS = frozenset(("vector_norm", "linalg_vector_norm", "norm", "linalg_norm", "_foreach_norm"))
_PRODUCTS = frozenset(("mul_", "multiply_", "__imul__", "_foreach_mul_"))
_QUOTIENTS = frozenset(("div_", "divide_", "true_divide_", "__itruediv__", "__idiv__", "_foreach_div_"))
_BY_ELEMENT = frozenset(("clamp_", "clip_", "clamp_min_", "clamp_max_", "_foreach_clamp_min_", "_foreach_clamp_max_", "nan_to_num_",
                         "neg_", "sign_"))
_IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ipow__", "__iand__", "__ior__", "__ixor__", "__ifloordiv__",
             "__imod__", "__ilshift__", "__irshift__", "__setitem__")

_calloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)(("calloc", ctypes.CDLL(None)))


class Grad(torch.Tensor):
    """The gradient of one wrapped parameter, in the library's memory, or standing in for one that is kept there in a wider type."""

    _home: "weakref.ref[Gradients]"
    _number: int

    @classmethod
    @eager
    def __torch_function__(cls, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None) -> Any:
        return _dispatch(func, args, kwargs or {})

    def as_subclass(self, cls: Any) -> Any:
        return _dispatch(torch.Tensor.as_subclass, (self, cls), {})  # torch would not ask

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        home = self._home()
        with torch._C.DisableTorchFunctionSubclass():
            about = f"shape={tuple(self.shape)}, dtype={self.dtype}"
        return f"Grad(of {home.names[self._number]!r}, {about})" if home is not None else f"Grad({about})"

    __str__ = __repr__


def make(plain: torch.Tensor, home: "Gradients", number: int) -> Grad:
    view = plain.as_subclass(Grad)  # type: ignore[arg-type, unused-ignore]
    view._home, view._number = weakref.ref(home), number
    return view


def lazy_zeros(size: int) -> torch.Tensor:
    """So many bytes of zeros on the host. Where nobody writes, the system has no pages for much of it. The struct that torch takes it by lies before
    it, so that the C library's free, which needs no Python, gives both back."""
    before = 128
    address = _calloc(1, before + max(size, 1))
    if not address:
        raise MemoryError
    managed = _dlpack.DLManagedTensor.from_address(address)
    managed.deleter, tensor = _dlpack._free, managed.tensor
    tensor.data, tensor.device_type, tensor.ndim, tensor.code, tensor.bits, tensor.lanes = address + before, _dlpack.CPU, 1, 1, 8, 1
    length = ctypes.c_int64.from_address(address + ctypes.sizeof(managed))
    length.value, tensor.shape = size, ctypes.pointer(length)
    found: torch.Tensor = torch.utils.dlpack.from_dlpack(_dlpack._new_capsule(address, _dlpack._OLD, None))
    return found


def stand_in_of(p: torch.Tensor, shared_zeros: torch.Tensor) -> torch.Tensor:
    """A tensor like p whose elements mean nothing. What gets at them past __torch_function__, as a process group of torch's does, finds as many as
    there should be, on `shared_zeros`, which all stand-ins on the host share; on a GPU, where that would cost memory, one element, which NCCL's
    process groups refuse by its strides."""
    if p.device.type != "cpu":
        return torch.zeros((), dtype=p.dtype, device=p.device).expand(p.shape)
    return shared_zeros[:p.nbytes].view(p.dtype).view(p.shape).data  # .data: with a count of writes of its own


def _gradients_in(value: Any, found: List[Grad]) -> List[Grad]:
    if isinstance(value, Grad):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _gradients_in(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _gradients_in(item, found)
    return found


def _replaced(value: Any, by: Callable[[Grad], torch.Tensor]) -> Any:
    if isinstance(value, Grad):
        return by(value)
    if type(value) in (list, tuple):
        return type(value)(_replaced(item, by) for item in value)
    if isinstance(value, dict):
        return {key: _replaced(item, by) for key, item in value.items()}
    return value


def _plainly(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


@eager
def _dispatch(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    name = getattr(func, "__name__", str(func))
    assigned = name in ("__set__", "__delete__")
    if assigned or name == "__get__":
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        if attribute == "data" and not assigned:
            return args[0]
        if attribute not in _VALUE_ATTRIBUTES and attribute != "data":
            return _plainly(func, args, kwargs)
        if assigned and len(args) == 2 and args[1] is args[0]:  # what nn.Module makes of a conversion that changed nothing
            return None
        name = f"assignment to .{attribute}" if assigned else attribute
    elif name in _NO_VALUES or (name == "type" and len(args) + len(kwargs) == 1):
        return _without_values(func, args, kwargs)
    elif name in ("detach", "detach_", "alias") or (name in _CONVERSIONS and _as_it_is(func, args, kwargs)):
        return args[0]
    first = _gradients_in(args[:1], [])
    lists = name.startswith(("_foreach_", "_amp_foreach_")) and args and isinstance(args[0], (list, tuple))
    if lists and len({_home_of(item) for item in args[0]}) > 1:
        return _home_by_home(func, args, kwargs)
    home = _home_of((first or _gradients_in((args, kwargs), []))[0])
    if home is None:
        return _plainly(func, _replaced(args, _reading(name)), _replaced(kwargs, _reading(name)))
    degree = _degree(first, name, args, kwargs) if name in _NORMS and first else None
    if degree is not None and (degree > 0 or not home.whole):
        return _norm(home, first, name, degree, kwargs.get("dtype"))
    if name == "_amp_foreach_non_finite_check_and_unscale_":
        return _unscale(home, first, *args[1:], **kwargs)
    written = _gradients_in(kwargs.get("out"), [])
    if written:
        raise invalid(f"{name} writes into {written[0]!r}; {_WAYS}")
    if first and (assigned or name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))):
        return _change(home, first, name, func, args, kwargs)
    return func(*_replaced(args, _reading(name)), **_replaced(kwargs, _reading(name)))


def _home_of(value: Any) -> "Optional[Gradients]":
    """None: it is no gradient, or its memory is torch's by now."""
    home = value._home() if isinstance(value, Grad) else None
    return None if home is None or home.storage.closed else home


def _reading(what: str) -> Callable[[Grad], torch.Tensor]:
    """The values of a gradient of any model."""

    def read(grad: Grad) -> torch.Tensor:
        home = _home_of(grad)
        return _as_plain(grad) if home is None else home.values(grad._number, what)

    return read


def _as_plain(grad: Grad) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.as_subclass(grad, torch.Tensor)


def _as_it_is(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
    """Whether a conversion gives the gradient itself, as it has the type, device and layout already."""
    if not isinstance(args[0], Grad):
        return False
    with torch._C.DisableTorchFunctionSubclass():
        layouts = [value for value in (*args[1:], *kwargs.values()) if isinstance(value, torch.memory_format)]
        if func is torch.Tensor.contiguous:
            layout = layouts[0] if layouts else torch.contiguous_format
        else:
            layout = layouts[0] if layouts else torch.preserve_format
            probe = torch.empty((0,), dtype=args[0].dtype, device=args[0].device)
            others = {key: value for key, value in kwargs.items() if key != "memory_format"}
            if func(probe, *(value for value in args[1:] if not isinstance(value, torch.memory_format)), **others) is not probe:
                return False
        stands_in = not any(args[0].stride())  # whose own layout means nothing
        return layout is torch.preserve_format or args[0].is_contiguous(memory_format=layout) or (stands_in and layout is torch.contiguous_format)


def _without_values(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    found = _plainly(func, args, kwargs)
    if isinstance(found, Grad):
        return args[0] if found is args[0] else torch.Tensor.as_subclass(found, torch.Tensor)
    return found


_WAYS = ("between backward and step gradients can be scaled, clamped and clipped (torch.nn.utils.clip_grad_norm_ and clip_grad_value_, "
         "GradScaler, max_grad_norm of a sharded optimizer, p.grad.mul_(number)), and their norms be had")


def _home_by_home(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Of a list with gradients of several models, or other tensors among them."""
    count = len(args[0])
    numbers: "Dict[Optional[Gradients], List[int]]" = {}
    for i, item in enumerate(args[0]):
        numbers.setdefault(_home_of(item), []).append(i)
    found: List[Any] = [None] * count
    for these in numbers.values():

        def of_these(value: Any) -> Any:
            return [value[i] for i in these] if isinstance(value, (list, tuple)) and len(value) == count else value

        items = func(*map(of_these, args), **{key: of_these(value) for key, value in kwargs.items()})
        for i, item in zip(these, items or ()):
            found[i] = item
    return None if found[0] is None else found


def _degree(grads: List[Grad], name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[float]:
    """Of the norm over all elements that is asked for; None where it is another one, along dimensions or of a matrix: it takes values."""
    order = args[1] if len(args) > 1 else kwargs.get("p", kwargs.get("ord"))
    others = {key for key, value in kwargs.items() if value is not None and value is not False} - {"p", "ord", "dtype"}
    if others or len(args) > 2:
        return None
    if order in (None, "fro"):
        return 2.0
    of_matrix = name == "linalg_norm" and grads[0].dim() != 1
    return None if of_matrix or isinstance(order, str) else float(order)


def _norm(home: "Gradients", grads: List[Grad], name: str, degree: float, dtype: Optional[torch.dtype]) -> Any:
    """The norm of each gradient as it is after the reduction, over all ranks; of one that is still this rank's own, that one's."""
    found = home.norms([grad._number for grad in grads], degree)
    tensors = [torch.tensor(value, dtype=dtype or torch.float32, device=grad.device) for value, grad in zip(found, grads)]
    return tensors if name == "_foreach_norm" else tensors[0]


def _unscale(home: "Gradients", grads: List[Grad], found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    numbers = [grad._number for grad in grads]
    home.finish(needed=False)  # GradScaler has the step skipped
    if home.finite(numbers):
        home.scale(numbers, float(inv_scale))
    else:
        found_inf.fill_(1.0)


def _change(home: "Gradients", grads: List[Grad], name: str, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    numbers = [grad._number for grad in grads]
    others = [*args[1:], *kwargs.values()]
    if name in ("zero_", "_foreach_zero_"):
        home.clear(numbers)
    elif (name in _PRODUCTS or name in _QUOTIENTS) and len(others) == 1 and not home.local():
        home.finish()
        factors = _factors(others[0], len(numbers))
        if factors is None:
            return _write(home, grads, name, func, args, kwargs)
        for number, factor in zip(numbers, factors) if len(set(factors)) > 1 else [(numbers, factors[0])]:
            if name in _QUOTIENTS:
                factor = 1.0 / factor if factor else math.inf
            home.scale(number if isinstance(number, list) else [number], factor)
    else:
        return _write(home, grads, name, func, args, kwargs)
    return args[0]


def _factors(value: Any, count: int) -> Optional[Sequence[float]]:
    """A factor for each gradient; None where it is not one number each."""
    if isinstance(value, (list, tuple)):
        each = [_factors(item, 1) for item in value]
        return None if None in each or len(each) != count else [item[0] for item in each if item is not None]
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or isinstance(value, Grad):
            return None
        value = value.item()
    return [float(value)] * count


def _write(home: "Gradients", grads: List[Grad], name: str, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """What changes elements each by itself may be done to the whole slot, of which this rank's shard then counts."""
    numbers = [grad._number for grad in grads]
    by_element = name in _BY_ELEMENT and not any(isinstance(value, torch.Tensor) and value.numel() > 1
                                                 for value in [*args[1:], *kwargs.values()])
    slots = home.writable(numbers, name, by_element)
    if home.whole:
        slots = [slot.view(grad.shape) for grad, slot in zip(grads, slots)]
    given = {id(grad): slot.detach() for grad, slot in zip(grads, slots)}
    others = _reading(name)
    read = lambda grad: given[id(grad)] if id(grad) in given else others(grad)  # noqa: E731
    func(*_replaced(args, read), **_replaced(kwargs, read))
    for grad, slot in zip(grads, slots):
        _take(home.names[grad._number], name, slot, given[id(grad)])
    home.written(numbers)
    return args[0]


def _take(of: str, name: str, slot: torch.Tensor, changed: torch.Tensor) -> None:
    """`.data =` and t_ have not changed the slot, but made the tensor that they were given another one."""
    if changed.is_set_to(slot):
        return
    if changed.shape != slot.shape:
        raise invalid(f"{name} gives the gradient of {of!r} the shape {tuple(changed.shape)}; it must stay {tuple(slot.shape)}")
    slot.copy_(changed.clone())  # which may be a view of the slot


def instead(what: str, otherwise: str) -> str:
    """What to do where the gradient's values cannot be had. A conversion is most likely the whole module's."""
    return ("to convert a module (.to(), .cpu(), .half()) call optimizer.zero_grad() first, and convert before it is wrapped, since a step refuses "
            f"parameters that have left the library's memory. For the gradient alone: {otherwise}") if what in _CONVERSIONS else otherwise


def refuse_values(name: str, what: str) -> MegaDPError:
    return MegaDPError(Status.STATE, f"{what} reads values of the gradient of {name!r}, of which this rank has its shard only once backward is "
                       "over (sharding zero_1, zero_2): " +
                       instead(what, f"take the step by a sharded optimizer of megadp.torch, such as ShardedAdamW; {_WAYS}; values need "
                               "sharding='zero_0'"))


def refuse_change(name: str, what: str) -> MegaDPError:
    return MegaDPError(Status.STATE, f"{what} changes the gradient of {name!r} in a way that is not known to be right on shards: {_WAYS}; "
                       "with sharding='zero_0' everything is possible")
