# SPDX-License-Identifier: Apache-2.0
"""Sharded AdamW."""
import ctypes
from dataclasses import dataclass
from typing import Any, Dict, Literal, Optional, Sequence, Tuple

from . import _raw
from ._buffer import Buffer, Which
from ._comm import c_text, choice, whole
from ._errors import invalid
from ._handles import Closable
from ._library import lib, sized, text_of
from ._tensor import Tensor
from ._waiting import run, wait_for


@dataclass(frozen=True)
class ParamGroup:
    """Values of one parameter group. None: the optimizer's; any number is meant, also 0."""

    lr: Optional[float] = None
    weight_decay: Optional[float] = None


NORMS = {"l2": _raw.MDP_NORM_L2, "inf": _raw.MDP_NORM_INF}


@dataclass(frozen=True)
class StepReport:
    """What a step did. grad_norm: the optimizer's norm of the whole gradient over all ranks, divided, before clipping. clip_factor: 1 where it was not
    clipped. step: steps taken so far, skipped ones not counted. skipped: a gradient was not finite, so nothing was changed."""

    grad_norm: float
    clip_factor: float
    loss_scale: float
    step: int
    skipped: bool
    clipped: bool


def _group(group: ParamGroup) -> Any:
    flags = ((_raw.MDP_PARAM_GROUP_SET_LR if group.lr is not None else 0) |
             (_raw.MDP_PARAM_GROUP_SET_WEIGHT_DECAY if group.weight_decay is not None else 0))
    return sized(_raw.mdp_param_group, lr=group.lr or 0.0, weight_decay=group.weight_decay or 0.0, flags=flags)


def _divisor(value: Optional[float], argument: str) -> float:
    """Of those that have no flag by which 0 would be meant, since it cannot be."""
    if value == 0:
        raise invalid(f"{argument} is 0; it must be from 1e-37 to 1e37, or None for the default")
    return value or 0.0


