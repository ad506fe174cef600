# SPDX-License-Identifier: Apache-2.0
"""The state of sharded optimizers as torch's have it: collected from the shards of all ranks, and cut into shards again."""
import warnings
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, MutableMapping, NamedTuple, NoReturn, Optional, Tuple

import torch

from ._errors import MegaDPError, Status, invalid
from ._optimizer import Optimizer
from ._torch_steps import as_tensor, stream_of

if TYPE_CHECKING:
    from .torch import DataParallel

_LOST = (Status.PEER, Status.DESYNC, Status.TIMEOUT, Status.ABORTED)


def explained(error: MegaDPError, more: str) -> MegaDPError:
    """The same error, which says too what a script may have done, where other ranks have not come."""
    if error.code in _LOST:
        error.text += more
        error.args = (error.args[0], error.text, *error.args[2:])
    return error


class Form(NamedTuple):
    """What torch's optimizer keeps of a parameter."""

    name: str                                            # of torch's class
    arrays: Tuple[str, ...]                            # all that the rule has
    of: Callable[[torch.Tensor], Tuple[str, ...]]      # those of them that torch has of this parameter
    counts: bool                                         # and a step count
    masters: bool = True                                 # and the library, besides, of parameters of less than 32 bits a master
    shown: Callable[[torch.Tensor, str, torch.Tensor], Any] = lambda p, name, values: values  # as torch has it


class NoState(MutableMapping[Any, Any]):
    """What .state of a sharded optimizer is: empty to whoever goes through it, as trainers do to move it to a device; all else is refused."""

    def __init__(self, name: str) -> None:
        self._name = name

    def refuse(self, *_: Any) -> NoReturn:
        raise MegaDPError(Status.UNSUPPORTED, f"optimizer.state of {self._name} is not offered, since each rank keeps its shard of it: "
                          "state_dict() on all ranks is what torch's has, and load_state_dict() takes it back, changed or not (without the "
                          "entry of a parameter its moments and step count begin anew, so do all with {**state_dict, 'state': {}})")

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    __getitem__ = __setitem__ = __delitem__ = get = pop = popitem = clear = update = setdefault = refuse


