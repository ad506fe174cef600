# SPDX-License-Identifier: Apache-2.0
"""torch.nn.Linear cut over tensor-parallel ranks, by columns or by rows."""
import warnings
from typing import Any, Dict, Iterable, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

import torch

from ._comm import Comm
from ._errors import MegaDPError, Status, invalid
from ._torch_eager import eager
from ._torch_once import once
from ._torch_placement import fingerprint, fingerprints_over, mark, parts_alike, sum_of_bits
from ._torch_state import explained
from ._torch_steps import stream_of
from .tp import Grad, Placed, TpLinear, region

Self = TypeVar("Self", bound="ParallelLinear")
_OWN_PARTS = "each loads what it has saved, or all use save_checkpoint and load_checkpoint, which cut anew"
_RIGHTLY_ALIKE = ("Where parts are rightly alike, as those of fewer key and value heads than ranks: own = layer.state_dict(); own.update(parts); "
                  "layer.load_state_dict(own), which has the note")
Output = Union[torch.Tensor, Tuple[torch.Tensor, Optional[torch.Tensor]]]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor],  # type: ignore[override, unused-ignore]
                layer: TpLinear) -> torch.Tensor:
        out = x.new_empty(layer.out_shape(x.shape))
        layer.forward(x.detach(), out, weight=weight.detach(), bias=None if bias is None else bias.detach(), save=False, stream=stream_of(x))
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.layer, ctx.shape = layer, x.shape
        return out

    @staticmethod
    @once("a tensor-parallel linear layer")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override, unused-ignore]
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        layer: TpLinear = ctx.layer
        grads = [weight.new_empty(shape) if needed else None
                 for needed, shape in ((of_x, ctx.shape), (of_weight, layer.weight_shape), (of_bias, layer.bias_shape))]
        layer.backward(grad.detach(), grads[0], x=None if x is None else x.detach(), weight=weight.detach() if of_x else None,
                       grad_weight=grads[1], grad_bias=grads[2], stream=stream_of(grad))
        return (*grads, None)


class Loaded(NamedTuple):
    """A weight that was loaded since the last forward."""

    name: str
    before: Tuple[int, int]  # its fingerprint before the first load
    said: bool               # whose part it is


class Part(torch.nn.Module):
    """A layer of which this rank has a part: its values in a state_dict say whose they are, and another rank's are refused. A dict that was made
    anew says nothing (torch's notes are an attribute): the next forward, which begins with _check_loaded, looks whether ranks have loaded one and
    the same part."""

    weight: torch.nn.Parameter
    _shared: "Shared"
    _tensor_parallel: Tuple[int, int]  # this rank, and how many there are
    _loaded: Optional[Loaded] = None

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        notes = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if notes is not None:
            notes["tensor_parallel"] = self._tensor_parallel

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Dict[str, Any], *others: Any) -> None:
        of, own, name = local_metadata.get("tensor_parallel"), self._tensor_parallel, f"{prefix}weight"
        if name in state_dict:  # also one that this rank refuses: others may have taken theirs, and all compare or none
            self._loaded = Loaded(name, fingerprint(self.weight) if self._loaded is None else self._loaded.before, of is not None)
        if of is None or tuple(of) == own:
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)
            return
        problems = others[-1]
        problems.append(f"{name} is the part of rank {of[0]} of {of[1]} tensor-parallel ranks, and this is rank {own[0]} of {own[1]}: {_OWN_PARTS}")

    def _check_loaded(self) -> None:
        """Of a weight that was loaded since the last forward: refuses parts that came without a note and have become the same on all ranks, and
        warns where they have on some. Collective, unless the communicator was closed: the layer goes on."""
        loaded, comm = self._loaded, self._shared.comm
        if loaded is None:
            return
        if comm.closed:
            self._loaded = None
            return
        try:
            before, now, said = fingerprints_over(comm, [loaded.before, fingerprint(self.weight), (int(loaded.said), 0)])
        except MegaDPError as error:
            raise explained(error, f". Here {loaded.name!r} was loaded since the last forward: call load_state_dict on all tensor-parallel ranks, "
                                   "which compare then whose parts they have") from None
        alike = parts_alike(now)
        if alike > max(parts_alike(before), 1) and not all(each for each, _ in said):
            some = "" if alike == comm.size else "some "
            text = (f"the parts of {loaded.name!r} are alike on {some}tensor-parallel ranks since load_state_dict, as if it was given one rank's on "
                    "others too, without the note whose they are (_metadata of state_dict(), which a dict made of it has not): "
                    f"{_OWN_PARTS}. {_RIGHTLY_ALIKE}")
            if not some:
                raise invalid(text)
            warnings.warn(text)
        self._loaded = None


