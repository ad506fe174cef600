# SPDX-License-Identifier: Apache-2.0
"""Waiting for other ranks without being deaf: Python runs signal handlers (Ctrl-C) on the main thread, between its own instructions. While
that thread waits inside the library, the library asks it about every 50 ms, and the handlers run then."""
import atexit
import ctypes
import operator
import threading
import time
from typing import Any, Callable, Generator, List, Optional, Set, Tuple

from . import _raw
from ._dlpack import give_back_untaken
from ._errors import MegaDPError, Status
from ._handles import Handle, InProcess, calls_under_way, close_all_at_exit
from ._library import lib

SLICE = 0.05  # seconds
HELD = 10 * SLICE  # seconds; the longest that the process's end waits for threads in the library
GIVEN_UP = 1.0  # how long a call that was given up is waited for: mostly no longer than until it is asked


class _Operation(Handle):
    """What is pending, and the arrays that it works on."""

    def __init__(self, arrays: Tuple[Any, ...]) -> None:
        super().__init__(ctypes.POINTER(_raw.mdp_request)(), lib.mdp_request_free, "Request")
        self.kept = list(arrays)


class Request(InProcess):
    """One pending operation. Any thread. It may be dropped: the operation then goes on, and the arrays it works on are kept until it has
    finished."""

    def __init__(self, arrays: Tuple[Any, ...] = ()) -> None:
        # The operation is to begin after this: a signal's handler may raise as soon as it has, and it works on the arrays then.
        _sweep()
        self._failed = False  # and that was said
        self._operation = _Operation(arrays)
        self._at_last(_drop, self._operation)
        _operations.add(self._operation)

    def _out(self) -> Any:
        """Where the call that begins the operation leaves it."""
        return ctypes.byref(self._operation.pointer)

    def done(self) -> bool:
        """Whether the operation has finished; raises MegaDPError where it has failed. Does not block."""
        return self._ask(lib.mdp_request_test)

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Blocks until the operation has finished (True) or `timeout` seconds are over (False; None: never). Raises MegaDPError where the
        operation has failed."""
        left = 2**64 - 1 if timeout is None else max(0, min(int(timeout * 1e9), 2**64 - 1))
        return bool(run(lambda: self._ask(lib.mdp_request_wait, left)))

    def ended(self) -> bool:
        """Whether the operation has finished, well or not: unlike done, it raises nothing, and nobody counts as told of a failure. Does not
        block."""
        return bool(self._operation.call(lib.mdp_request_peek) != _raw.MDP_PENDING)

    def _ask(self, function: Any, *arguments: Any) -> bool:
        try:
            if self._operation.call(function, *arguments) == _raw.MDP_PENDING:
                return False
        except MegaDPError as error:
            if error.code != Status.STATE:  # a forked child's question: the operation is the parent's
                self._operation.kept.clear()
                self._failed = True
            raise
        self._operation.kept.clear()
        return True


# Handles of requests, with the arrays that are worked on. Sets, of which each call is one step for other threads and for signal handlers: a lock
# could be held by another thread when the process is forked, or by the code below a finalizer.
_operations: Set[_Operation] = set()
_dropped: Set[_Operation] = set()  # those of requests that nobody refers to, while something works on their arrays


def _drop(operation: _Operation) -> None:
    """Asks nothing of the library: as a finalizer it may run between another call's failure and its sentence."""
    if operation.kept and operation.pointer:
        _dropped.add(operation)
    else:
        _free(operation)


def _free(operation: _Operation) -> None:
    operation.close()
    _operations.discard(operation)
    _dropped.discard(operation)


def _sweep() -> None:
    """Lets go of the arrays of dropped operations that have ended. Several threads may do so at once."""
    for operation in list(_dropped):
        try:
            if operation.call(lib.mdp_request_test) == _raw.MDP_PENDING:
                continue
        except MegaDPError:  # failed, and nobody is interested; or freed by another thread
            pass
        _free(operation)


_held: List[None] = []  # one for each thread that stays in the library


def _hold(_: Any) -> int:
    _held.append(None)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
    return 0