class Optimizer(Closable):
    """AdamW over the ranges that this rank owns: fp32 masters and two fp32 moments, starting at zero.

    lr (None: 1e-3), betas (None: 0.9, 0.999), eps (None: 1e-8), weight_decay, max_grad_norm (0: no clipping) by norm ("l2" or
    "inf"), max_grad_value (each element, last; 0: no clipping), param_groups: for Params that name one; what a ParamGroup leaves out is the
    optimizer's. A number that is given is meant, also 0.
    Collective over the world, with equal arguments; blocking.
    Raises MegaDPError: INVALID, DESYNC, STATE, MEMORY, those of a lost communicator.
    """

    def __init__(self, buffer: Buffer, *, lr: Optional[float] = None, betas: Optional[Tuple[float, float]] = None,
                 eps: Optional[float] = None, weight_decay: float = 0.0, max_grad_norm: float = 0.0,
                 max_grad_value: float = 0.0, norm: Literal["l2", "inf"] = "l2", param_groups: Sequence[ParamGroup] = ()) -> None:
        structs = (_raw.mdp_param_group * len(param_groups))(*map(_group, param_groups)) if param_groups else None
        config = sized(_raw.mdp_optimizer_config, rule=_raw.MDP_RULE_ADAMW, lr=lr or 0.0, eps=_divisor(eps, "eps"), weight_decay=weight_decay,
                       max_grad_norm=max_grad_norm, max_grad_value=max_grad_value, norm=choice(norm, "norm", NORMS), param_groups=structs, param_group_count=len(param_groups),
                       flags=_raw.MDP_OPTIMIZER_SET_LR if lr is not None else 0)
        if betas is not None:
            config.beta1, config.beta2 = betas
            config.flags |= _raw.MDP_OPTIMIZER_SET_BETA1 | _raw.MDP_OPTIMIZER_SET_BETA2
        self._buffer = buffer
        self._own(buffer._tree.make(buffer._handle, lib.mdp_optimizer_create, _raw.mdp_optimizer, lib.mdp_optimizer_destroy,
                                    ctypes.byref(config)), lib.mdp_optimizer_destroy)

    def set_param_group(self, group: int, value: ParamGroup) -> None:
        """Replaces the values of one parameter group from the next step on; to be called alike on all ranks. Local."""
        self._call(lib.mdp_optimizer_set_param_group, whole(group, "group", 0, 2**63), ctypes.byref(_group(value)))

    def step(self, lr: Optional[float] = None, loss_scale: Optional[float] = None, *, grad_divisor: Optional[float] = None,
             report: bool = True, wait: bool = True, stream: int = 0) -> Optional[StepReport]:
        """Takes one step: Buffer.sync where it was not called, then the update. lr: from this step on. loss_scale: gradients are divided by
        it, and a non-finite one makes all ranks skip the step; without it, that is NUMERIC on all ranks. Either way nothing has changed.
        grad_divisor: they are divided by it too, such as the number of microbatches.

        wait=True returns when all parameters are whole. wait=False returns while they are still gathered, as soon as the report is known
        (with report=False as soon as gradients are reduced); Buffer.wait then waits for one or all of them. Collective over the world.
        Raises MegaDPError: INVALID, STATE (as Buffer.sync, or that has failed before), NUMERIC, those of a lost communicator."""
        config = sized(_raw.mdp_step_config, lr=lr or 0.0, loss_scale=_divisor(loss_scale, "loss_scale"),
                       grad_divisor=_divisor(grad_divisor, "grad_divisor"), stream=stream or None,
                       flags=_raw.MDP_STEP_SET_LR if lr is not None else 0)
        found = sized(_raw.mdp_step_report) if report else None
        arguments = (lib.mdp_optimizer_step, ctypes.byref(config), None if found is None else ctypes.byref(found))
        if wait or not self._buffer._on_host:
            self._buffer._tree.run(self._handle, *arguments, None)
        else:  # comes back when gradients are reduced, or the norm is known, for which it needs the other ranks
            run(lambda: wait_for(self._call, *arguments))
        if found is None:
            return None
        return StepReport(found.grad_norm, found.clip_factor, found.loss_scale, found.step,
                          bool(found.flags & _raw.MDP_STEPPED_SKIPPED), bool(found.flags & _raw.MDP_STEPPED_CLIPPED))

    def steps(self, param: Which) -> int:
        """How many steps the parameter has taken part in; not counted are skipped ones, and those for which all ranks had skipped it. Waits
        for the last step. Local. Raises MegaDPError: INVALID, STATE (frozen; forked child), those of a lost communicator."""
        number = self._buffer._number(param)
        count = ctypes.c_uint64()
        run(lambda: self._call(lib.mdp_optimizer_steps, number, ctypes.byref(count)))
        return count.value

    def set_steps(self, taken: int, steps: Optional[Sequence[int]] = None) -> None:
        """Goes on as after `taken` steps, from which reports count on, and of which parameter p has taken part in steps[p] (None: each in
        all). With what state lends, to restore what was saved; to be called alike on all ranks. Waits for the last step. Local.
        Raises MegaDPError: INVALID, STATE (forked child), those of a lost communicator."""
        number = whole(taken, "taken", 0, 2**64)
        if steps is None:
            run(lambda: self._call(lib.mdp_optimizer_set_steps, number, None, 0))
            return
        listed = [whole(each, f"steps[{p}]", 0, 2**64) for p, each in enumerate(steps)]
        counts = (ctypes.c_uint64 * len(listed))(*listed)
        run(lambda: self._call(lib.mdp_optimizer_set_steps, number, counts, len(listed)))

    def info(self) -> Dict[str, Any]:
        """The rule, its values, param_groups, steps taken, and the arrays that state lends: the fields of mdp_optimizer_info. Waits for the
        last step. Local. Raises MegaDPError: STATE (forked child), those of a lost communicator."""
        found: Dict[str, Any] = run(lambda: text_of(lambda *text: self._call(lib.mdp_optimizer_info, *text)))
        return found

    def state(self, param: Which, name: Literal["master", "exp_avg", "exp_avg_sq"]) -> Tensor:
        """The owned slice of one parameter's "master", "exp_avg" or "exp_avg_sq": float32, one dimension, empty where this rank owns
        nothing of it; Range.param_begin says where it begins. May be written between steps and before the first; a master holds what is
        written into it until its parameter is written again. Waits for the last step. Local.
        Raises MegaDPError: INVALID, STATE (frozen; forked child), those of a lost communicator."""
        number = self._buffer._number(param)
        out = sized(_raw.mdp_tensor)
        lease = self._handle.lend()
        run(lambda: self._call(lib.mdp_optimizer_state, number, c_text(name, "name"), ctypes.byref(out)))
        return Tensor(out, lease)
