# SPDX-License-Identifier: Apache-2.0
"""The update rules again, in numpy: in float32, operation by operation as src/base/adam.h, sgd.h and lion.h have them, with constants that
are computed in double and rounded once; and in float64, as their papers have them."""
import numpy as np

STATE = {"adamw": ("exp_avg", "exp_avg_sq"), "adam": ("exp_avg", "exp_avg_sq"), "sgd": (), "sgd_momentum": ("momentum_buffer",),
         "sgd_nesterov": ("momentum_buffer",), "lion": ("exp_avg",)}
HYPER = {"adamw": ("betas", "eps"), "adam": ("betas", "eps"), "sgd": (), "sgd_momentum": ("momentum",), "sgd_nesterov": ("momentum",),
         "lion": ("betas",)}


def power(base, exponent):
    """By squaring: the products alone, which are rounded alike everywhere."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def step(rule, w, state, g, t, lr, weight_decay, betas=(0.9, 0.999), eps=1e-8, momentum=0.9, dtype=np.float32):
    """(the new w, the new state) after step number t, of arrays of dtype."""
    c = lambda value: dtype(value)  # noqa: E731
    if rule in ("adamw", "adam"):
        g = g + c(weight_decay) * w if rule == "adam" else g
        m = c(betas[0]) * state[0] + c(1 - betas[0]) * g
        v = c(betas[1]) * state[1] + c(1 - betas[1]) * g * g
        moved = c(lr / (1 - power(betas[0], t))) * m / (np.sqrt(v) / c(np.sqrt(1 - power(betas[1], t))) + c(eps))
        return (w * c(1 - lr * weight_decay) if rule == "adamw" else w) - moved, [m, v]
    if rule == "lion":
        sign = np.sign(c(betas[0]) * state[0] + c(1 - betas[0]) * g)
        return w * c(1 - lr * weight_decay) - c(lr) * sign, [c(betas[1]) * state[0] + c(1 - betas[1]) * g]
    g = g + c(weight_decay) * w
    if rule == "sgd":
        return w - c(lr) * g, []
    b = c(momentum) * state[0] + g
    return w - c(lr) * (g + c(momentum) * b if rule == "sgd_nesterov" else b), [b]


def rounded(values, dtype):
    """float32 values as the parameter's type has them, in float32."""
    if dtype == "bf16":
        bits = values.view(np.uint32)
        return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)).view(np.float32)
    return values.astype(np.float16).astype(np.float32) if dtype == "f16" else values
