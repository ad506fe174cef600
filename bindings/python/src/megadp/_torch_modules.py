# SPDX-License-Identifier: Apache-2.0
"""Module buffers over the ranks: rank 0's before a forward, and batch normalization over the batches of all ranks."""
import copyreg
import hashlib
from itertools import zip_longest
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ._comm import Comm
from ._errors import invalid
from ._grid import Grid
from ._torch_eager import eager
from ._torch_once import once
from ._torch_placement import placement_of
from ._torch_steps import stream_of


def broadcast_each(comm: Comm, tensors: List[torch.Tensor]) -> None:
    """Rank 0's values, once, of tensors that lie anywhere. Collective."""
    for values in tensors:
        if values.numel():
            whole = values.detach().contiguous()
            comm.broadcast(whole.view(-1).view(torch.uint8), stream=stream_of(whole))
            if whole.data_ptr() != values.data_ptr():
                values.copy_(whole)


def _takes_no_copy(values: torch.Tensor) -> str:
    """What a tensor is that torch copies nothing into; "" for others."""
    if values.layout is not torch.strided:
        return str(values.layout)[6:]
    if values.is_quantized:
        return "quantized"
    shared = values.numel() and any(size > 1 and step == 0 for size, step in zip(values.shape, values.stride()))
    return "expanded" if shared else ""


def _kind(values: torch.Tensor) -> str:
    where = "" if values.device.type == "cpu" else f" in memory of {values.device.type}"
    return ", ".join(filter(None, (f"{str(values.dtype)[6:]} of shape {tuple(values.shape)}{where}", _takes_no_copy(values))))


