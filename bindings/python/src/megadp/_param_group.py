# SPDX-License-Identifier: Apache-2.0
"""What an optimizer's parameter groups may say, and how numbers are handed on of which 0 means a default in C."""
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple

from . import _raw
from ._errors import invalid
from ._library import sized


@dataclass(frozen=True)
class ParamGroup:
    """Values of one parameter group. None: the optimizer's; any number is meant, also 0 (eps cannot be 0). What the optimizer's rule has
    not (momentum of AdamW) is left None."""

    lr: Optional[float] = None
    weight_decay: Optional[float] = None
    betas: Optional[Tuple[float, float]] = None
    eps: Optional[float] = None
    momentum: Optional[float] = None


def number(value: Any, argument: str) -> float:
    """Of whatever says which float it is, such as an array of one element; no text."""
    try:
        if not isinstance(value, (str, bytes, bytearray)):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise invalid(f"{argument} is {value!r}; it must be a number")


def optional(value: Optional[float], argument: str) -> float:
    """0 for None, of which a flag says that it is not meant."""
    return 0.0 if value is None else number(value, argument)


def divisor(value: Optional[float], argument: str) -> float:
    """Of those that have no flag by which 0 would be meant, since it cannot be."""
    if value is None:
        return 0.0
    found = number(value, argument)
    if found == 0:
        raise invalid(f"{argument} is 0; it must be from 1e-37 to 1e37, or None for the default")
    return found


def pair(betas: Sequence[float], argument: str) -> Tuple[float, float]:
    if not hasattr(betas, "__len__") or len(betas) != 2:
        raise invalid(f"{argument} is {betas!r}; it must be two numbers, beta1 and beta2")
    return number(betas[0], f"{argument}[0]"), number(betas[1], f"{argument}[1]")


def native_group(group: ParamGroup, argument: str) -> Any:
    if not isinstance(group, ParamGroup):
        raise invalid(f"{argument} is a {type(group).__name__}; it must be a megadp.ParamGroup")
    struct = sized(_raw.mdp_param_group, lr=optional(group.lr, f"{argument}.lr"), eps=divisor(group.eps, f"{argument}.eps"),
                   weight_decay=optional(group.weight_decay, f"{argument}.weight_decay"),
                   momentum=optional(group.momentum, f"{argument}.momentum"))
    for value, flag in ((group.lr, _raw.MDP_PARAM_GROUP_SET_LR), (group.weight_decay, _raw.MDP_PARAM_GROUP_SET_WEIGHT_DECAY),
                        (group.momentum, _raw.MDP_PARAM_GROUP_SET_MOMENTUM)):
        if value is not None:
            struct.flags |= flag
    if group.betas is not None:
        struct.beta1, struct.beta2 = pair(group.betas, f"{argument}.betas")
        struct.flags |= _raw.MDP_PARAM_GROUP_SET_BETA1 | _raw.MDP_PARAM_GROUP_SET_BETA2
    return struct
