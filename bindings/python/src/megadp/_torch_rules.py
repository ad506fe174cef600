# SPDX-License-Identifier: Apache-2.0
"""The sharded optimizers, by the arguments of torch's."""
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from ._errors import invalid
from ._optimizer_config import Rule
from ._param_group import ParamGroup
from ._torch_optimizer import ShardedOptimizer, group_numbers
from ._torch_steps import as_tensor

if TYPE_CHECKING:
    from .torch import DataParallel

_ADAM = {"amsgrad": False, "maximize": False, "capturable": False, "differentiable": False}


def _defaults(kind: Any) -> Dict[str, Any]:
    found: Dict[str, Any] = kind([torch.zeros(1, dtype=torch.float32)]).defaults
    return found


class ShardedAdamW(ShardedOptimizer):
    """torch.optim.AdamW over this rank's shard of a DataParallel module's parameters: its arguments and result, 1/dp of its state. All else is
    as ShardedOptimizer says."""

    _hyper = ("lr", "betas", "eps", "weight_decay")
    _offers = {**_ADAM, "decoupled_weight_decay": True}

    def __init__(self, model: "DataParallel", lr: float = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
                 *, max_grad_norm: float = 0.0, groups: Optional[Sequence[int]] = None, **options: Any) -> None:
        super().__init__(model, "adamw", {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}, options,
                         _defaults(torch.optim.AdamW), max_grad_norm, groups)


class ShardedAdam(ShardedOptimizer):
    """torch.optim.Adam over this rank's shard, with weight_decay as L2 regularization. All else is as ShardedOptimizer says."""

    _hyper = ("lr", "betas", "eps", "weight_decay")
    _offers = {**_ADAM, "decoupled_weight_decay": False}

    def __init__(self, model: "DataParallel", lr: float = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
                 *, max_grad_norm: float = 0.0, groups: Optional[Sequence[int]] = None, **options: Any) -> None:
        super().__init__(model, "adam", {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}, options,
                         _defaults(torch.optim.Adam), max_grad_norm, groups)


class ShardedSGD(ShardedOptimizer):
    """torch.optim.SGD over this rank's shard, with dampening 0; nesterov is that of all groups, and stays. Made with momentum 0 in all groups
    it keeps no momentum_buffer, and momentum stays 0; momentum that is 0 for a while leaves a buffer as it is, as with torch. torch's state has no step counts of it: after load_state_dict reports count on from
    1. All else is as ShardedOptimizer says."""

    _hyper = ("lr", "momentum", "weight_decay")
    _counts = False

    def __init__(self, model: "DataParallel", lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
                 nesterov: bool = False, *, max_grad_norm: float = 0.0, groups: Optional[Sequence[int]] = None, **options: Any) -> None:
        self._offers = {"maximize": False, "differentiable": False, "dampening": 0, "nesterov": bool(nesterov)}
        if nesterov and momentum == 0:
            raise invalid("nesterov is True and momentum 0; Nesterov's momentum is above 0, such as 0.9")
        options_of = getattr(model, "group_options", [])
        given = [options_of[number].get("momentum", momentum) for number in group_numbers(groups, len(options_of))]
        rule: Rule = "sgd_nesterov" if nesterov else "sgd_momentum" if any((momentum, *given)) else "sgd"
        self._has_momentum = rule != "sgd"
        super().__init__(model, rule, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay},
                         {**options, "dampening": dampening, "nesterov": bool(nesterov)}, _defaults(torch.optim.SGD), max_grad_norm, groups)
        # What a buffer is while its group's momentum is 0, when the library's steps write there and torch's do not. None: torch has none yet.
        self._resting: Dict[int, Optional[torch.Tensor]] = {i: None for group in self.param_groups for i in self._at_rest(group)}

    def _values(self, group: Dict[str, Any], what: str) -> ParamGroup:
        found = super()._values(group, what)
        if self._has_momentum:
            return found
        if found.momentum:
            raise invalid(f"{what} has momentum {found.momentum}; this ShardedSGD was made without momentum and keeps no momentum_buffer: make "
                          "it with momentum above 0")
        return ParamGroup(found.lr, found.weight_decay)

    def _at_rest(self, group: Dict[str, Any]) -> List[int]:
        """Numbers of the group's parameters, if its momentum is 0."""
        ids = {id(p) for p in group["params"]} if self._has_momentum and not group["momentum"] else ()
        return [i for i, p in self._sharded.params.items() if id(p) in ids]

    def _changed(self, group: Dict[str, Any], before: ParamGroup, now: ParamGroup) -> None:
        if before.momentum and not now.momentum:
            for i in self._at_rest(group):
                self._resting[i] = self._momentum(i).clone() if self._native.steps(i) else None
        elif now.momentum and not before.momentum:
            self._put_back()
            ids = {id(p) for p in group["params"]}
            self._resting = {i: kept for i, kept in self._resting.items() if id(self._sharded.params[i]) not in ids}

    def _before_saving(self) -> None:
        self._put_back()

    def _put_back(self) -> None:
        for i, kept in self._resting.items():
            if kept is None:  # begins with the first gradient then
                self._momentum(i).zero_()
            else:
                self._momentum(i).copy_(kept)

    def _taken(self, entries: Optional[Mapping[int, Mapping[str, Any]]]) -> None:
        resting = [i for group in self.param_groups for i in self._at_rest(group)]
        self._resting = {i: self._momentum(i).clone() if entries is None or entries.get(i, {}).get("momentum_buffer") is not None else None for i in resting}

    def _momentum(self, number: int) -> torch.Tensor:
        return as_tensor(self._native.state(number, "momentum_buffer"))

    def _arrays_of(self, p: torch.Tensor) -> Tuple[str, ...]:
        """While its momentum is 0 what it has been before."""
        number = next(i for i, each in self._sharded.params.items() if each is p)
        return ("momentum_buffer",) if self._has_momentum and self._resting.get(number, p) is not None else ()


class ShardedLion(ShardedOptimizer):
    """Lion (Chen et al., Symbolic Discovery of Optimization Algorithms, 2023) over this rank's shard; torch has none. Every element moves by
    lr, so that lr is about a tenth of AdamW's, and weight_decay ten times that. state_dict() has step and exp_avg. All else is as
    ShardedOptimizer says."""

    _hyper = ("lr", "betas", "weight_decay")
    _offers = {"maximize": False, "capturable": False, "differentiable": False}

    def __init__(self, model: "DataParallel", lr: float = 1e-4, betas: Any = (0.9, 0.99), weight_decay: float = 0.0, *,
                 max_grad_norm: float = 0.0, groups: Optional[Sequence[int]] = None, **options: Any) -> None:
        super().__init__(model, "lion", {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay}, options, {}, max_grad_norm, groups)