class ShardedState:
    """What a model's Optimizer keeps of each of its parameters, by the parameter's number."""

    def __init__(self, model: "DataParallel", native: Optimizer, params: Dict[int, torch.nn.Parameter], form: Form) -> None:
        self._model, self._native, self.params, self._form = model, native, params, form
        # Loaded masters of half-width parameters. They wait for the next step, since a script may load the model before or after.
        self._masters: Dict[int, torch.Tensor] = {}
        # Whose masters begin as the parameters, if torch has written these more often than so: none were loaded.
        self._begun: Dict[int, int] = {}
        self._settled = dict(model._writes)
        self._kept = native._place.param_states  # of single parameters, by name, in shapes of their own
        self._begins = {piece.param: piece.param_begin for piece in model.storage.owned()}

    def collect(self, rank: Optional[int]) -> Optional[Dict[torch.Tensor, Dict[str, torch.Tensor]]]:
        """Of each trained parameter that has taken part in a step what torch's optimizer keeps; and "master", float32, of one of less than
        32 bits. On the CPU; None on other ranks than `rank` (None: all have it). Collective over the data-parallel ranks; blocking."""
        self.settle()
        keeps = rank is None or rank == self._model._comm.rank
        found: Dict[torch.Tensor, Dict[str, torch.Tensor]] = {}
        for i, p in self.params.items():
            steps, half = self._native.steps(i), self._form.masters and p.dtype != torch.float32
            if not (steps or half):  # torch has none before the first step
                continue
            names: Tuple[str, ...] = (*self._form.of(p), "master") if half else self._form.of(p)
            arrays = {name: self._whole(i, p, name, keeps) for name in names}
            if keeps and (names or self._form.counts):
                count = {"step": torch.tensor(float(steps), dtype=torch.float32, device="cpu")} if self._form.counts else {}
                found[p] = {name: self._form.shown(p, name, values) for name, values in {**count, **arrays}.items() if values is not None}
        return found if keeps else None

    def _whole(self, i: int, p: torch.Tensor, array: str, keeps: bool) -> Optional[torch.Tensor]:
        own, begin = as_tensor(self._native.state(i, array)).view(-1), self._begins.get(i, 0)
        kept = self._kept.get(array, {}).get(i)
        shape, dtype = (p.shape, torch.float32) if kept is None else (torch.Size(kept.shape), own.dtype)
        if self._model.gradients.whole:
            return own.to(dtype, copy=True).view(shape).cpu() if keeps else None
        whole = torch.zeros(shape.numel(), dtype=dtype, device=p.device)
        whole[begin:begin + own.numel()] = own
        if whole.numel():  # of bytes the largest: elements are on one rank, or alike on the ranks of several instances, so all bits stay
            self._model._comm.all_reduce(whole.view(torch.uint8), op="max", stream=stream_of(whole))
        return whole.view(shape).cpu() if keeps else None

    def load(self, entries: Mapping[int, Mapping[str, Any]]) -> None:
        """Goes on from what collect gave, or torch's optimizer has; a parameter that is not among them has taken no step. Local."""
        steps = [0] * len(self._model.storage.params)
        arrays: List[Tuple[torch.Tensor, torch.Tensor]] = []
        masters: Dict[int, torch.Tensor] = {}
        for i, p in self.params.items():
            entry = entries.get(i, {})
            steps[i] = int(entry.get("step", 1 if entry and not self._form.counts else 0))
            names = (*self._form.arrays, *(name for name, of in self._kept.items() if i in of))
            arrays += [(as_tensor(self._native.state(i, name)).view(-1), self._cut(i, p, entry, name)) for name in names]
            # torch casts what it does not know to the parameter's type, and goes on without it: such a master is of no use.
            if self._form.masters and p.dtype != torch.float32 and getattr(entry.get("master"), "dtype", None) == torch.float32:
                masters[i] = self._cut(i, p, entry, "master").clone()
        self._native.set_steps(max(steps, default=0), steps)
        for to, values in arrays:
            to.copy_(values)
        self._masters = masters
        self._begun = {i: writes for i, writes in self._settled.items() if self._form.masters and i in self.params and i not in masters}

    def _cut(self, i: int, p: torch.Tensor, entry: Mapping[str, Any], array: str) -> torch.Tensor:
        name, begin, own = self._model.storage.params[i].name, self._begins.get(i, 0), as_tensor(self._native.state(i, array))
        values = entry.get(array)
        if not entry or (values is None and not (self._form.counts and array in self._form.of(p))):  # SGD's: of a group without momentum
            return torch.zeros(own.numel(), dtype=own.dtype, device="cpu")
        kept = self._kept.get(array, {}).get(i)
        if kept is not None and isinstance(values, (bool, int, float)):
            values = torch.tensor(values, dtype=own.dtype, device="cpu")
        if not isinstance(values, torch.Tensor):
            raise invalid(f"state_dict has {sorted(entry)} of '{name}'; {self._form.name}'s state has '{array}', a tensor")
        if kept is not None and tuple(values.shape) != kept.shape:
            raise invalid(f"state_dict has '{array}' of shape {tuple(values.shape)} for '{name}', of which {self._form.name} keeps {kept.shape}")
        if kept is None and values.shape != p.shape:
            raise invalid(f"state_dict has '{array}' of shape {tuple(values.shape)} for '{name}', whose shape is {tuple(p.shape)}")
        return values.detach().reshape(-1)[begin:begin + own.numel()]

    def forget(self) -> None:
        """Masters have come by another way."""
        self._masters, self._begun, self._settled = {}, {}, dict(self._model._writes)

    def settle(self) -> None:
        """Masters follow parameters that were written, and are what was loaded, where that rounds to the parameter. Local."""
        self._model._follow_writes()
        others = total = 0
        begun = [i for i, writes in self._begun.items() if self._model._writes[i] != writes]
        for i in (*begun, *self._masters):
            view, begin, p = as_tensor(self._native.state(i, "master")), self._begins.get(i, 0), self.params[i].detach()
            values = p.reshape(-1)[begin:begin + view.numel()]
            loaded = self._masters.get(i)
            if loaded is None:
                view.copy_(values)
                continue
            loaded = loaded.to(view.device)
            fits = loaded.to(p.dtype) == values
            view.copy_(torch.where(fits, loaded, values.float()))
            others, total = others + int((~fits).sum()), total + fits.numel()
        self.forget()
        if others:
            warnings.warn(f"{others} of {total} masters that load_state_dict of the optimizer has loaded on this rank do not round to the "
                          "model's parameters, which they now follow: load the model from the same checkpoint", stacklevel=3)
