# SPDX-License-Identifier: Apache-2.0
"""Sharded AdamW as one of torch's optimizers."""
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

import torch

from ._errors import MegaDPError, Status, invalid
from ._optimizer import Optimizer, ParamGroup, StepReport
from ._torch_steps import as_tensor, stream_of

if TYPE_CHECKING:
    from .torch import DataParallel

_NO_EFFECT = ("foreach", "fused")  # how torch's goes over its tensors
_REFUSED = ("amsgrad", "maximize", "capturable", "differentiable")
_MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardedAdamW(torch.optim.Optimizer):
    """AdamW on this rank's shard of a DataParallel module's parameters: torch.optim.AdamW's arguments and result, 1/dp of its state.

    max_grad_norm: gradients are scaled down to this global norm (0: off); torch.nn.utils.clip_grad_norm_ before the step does the same with
    one more pass. As torch's, each parameter has a step count of its own. Learning-rate schedulers work; lr and weight_decay of param_groups may change, betas and eps may not. foreach and fused
    are taken and mean nothing; amsgrad, maximize, capturable and differentiable are refused. torch.amp.GradScaler works.
    report: the last step's StepReport. Collective; blocking. Raises MegaDPError: INVALID, as Optimizer.
    """

    report: Optional[StepReport]

    def __init__(self, model: "DataParallel", lr: float = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
                 *, max_grad_norm: float = 0.0, **options: Any) -> None:
        if not hasattr(model, "group_options"):
            raise invalid(f"model is a {type(model).__name__}; it must be a megadp.torch.DataParallel (not its parameters(); groups of "
                          "parameters are given to DataParallel as param_groups)")
        for name, value in options.items():
            if name not in _NO_EFFECT and (name not in _REFUSED or value):
                raise invalid(f"{name} is not an option of ShardedAdamW")
        groups: List[Dict[str, Any]] = [dict(values, params=[]) for values in model.group_options]
        for i, p in model.trained.items():
            groups[model.storage.params[i].param_group]["params"].append(p)
        self._complete = False
        super().__init__(groups, dict(lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay))
        self._complete = True
        self.model = model
        self.report = None
        self._fixed = (tuple(betas), eps)
        self._told = [self._values(group) for group in self.param_groups]
        self._native = Optimizer(model.storage, lr=float(lr), betas=tuple(betas), eps=eps, max_grad_norm=max_grad_norm,
                                 param_groups=self._told)

    @staticmethod
    def _values(group: Dict[str, Any]) -> ParamGroup:
        return ParamGroup(float(group["lr"]), float(group["weight_decay"]))

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Refused once the optimizer is there: memory and shards are laid out when a module is wrapped."""
        if self._complete:
            raise MegaDPError(Status.UNSUPPORTED, "add_param_group() of ShardedAdamW is not offered: parameters are registered when the module "
                              "is wrapped. Wrap all of them (those to be trained later with register_frozen=True, or freeze them after "
                              "wrapping), and give groups as param_groups of DataParallel")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Agrees on the gradients with all ranks and takes a step. Parameters that no rank has a gradient for stay as they are. Returns
        closure's value. Collective; blocking until the parameters are whole (with gather_in_forward: until the norm is known).
        Raises MegaDPError: STATE, NUMERIC (a gradient is not finite; nothing has changed), INVALID, those of a lost communicator."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, group in enumerate(self.param_groups):
            if (tuple(group["betas"]), group["eps"]) != self._fixed:
                raise invalid(f"betas and eps of group {number} have changed to {group['betas']}, {group['eps']}; they are fixed at "
                              f"{self._fixed[0]}, {self._fixed[1]} (OneCycleLR and CyclicLR change betas unless cycle_momentum=False)")
            if self._values(group) != self._told[number]:
                self._told[number] = self._values(group)
                self._native.set_param_group(number, self._told[number])
        self.model.sync()
        stream = next((stream_of(p) for p in self.model.trained.values() if p.is_cuda), 0)
        self.report = self._native.step(wait=not self.model.gather_in_forward, stream=stream)
        self.model._stepped()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As DataParallel.zero_grad. Local."""
        self.model.zero_grad(set_to_none)

    def state_dict(self) -> Dict[str, Any]:  # type: ignore[override]
        """This rank's shard, as copies: for each parameter "exp_avg", "exp_avg_sq" and "master" (float32, what this rank owns of the
        flattened parameter), "begin", where that begins, and "step", how many steps it has taken part in. So each rank saves its own.
        Local."""
        begins = self._begins()
        position = {id(p): i for i, p in enumerate(self._listed())}
        state = {}
        for i, p in self.model.trained.items():
            entry: Dict[str, Any] = {name: as_tensor(self._native.state(i, name)).clone() for name in (*_MOMENTS, "master")}
            entry["begin"] = begins.get(i, 0)
            entry["step"] = self._native.steps(i)
            state[position[id(p)]] = entry
        groups = [{**{name: value for name, value in group.items() if name != "params"}, "params": [position[id(p)] for p in group["params"]]}
                  for group in self.param_groups]
        return {"state": state, "param_groups": groups, "step": self._native.info()["steps"]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:  # type: ignore[override]
        """Goes on from what state_dict gave on this rank, with as many ranks; or, on all ranks, from what torch.optim.AdamW's gave, whose
        arrays are as large as the parameters. Takes over the values of groups as well, as torch does. The model's comes before: parameters
        that are written afterwards are what their masters follow. To be called alike on all ranks. Local.
        Raises MegaDPError: INVALID (what does not fit; then nothing has changed)."""
        groups = self._groups_of(state_dict)
        saved = dict(zip((number for group in groups for number in group["params"]), self._listed()))
        number_of, begins = {id(p): i for i, p in self.model.trained.items()}, self._begins()
        loaded: List[Tuple[torch.Tensor, torch.Tensor]] = []
        steps = [0] * len(self.model.storage.params)
        for number, p in saved.items():
            i = number_of[id(p)]
            entry = state_dict["state"].get(number, {})  # torch has none of a parameter before its first step
            steps[i] = int(entry.get("step", 0))
            loaded += self._arrays_of(i, p, entry, begins.get(i, 0))
        self._native.set_steps(int(state_dict.get("step", max(steps))), steps)
        for to, values in loaded:
            to.copy_(values)
        for group, values in zip(self.param_groups, groups):
            group.update({name: values[name] for name in values if name != "params" and (name in group or name == "initial_lr")})

    def _listed(self) -> List[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _begins(self) -> Dict[int, int]:
        return {piece.param: piece.param_begin for piece in self.model.storage.owned()}

    def _groups_of(self, state_dict: Dict[str, Any]) -> Any:
        if "state" not in state_dict or "param_groups" not in state_dict:
            raise invalid(f"state_dict has {sorted(state_dict)}; an optimizer's has 'state' and 'param_groups'")
        groups = state_dict["param_groups"]
        sizes, mine = ([len(group["params"]) for group in each] for each in (groups, self.param_groups))
        if sizes != mine:
            raise invalid(f"state_dict has parameter groups of {sizes} parameters; this optimizer has {mine}, of those that are trained")
        for number, group in enumerate(groups):
            betas, eps = tuple(group.get("betas", ())), group.get("eps")
            if (betas, eps) != self._fixed:
                raise invalid(f"state_dict has betas and eps of {betas}, {eps} in group {number}; this optimizer was made with "
                              f"{self._fixed[0]}, {self._fixed[1]}, which are fixed")
            for name in _REFUSED:
                if group.get(name):
                    raise invalid(f"state_dict was saved with {name} in group {number}, which is not an option of ShardedAdamW")
        return groups

    def _arrays_of(self, i: int, p: torch.Tensor, entry: Dict[str, Any], begin: int) -> List[Tuple[torch.Tensor, torch.Tensor]]:
        """(view of the state, what is saved of it) of one parameter. A master that is the parameter itself is the model's to load."""
        name, found = self.model.storage.params[i].name, []
        for array in (*_MOMENTS, "master") if "master" in entry and p.dtype != torch.float32 else _MOMENTS:
            view = as_tensor(self._native.state(i, array))
            values = entry.get(array)
            if not entry:
                values = torch.zeros_like(view)
            elif values is None:
                raise invalid(f"state_dict has {sorted(entry)} of '{name}'; AdamW's state has '{array}'")
            elif "begin" in entry:
                if (entry["begin"], values.numel()) != (begin, view.numel()):
                    raise invalid(f"state_dict has elements {entry['begin']} to {entry['begin'] + values.numel()} of '{name}'; this rank owns "
                                  f"{begin} to {begin + view.numel()}. Each rank saves its own state and loads it, with as many ranks and the "
                                  "same options")
            elif values.shape != p.shape:
                raise invalid(f"state_dict has '{array}' of shape {tuple(values.shape)} for '{name}', whose shape is {tuple(p.shape)}")
            else:
                values = values.reshape(-1)[begin:begin + view.numel()]
            found.append((view, values))
        return found
