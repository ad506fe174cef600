# SPDX-License-Identifier: Apache-2.0
"""A training by DataParallel and sharded optimizers in a checkpoint: what torch.save writes of it on one rank, written by all ranks and
without pickle, to be loaded on any number of ranks."""
import base64
import warnings
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from ._buffer import Buffer
from ._checkpoint import CheckpointTensor, load_checkpoint as load_native, save_checkpoint as save_native
from ._errors import MegaDPError, Status, invalid
from ._optimizer import Optimizer
from ._saved import (VERSION, Together, find_checkpoint, of_rank, pack, random_state, set_random_state, to_bytes, together, unpack,
                     wait_for_last)
from ._torch_modules import broadcast_each
from ._torch_optimizer import ShardedOptimizer, check_model
from ._torch_steps import USED
from ._waiting import Request

if TYPE_CHECKING:
    from ._checkpoint import Path
    from .torch import DataParallel

Optimizers = Union[ShardedOptimizer, Sequence[ShardedOptimizer], None]
KIND = "megadp.torch"
# What the library has words for. Others are stored as their bytes.
_KNOWN = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8)


def save_checkpoint(directory: "Path", model: "DataParallel", optimizer: Optimizers, *, scheduler: Any = None,
                    extra: Any = None, keep: int = 0, wait: bool = True) -> Optional[Request]:
    """Saves a training in `directory`, under the next free number: parameters, also frozen ones, and module buffers (those of state_dict,
    rank 0's values; of tensor-parallel ranks they are the same unless place() has said that they are cut); the optimizer's state and the values of its groups; the scheduler's state_dict; and of each rank the states of torch's
    random generators (the CPU's, and that of the model's GPU) and of Python's `random`.

    optimizer: all of them where several have the model's parameters, and then scheduler may be a list too; None saves parameters without
    one's state. extra: whatever else the script goes on from (an epoch, GradScaler's
    state_dict), of None, bools, numbers, strings, lists, tuples and dicts; rank 0's counts. keep: so many of the newest checkpoints stay
    (0: all). To be called between step and the next backward. Collective; blocking: it waits for files longer than the timeout. With
    wait=False it returns a Request when all is copied, and the copy is written while training goes on; its wait() says how that ended.
    One is written at a time, and a failure whose Request nobody has waited for is raised by the next save or load. The end of the
    program waits for the last one.
    Raises MegaDPError, and older checkpoints stay: INVALID (a parameter that has left the library's memory, by its name; extra or a state that cannot be written as text, by its key; a module buffer or
    frozen parameter that differs between tensor-parallel ranks, by its name), DESYNC (a frozen parameter that differs between data-parallel
    ranks: it was written on some of them), STATE (gradients that no step has used), UNSUPPORTED (a
    grid with pipeline-parallel ranks), SYSTEM (names the file), those of a lost communicator."""
    check_model(model)
    return model._alone("save_checkpoint()", lambda: _save(directory, model, optimizer, scheduler, extra, keep, wait))


def _save(directory: "Path", model: "DataParallel", optimizer: Optimizers, scheduler: Any, extra: Any, keep: int, wait: bool) -> Optional[Request]:
    optimizers, ranks = _begin("save_checkpoint", model, optimizer)
    shared = {KIND: VERSION, "tp": ranks.tp, "extra": pack(extra, "extra")}
    shared["modules"] = {name: pack(part.get_extra_state(), f"get_extra_state() of module {name!r}")
                         for name, part in _extra_states(model.module).items()}
    if scheduler is not None:
        states = [each.state_dict() for each in _schedulers(scheduler)]
        shared["scheduler"] = _packed(states if isinstance(scheduler, (list, tuple)) else states[0], "the scheduler's state_dict()")
    if optimizers:
        shared["groups"] = [_packed({name: value for name, value in group.items() if name != "params"}, f"optimizer.param_groups[{number}]")
                            for each in optimizers for number, group in enumerate(each.param_groups)]
    for each in optimizers:
        each._before_saving()
        each._sharded.settle()
    wait_for_last(model)
    model.wait()
    arrays = Arrays(model, ranks, copied=True)
    shared["dtypes"] = arrays.dtypes
    device = _synchronize(model)
    saving = save_native(directory, *_parts(model, optimizers), tensors=arrays.tensors, shared_data=to_bytes(shared) if ranks.first else b"",
                         rank_data=to_bytes(_random_states(device)), keep=keep, wait=wait)
    model._saving = saving
    return saving


