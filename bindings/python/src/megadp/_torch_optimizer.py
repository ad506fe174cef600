# SPDX-License-Identifier: Apache-2.0
"""Sharded AdamW as one of torch's optimizers."""
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

import torch

from ._errors import MegaDPError, Status, invalid
from ._optimizer import Optimizer, ParamGroup, StepReport
from ._torch_state import ShardedState, explained
from ._torch_steps import stream_of

if TYPE_CHECKING:
    from .torch import DataParallel

_NO_EFFECT = ("foreach", "fused")  # how torch's goes over its tensors
_REFUSED = ("amsgrad", "maximize", "capturable", "differentiable")
_OF_ALL = ". state_dict() of ShardedAdamW collects what all ranks keep: call it on all of them, and torch.save on one"


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
        groups = [dict(values, params=params) for values, params in zip(model.group_options, model.group_params)]
        # All that torch's groups have, so that torch's AdamW loads what state_dict gives.
        torchs = torch.optim.AdamW([torch.zeros(1)]).defaults
        self._complete = False
        super().__init__(groups, {**torchs, **options, "lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})
        self._complete = True
        self.model = model
        self.report = None
        self._fixed = (tuple(betas), eps)
        self._told = [self._values(group) for group in self.param_groups]
        self._native = Optimizer(model.storage, lr=float(lr), betas=tuple(betas), eps=eps, max_grad_norm=max_grad_norm,
                                 param_groups=self._told)
        self._sharded = ShardedState(model, self._native)
        self._collected: Optional[Tuple[int, Any]] = None  # by consolidate_state_dict: the rank that has it, and there what it has

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
        self._sharded.settle()
        self._collected = None
        self.model.sync()
        stream = next((stream_of(p) for p in self.model.trained.values() if p.is_cuda), 0)
        self.report = self._native.step(wait=not self.model.gather_in_forward, stream=stream)
        self.model._stepped()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As DataParallel.zero_grad. Local."""
        self.model.zero_grad(set_to_none)

    def state_dict(self) -> Dict[str, Any]:  # type: ignore[override]
        """What torch.optim.AdamW's state_dict is after the same steps, whole and the same on all ranks, in copies on the CPU, float32; of a
        parameter of less than 32 bits also its fp32 "master". So `state = optimizer.state_dict()` on all ranks, and torch.save on one.
        With sharding="zero_0" or one rank local; otherwise collective and blocking, unless consolidate_state_dict was called
        before. Raises MegaDPError: STATE (collected on another rank), those of a lost communicator (TIMEOUT, if not all ranks call it)."""
        if self._collected is None:
            state = self._collect(None)
        else:
            rank, state = self._collected
            if state is None:
                raise MegaDPError(Status.STATE, f"state_dict() on rank {self.model._comm.rank}: consolidate_state_dict(to={rank}) has "
                                  f"collected the state on rank {rank}; call it there, or on all ranks without consolidate_state_dict()")
        self.state.update(state)
        try:
            return super().state_dict()
        finally:
            self.state.clear()

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collects on rank `to` alone, which has memory for it; until the next step state_dict() is local there, and an error elsewhere. As of
        torch.distributed.optim.ZeroRedundancyOptimizer. Collective; blocking. Raises MegaDPError: INVALID, those of a lost communicator."""
        if not (isinstance(to, int) and 0 <= to < self.model._comm.size):
            raise invalid(f"to is {to!r}; it must be a rank, from 0 to {self.model._comm.size - 1}")
        self._collected = None
        self._collected = (to, self._collect(to))

    def _collect(self, rank: Optional[int]) -> Any:
        try:
            return self._sharded.collect(rank)
        except MegaDPError as error:
            raise explained(error, _OF_ALL) from None

    @torch.no_grad()
    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:  # type: ignore[override]
        """Goes on from what state_dict gave, with any number of ranks and any sharding, or torch.optim.AdamW's. Takes over the values of groups
        as well, as torch does. The model may be loaded before or after, up to the next step: a master that does not round to its
        parameter then follows it, with a warning; one that was not saved, or not as float32, follows too. To be called alike on all ranks.
        Local. Raises MegaDPError: INVALID (what does not fit; then nothing has changed)."""
        for hook in getattr(self, "_optimizer_load_state_dict_pre_hooks", {}).values():
            state_dict = hook(self, state_dict) or state_dict
        groups, params = self._groups_of(state_dict)
        number_of = {id(p): i for i, p in self.model.trained.items()}
        saved = zip((number for group in groups for number in group["params"]), params)
        # torch has no state of a parameter before its first step, and none of a frozen one
        self._sharded.load({number_of[id(p)]: state_dict["state"].get(number, {}) for number, p in saved if id(p) in number_of})
        self.take_groups(groups)
        self._collected = None
        for hook in getattr(self, "_optimizer_load_state_dict_post_hooks", {}).values():
            hook(self)

    def take_groups(self, groups: List[Dict[str, Any]]) -> None:
        """Takes over the values of saved groups (lr, weight_decay, what schedulers keep there). Local."""
        for group, values in zip(self.param_groups, groups):
            group.update({name: value for name, value in values.items() if name != "params"})
            group["betas"] = tuple(group["betas"])

    def _loaded(self, groups: Optional[List[Dict[str, Any]]]) -> None:
        """State has come from a checkpoint, with the saved groups' values; None: it begins anew, with those that are here. Local."""
        if groups is not None:
            self.take_groups(groups)
            self._told = [self._values(group) for group in self.param_groups]
            for number, values in enumerate(self._told):
                self._native.set_param_group(number, values)
        self._sharded.forget()
        self._collected = None

    def _groups_of(self, state_dict: Dict[str, Any]) -> Tuple[List[Dict[str, Any]], List[torch.Tensor]]:
        """The groups, and the parameters that theirs are, in order."""
        if not isinstance(state_dict, dict) or "state" not in state_dict or "param_groups" not in state_dict:
            raise invalid(f"state_dict has {sorted(state_dict)}; an optimizer's has 'state' and 'param_groups'")
        groups = state_dict["param_groups"]
        self.check_groups(groups, "state_dict")
        sizes, mine = ([len(group["params"]) for group in each] for each in (groups, self.param_groups))
        every: List[torch.Tensor] = list(self.model.module.parameters())
        if sizes != mine and len(mine) == 1 and sizes == [len(every)]:  # torch.optim.AdamW(model.parameters()) has the frozen ones too
            return groups, every
        if sizes != mine:
            raise invalid(f"state_dict has parameter groups of {sizes} parameters; this optimizer has {mine}, of those that are trained")
        return groups, [p for group in self.param_groups for p in group["params"]]

    def check_groups(self, groups: List[Dict[str, Any]], what: str) -> None:
        """That this optimizer can go on with the values of saved groups. Raises MegaDPError: INVALID."""
        for number, group in enumerate(groups):
            betas, eps = tuple(group.get("betas", ())), group.get("eps")
            if (betas, eps) != self._fixed:
                raise invalid(f"{what} has betas and eps of {betas}, {eps} in group {number}; this optimizer was made with "
                              f"{self._fixed[0]}, {self._fixed[1]}, which are fixed")
            for name in _REFUSED:
                if group.get(name):
                    raise invalid(f"{what} was saved with {name} in group {number}, which is not an option of ShardedAdamW")
