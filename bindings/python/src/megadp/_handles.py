# SPDX-License-Identifier: Apache-2.0
"""The life of a C handle in a garbage-collected process: closed once, never while a call is inside or a view is lent, at the latest when
the process ends, so that the other ranks are told that this one has left.

Between "no Python any more" and "the process has ended" views may still be read (module-level arrays, destructors of other libraries).
A handle that has lent memory is therefore destroyed by the C library's exit, not by Python's.
"""
import ctypes
import os
import threading
import weakref
from typing import Any, Callable, List, Optional, Sequence, TypeVar

from ._errors import MegaDPError, Status, invalid

Self = TypeVar("Self", bound="Closable")
Own = TypeVar("Own", bound="InProcess")
_at_process_exit = ctypes.CDLL(None).__cxa_atexit
_at_process_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
_at_process_exit.restype = ctypes.c_int


class Handle:
    """A pointer to an opaque struct, the function that destroys it, and how many calls and views use it. Any thread."""

    def __init__(self, pointer: Any, destroy: Any, what: str) -> None:
        self.pointer = pointer
        self.what = what
        self._destroy = destroy
        self._calls = 0
        self._views = 0
        self._closed = False
        self._process = os.getpid()
        self._lock = threading.RLock()  # reentrant: a signal handler may close what the code below it is using

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def calls(self) -> int:
        """How many threads of this process are inside a call."""
        return 0 if self._foreign() else self._calls

    def call(self, function: Any, *arguments: Any) -> Any:
        """function(pointer, *arguments); the handle is not destroyed meanwhile."""
        if self._closed:
            raise MegaDPError(Status.STATE, f"this {self.what} is closed")
        if self._foreign():  # the lock may have been held when the process was forked; the library knows what to answer
            return function(self.pointer, *arguments)
        counted = 0
        try:  # a signal's handler may raise as soon as the lock is released
            with self._lock:
                if self._closed:
                    raise MegaDPError(Status.STATE, f"this {self.what} is closed")
                self._calls += 1
                counted = 1
            return function(self.pointer, *arguments)
        finally:
            with self._lock:
                self._calls -= counted
                self._destroy_if_unused()

    def lend(self) -> "Lease":
        """Keeps the handle's memory alive for as long as the answer lives, also beyond close()."""
        if not self._foreign():
            with self._lock:
                self._views += 1
        return Lease(self)

    def give_back(self) -> None:
        if self._foreign():
            return
        with self._lock:
            self._views -= 1
            self._destroy_if_unused()

    def close(self) -> None:
        if self._foreign():  # the parent's; nothing of it is freed here
            self._closed = True
            return
        with self._lock:
            self._closed = True
            self._destroy_if_unused()

    def close_at_exit(self) -> None:
        """As close, when the interpreter is about to end."""
        self.close()
        if self.pointer is None or self._foreign():
            return
        with self._lock:
            if self._calls == 0:  # a thread that is still inside a call goes under with the process, and its handle with it
                _at_process_exit(ctypes.cast(self._destroy, ctypes.c_void_p), ctypes.cast(self.pointer, ctypes.c_void_p), None)
            self.pointer = None

    def _foreign(self, getpid: Callable[[], int] = os.getpid) -> bool:  # a default: at the interpreter's end modules are emptied
        return getpid() != self._process

    def _destroy_if_unused(self) -> None:
        if self._closed and self._calls == 0 and self._views == 0 and self.pointer is not None:
            pointer, self.pointer = self.pointer, None
            self._destroy(pointer)


class Lease:
    """What a view holds on to. Its end is the view's end."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def call(self, function: Any, *arguments: Any) -> Any:
        """function(pointer, *arguments): the memory's owner can still be asked about it when it has been closed."""
        return function(self._handle.pointer, *arguments)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)  # none where it was half made
        if handle is not None:
            handle.give_back()


def inside(handles: Sequence[Handle], call: Callable[..., Any], *pointers: Any) -> Any:
    """call(*pointers) of the handles; none is destroyed meanwhile."""
    if not handles:
        return call(*pointers)
    return handles[0].call(lambda pointer: inside(handles[1:], call, *pointers, pointer))


def keep(kept: List[Any], what: Any, call: Callable[[], Any]) -> None:
    """call(), from which on the library uses this, in place of what was kept before. It is kept from before the call, since a signal's
    handler may raise behind it; after the library's own error the library uses what it used before."""
    kept.append(what)
    try:
        call()
    except MegaDPError:
        kept[:] = [each for each in kept if each is not what]
        raise
    kept[:] = [what]


class _Shared:
    """What an object and those that copy.copy has made of it have in common. Its end is the end of the last of them.

    kept: what the library works on or calls inside calls on them, and at no other time. The Handle must not refer to it: the finalizer and
    all views refer to the Handle, while an update function may refer to its optimizer, and an array may be a view."""

    def __init__(self) -> None:
        self.kept: List[Any] = []


class InProcess:
    """Of what is this process's own: it can be shared by copy.copy, and not pickled, nor copied deeply."""

    def _at_last(self, end: Callable[..., Any], *arguments: Any) -> None:
        """end(*arguments), when nobody refers to this object any more, nor to a copy of it."""
        self._shared = _Shared()
        weakref.finalize(self._shared, end, *arguments).atexit = False

    def __copy__(self: Own) -> Own:
        same = type(self).__new__(type(self))
        same.__dict__.update(self.__dict__)
        return same

    def __deepcopy__(self, memo: Any) -> Any:
        raise invalid(f"this {type(self).__name__} belongs to this process and its rank, and cannot be copied: copy what holds it without it, or "
                      "use it in both places")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise invalid(f"this {type(self).__name__} belongs to this process and its rank, and cannot be pickled: make it anew in each process, "
                      "and send numbers (numpy.array of a Tensor, a checkpoint)")


class Closable(InProcess):
    """What Comm, Grid, Buffer and Optimizer have in common: an explicit close, also at the end of a `with` block, when nobody refers to
    the object or a copy of it any more, and at the end of the process."""

    _handle: Handle

    def _own(self, pointer: Any, destroy: Any) -> None:
        self._handle = Handle(pointer, destroy, type(self).__name__)
        _open.add(self._handle)
        self._at_last(self._handle.close)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._handle.call(function, *arguments)

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def close(self) -> None:
        """Gives the object up; using it afterwards is an error. What was made from it stays usable, and so do views of its memory. Local, any
        thread, may be repeated; waits for no other rank, but leaving the job may take up to 1 s, until another machine has the goodbye."""
        self._handle.close()
        if self._handle.calls == 0:  # none is counted any more
            self._shared.kept.clear()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: Optional[type], error: Optional[BaseException], traceback: Any) -> None:
        self.close()


_open: "weakref.WeakSet[Handle]" = weakref.WeakSet()


def calls_under_way() -> int:
    """Of this process, on objects that can be closed."""
    return sum(handle.calls for handle in list(_open))


def close_all_at_exit() -> None:
    for handle in list(_open):
        handle.close_at_exit()
