# SPDX-License-Identifier: Apache-2.0
"""What scripts written for torch.nn.parallel.DistributedDataParallel say, and what becomes of it here."""
import os
import warnings
from typing import Any, Dict, Iterable, List, Mapping, NoReturn, Optional, Sequence, Tuple

import torch

from ._comm import Comm, unique_id
from ._errors import MegaDPError, Status, invalid
from ._params import BufferOptions
from ._torch_gather import remove_idle_hooks

_NO_EFFECT = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view", "check_reduction", "skip_all_reduce_unused_params",
              "batched_grad_copy", "lazy_bucket_allocation")  # always so here, or about what is not here
_REFUSED = {
    "init_sync": (True, "ranks always begin with rank 0's values"),
    "dim": (0, "a rank has one device, and inputs are not scattered"),
    "mixed_precision": (None, "convert the module before it is wrapped (module.to(torch.bfloat16)): fp32 masters are kept"),
    "delay_all_reduce_named_params": (None, "all parameters are reduced alike"),
    "param_to_hook_all_reduce": (None, "all parameters are reduced alike"),
    "device_mesh": (None, "give a megadp.Grid"),
    "bucket_cap_mb_list": (None, "bucket_elements and bucket_count say where buckets end"),
}
_BUFFER = tuple(BufferOptions.__annotations__)


class Options(BufferOptions, total=False):
    """DataParallel's further options: Buffer's, and words of DDP."""

    find_unused_parameters: bool
    static_graph: bool
    gradient_as_bucket_view: bool
    check_reduction: bool
    skip_all_reduce_unused_params: bool
    batched_grad_copy: bool
    lazy_bucket_allocation: bool
    init_sync: bool


def buffer_options(options: Mapping[str, Any], bucket_cap_mb: Optional[float]) -> Dict[str, Any]:
    """What of DataParallel's options is for the Buffer, once DDP's words are understood."""
    found = {name: value for name, value in options.items() if name not in _NO_EFFECT}
    for name, (default, why) in _REFUSED.items():
        if name in found and found.pop(name) != default:
            raise invalid(f"{name} of DistributedDataParallel is not offered: {why}")
    for name in found:
        if name not in _BUFFER:
            raise invalid(f"{name} is not an option of DataParallel; Buffer's are {', '.join(_BUFFER)}")
    if found.get("spill_limit"):
        raise invalid(f"spill_limit is {found['spill_limit']}; backward cannot hand a gradient over a second time, leave it 0")
    if found.get("scaling") == "tokens":
        raise invalid("scaling is 'tokens', by which a step divides; .grad would hold sums. Scale the losses by ranks / tokens, as with DDP")
    if bucket_cap_mb is not None:
        if "bucket_elements" in found or "bucket_count" in found:
            raise invalid("bucket_cap_mb and bucket_elements or bucket_count say the same; give one of them")
        if not bucket_cap_mb > 0:
            raise invalid(f"bucket_cap_mb is {bucket_cap_mb}; it must be above 0")
        found["bucket_elements"] = max(1, int(bucket_cap_mb * 2**20 / 4))  # gradients are summed in fp32
    return found


def broadcasts_buffers(broadcast_buffers: Optional[bool], forward_sync_buffers: Optional[bool]) -> bool:
    given = forward_sync_buffers if forward_sync_buffers is not None else broadcast_buffers
    return given is None or bool(given)


def check_unwrapped(module: torch.nn.Module) -> None:
    """That nothing of torch's averages or cuts these parameters too. Raises MegaDPError: INVALID, with the name."""
    for path, part in module.named_modules():
        kind = type(part).__name__
        if isinstance(part, torch.nn.parallel.DistributedDataParallel) or kind == "FullyShardedDataParallel":
            raise invalid(f"{path or 'module'} is a {kind}, which averages gradients itself, and would do so beside megadp's: wrap the module that it was "
                          "made of. (accelerate's prepare(model) makes one: prepare optimizer, loader and scheduler, but not the model)")
    for path, p in module.named_parameters():
        if any(each.__name__ == "DTensor" for each in type(p).__mro__):
            raise invalid(f"parameter {path!r} is a DTensor, as fully_shard and parallelize_module of torch make them, of which this rank has a part: wrap "
                          "the module as it was before. Parameters stay whole here, and what the optimizer keeps is cut; tensor-parallel layers are "
                          "megadp.torch.ColumnParallelLinear and RowParallelLinear, on a megadp.Grid")


