# SPDX-License-Identifier: Apache-2.0
"""What one thread at a time does with a model. The library refuses single calls that meet; a step or a save is several."""
from contextlib import contextmanager
from typing import Dict, Iterator, List

from ._errors import MegaDPError, Status


class Alone:
    """Of one model."""

    def __init__(self) -> None:
        self._under_way: Dict[str, List[str]] = {}

    @contextmanager
    def __call__(self, call: str) -> Iterator[None]:
        """As a context manager: in it no other such call is made. Raises MegaDPError: STATE."""
        mine = [call]
        try:  # a signal's handler may raise anywhere
            other = self._under_way.setdefault("call", mine)
            if other is not mine:
                raise MegaDPError(Status.STATE, f"{call} comes while {other[0]} of the same model is under way, on another thread or with a "
                                  "signal's handler that makes this call: make it when that has returned (nothing is lost). To write a checkpoint "
                                  "while training goes on: save_checkpoint(..., wait=False), between steps")
            yield
        finally:
            if self._under_way.get("call") is mine:
                del self._under_way["call"]
