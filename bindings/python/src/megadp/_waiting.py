# SPDX-License-Identifier: Apache-2.0
"""Waiting for other ranks without being deaf: Python runs signal handlers (Ctrl-C) on the main thread, between its own instructions, so
nothing may keep that thread inside the library for long. Requests are waited for in slices; calls that offer no request run on a thread
of their own while the main thread waits beside it."""
import atexit
import ctypes
import math
import threading
import time
import weakref
from typing import Any, Callable, List, Optional, Tuple

from . import _raw
from ._dlpack import give_back_untaken
from ._errors import MegaDPError, Status
from ._handles import Handle, close_all_at_exit
from ._library import lib

SLICE = 0.05


class _Operation:
    """What outlives a Request: the handle, and the arrays that are worked on until it has finished."""

    def __init__(self, handle: Handle, arrays: Tuple[Any, ...]) -> None:
        self.handle = handle
        self.arrays = arrays


class Request:
    """One pending operation. Any thread. It may be dropped: the operation then goes on, and the arrays it works on are kept until it has
    finished."""

    def __init__(self, pointer: Any, arrays: Tuple[Any, ...] = ()) -> None:
        _sweep()
        self._operation = _Operation(Handle(pointer, lib.mdp_request_free, "Request"), arrays)
        _operations.add(self._operation)
        weakref.finalize(self, _drop, self._operation).atexit = False

    def done(self) -> bool:
        """Whether the operation has finished; raises MegaDPError where it has failed. Does not block."""
        return self._ask(lib.mdp_request_test)

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Blocks until the operation has finished (True) or `timeout` seconds are over (False; None: never). Raises MegaDPError where the
        operation has failed."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = min(SLICE, end - time.monotonic())
            if self._ask(lib.mdp_request_wait, max(0, int(left * 1e9))):
                return True
            if left < SLICE:
                return False

    def _ask(self, function: Any, *arguments: Any) -> bool:
        try:
            if self._operation.handle.call(function, *arguments) == _raw.MDP_PENDING:
                return False
        except MegaDPError as error:
            if error.code != Status.STATE:  # a forked child's question: the operation is the parent's
                self._operation.arrays = ()
            raise
        self._operation.arrays = ()
        return True


_operations: "weakref.WeakSet[_Operation]" = weakref.WeakSet()
_dropped: List[_Operation] = []  # by requests that nobody refers to, while something works on their arrays


def _drop(operation: _Operation) -> None:
    if operation.arrays:
        _dropped.append(operation)
    else:
        operation.handle.close()


def _sweep() -> None:
    """Lets go of the arrays of dropped operations that have ended."""
    for _ in range(len(_dropped)):
        operation = _dropped.pop(0)
        try:
            pending = operation.handle.call(lib.mdp_request_test) == _raw.MDP_PENDING
        except MegaDPError:  # failed, and nobody is interested
            pending = False
        if pending:
            _dropped.append(operation)
        else:
            operation.handle.close()


def _at_exit() -> None:
    give_back_untaken()
    for operation in list(_operations):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(operation.arrays))  # may be worked on until the process has ended
        operation.handle.close_at_exit()
    close_all_at_exit()


atexit.register(_at_exit)


def run(call: Callable[[], Any], interrupted: Callable[[], None], discard: Optional[Callable[[Any], None]] = None) -> Any:
    """call(), on a thread of its own where this is the main thread. When an exception (KeyboardInterrupt, or what another signal handler
    raises) comes in between, interrupted() is called, which ought to make call() return, and the exception goes on; what call() may still
    return then goes to discard()."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    task = _Task(call, discard)
    threading.Thread(target=task.run, name="megadp call", daemon=True).start()
    try:
        while not task.done.wait(SLICE):
            pass
    except BaseException:
        task.abandon()
        interrupted()
        raise
    if task.error is not None:
        raise task.error
    return task.result


class _Task:
    """A call that somebody waits for, or no longer."""

    def __init__(self, call: Callable[[], Any], discard: Optional[Callable[[Any], None]]) -> None:
        self.done = threading.Event()
        self.result: Any = None
        self.error: Optional[BaseException] = None
        self._call = call
        self._discard = discard
        self._lock = threading.Lock()
        self._abandoned = False

    def run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error
        with self._lock:
            self.done.set()
            self._clean_up()

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            self._clean_up()

    def _clean_up(self) -> None:
        if self._abandoned and self.done.is_set() and self.error is None and self._discard is not None:
            discard, self._discard = self._discard, None
            discard(self.result)


def wait_for(call: Callable[..., Any], *arguments: Any, keep: Tuple[Any, ...] = ()) -> Request:
    """Starts call(*arguments, out) and returns its request."""
    out = ctypes.POINTER(_raw.mdp_request)()
    call(*arguments, ctypes.byref(out))
    return Request(out, keep)


def finish(request: Request, wait: bool) -> Optional[Request]:
    """The request, or None once it is done."""
    if not wait:
        return request
    request.wait()
    return None