def own_device(module: torch.nn.Module, device_ids: Optional[Sequence[Any]], output_device: Any) -> Optional[torch.device]:
    """The device that inputs are moved to; None: they stay where they are."""
    devices = {p.device for p in module.parameters()}
    if not device_ids:
        if output_device is not None:
            raise invalid(f"output_device is {output_device!r} without device_ids; outputs stay on the module's device")
        return None
    device = torch.device(device_ids[0]) if not isinstance(device_ids[0], int) else torch.device("cuda", device_ids[0])
    if len(device_ids) != 1 or devices - {device}:
        raise invalid(f"device_ids is {list(device_ids)}; it must name the one device that the module is on "
                      f"({', '.join(map(str, devices))}), or be left out")
    if output_device is not None and torch.device(*(("cuda", output_device) if isinstance(output_device, int) else (output_device,))) != device:
        raise invalid(f"output_device is {output_device!r}; outputs stay on the module's device, {device}")
    return device


def moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(moved(item, device) for item in value)
    if isinstance(value, dict):
        return type(value)((key, moved(item, device)) for key, item in value.items())
    return value


def comm_of(process_group: Any, module: torch.nn.Module) -> Comm:
    """A communicator of torch.distributed's ranks (of the group's), or of those that a launcher has started. Collective."""
    distributed = torch.distributed
    devices = {p.device for p in module.parameters()}
    options: Dict[str, Any] = {"backend": "host"} if all(device.type == "cpu" for device in devices) else {
        "backend": "cuda", "device": next(device.index for device in devices if device.type != "cpu")}
    if not (distributed.is_available() and distributed.is_initialized()):
        if process_group is not None:
            raise invalid("process_group is given, but torch.distributed is not initialized")
        return Comm(**options)
    group: Any = distributed.group.WORLD if process_group is None else process_group
    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    if rank < 0:
        raise invalid("process_group does not hold this rank")
    if process_group is None and os.environ.get("RANK") == str(rank) and os.environ.get("WORLD_SIZE") == str(size):
        return Comm(**options)  # the launcher knows more: the nodes
    shared: List[Any] = [unique_id() if rank == 0 else None]
    distributed.broadcast_object_list(shared, src=distributed.get_global_rank(group, 0), group=group)
    return Comm(shared[0], rank, size, **options)


def refuse_join() -> NoReturn:
    raise MegaDPError(Status.UNSUPPORTED, "join() of DistributedDataParallel is not offered: give all ranks the same number of batches "
                      "(DistributedSampler does), or let a rank without data call model.sync() in place of forward and backward as long "
                      "as others go on, and all that follows as they do: it adds zero to the gradients")


def refuse_comm_hook() -> NoReturn:
    raise MegaDPError(Status.UNSUPPORTED, "register_comm_hook() of DistributedDataParallel is not offered; gradients are averaged, in the type "
                      "that grad_dtype says, and sent in the one that wire_dtype says ('bf16' is what bf16_compress_hook does)")


def explained_forward(error: MegaDPError) -> MegaDPError:
    """Of the collective in a forward, which other ranks may not have come to."""
    if error.code in (Status.PEER, Status.DESYNC, Status.TIMEOUT):
        error.text += (". A forward after one with gradients is collective where the module has buffers, as BatchNorm: it makes them those of rank 0. "
                       "To evaluate on one rank alone call model.module there, otherwise the model on all ranks; broadcast_buffers=False leaves each "
                       "rank its own. Where module buffers get other shapes or types they do on all ranks")
        error.args = (error.args[0], error.text, *error.args[2:])
    return error


