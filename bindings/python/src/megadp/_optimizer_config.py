# SPDX-License-Identifier: Apache-2.0
"""What an optimizer is made with, and what a plan counts the memory of."""
from typing import Any, Callable, Dict, Literal, Optional, Sequence, Tuple, TypedDict

from . import _raw
from ._comm import choice, whole
from ._errors import invalid
from ._library import sized
from ._param_group import ParamGroup, divisor, native_group, number, optional, pair
from ._param_states import ParamState, ParamStates, native_param_states, read_param_states

Rule = Literal["adamw", "adam", "sgd", "sgd_momentum", "sgd_nesterov", "lion", "caller"]
RULES = {"adamw": _raw.MDP_RULE_ADAMW, "adam": _raw.MDP_RULE_ADAM, "sgd": _raw.MDP_RULE_SGD, "sgd_momentum": _raw.MDP_RULE_SGD_MOMENTUM,
         "sgd_nesterov": _raw.MDP_RULE_SGD_NESTEROV, "lion": _raw.MDP_RULE_LION, "caller": _raw.MDP_RULE_CALLER}
STATE_DTYPES = {"f32": _raw.MDP_DTYPE_F32, "bf16": _raw.MDP_DTYPE_BF16}
NORMS = {"l2": _raw.MDP_NORM_L2, "inf": _raw.MDP_NORM_INF}


class OptimizerOptions(TypedDict, total=False):
    """Keywords of Optimizer."""

    rule: Rule
    lr: Optional[float]
    betas: Optional[Tuple[float, float]]
    eps: Optional[float]
    weight_decay: float
    momentum: Optional[float]
    max_grad_norm: float
    max_grad_value: float
    norm: Literal["l2", "inf"]
    param_groups: Sequence[ParamGroup]
    first_param_group: Optional[int]
    state: Sequence[str]
    average_decay: float
    state_dtype: Literal["f32", "bf16"]
    stochastic_state: bool
    no_master: bool
    seed: int
    check_update: bool
    param_states: Optional[ParamStates]


def optimizer_config(arrays: Tuple[str, ...], kept: Dict[str, Dict[int, ParamState]], params: int, *, rule: str = "adamw",
                     lr: Optional[float] = None, betas: Optional[Tuple[float, float]] = None, eps: Optional[float] = None,
                     weight_decay: float = 0.0, momentum: Optional[float] = None, max_grad_norm: float = 0.0, max_grad_value: float = 0.0,
                     norm: str = "l2", param_groups: Sequence[ParamGroup] = (), first_param_group: Optional[int] = None,
                     average_decay: float = 0.0, state_dtype: str = "f32", stochastic_state: bool = False, no_master: bool = False,
                     seed: int = 0, check_update: bool = False) -> Any:
    groups = [native_group(group, f"param_groups[{of}]") for of, group in enumerate(param_groups)]
    structs = (_raw.mdp_param_group * len(groups))(*groups) if groups else None
    config = sized(_raw.mdp_optimizer_config, rule=choice(rule, "rule", RULES), lr=optional(lr, "lr"), eps=divisor(eps, "eps"),
                   weight_decay=number(weight_decay, "weight_decay"), momentum=optional(momentum, "momentum"),
                   max_grad_norm=number(max_grad_norm, "max_grad_norm"), max_grad_value=number(max_grad_value, "max_grad_value"),
                   norm=choice(norm, "norm", NORMS), param_groups=structs, param_group_count=len(groups),
                   first_param_group=whole(first_param_group or 0, "first_param_group", 0, 2**31 - 1),
                   state="\n".join(arrays).encode("utf-8") or None, average_decay=number(average_decay, "average_decay"),
                   state_dtype=choice(state_dtype, "state_dtype", STATE_DTYPES),
                   seed=whole(seed, "seed", 0, 2**64 - 1),
                   param_states=native_param_states(kept, params), param_state_count=len(kept))
    if stochastic_state:
        config.flags |= _raw.MDP_OPTIMIZER_STOCHASTIC_STATE
    if no_master:
        config.flags |= _raw.MDP_OPTIMIZER_NO_MASTER
    if check_update:
        config.flags |= _raw.MDP_OPTIMIZER_CHECK_UPDATE
    for value, flag in ((lr, _raw.MDP_OPTIMIZER_SET_LR), (momentum, _raw.MDP_OPTIMIZER_SET_MOMENTUM),
                        (first_param_group, _raw.MDP_OPTIMIZER_SOME_GROUPS)):
        if value is not None:
            config.flags |= flag
    if betas is not None:
        config.beta1, config.beta2 = pair(betas, "betas")
        config.flags |= _raw.MDP_OPTIMIZER_SET_BETA1 | _raw.MDP_OPTIMIZER_SET_BETA2
    return config


def planned_config(number_of: Callable[[Any], int], params: int, *, state: Sequence[str] = (), param_states: Optional[ParamStates] = None,
                   **options: Any) -> Any:
    """Of all of an Optimizer's options, for parameters that are not registered. number_of: of one that is named; params: how many there
    are."""
    return optimizer_config(state_names(state), read_param_states(param_states or {}, number_of), params, **options)


def state_names(state: Sequence[str]) -> Tuple[str, ...]:
    if isinstance(state, str):
        raise invalid(f"state is {state!r}; it must be a list of names")
    for of, name in enumerate(state):
        if not isinstance(name, str) or not name or set(name) & set("\0\n"):
            raise invalid(f"state[{of}] is {name!r}; it must be a name, of letters, digits, '_', '-' and '.'")
    return tuple(state)