def _packed(values: Any, what: str) -> Any:
    """pack of what an optimizer or a scheduler has, which may have tensors where torch takes those for numbers."""
    try:
        return pack(values, what)
    except MegaDPError as error:
        raise invalid(f"{error.text}. Where it is a tensor that the optimizer was made with (lr=torch.tensor(0.1)), make it with a number (lr=0.1), the "
                      "scheduler too, which keeps it as base_lrs") from None


def load_checkpoint(directory: "Path", model: "DataParallel", optimizer: Optimizers, *, scheduler: Any = None,
                    params_only: bool = False, optional: Union[str, Sequence[str]] = ()) -> Any:
    """Goes on from the newest checkpoint in `directory`, or the one that is `directory`, saved by save_checkpoint on any number of ranks,
    with any sharding and tensor-parallel size. Returns extra. The states of random generators come back where there are as many ranks as
    then, cut alike; otherwise they stay.

    model, optimizer, scheduler: made as in the script that saved, as many as there. optimizer=None: parameters and module buffers only. params_only:
    likewise, and the optimizer begins anew, with zero moments and its own learning rates; generators stay. optional: patterns (as of
    fnmatch) of names, those of module.state_dict(), that only the checkpoint or only this model may have; such values stay. With
    params_only or without an optimizer `directory` may also be a model of whole arrays (a safetensors file, the index of several, or a folder
    with either), of which tensor-parallel ranks take their parts, of frozen parameters too; extra is None then. To be called between steps.
    Collective; blocking: it waits for files longer than the timeout.
    Raises MegaDPError, on all ranks, and nothing has changed: INVALID (another model, by name; a parameter that has left the library's memory;
    another rule; no scheduler's state), STATE
    (gradients that no step has used), UNSUPPORTED, SYSTEM (no checkpoint), CORRUPT (if it turns out half-way: steps are STATE until one
    was loaded), those of a lost communicator."""
    check_model(model)
    return model._alone("load_checkpoint()", lambda: _load(directory, model, optimizer, scheduler, params_only, optional))


def _load(directory: "Path", model: "DataParallel", optimizer: Optimizers, scheduler: Any, params_only: bool,
          optional: Union[str, Sequence[str]]) -> Any:
    optimizers, ranks = _begin("load_checkpoint", model, optimizer)
    if params_only and scheduler is not None:
        raise invalid("scheduler is given beside params_only, which loads no state of the training; leave one of them away")
    wait_for_last(model)
    path, saved, saved_by = find_checkpoint(ranks.comm, directory, KIND)
    whole = bool(optimizers) and not params_only
    if not saved_by and (whole or scheduler is not None):
        raise invalid(f"{path} is a model, without the state of a training: load it with params_only=True, and without scheduler")
    groups = _check(path, saved, optimizers if whole else [], scheduler)
    alike = (saved_by, saved.get("tp", 1)) == (ranks.comm.size, ranks.tp)
    states = of_rank(ranks.comm, path, ranks.comm.rank) if whole and alike else {}
    model.wait()
    arrays = Arrays(model, ranks, copied=False)
    arrays.compare(saved.get("dtypes", {}), path)
    device = _synchronize(model)
    load_native(path, *_parts(model, optimizers), tensors=arrays.tensors, optional=optional, params_only=params_only or not saved_by,
                load_hyper=whole)
    arrays.loaded()
    for name, part in _extra_states(model.module).items():
        if name in saved.get("modules", {}):
            part.set_extra_state(unpack(saved["modules"][name]))
    model._loaded()
    for each in optimizers:
        each._loaded([groups.pop(0) for _ in each.param_groups] if whole else None)
    if scheduler is not None:
        states_of = unpack(saved["scheduler"])
        for one, state in zip(_schedulers(scheduler), states_of if isinstance(states_of, list) else [states_of]):
            one.load_state_dict(state)
    if states:
        _set_random_states(states, device)
    return unpack(saved.get("extra"))


