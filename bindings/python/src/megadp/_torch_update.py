# SPDX-License-Identifier: Apache-2.0
"""The step of an optimizer of torch's on one piece or one parameter: what it keeps of it comes from the library, and goes back there."""
import copy
import functools
from numbers import Number
from typing import Any, Dict, FrozenSet, List, NamedTuple, NoReturn, Optional, Sequence, Set, Tuple, Type

import torch

from ._errors import MegaDPError, invalid

STEPS = 4  # that are tried out
CLOSE = dict(rtol=1e-5, atol=1e-7)  # between what is tried out in two ways
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8)
_NUMBERS = {int: torch.int64, float: torch.float64, bool: torch.uint8}
_GROUPS, _ITSELF = "its groups", "itself"  # where a class may keep what is of no parameter
# What torch and its schedulers put into an optimizer besides what each has from the beginning.
_TORCHS = ("_step_count", "_opt_called", "_warned_capturable_if_run_uncaptured", "_need_device_dtype_check_for_fused")
_MANY = 360360000  # a number of steps that is divisible by what a class may do something at
SAYS_UNSHARDED = ('With DataParallel(..., sharding="zero_0") every rank has all gradients, and such a class is stepped as in torch: model.sync(), '
                  "its step(), model.stepped()")
SAYS_GROUPS = ("Parameters of several kinds may have an optimizer each: groups=[0] of param_groups of DataParallel for one, groups=[1] for the "
               "other, and megadp.torch.step_many([a, b])")


def tried_with(values: Dict[str, Any]) -> Dict[str, Any]:
    """A group's values for a trial, with a learning rate that shows in what a step does."""
    own_rate = "lr" in values and values["lr"] is None
    return values if own_rate else {**values, "lr": max(float(values.get("lr") or 0), 1e-2)}


class Entry(NamedTuple):
    """What is kept under a name. device: None where the parameter is. number: the type of what is a plain number to the class, and a tensor of
    shape () in the library."""

    shape: Tuple[int, ...]
    dtype: torch.dtype
    device: Optional[torch.device] = None
    number: Any = None

    def told(self, array: torch.Tensor, master: torch.Tensor) -> Any:
        """As the class knows it that steps master."""
        return array.to(self.device or master.device) if self.number is None else self.number(array.item())


