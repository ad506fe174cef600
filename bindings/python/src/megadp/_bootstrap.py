# SPDX-License-Identifier: Apache-2.0
"""A callable that gathers bytes over all ranks, as the library's mdp_bootstrap."""
import ctypes
import threading
from typing import Any, Callable, List, Optional, Sequence

from . import _raw
from ._library import sized

Gather = Callable[[bytes], Sequence[bytes]]


class Bootstrap:
    """The callable may block, so it runs on a thread of its own, which the library asks now and then; at the timeout it is left alone, and
    what it returns later is dropped."""

    def __init__(self, gather: Gather, ranks: int) -> None:
        self.error: Optional[BaseException] = None  # what ended the last gathering
        self._gather, self._ranks = gather, ranks
        self._size, self._to = 0, 0
        self._thread: Optional[threading.Thread] = None
        self._parts: List[Optional[Sequence[bytes]]] = []
        self.struct = sized(_raw.mdp_bootstrap, allgather_start=_raw.mdp_allgather_start_fn(self._start),
                            allgather_test=_raw.mdp_allgather_test_fn(self._test),
                            allgather_free=_raw.mdp_allgather_free_fn(lambda context, request: None))

    def _start(self, context: Any, mine: int, size: int, everyone: int, request: Any) -> int:
        try:
            given, parts = ctypes.string_at(mine, size), []  # type: ignore[var-annotated]
            self._size, self._to, self._parts = size, everyone, parts

            def gather() -> None:
                try:
                    parts.append(self._gather(given))
                except BaseException as error:
                    self.error = error

            self._thread = threading.Thread(target=gather, name="megadp bootstrap", daemon=True)
            self._thread.start()
            return 0
        except BaseException as error:  # ctypes would print it and return 0
            self.error = error
            return -1

    def _test(self, context: Any, request: Any) -> int:
        try:
            if self._thread is None or self._thread.is_alive():
                return 0
            if not self._parts:
                return -1
            parts = [bytes(part) for part in self._parts[0] or ()]
            sizes = [len(part) for part in parts]
            if sizes != [self._size] * self._ranks:
                raise ValueError(f"the bootstrap returned parts of {sizes} bytes; it must return {self._ranks} of {self._size} bytes each, "
                                 "in the order of ranks")
            ctypes.memmove(self._to, b"".join(parts), self._size * self._ranks)
            return 1
        except BaseException as error:
            self.error = error
            return -1
