# SPDX-License-Identifier: Apache-2.0
"""The library's loss scaler under the names of torch.amp.GradScaler."""
from collections import abc
from dataclasses import replace
from typing import Any, Dict, Iterable, Optional, Sequence, Tuple, Union

import torch

from ._errors import MegaDPError, Status, invalid
from ._optimizer import Optimizer
from ._scaler import Scaler, native_scaler
from ._torch_optimizer import Course, ShardedOptimizer, check_course, run_course
from ._torch_steps import as_tensor

_LEAST = 1e-37  # below which the library has no scales


class GradScaler:
    """torch.amp.GradScaler for one sharded optimizer, or several that step together, with a scale that the device keeps: no step waits to
    see whether it was taken. On a GPU optimizer.report is None therefore; get_scale() and state_dict() wait for the last step.

    Arguments are torch's; device means nothing. hysteresis: so many overflows with no growth between, and the scale backs off with each
    from then on; min_scale: not below that (0: as torch's, which has no such limit). With those left alone the scales are those of
    torch.amp.GradScaler, which may be used too. The scale follows a step within step(), update() ends the iteration.
    unscale_ is for what looks at gradients before the step; it waits. So do clip_grad_norm_ after it, and changes of the scaler's values
    once it has taken a step, which are collective, alike on all ranks. The state is saved with the optimizer's by save_checkpoint too, and
    comes back into an optimizer that this scaler has stepped; a script that has not saves state_dict().
    Raises MegaDPError: INVALID, STATE (step() or unscale_() twice before update(), update() without step()), those of a lost communicator.
    """

    def __init__(self, device: str = "cuda", init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
                 growth_interval: int = 2000, enabled: bool = True, *, hysteresis: int = 1, min_scale: float = 0.0) -> None:
        self._enabled = enabled
        # Until it is the device's.
        self._given = Scaler(init_scale, growth_factor, backoff_factor, growth_interval, hysteresis, min_scale or _LEAST)
        native_scaler(self._given)  # says what is wrong with it
        self._optimizers: Tuple[ShardedOptimizer, ...] = ()
        self._scale: Optional[torch.Tensor] = None
        self._begin()

    def _begin(self) -> None:
        self._unscaled: Dict[ShardedOptimizer, bool] = {}  # since the last update(): whether its gradients were finite
        self._divided_by = 1.0                             # by unscale_
        self._stepped = False

    def scale(self, outputs: Union[torch.Tensor, Iterable[Any]]) -> Any:
        """outputs times the scale: a tensor, or any number of them in lists, tuples and iterables. Local; does not wait."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, torch.Tensor):
            # A copy, since backward uses it when the next step may have moved it.
            scale = torch.tensor(self._given.scale, dtype=torch.float32, device="cpu") if self._scale is None else self._scale.clone()
            return outputs * scale.to(outputs.device, non_blocking=True)
        if isinstance(outputs, abc.Iterable):
            scaled = map(self.scale, outputs)
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        raise invalid(f"outputs is a {type(outputs).__name__}; it must be a tensor or an iterable of tensors")

    def unscale_(self, optimizer: ShardedOptimizer) -> None:
        """Divides gradients by the scale before step() does, for who clips or looks at them. Waits for them. Collective; blocking."""
        if not self._enabled:
            return
        check_course((optimizer,))
        if self._stepped or optimizer in self._unscaled:
            raise MegaDPError(Status.STATE, f"unscale_() after {'step()' if self._stepped else 'unscale_()'} of the same iteration: call it once, "
                              "between backward() and step(), and update() at the end")
        gradients, numbers = optimizer.model.gradients, list(optimizer._sharded.params)
        self._divided_by = self.get_scale()
        optimizer.model._end_backward(needed=False)
        finite = not numbers or gradients.finite(numbers)
        if finite and numbers:
            gradients.scale(numbers, 1 / self._divided_by)
        self._unscaled[optimizer] = finite

    def step(self, optimizer: Union[ShardedOptimizer, Sequence[ShardedOptimizer]], closure: Any = None) -> Any:
        """step() of the optimizer, or megadp.torch.step_many of a list, with gradients divided by the scale; skipped on all ranks where one is
        not finite. Collective; blocking as that. closure is refused, as torch's."""
        optimizers = check_course(optimizer if isinstance(optimizer, (list, tuple)) else (optimizer,))
        if not self._enabled:
            return run_course(Course(optimizers), closure)
        if closure is not None:
            raise invalid("closure is given to step() of a GradScaler; call it before, and scale the loss")
        if self._stepped:
            raise MegaDPError(Status.STATE, "step() for the second time since the last update() of the GradScaler: each model has a "
                              "GradScaler of its own (torch.amp.GradScaler may be one for all)")
        self._take(optimizers)
        for each in optimizers if self._unscaled else ():
            if each not in self._unscaled:
                self.unscale_(each)
        if not all(self._unscaled.values()):
            self._mark(optimizers)
        run_course(Course(optimizers, True, 1 / self._divided_by if self._unscaled else None))
        self._stepped = True
        return None

    def _take(self, optimizers: Tuple[ShardedOptimizer, ...]) -> None:
        """From the first step on the scale is the device's."""
        if self._optimizers and self._optimizers != optimizers:
            raise invalid("optimizer is not the one that this GradScaler has stepped before; one that steps by itself has a GradScaler of its "
                          "own")
        if self._optimizers:
            return
        for number, each in enumerate(optimizers):
            if each._scaler is not None:
                raise invalid(f"optimizers[{number}] has another GradScaler already")
        native = optimizers[0]._native
        native.set_scaler(self._given)
        for each in optimizers:
            each._scaler = self
        self._optimizers = optimizers
        self._scale = as_tensor(native.scale()).view(())

    def _mark(self, optimizers: Tuple[ShardedOptimizer, ...]) -> None:
        """unscale_ has found a gradient that is not finite, and clipping may have hidden that since: the step is to find it again."""
        for each in optimizers:
            gradients, numbers = each.model.gradients, list(each._sharded.params)
            for number in numbers:
                gradients._reduced(number).fill_(float("nan"))
            if numbers:
                gradients.written(numbers)

    @property
    def _native(self) -> Optional[Optimizer]:
        return self._optimizers[0]._native if self._optimizers else None

    def update(self, new_scale: Union[None, float, torch.Tensor] = None) -> None:
        """Ends an iteration; step() has moved the scale. new_scale: that from now on; then collective, and it waits."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._change(scale=float(new_scale))
        elif not self._stepped:
            raise MegaDPError(Status.STATE, "update() of the GradScaler without step() before; it ends an iteration")
        self._begin()

    def _now(self) -> Scaler:
        return self._given if self._native is None else self._native.scaler()

    def _change(self, **values: Any) -> None:
        changed = replace(self._now(), **values)
        if self._native is None:
            native_scaler(changed)
            self._given = changed
        else:
            self._native.set_scaler(changed)

    def get_scale(self) -> float:
        """The scale; 1 if not enabled. Waits for the last step. Local."""
        return self._now().scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        return self._now().growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        self._change(growth_factor=new_factor)

    def get_backoff_factor(self) -> float:
        return self._now().backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        self._change(backoff_factor=new_factor)

    def get_growth_interval(self) -> int:
        return self._now().growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        now = self._now()
        self._change(growth_interval=new_interval, clean_steps=min(now.clean_steps, max(new_interval - 1, 0)))

    def get_hysteresis(self) -> int:
        return self._now().hysteresis

    def set_hysteresis(self, new_hysteresis: int) -> None:
        self._change(hysteresis=new_hysteresis, overflows=min(self._now().overflows, max(new_hysteresis, 0)))

    def is_enabled(self) -> bool:
        return self._enabled

    def state_dict(self) -> Dict[str, Any]:
        """torch's five entries, from which torch.amp.GradScaler goes on too, and hysteresis, min_scale and _overflows; empty if not enabled.
        Waits for the last step. Local."""
        if not self._enabled:
            return {}
        now = self._now()
        return {"scale": now.scale, "growth_factor": now.growth_factor, "backoff_factor": now.backoff_factor,
                "growth_interval": now.growth_interval, "_growth_tracker": now.clean_steps, "hysteresis": now.hysteresis,
                "min_scale": now.min_scale, "_overflows": now.overflows}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Goes on from what state_dict gave, or torch.amp.GradScaler's, which leaves hysteresis and min_scale as they are. Local before
        the first step, afterwards collective, alike on all ranks."""
        if not self._enabled:
            return
        missing = sorted({"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"} - set(state_dict))
        if missing:
            raise invalid(f"state_dict has no {', '.join(missing)}; " +
                          ("it is empty, as that of a GradScaler that is not enabled" if not state_dict else f"it has {sorted(state_dict)}"))
        more = {name: state_dict[name] for name in ("hysteresis", "min_scale") if name in state_dict}
        self._change(scale=state_dict["scale"], growth_factor=state_dict["growth_factor"], backoff_factor=state_dict["backoff_factor"],
                     growth_interval=state_dict["growth_interval"], clean_steps=state_dict["_growth_tracker"],
                     overflows=state_dict.get("_overflows", 0), **more)