class _Same:
    """A value that is another one if it was replaced, and a tensor also if it was written: without copies, and without waiting for a device. A list
    that is filled is still the group's own, and stays: RAdam of its authors keeps there what it has computed of a step's number."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._version = value._version if isinstance(value, torch.Tensor) else 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value and self._version == other._version


def _comparable(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_comparable, value))
    return (value,) if isinstance(value, (Number, str, bytes, type(None))) and not isinstance(value, torch.Tensor) else _Same(value)


@functools.lru_cache(maxsize=None)
def _torchs() -> FrozenSet[str]:
    return frozenset(vars(torch.optim.SGD([torch.zeros(1)], lr=1.0))).union(_TORCHS)


def _beside(optimizer: torch.optim.Optimizer) -> Dict[Tuple[str, str], Any]:
    """What a class has that is of no parameter."""
    torchs = _torchs()
    found = {(_ITSELF, name): _comparable(value) for name, value in vars(optimizer).items() if name not in torchs}
    for group in optimizer.param_groups:
        found.update({(_GROUPS, name): _comparable(value) for name, value in group.items() if name != "params"})
    return found


def _changed(before: Dict[Tuple[str, str], Any], optimizer: torch.optim.Optimizer) -> Set[Tuple[str, str]]:
    now = _beside(optimizer)
    return {key for key in {*before, *now} if before.get(key) != now.get(key)}


def _all_of(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> Dict[str, torch.Tensor]:
    of_param = {"parameter": param, **optimizer.state.get(param, {})}
    return {name: torch.as_tensor(value).double() for name, value in of_param.items() if value is not None}


class Kept(NamedTuple):
    """What a class keeps of a parameter: by name, and how it counts steps (None: it does not)."""

    entries: Dict[str, Entry]
    step: Any


class Stepping:
    """The step of torch's optimizers of one class, on tensors one by one. kind: the class. given: the arguments that it is made with."""

    def __init__(self, kind: Type[torch.optim.Optimizer], given: Dict[str, Any]) -> None:
        self.kind, self._given = kind, given
        self._unread: Set[Tuple[str, str]] = set()  # what the class counts, and does not go by
        self.defaults = dict(self.make([torch.zeros(2, 2, dtype=torch.float32)]).defaults)  # of two dimensions, since Muon takes no others
        self._inner: Optional[torch.optim.Optimizer] = None

    def make(self, params: List[Any], more: str = "") -> torch.optim.Optimizer:
        try:
            return self.kind(params, **self._given)
        except (TypeError, ValueError) as error:
            raise invalid(f"torch's {self.kind.__name__} cannot be made with {self._given or 'no arguments'}: {error}{more}") from error
        except Exception as error:  # whatever it takes otherwise
            raise invalid(f"{self.kind.__name__} cannot be made of a list of parameters, or of one group, as classes of torch.optim can "
                          f"({type(error).__name__}: {error}). {SAYS_GROUPS}. {SAYS_UNSHARDED}") from error

    def make_trial(self, values: Dict[str, Any], params: List[torch.Tensor]) -> torch.optim.Optimizer:
        """One of these parameters, with copies of values: some classes keep lists in their groups."""
        return self.make([{**copy.deepcopy(values), "params": params}], f". Tried with a parameter of shape {tuple(params[0].shape)}. {SAYS_GROUPS}")

    def refuse(self, why: str, anywhere: bool = False) -> NoReturn:
        """anywhere: also on whole parameters."""
        raise NotImplementedError

    def kept(self, values: Dict[str, Any], shape: Optional[Tuple[int, ...]] = None) -> Kept:
        """What the class keeps of a parameter with a group's values, which is tried out once for each set of them that are not 0 or off.
        shape: the parameter's."""
        raise NotImplementedError

    def update(self, values: Dict[str, Any], kept: Kept, master: torch.Tensor, grad: torch.Tensor, arrays: Dict[str, torch.Tensor],
               step: int) -> None:
        """Step number `step` of a tensor, of which arrays are all that the class is told and keeps. The first makes them, as the class does."""
        group = {**values, "params": [master]}
        master.grad = grad
        if step == 1:
            optimizer = self.make([group])
        else:
            if self._inner is None:
                self._inner = self.make([torch.zeros(2, 2, dtype=torch.float32)])
            optimizer = self._inner
            optimizer.param_groups = [group]
            optimizer.state.clear()
            optimizer.state[master] = {name: kept.entries[name].told(array, master) for name, array in arrays.items()}
            if isinstance(kept.step, torch.Tensor):
                optimizer.state[master]["step"] = torch.full_like(kept.step, step - 1)
            elif kept.step is not None:
                optimizer.state[master]["step"] = type(kept.step)(step - 1)
        before = _beside(optimizer)
        optimizer.step()
        found = optimizer.state.get(master, {})
        self._check_known(found, arrays, _changed(before, optimizer) - self._unread, step)
        for name, array in arrays.items():
            if isinstance(found.get(name), torch.Tensor):
                if found[name] is not array:
                    array.copy_(found[name])
            elif found.get(name) is not None:
                array.fill_(found[name])
        optimizer.state.clear()
        optimizer.param_groups = []
        master.grad = None

    def _check_known(self, found: Dict[str, Any], arrays: Dict[str, torch.Tensor], beside: Set[Tuple[str, str]], step: int) -> None:
        """That a step has left nothing behind that the library does not keep: it would be lost, and the next step another one than torch's."""
        for name, value in found.items():
            if name != "step" and value is not None and name not in arrays:
                raise invalid(f"{self.kind.__name__} keeps {name!r} of a parameter after its step {step}, and kept nothing of that name when it was "
                              "tried out: make all that is kept in the first step")
            if isinstance(value, torch.Tensor) and name in arrays and value.shape != arrays[name].shape:
                raise invalid(f"{self.kind.__name__} keeps {name!r} of shape {tuple(value.shape)} after its step {step} of a parameter, and kept it "
                              f"of shape {tuple(arrays[name].shape)} when it was tried out")
        for place, name in sorted(beside):
            raise invalid(f"{self.kind.__name__} has changed {name!r} in {place} in step {step} of a parameter, and did not when it was tried out: "
                          f"it would be lost. Keep it in state[p]. {SAYS_UNSHARDED}")

    def steps(self, optimizer: torch.optim.Optimizer, params: List[torch.Tensor], grads: Sequence[List[torch.Tensor]],
              first: int = 1) -> Set[Tuple[str, str]]:
        """As the class takes them: grads[i] are those of step first + i, of each parameter. What it has changed that is of no parameter."""
        changed = set()
        for number, each in enumerate(grads, first):
            for p, grad in zip(params, each):
                p.grad = grad.clone()
            before = _beside(optimizer)
            try:
                optimizer.step()
            except Exception as error:  # whatever a class does
                self.refuse(f"{type(error).__name__}: {error}")
            changed |= _changed(before, optimizer)
            count = optimizer.state.get(params[0], {}).get("step", number)
            if float(count) != number:
                self.refuse(f"its 'step' is {count} after {number} steps")
        return changed

    def check_beside(self, values: Dict[str, Any], changed: Set[Tuple[str, str]], starts: List[torch.Tensor], grads: List[List[torch.Tensor]],
                     ended: torch.optim.Optimizer) -> None:
        """Refuses a class by what it has changed in its groups or in itself, unless it only counts there: another number from the second step on
        changes nothing. starts, grads: of the trial. ended: the optimizer after it."""
        if not changed:
            return
        params = [start.clone() for start in starts]
        optimizer = self.make_trial(values, params)
        self.steps(optimizer, params, grads[:1])
        names = {where: ", ".join(repr(name) for place, name in sorted(changed) if place == where) for where, _ in sorted(changed)}
        why = (f"it keeps {' and '.join(f'{listed} in {where}' for where, listed in names.items())}, where nothing is kept from step to step of a "
               "parameter by itself: keep it in state[p]")
        for place, name in changed:
            owner: Dict[str, Any] = vars(optimizer) if place == _ITSELF else optimizer.param_groups[0]
            if type(owner.get(name)) is bool:  # such as whether it has warned
                owner[name] = not owner[name]
                continue
            if type(owner.get(name)) not in (int, float):
                self.refuse(why, True)
            owner[name] = _MANY - 1 if isinstance(owner[name], int) else 1000 * owner[name] + 1000
        try:
            self.steps(optimizer, params, grads[1:], 2)
        except MegaDPError:
            self.refuse(why, True)
        for p, other in zip(params, ended.param_groups[0]["params"]):
            found, expected = _all_of(optimizer, p), _all_of(ended, other)
            if found.keys() != expected.keys() or not all(torch.allclose(found[each], expected[each], equal_nan=True, **CLOSE) for each in found):
                self.refuse(why, True)
        self._unread |= changed

    def entries(self, param: torch.Tensor, state: Dict[str, Any]) -> Kept:
        """Of all that torch has of a parameter after some steps. What is on its device is where a parameter is also on others: steps may be
        tried out elsewhere than they are taken."""
        found = {}
        for name, value in state.items():
            if name == "step" or value is None:
                continue
            if isinstance(value, torch.Tensor) and value.dtype in _DTYPES:
                found[name] = Entry(tuple(value.shape), value.dtype, None if value.device == param.device else value.device)
            elif type(value) in _NUMBERS:
                found[name] = Entry((), _NUMBERS[type(value)], number=type(value))
            else:
                what = value.dtype if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
                self.refuse(f"it keeps {name!r} ({what}) of a parameter, and only numbers and tensors of {', '.join(map(str, _DTYPES))} can be kept")
        return Kept(found, state.get("step"))

    def repeat(self, values: Dict[str, Any], kept: Kept, start: torch.Tensor, grads: List[torch.Tensor],
               expected: Dict[str, Any], where: str, close: Optional[Dict[str, float]] = None) -> None:
        """Refuses a class that comes to something else than expected ("parameter", and what it keeps) by update() from `start` on."""
        arrays = {name: torch.zeros(entry.shape, dtype=entry.dtype) for name, entry in kept.entries.items()}
        values = copy.deepcopy(values)  # as in make_trial
        for number, grad in enumerate(grads, 1):
            try:
                self.update(values, kept, start, grad.clone(), arrays, number)
            except Exception as error:  # whatever a class does
                self.refuse(error.text if isinstance(error, MegaDPError) else f"{type(error).__name__}: {error}")
        for name, found in (("parameter", start), *arrays.items()):
            wanted = torch.as_tensor(expected[name]).to(found.dtype)
            if not torch.allclose(found, wanted, equal_nan=True, **(close or CLOSE)):
                self.refuse(f"after {len(grads)} steps the {name} is not the same where {where}")