class ParallelLinear(Part):
    """What ColumnParallelLinear and RowParallelLinear have in common. weight and bias are this rank's parts, under the names of
    torch.nn.Linear's."""

    bias: Optional[torch.nn.Parameter]
    _column: bool

    def _set_up(self, comm: Comm, like: torch.nn.Linear, skip_bias_add: bool, blocks: Sequence[int], options: Dict[str, Any]) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = like.in_features, like.out_features
        self.skip_bias_add, self.blocks = skip_bias_add, tuple(blocks)
        self._options = options
        self._shared = Shared(comm)
        self._tensor_parallel = (comm.rank, comm.size)
        self.register_parameter("weight", None)  # in the order of torch.nn.Linear
        self.register_parameter("bias", None)
        adds_bias = like.bias is not None and not skip_bias_add
        self._create = dict(options, split="column" if self._column else "row", in_features=like.in_features,
                            out_features=like.out_features, bias=adds_bias, blocks=self.blocks)
        self.slices = self._layer(like.weight.dtype).slices
        self.weight = torch.nn.Parameter(self._own(like.weight.detach(), 0 if self._column else 1), like.weight.requires_grad)
        if like.bias is not None:
            part = self._own(like.bias.detach(), 0) if self._column else like.bias.detach().clone()
            self.bias = torch.nn.Parameter(part, like.bias.requires_grad)

    def _layer(self, dtype: torch.dtype) -> TpLinear:
        """Of this type of operands. Collective the first time."""
        layers = self._shared.layers
        if dtype not in layers:
            layers[dtype] = TpLinear(self._shared.comm, dtype=dtype, **self._create)
        return layers[dtype]

    def _own(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        return _cut(whole, self.slices, dim)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws them anew, as torch.nn.Linear does: each rank draws the whole layer, from random numbers that must be the same on all
        tensor-parallel ranks (torch.manual_seed), and keeps its part, so that a model does not depend on how many there are. Collective; blocking.
        Raises MegaDPError: INVALID (they were not the same), those of a lost communicator."""
        whole = _drawn(self.in_features, self.out_features, self.bias is not None, self.weight.device, self.weight.dtype, self._shared.comm)
        self.weight.copy_(self._own(whole.weight, 0 if self._column else 1))
        if self.bias is not None:
            self.bias.copy_(self._own(whole.bias, 0) if self._column else whole.bias)

    @eager
    def forward(self, x: torch.Tensor) -> Output:
        """The layer's output; with skip_bias_add a pair of it and the bias. Collective; blocking, and so is its backward.
        Raises MegaDPError: INVALID (shapes, dtypes; one rank's part was loaded on all), those of a lost communicator."""
        self._check_loaded()
        weight: torch.Tensor = self.weight
        bias: Optional[torch.Tensor] = None if self.skip_bias_add else self.bias
        dtype = _autocast_dtype(x.device.type)
        if dtype is not None:
            x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        out = _Product.apply(x, weight, bias, self._layer(weight.dtype))  # type: ignore[no-untyped-call, unused-ignore]
        return (out, self.bias) if self.skip_bias_add else out

    @classmethod
    def _from(cls: "type[Self]", linear: torch.nn.Linear, comm: Comm, skip_bias_add: bool, blocks: Sequence[int], options: Dict[str, Any]) -> Self:
        more = sorted({name for name, _ in linear.named_parameters()} - {"weight", "bias"})
        if type(linear).forward is not torch.nn.Linear.forward or (more and not hasattr(linear, "parametrizations")):
            raise invalid(f"linear is a {type(linear).__name__}{' with ' + ', '.join(more) if more else ''}: of a torch.nn.Linear weight and bias are "
                          "taken, and what a layer of its own adds would be lost; give the torch.nn.Linear in it, and add to what comes out")
        check_drawn([linear.weight] if linear.bias is None else [linear.weight, linear.bias], comm, "torch.nn.Linear by from_linear")
        layer = cls.__new__(cls)
        layer._set_up(comm, linear, skip_bias_add, blocks, options)
        return layer.train(linear.training)

    @torch.no_grad()
    def to_linear(self) -> torch.nn.Linear:
        """The whole layer, on all ranks, as a torch.nn.Linear of its own. Collective; blocking."""
        whole = torch.nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta", dtype=self.weight.dtype)
        whole = whole.to_empty(device=self.weight.device)
        self._gather(self.weight, whole.weight, 0 if self._column else 1)
        whole.weight.requires_grad_(self.weight.requires_grad)
        if self.bias is not None:
            if self._column:
                self._gather(self.bias, whole.bias, 0)
            else:
                whole.bias.copy_(self.bias)
            whole.bias.requires_grad_(self.bias.requires_grad)
        return whole.train(self.training)

    def _gather(self, own: torch.Tensor, whole: torch.Tensor, dim: int) -> None:
        comm, at, local = self._shared.comm, 0, 0
        for part in self.slices:
            count = part.stop - part.start
            region(comm, "gather", own.detach().narrow(dim, local, count), whole.detach().narrow(dim, at, count * comm.size), dim=dim,
                   grad="replicated", stream=stream_of(own))
            at, local = at + count * comm.size, local + count

    def _tell_placements(self) -> None:
        layer = self._layer(self.weight.dtype)
        mark(self.weight, layer.weight_placement)
        if self.bias is not None:
            # A bias that the caller adds to a part has a part of the gradient.
            in_parts = not self._column and self.skip_bias_add and self._options.get("grad") == "partial"
            mark(self.bias, Placed("partial_sum") if in_parts else layer.bias_placement)

    def extra_repr(self) -> str:
        told = "".join(f", {name}={value!r}" for name, value in self._options.items() if value not in (None, False))
        rank, size = self._tensor_parallel
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, rank {rank} of {size}{told}"


class ColumnParallelLinear(ParallelLinear):
    """torch.nn.Linear whose output features are cut over the ranks of comm (a Grid's comm("tp")): each computes some of them.

    x is the same on all ranks; with sequence=True it is cut along its first dimension, and gathered. The output is this rank's features, or,
    with gather_output, all of them; then `grad` says whether the gradient that comes back is the same on all ranks ("replicated") or a part
    on each ("partial"). skip_bias_add: the bias is not added, forward returns it beside the output. blocks: sizes of what is fused along
    the output features (q, k, v), each cut by itself; DataParallel, place() and checkpoints take blocks of one size only.
    dtype: float32 or bfloat16. Values begin as torch.nn.Linear's do: see reset_parameters. DataParallel with the Grid knows which parts its
    parameters are. A copy uses the same ranks; state_dict has this rank's parts.
    Collective over comm; blocking. Raises MegaDPError: as TpLinear.
    """

    _column = True

    def __init__(self, in_features: int, out_features: int, comm: Comm, bias: bool = True, *, sequence: bool = False,
                 gather_output: bool = False, grad: Optional[Grad] = None, skip_bias_add: bool = False, blocks: Sequence[int] = (),
                 device: Any = None, dtype: Optional[torch.dtype] = None) -> None:
        self._set_up(comm, _drawn(in_features, out_features, bias, device, dtype, comm), skip_bias_add, blocks,
                     _column_options(sequence, gather_output, grad, skip_bias_add))

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, comm: Comm, *, sequence: bool = False, gather_output: bool = False,
                    grad: Optional[Grad] = None, skip_bias_add: bool = False, blocks: Sequence[int] = ()) -> "ColumnParallelLinear":
        """This rank's part of a layer that is the same on all ranks; copies. Collective; blocking."""
        return cls._from(linear, comm, skip_bias_add, blocks, _column_options(sequence, gather_output, grad, skip_bias_add))


class RowParallelLinear(ParallelLinear):
    """torch.nn.Linear whose input features are cut over the ranks of comm (a Grid's comm("tp")): each computes a part of the sum.

    x is this rank's features, as a ColumnParallelLinear gives them, or, with whole_input, all of them on all ranks. The output is the sum on
    all ranks, and `grad` says whether the gradient that comes back is the same on all ranks ("replicated") or a part on each ("partial"). With
    sequence=True it is this rank's part of the sum along the first dimension. The bias is whole on all ranks, and added once. blocks: sizes
    of what is fused along the input features. The rest is as of ColumnParallelLinear.
    """

    _column = False

    def __init__(self, in_features: int, out_features: int, comm: Comm, bias: bool = True, *, sequence: bool = False,
                 whole_input: bool = False, grad: Optional[Grad] = None, skip_bias_add: bool = False, blocks: Sequence[int] = (),
                 device: Any = None, dtype: Optional[torch.dtype] = None) -> None:
        self._set_up(comm, _drawn(in_features, out_features, bias, device, dtype, comm), skip_bias_add, blocks,
                     {"sequence": sequence, "whole_input": whole_input, "grad": grad})

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, comm: Comm, *, sequence: bool = False, whole_input: bool = False,
                    grad: Optional[Grad] = None, skip_bias_add: bool = False, blocks: Sequence[int] = ()) -> "RowParallelLinear":
        """As ColumnParallelLinear.from_linear."""
        return cls._from(linear, comm, skip_bias_add, blocks, {"sequence": sequence, "whole_input": whole_input, "grad": grad})