def _hold_threads() -> None:
    """Other threads that wait in the library are asked once more, and stay there. While Python ends, one that asks for Python's lock is ended
    by an unwinding of its stack, which in the library's frames would end the process with SIGABRT."""
    _asked.ask = ().count  # this thread's stays as it is
    setattr(_Asked, "ask", staticmethod(_hold))
    until = time.monotonic() + HELD
    while len(_held) < calls_under_way() + sum(operation.calls for operation in list(_operations)) and time.monotonic() < until:
        time.sleep(SLICE / 10)


def _at_exit() -> None:
    give_back_untaken()
    _hold_threads()
    for operation in list(_operations):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tuple(operation.kept)))  # may be worked on until the process has ended
        operation.close_at_exit()
    close_all_at_exit()


atexit.register(_at_exit)


class _Asked(threading.local):
    """What the library calls about every 50 ms on a thread that waits in it (mdp_interrupted_fn): that thread's `ask`.

    An exception must not get into ctypes, which would print it and answer with whatever lies on the stack; and signal handlers run wherever
    Python code begins, before its first `try`. So on the way to `ask` there is nothing but C, and `ask` is C too: () contains no None, or,
    on the main thread, a generator goes on that waits inside a `try`."""

    ask: Callable[[Any], int] = ().count
    __call__ = property(operator.attrgetter("ask"))


_asked = _Asked()
interrupted = _raw.mdp_interrupted_fn(_asked)  # mdp_comm_config.interrupted of every communicator


def _run_handlers(raised: List[BaseException]) -> Generator[int, None, None]:
    """Runs the handlers of signals that have come, each time it is asked. 1: one has raised."""
    answer = 0
    while True:
        try:
            while True:
                yield answer
                answer = 0
                ctypes.pythonapi.PyErr_CheckSignals()
        except GeneratorExit:
            return
        except BaseException as error:
            raised.append(error)
            answer = 1


def run(call: Callable[[], Any]) -> Any:
    """call(), which waits inside the library. On the main thread signal handlers (Ctrl-C) run meanwhile. What one of them raises ends the
    wait and comes out of here, in the place of what the library makes of that."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    raised: List[BaseException] = []
    handlers = _run_handlers(raised)
    next(handlers)
    before, _asked.ask = _asked.ask, handlers.send  # a handler may call the library too, on another communicator
    try:
        result = call()
    except MegaDPError:
        if not raised:
            raise
    finally:
        _asked.ask = before
    if raised:
        raise raised[0]
    return result


def run_beside(call: Callable[[], Any], undo: Callable[[], Any] = lambda: None) -> Any:
    """As run, for a call that calls Python functions by itself: on a thread of its own, so that no signal handler runs in those. undo: of a call
    that was given up, when it is over; where the wait for that is given up too, on the call's thread."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    task = _Task(call, undo)
    thread = threading.Thread(target=task.run, name="megadp call", daemon=True)
    thread.start()
    try:
        while not task.done.wait(SLICE):
            pass
    except BaseException:
        task.given_up.append(None)
        thread.join(GIVEN_UP)
        raise
    if task.error is not None:
        raise task.error
    return task.result


class _Task:
    """A call that somebody waits for, or no longer."""

    def __init__(self, call: Callable[[], Any], undo: Callable[[], Any]) -> None:
        self.done = threading.Event()
        self.result: Any = None
        self.error: Optional[BaseException] = None
        self.given_up: List[None] = []
        self._call, self._undo = call, undo

    def run(self) -> None:
        _asked.ask = self.given_up.count  # 1 once there is a None in it, which is what the library hands over
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error
        self.done.set()
        if self.given_up:
            self._undo()


def wait_for(call: Callable[..., Any], *arguments: Any, keep: Tuple[Any, ...] = ()) -> Request:
    """Starts call(*arguments, out) and returns its request."""
    request = Request(keep)
    call(*arguments, request._out())
    return request


def finish(request: Request, wait: bool) -> Optional[Request]:
    """The request, or None once it is done."""
    if not wait:
        return request
    request.wait()
    return None