def _begin(call: str, model: "DataParallel", optimizer: Optimizers) -> Tuple[List[ShardedOptimizer], Together]:
    """Once what is given can be saved or loaded: the optimizers, in the order of their groups."""
    optimizers: List[Any] = [] if optimizer is None else list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    for each in optimizers:
        if not isinstance(each, ShardedOptimizer):
            raise invalid(f"optimizer is a {type(each).__name__}; it must be a sharded optimizer of megadp.torch, such as ShardedAdamW, or None "
                          "(then give what another optimizer keeps as extra, or save it as before)")
        if each.model is not model:
            raise invalid("optimizer is of another model than model")
    if optimizers and sum(len(each.param_groups) for each in optimizers) != len(model.group_options):
        raise invalid(f"optimizer has {sum(len(each.param_groups) for each in optimizers)} of the model's {len(model.group_options)} parameter "
                      "groups; give all optimizers of the model, in a list")
    model.registered.check()
    if model.gradients.phase != USED or model.gradients._backward:
        raise MegaDPError(Status.STATE, f"{call} while there are gradients that no step has used: call it after optimizer.step() and "
                          "before the next backward(), or throw them away by optimizer.zero_grad()")
    return sorted(optimizers, key=lambda each: each._first), together(model, call)


def _parts(model: "DataParallel", optimizers: List[ShardedOptimizer]) -> List[Union[Buffer, Optimizer]]:
    return [each._native for each in optimizers] or [model.storage]


def _schedulers(scheduler: Any) -> List[Any]:
    return list(scheduler) if isinstance(scheduler, (list, tuple)) else [scheduler]


def _check(path: str, saved: Mapping[str, Any], optimizers: List[ShardedOptimizer], scheduler: Any) -> List[Dict[str, Any]]:
    """The saved groups, if the optimizers and the scheduler can go on from the checkpoint."""
    if scheduler is not None and "scheduler" not in saved:
        raise invalid(f"{path} has no scheduler's state: it was saved without scheduler=; load it without")
    if scheduler is not None:
        there, here = (len(each) if isinstance(each, (list, tuple)) else 1 for each in (saved["scheduler"], scheduler))
        if there != here:
            raise invalid(f"scheduler has {here} schedulers, and {path} the states of {there}")
    if not optimizers:
        return []
    if scheduler is None and "scheduler" in saved:
        warnings.warn(f"{path} has a scheduler's state, and load_checkpoint was given no scheduler", stacklevel=3)
    if "groups" not in saved:
        raise invalid(f"{path} was saved without an optimizer; with params_only=True its state begins with zeros")
    groups: List[Dict[str, Any]] = unpack(saved["groups"])
    count = sum(len(each.param_groups) for each in optimizers)
    if len(groups) != count:
        raise invalid(f"{path} has {len(groups)} parameter groups, and the optimizer {count}")
    for each in optimizers:
        each.check_groups(groups[each._first:each._first + len(each.param_groups)], path)
    return groups


