# SPDX-License-Identifier: Apache-2.0
"""What one thread at a time does with a model. The library refuses single calls that meet; a step or a save is several."""
import threading
from typing import Callable, Dict, Tuple, TypeVar

from ._errors import MegaDPError, Status

_Found = TypeVar("_Found")


class Alone:
    """Of one model: its steps, saves, loads and state_dicts."""

    def __init__(self) -> None:
        self._under_way: Dict[str, Tuple[str, int]] = {}

    def __call__(self, call: str, work: Callable[[], _Found], within: Tuple[str, ...] = ()) -> _Found:
        """work(), during which no other such call is made. within: calls that may call this one, by functions of the script's.
        Raises MegaDPError: STATE."""
        mine = (call, threading.get_ident())
        try:  # a signal's handler may raise anywhere, but not where nothing is called
            other = self._under_way.setdefault("call", mine)
            if other is not mine and not (other[0] in within and other[1] == mine[1]):
                raise MegaDPError(Status.STATE, f"{call} comes while {other[0]} of the same model is under way, on another thread or "
                                  "interrupted by the signal's handler that makes this call: make all of these on one thread, and not in handlers, "
                                  "since other ranks may come to them in another order. To write a checkpoint while training goes on: save_checkpoint(..., wait=False), between "
                                  "steps")
            return work()
        finally:
            if "call" in self._under_way and self._under_way["call"] is mine:
                del self._under_way["call"]
