# SPDX-License-Identifier: Apache-2.0
"""A loss scale that the device keeps."""
import ctypes
from dataclasses import dataclass
from typing import Any

from . import _raw
from ._comm import whole
from ._errors import invalid
from ._library import sized

_UINT32 = 2**32 - 1


@dataclass(frozen=True)
class Scaler:
    """A loss scale that follows what steps find, as Megatron-LM's dynamic scaler; with hysteresis 1 as torch.amp.GradScaler.

    scale: now. growth_interval steps without an overflow, and it grows by growth_factor. hysteresis: so many overflows with no growth
    between, and it backs off by backoff_factor with each from then on, down to min_scale. constant: it stays. clean_steps: since the last
    overflow or growth, below growth_interval. overflows: since the last growth, at most hysteresis. With the last two and scale one goes on
    from what Optimizer.scaler() gave.
    """

    scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    hysteresis: int = 1
    min_scale: float = 1.0
    constant: bool = False
    clean_steps: int = 0
    overflows: int = 0


def native_scaler(scaler: Scaler) -> Any:
    for name, right in (("scale", "from 1e-37 to 1e37, such as 65536"), ("growth_factor", "at least 1, such as 2"),
                        ("backoff_factor", "above 0 and below 1, such as 0.5"), ("min_scale", "from 1e-37 to scale, such as 1")):
        if getattr(scaler, name) == 0:
            raise invalid(f"scaler.{name} is 0; it must be {right}")
    counts = {name: whole(getattr(scaler, name), f"scaler.{name}", least, _UINT32)
              for name, least in (("growth_interval", 1), ("hysteresis", 1), ("clean_steps", 0), ("overflows", 0))}
    return sized(_raw.mdp_scaler, scale=scaler.scale, growth_factor=scaler.growth_factor, backoff_factor=scaler.backoff_factor,
                 min_scale=scaler.min_scale, flags=_raw.MDP_SCALER_CONSTANT if scaler.constant else 0, **counts)


def scaler_from(call: Any) -> Scaler:
    """What call(a struct to be filled) finds."""
    found = sized(_raw.mdp_scaler)
    call(ctypes.byref(found))
    return Scaler(found.scale, found.growth_factor, found.backoff_factor, found.growth_interval, found.hysteresis, found.min_scale,
                  bool(found.flags & _raw.MDP_SCALER_CONSTANT), found.clean_steps, found.overflows)
