# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch's whose step needs all of a parameter, on parameters that have one owner each. That is right where each parameter goes
its own way, which is tried out before."""
from typing import Any, Dict, FrozenSet, List, NoReturn, Optional, Set, Tuple

import torch

from ._errors import invalid
from ._torch_update import SAYS_UNSHARDED, STEPS, Kept, Stepping, tried_with

# Why these cannot be had on parameters one by one either, and what is there instead.
ACROSS = {
    "LBFGS": "it searches along a line through all parameters, and calls the closure several times a step. Where every rank has all of them, "
             "with sharding=\"zero_0\", torch's own can be stepped: its closure ends with model.sync(), the mean of all ranks' losses, and "
             "model.stepped()",
    "SparseAdam": "it takes sparse gradients, and the library's are dense: ShardedAdam takes those",
}
_SIZES = (6, 11, 3, 2)


class Whole(Stepping):
    """The step of torch's optimizers of one class, on whole parameters."""

    def __init__(self, kind: Any, given: Dict[str, Any], device: torch.device) -> None:
        """device: where parameters are."""
        super().__init__(kind, given)
        self._device = device
        self._kept: Dict[Tuple[FrozenSet[str], Tuple[int, ...]], Kept] = {}
        self._tried: Set[Tuple[FrozenSet[str], int]] = set()

    def refuse(self, why: str, anywhere: bool = True) -> NoReturn:
        raise invalid(f"kind is {self.kind.__name__}, whose step cannot be taken on parameters one by one: {why}. {SAYS_UNSHARDED}")

    def kept(self, values: Dict[str, Any], shape: Optional[Tuple[int, ...]] = None) -> Kept:
        shape = shape or ()
        values = {name: value for name, value in values.items() if name != "params"}
        on = frozenset(name for name, value in tried_with(values).items() if value)  # a rate of 0, as schedules begin and end, is tried too
        if 0 in shape:  # it is never updated
            return Kept({}, None)
        if (on, shape) not in self._kept:
            values = tried_with(values)
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                found = self._read(values, shape)
                if (on, len(shape)) not in self._tried:
                    with torch.device("cpu"):
                        self._try(values, len(shape))
            self._tried.add((on, len(shape)))
            self._kept[on, shape] = found
        return self._kept[on, shape]

    def _read(self, values: Dict[str, Any], shape: Tuple[int, ...]) -> Kept:
        """After a step of a parameter of this shape, where it would be: what is kept may go by sizes."""
        generator = torch.Generator(self._device).manual_seed(1)
        like, grad = (torch.randn(shape, generator=generator, device=self._device, dtype=torch.float32) for _ in range(2))
        optimizer = self.make_trial(values, [like])
        self.steps(optimizer, [like], [[grad]])
        return self.entries(like, optimizer.state.get(like, {}))

    def _try(self, values: Dict[str, Any], ndim: int) -> None:
        """Some steps of two parameters, and of each by itself, which must come to the same."""
        generator = torch.Generator("cpu").manual_seed(1)
        shape = [*_SIZES, *(ndim - len(_SIZES)) * [2]][:ndim]
        starts = [torch.randn(shape, generator=generator, dtype=torch.float32) for _ in range(2)]
        sizes = (100.0, 0.01)  # so that the norm of both is not that of one
        grads = [[size * torch.randn(shape, generator=generator, dtype=torch.float32) for size in sizes] for _ in range(STEPS)]
        both: List[torch.Tensor] = [start.clone() for start in starts]
        optimizer = self.make_trial(values, both)
        changed = self.steps(optimizer, both, grads)
        kept = [self.entries(p, optimizer.state.get(p, {})) for p in both]
        self.check_beside(values, changed, starts, grads, optimizer)
        for number, (p, start) in enumerate(zip(both, starts)):
            state = dict(optimizer.state.get(p, {}))
            self.repeat(values, kept[number], start, [each[number] for each in grads], {**state, "parameter": p},
                        "it is stepped by itself: the class goes by more than one parameter")
