# SPDX-License-Identifier: Apache-2.0
"""The step of an optimizer of torch's on one piece or one parameter: what it keeps of it comes from the library, and goes back there."""
import copy
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Tuple, Type

import torch

from ._errors import invalid

STEPS = 4  # that are tried out
CLOSE = dict(rtol=1e-5, atol=1e-7)  # between what is tried out in two ways
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8)
_NUMBERS = {int: torch.int64, float: torch.float64, bool: torch.uint8}


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


class Kept(NamedTuple):
    """What a class keeps of a parameter: by name, and how it counts steps (None: it does not)."""

    entries: Dict[str, Entry]
    step: Any


class Stepping:
    """The step of torch's optimizers of one class, on tensors one by one. kind: the class. given: the arguments that it is made with."""

    def __init__(self, kind: Type[torch.optim.Optimizer], given: Dict[str, Any]) -> None:
        self.kind, self._given = kind, given
        self.defaults = dict(self.make([torch.zeros(2, 2, dtype=torch.float32)]).defaults)  # of two dimensions, since Muon takes no others
        self._inner: Optional[torch.optim.Optimizer] = None

    def make(self, params: List[Any]) -> torch.optim.Optimizer:
        try:
            return self.kind(params, **self._given)
        except (TypeError, ValueError) as error:
            raise invalid(f"torch's {self.kind.__name__} cannot be made with {self._given or 'no arguments'}: {error}") from error

    def make_trial(self, values: Dict[str, Any], params: List[torch.Tensor]) -> torch.optim.Optimizer:
        """One of these parameters, with copies of values: some classes keep lists in their groups."""
        return self.make([{**copy.deepcopy(values), "params": params}])

    def refuse(self, why: str) -> NoReturn:
        raise NotImplementedError

    def kept(self, values: Dict[str, Any], shape: Tuple[int, ...] = ()) -> Kept:
        """What the class keeps of a parameter with a group's values, which is tried out once for each set of them that are not 0 or off.
        shape: the parameter's, where that counts."""
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
        optimizer.step()
        found = optimizer.state.get(master, {})
        for name, array in arrays.items():
            if isinstance(found.get(name), torch.Tensor):
                if found[name] is not array:
                    array.copy_(found[name])
            elif found.get(name) is not None:
                array.fill_(found[name])
        optimizer.state.clear()
        optimizer.param_groups = []
        master.grad = None

    def steps(self, optimizer: torch.optim.Optimizer, params: List[torch.Tensor], grads: List[List[torch.Tensor]]) -> None:
        """As the class takes them: grads[i] are those of step i, of each parameter."""
        for number, each in enumerate(grads, 1):
            for p, grad in zip(params, each):
                p.grad = grad.clone()
            try:
                optimizer.step()
            except (RuntimeError, TypeError, ValueError) as error:
                self.refuse(str(error))
            count = optimizer.state.get(params[0], {}).get("step", number)
            if float(count) != number:
                self.refuse(f"its 'step' is {count} after {number} steps")

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
               expected: Dict[str, Any], where: str) -> None:
        """Refuses a class that comes to something else than expected ("parameter", and what it keeps) by update() from `start` on."""
        arrays = {name: torch.zeros(entry.shape, dtype=entry.dtype) for name, entry in kept.entries.items()}
        values = copy.deepcopy(values)  # as in make_trial
        for number, grad in enumerate(grads, 1):
            try:
                self.update(values, kept, start, grad.clone(), arrays, number)
            except (RuntimeError, TypeError, ValueError, KeyError) as error:  # MegaDPError is a RuntimeError too
                self.refuse(f"{type(error).__name__}: {error}")
        for name, found in (("parameter", start), *arrays.items()):
            wanted = torch.as_tensor(expected[name]).to(found.dtype)
            if not torch.allclose(found, wanted, equal_nan=True, **CLOSE):
                self.refuse(f"after {len(grads)} steps the {name} is not the same where {where}")
