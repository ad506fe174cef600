# SPDX-License-Identifier: Apache-2.0
"""Backward passes that cannot be differentiated again, since what they do over ranks is no part of a graph, and say so when they are."""
import functools
from typing import Any, Callable

import torch


def once(what: str, instead: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As torch.autograd.function.once_differentiable, of a function that returns a tuple, with a sentence that names it. And what that one lets pass
    is refused too: where the incoming gradient is of no graph, as that of a sum, the outgoing one depends on saved tensors all the same."""
    text = (f"a gradient of {what} was differentiated again (create_graph=True, as gradient penalties want it), which is not offered"
            f"{instead and ': '}{instead}").encode()

    def of(backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def wrapper(ctx: Any, *grads: Any) -> Any:
            with torch.no_grad():
                found = backward(ctx, *grads)
            if not torch.is_grad_enabled():
                return found
            real = [values.detach().requires_grad_() for values in found if values is not None]
            if not real:
                return found
            ended = torch._C._functions.DelayedError(text, len(real))(*real)  # type: ignore[attr-defined, unused-ignore]
            ends = iter((ended,) if len(real) == 1 else ended)
            return tuple(None if values is None else next(ends) for values in found)

        return wrapper

    return of