class Arrays:
    """Module buffers and frozen parameters, by their names in the module's state_dict, as the library takes them."""

    def __init__(self, model: "DataParallel", ranks: Together, copied: bool) -> None:
        """copied: to save; of module buffers rank 0's values, since each rank writes a part of each. Then collective; blocking."""
        buffers = dict(_buffers(model.module))
        if copied:
            buffers = {name: values.detach().clone() for name, values in buffers.items()}
            broadcast_each(model._comm, list(buffers.values()))
        self._all = {**{name: p.detach() for name, p in model._left_out}, **buffers}
        cut = {name: placed for name, placed in model._placed_as.items() if placed.placement == "sharded"} if ranks.tp > 1 else {}
        if copied and ranks.tp > 1:
            _check_alike({name: values for name, values in self._all.items() if name not in cut}, ranks)
        self.dtypes = {name: str(values.dtype) for name, values in self._all.items()}
        self._staged: Dict[str, torch.Tensor] = {}
        self.tensors: Dict[str, Any] = {}
        for name, values in self._all.items():
            if values.dtype not in _KNOWN:
                size = values.element_size()
                self._staged[name] = values.contiguous().clone().view(-1).view(torch.uint8).view(*values.shape, size)
            array = self._staged.get(name, values)
            self.tensors[name] = array if ranks.tp == 1 else CheckpointTensor(array, *cut.get(name, ("replicated",)))

    def compare(self, saved: Mapping[str, str], path: str) -> None:
        """Bytes do not say what they are of."""
        for name, dtype in self.dtypes.items():
            was = saved.get(name, dtype)
            if was != dtype and (name in self._staged or was not in map(str, _KNOWN)):
                raise invalid(f"{name!r} is {dtype} here and {was} in {path}; only float32, bfloat16 and float16 are cast")

    def loaded(self) -> None:
        for name, stage in self._staged.items():
            values = self._all[name]
            values.copy_(stage.view(-1).view(values.dtype).view(values.shape))


def _check_alike(arrays: Mapping[str, torch.Tensor], ranks: Together) -> None:
    """Of what tensor-parallel ranks hold alike each writes a part. Collective. Raises MegaDPError, on all ranks: INVALID."""
    first = [values.detach().clone() for values in arrays.values()]
    broadcast_each(ranks.comm, first)
    differs = [not torch.equal(_bytes_of(a), _bytes_of(b)) for a, b in zip(arrays.values(), first)]
    found = bytearray(map(int, differs))
    if found:
        ranks.comm.all_reduce(found, op="max")
    for name, is_other in zip(arrays, found):
        if is_other:
            raise invalid(f"{name!r} is not the same on all tensor-parallel ranks, and is not said to be cut over them: "
                          "megadp.torch.place(tensor, 'sharded', dim) says that, before DataParallel")


def _bytes_of(values: torch.Tensor) -> torch.Tensor:
    return values.detach().contiguous().view(-1).view(torch.uint8)


def _buffers(module: torch.nn.Module) -> List[Tuple[str, torch.Tensor]]:
    """Those that torch's state_dict has, each once."""
    found, seen = [], set()
    for prefix, part in module.named_modules():
        before = f"{prefix}." if prefix else ""
        for name, values in part._buffers.items():
            if values is not None and name not in part._non_persistent_buffers_set and id(values) not in seen:
                seen.add(id(values))
                found.append((before + name, values))
    return found


def _extra_states(module: torch.nn.Module) -> Dict[str, torch.nn.Module]:
    """The parts that keep more than tensors, by name."""
    return {name: part for name, part in module.named_modules() if type(part).get_extra_state is not torch.nn.Module.get_extra_state}


def _synchronize(model: "DataParallel") -> Optional[torch.device]:
    """The library's copies then come after what torch has written. The model's GPU; None on a CPU."""
    device = next((p.device for p in model.module.parameters() if p.is_cuda), None)
    if device is not None:
        torch.cuda.synchronize(device)
    return device


def _random_states(device: Optional[torch.device]) -> Dict[str, Any]:
    def text(state: torch.Tensor) -> str:
        return base64.b64encode(bytes(state.tolist())).decode()

    states = {"python": random_state(), "torch": text(torch.get_rng_state())}
    return states if device is None else {**states, "cuda": text(torch.cuda.get_rng_state(device))}


def _set_random_states(states: Mapping[str, Any], device: Optional[torch.device]) -> None:
    def state(text: str) -> torch.Tensor:
        return torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8, device="cpu")

    set_random_state(states["python"])
    torch.set_rng_state(state(states["torch"]))
    if device is not None and "cuda" in states:
        torch.cuda.set_rng_state(state(states["cuda"]), device)