def no_attribute(kind: str, name: str, module: Any) -> AttributeError:
    """Of a DataParallel that lacks what is asked for, which the module that it wraps may have."""
    text = f"'{kind}' object has no attribute '{name}'"
    if module is None or name.startswith("_") or not hasattr(module, name):
        return AttributeError(text)
    if name == "loss_type" and module.loss_type is not None:  # nobody but that Trainer asks, and goes on without
        warnings.warn("loss_type of the wrapped module was asked of DataParallel, as transformers.Trainer does, which does not look into a wrapper: "
                      "losses of causal language models, and their gradients, are then divided by too many tokens. Give the Trainer the module "
                      "itself: Trainer(model=model.module, optimizers=(optimizer, scheduler))", stacklevel=4)
    return AttributeError(f"{text}; the module that it wraps has: model.module.{name}. A trainer that asks for it wants model.module as its model, beside "
                          "the sharded optimizer")


class Unwrapped(torch.nn.Module):
    """What copies (copy.deepcopy, AveragedModel) and files (torch.save) of a DataParallel hold: the module in memory of its own, without
    ranks and without gradients, under the same names. module: what was wrapped."""

    __module__ = "megadp.torch"  # as files name it, and as scripts do that allow it to be loaded

    def __init__(self, module: torch.nn.Module, training: bool = True) -> None:
        super().__init__()
        self.module, self.training = module, training
        remove_idle_hooks(module)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.module(*arguments, **named)


def _as_groups(param_groups: Iterable[Any]) -> List[Dict[str, Any]]:
    """Dicts with lists of parameters, of whatever torch's optimizers take: those, parameters, or pairs of a name and a parameter."""
    listed = list(param_groups)
    if not any(isinstance(each, dict) for each in listed):
        listed = [{"params": listed}]
    groups = []
    for number, group in enumerate(listed):
        if not isinstance(group, dict) or "params" not in group:
            raise invalid(f"param_groups[{number}] is {'a dict without params' if isinstance(group, dict) else type(group).__name__}; it must be a "
                          "dict with params, as of torch's optimizers")
        params = [group["params"]] if isinstance(group["params"], torch.Tensor) else group["params"]
        params = [each[1] if isinstance(each, tuple) and len(each) == 2 else each for each in params]
        for each in params:
            if not isinstance(each, torch.Tensor):
                raise invalid(f"param_groups[{number}] has a {type(each).__name__} among its params; they must be parameters")
        groups.append(dict(group, params=params))
    return groups


def read_groups(param_groups: Optional[Iterable[Any]], trained: List[torch.nn.Parameter],
                frozen: List[torch.nn.Parameter]) -> Tuple[Any, Any, Dict[int, int]]:
    """([{options}], [parameters as they were listed], {id of a parameter: its group}) of torch's form of parameter groups. As torch's optimizers
    pass over them, `frozen` ones, which are not registered, are left out; of those that are registered, frozen ones that none names go to the
    first. Raises MegaDPError: INVALID (of those that are trained all must be named: torch's optimizers would leave the others as they are)."""
    if not param_groups:
        return [{}], [trained], {}
    apart = {id(p) for p in frozen}
    listed = [dict(group, params=[p for p in group["params"] if id(p) not in apart]) for group in _as_groups(param_groups)]
    numbers = {id(p): number for number, group in enumerate(listed) for p in group["params"]}
    unknown = set(numbers) - {id(p) for p in trained}
    if unknown:
        raise invalid(f"param_groups holds {len(unknown)} tensors that are not trained parameters of the module")
    others = [p for p in trained if id(p) not in numbers]
    left_out = [p for p in others if p.requires_grad]
    if left_out:
        raise invalid(f"param_groups names {len(numbers)} of {len(trained)} parameters that are trained; torch's optimizers would leave the others as they "
                      f"are, such as one of shape {tuple(left_out[0].shape)}: name them in a group too, or freeze them (requires_grad_(False)) before "
                      "the module is wrapped")
    options = [{name: value for name, value in group.items() if name != "params"} for group in listed]
    listed[0]["params"] += others
    return options, [group["params"] for group in listed], numbers