class ModuleBuffers:
    """The buffers of a module, sent as one array."""

    def __init__(self, module: torch.nn.Module, comm: Comm) -> None:
        self._comm = comm
        seen = set()
        # Where a buffer is found, also when another tensor has taken its place; and its name.
        self._places: List[Tuple[Dict[str, Any], str, str]] = []
        for path, part in module.named_modules():
            for name, values in part._buffers.items():
                if values is not None and id(values) not in seen:
                    seen.add(id(values))
                    self._places.append((part._buffers, name, f"{path}.{name}" if path else name))
        self._key: Any = None
        self._stages: List[Tuple[torch.Tensor, List[int], List[torch.Tensor]]] = []

    def broadcast(self) -> None:
        """Rank 0's values on all ranks. Collective. Raises MegaDPError: INVALID, by name (the ranks' buffers are not of one kind, or are
        such as torch copies nothing into)."""
        if self._comm.size == 1:
            return
        named = [(path, buffers[name]) for buffers, name, path in self._places if buffers.get(name) is not None]
        found = [values for _, values in named]
        key = [(values.device, values.dtype, values.shape, _takes_no_copy(values)) for values in found]
        if key != self._key:
            kinds = [f"{path!r} is {_kind(values)}" for path, values in named]
            self._compare(kinds)
            for kind, values in zip(kinds, found):
                if _takes_no_copy(values):  # on all ranks alike
                    raise invalid(f"module buffer {kind}: all ranks get rank 0's values, and torch copies nothing into such a tensor. Register a dense copy "
                                  "(.contiguous(), .to_dense(), .dequantize()), or leave each rank its own by broadcast_buffers=False")
            self._key, self._stages = key, list(map(self._stage, *self._by_device(found))) if found else []
        with torch.no_grad():
            for stage, numbers, views in self._stages:
                those = [found[i] for i in numbers]
                # Also forwards that are under way count on their buffers: what autograd has kept of them is not spoilt by equal values.
                if self._comm.rank == 0:
                    torch._foreach_copy_(views, those)
                self._comm.broadcast(stage, stream=stream_of(stage))
                if self._comm.rank != 0:
                    with _unsafe_preserve_version_counter(tuple(those)):
                        torch._foreach_copy_(those, views)

    def _compare(self, lines: List[str]) -> None:
        """Once for each layout, since what is sent are bytes, which would do for other shapes and types of the same size."""
        text = "\n".join(lines).encode()
        digest = int.from_bytes(hashlib.sha256(text).digest()[:8], "little", signed=True)
        own = torch.tensor([digest, len(text)], dtype=torch.int64, device="cpu")
        every = own.new_empty(self._comm.size, 2)
        self._comm.all_gather(own, every)
        if bool((every == every[0]).all()):
            return
        padded = torch.tensor([*text, *bytes(int(every[:, 1].max()) - len(text))], dtype=torch.uint8, device="cpu")
        texts = padded.new_empty(self._comm.size, len(padded))
        self._comm.all_gather(padded, texts)
        of_ranks = [bytes(row[:size]).decode().split("\n") for row, size in zip(texts.tolist(), every[:, 1].tolist())]
        rank = next(number for number, each in enumerate(of_ranks) if each != of_ranks[0])
        first, other = next((a, b) for a, b in zip_longest(of_ranks[0], of_ranks[rank], fillvalue="") if a != b)
        raise invalid(f"module buffers, of which all ranks get rank 0's values, are not alike: {first or 'there are no more'} on rank 0, and "
                      f"{other or 'there are no more'} on rank {rank}. Make the module alike on all ranks, or leave each rank its own by "
                      "broadcast_buffers=False")

    @staticmethod
    def _by_device(found: List[torch.Tensor]) -> Tuple[List[List[int]], List[List[torch.Tensor]]]:
        devices: Dict[torch.device, List[int]] = {}
        for i, values in enumerate(found):
            if values.numel():
                devices.setdefault(values.device, []).append(i)
        return list(devices.values()), [[found[i] for i in numbers] for numbers in devices.values()]

    @staticmethod
    def _stage(numbers: List[int], tensors: List[torch.Tensor]) -> Tuple[torch.Tensor, List[int], List[torch.Tensor]]:
        """One array of bytes, and views of it that are like the tensors."""
        sizes = [-(-values.numel() * values.element_size() // 16) * 16 for values in tensors]
        stage = torch.zeros(sum(sizes), dtype=torch.uint8, device=tensors[0].device)
        views, at = [], 0
        for values, size in zip(tensors, sizes):
            views.append(stage[at:at + values.numel() * values.element_size()].view(values.dtype).view(values.shape))
            at += size
        return stage, numbers, views


class _Normalize(torch.autograd.Function):
    """Batch normalization with the statistics of all ranks' batches, which may be of different sizes, and empty on some ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Any, bias: Any,  # type: ignore[override, unused-ignore]
                module: "SyncBatchNorm", factor: float) -> torch.Tensor:
        channels, others = x.size(1), [d for d in range(x.dim()) if d != 1]
        wide = x.detach().to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        count = x.numel() // channels
        own = torch.zeros(1 + 2 * channels, dtype=torch.float64, device=x.device)
        if count:
            own[0] = count
            own[1:1 + channels] = wide.mean(others)
            own[1 + channels:] = wide.var(others, unbiased=False) * count
        comm = module.comm()
        every = own.new_empty(comm.size, len(own))
        comm.all_gather(own, every.view(-1), stream=stream_of(x))
        counts, means, squares = every[:, :1], every[:, 1:1 + channels], every[:, 1 + channels:]
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        square = (squares + counts * (means - mean).square()).sum(0)
        if module.running_mean is not None and module.track_running_stats:
            module.running_mean.lerp_(mean.to(module.running_mean.dtype), factor)
            module.running_var.lerp_((square / (total - 1)).to(module.running_var.dtype), factor)  # type: ignore[union-attr]
        shape = [1, channels] + [1] * (x.dim() - 2)
        scale = (square / total + module.eps).rsqrt()
        normal = ((wide - mean.to(wide.dtype).view(shape)) * scale.to(wide.dtype).view(shape))
        ctx.save_for_backward(normal, weight, scale)
        ctx.comm, ctx.shape, ctx.others, ctx.total, ctx.kinds = comm, shape, others, total, (x.dtype, bias is not None)
        out = normal if weight is None else normal * weight.detach().to(wide.dtype).view(shape)
        return (out if bias is None else out + bias.detach().to(wide.dtype).view(shape)).to(x.dtype)

    @staticmethod
    @once("SyncBatchNorm over several ranks", "use LayerNorm, GroupNorm or InstanceNorm there, or BatchNorm, of each rank's own batch")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override, unused-ignore]
        normal, weight, scale = ctx.saved_tensors
        wide = grad.to(normal.dtype)
        of_bias, of_weight = wide.sum(ctx.others), (wide * normal).sum(ctx.others)
        sums = torch.cat([of_bias, of_weight]).to(torch.float64)
        ctx.comm.all_reduce(sums, stream=stream_of(grad))
        mean_bias, mean_weight = ((part / ctx.total).to(wide.dtype).view(ctx.shape) for part in sums.chunk(2))
        slope = scale.to(wide.dtype) if weight is None else scale.to(wide.dtype) * weight.to(wide.dtype)
        back = (wide - mean_bias - normal * mean_weight) * slope.view(ctx.shape)
        kind, has_bias = ctx.kinds
        return (back.to(kind), None if weight is None else of_weight.to(weight.dtype), of_bias.to(weight.dtype) if has_bias else None,
                None, None)


class SyncBatchNorm(torch.nn.SyncBatchNorm):
    """torch.nn.SyncBatchNorm over a communicator of the library; on CPUs too. DataParallel makes it of torch's. In training collective."""

    def comm(self) -> Comm:
        found: Comm = self.__dict__["_comm"]
        return found

    @eager
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        comm = self.__dict__.get("_comm")
        if not self.training or comm is None or comm.size == 1 or comm.closed:
            return self._alone(input)
        self._check_input_dim(input)
        self._check_non_zero_input_channels(input)
        factor = 0.0 if self.momentum is None else self.momentum
        if self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        out: torch.Tensor = _Normalize.apply(input, self.weight, self.bias, self, factor)  # type: ignore[no-untyped-call, unused-ignore]
        return out

    def _alone(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        out: torch.Tensor = torch.nn.modules.batchnorm._BatchNorm.forward(self, input)
        return out

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and files hold torch's own, without ranks."""
        state = {name: value for name, value in self.__dict__.items() if name != "_comm"}
        return copyreg.__newobj__, (torch.nn.SyncBatchNorm,), dict(state, process_group=None)  # type: ignore[attr-defined]


def join_batch_norms(module: torch.nn.Module, comm: Comm, grid: Optional[Grid]) -> None:
    """torch.nn.SyncBatchNorm in the module becomes ours, in place, over comm; over the grid's tensor-parallel ranks too where these have parts
    of its weight's gradient, and so of what it normalizes."""
    wider = None
    for part in module.modules():
        if type(part) in (torch.nn.SyncBatchNorm, SyncBatchNorm):
            partial = grid is not None and placement_of(part.weight) == "partial_sum"
            if grid is not None and partial and wider is None:
                wider = grid.comm("tp-dp-cp")
            part.__class__ = SyncBatchNorm
            part.__dict__["_comm"] = wider if partial else comm