class Shared:
    """What a module's copies have in common: the ranks, and the library's layers."""

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self.layers: Dict[torch.dtype, TpLinear] = {}

    def __deepcopy__(self, memo: Any) -> "Shared":
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise MegaDPError(Status.UNSUPPORTED, "a layer that is cut over ranks cannot be pickled: save its state_dict(), or the whole layer "
                           "(to_linear(), to_embedding())")


def _column_options(sequence: bool, gather_output: bool, grad: Optional[Grad], skip_bias_add: bool) -> Dict[str, Any]:
    if gather_output and skip_bias_add:
        raise invalid("gather_output and skip_bias_add are both True; the output would be whole, and the bias this rank's part of it")
    return {"sequence": sequence, "gather_output": gather_output, "grad": grad}


def _drawn(in_features: int, out_features: int, bias: bool, device: Any, dtype: Optional[torch.dtype], comm: Comm) -> torch.nn.Linear:
    """A whole layer of torch's, with the values that it begins with; the same on all ranks."""
    whole = torch.nn.Linear(in_features, out_features, bias, device=device, dtype=dtype)
    check_drawn(list(whole.parameters()), comm, "torch.nn.Linear by from_linear")
    return whole


def check_drawn(values: Sequence[torch.Tensor], comm: Comm, other_way: str) -> None:
    """Refuses what is not the same on all ranks."""
    if comm.size == 1 or values[0].is_meta:
        return
    sums = [total for total in map(sum_of_bits, values) if total is not None]
    if sums:
        total = torch.stack(sums).sum()
        ends = torch.stack([total, -total])
        comm.all_reduce(ends, op="max", stream=stream_of(ends))
        if int(ends[0]) != -int(ends[1]):
            raise invalid("tensor-parallel ranks have drawn different values of the same layer: call torch.manual_seed with the same number on "
                          f"all of them before, or make it from the same {other_way}")


def _cut(whole: torch.Tensor, parts: Iterable[Union[slice, range]], dim: int) -> torch.Tensor:
    """Some parts along dim, one after another; a copy."""
    return torch.cat([whole.narrow(dim, part.start, part.stop - part.start) for part in parts], dim)


def _autocast_dtype(device: str) -> Optional[torch.dtype]:
    if not hasattr(torch, "get_autocast_dtype") or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)
