# SPDX-License-Identifier: Apache-2.0
"""Finds libmegadp, loads it once, and turns the status of every call into an exception where it failed.

Looked for, in this order: the file that MEGADP_LIBRARY names; lib/ inside this package (a wheel); build/lib of the checkout that this file
is part of; wherever the system's loader looks. Only the first that exists is tried.
"""
import ctypes
import json
import os
from typing import Any, Dict

from . import _raw, _raw_functions
from ._errors import from_info

VERSION = (0, 1)  # of megadp.h, as _raw.py has it. Until 1.0 a minor release may change the ABI
SONAME = "libmegadp.so.0"


def find_library() -> str:
    """The path or name that the library is loaded by; see above."""
    named = os.environ.get("MEGADP_LIBRARY")
    if named:
        return named
    here = os.path.dirname(os.path.abspath(__file__))
    checkout = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(here))))
    for folder in (os.path.join(here, "lib"), os.path.join(checkout, "build", "lib")):
        path = os.path.join(folder, SONAME)
        if os.path.exists(path):
            return path
    return SONAME


def _load() -> ctypes.CDLL:
    name = find_library()
    try:
        library = ctypes.CDLL(name)
        _raw_functions.declare(library)
    except (OSError, AttributeError) as error:
        raise ImportError(f"libmegadp cannot be loaded as {name!r}: {error}. Install the wheel, build the library (scripts/build), or let "
                          "MEGADP_LIBRARY name its file") from None
    version = library.mdp_version()
    if (version >> 16, version >> 8 & 255) != VERSION:
        raise ImportError(f"{name!r} is megadp {version_text(version)}; this package is for {VERSION[0]}.{VERSION[1]}")
    return library


def version_text(version: int) -> str:
    return f"{version >> 16}.{version >> 8 & 255}.{version & 255}"


def _check(status: int, function: Any, arguments: Any) -> int:
    """errcheck of every function that returns a status. ctypes runs it before the call returns to its caller, on the same thread, so that
    no other call of ours comes between a failure and its sentence. (Finalizers may; they only destroy, which leaves the sentence.)"""
    if status < 0:
        raise last_error()
    return status


def last_error() -> Exception:
    """The failure of this thread's last failed call as an exception."""
    info = sized(_raw.mdp_error_info)
    lib.mdp_last_error_info(ctypes.byref(info))
    return from_info(info, lib.mdp_last_error().decode("utf-8", "replace"))


def sized(struct: Any, **fields: Any) -> Any:
    """A struct with its struct_size and the given fields set, all others zero."""
    return struct(struct_size=ctypes.sizeof(struct), **fields)


def text_of(call: Any) -> Any:
    """What a function of the header's text protocol answers, parsed as JSON. call(buffer, capacity, needed)."""
    needed = ctypes.c_size_t()
    call(None, 0, ctypes.byref(needed))
    while True:  # what it tells may have grown between two calls
        room = ctypes.create_string_buffer(needed.value)
        had = needed.value
        try:
            call(room, had, ctypes.byref(needed))
            return json.loads(room.value.decode("utf-8"))
        except Exception:
            if needed.value <= had:
                raise


def info() -> Dict[str, Any]:
    """What the loaded library is and what it sees: version, abi, build, backends and transport (with the reason where one is not there),
    machine, launch. Local, any thread. The fields are those of mdp_info, and `library`: the path or name it was loaded by."""
    found: Dict[str, Any] = text_of(lib.mdp_info)
    found["library"] = lib._name
    return found


def _bind(library: ctypes.CDLL) -> ctypes.CDLL:
    for name in _raw_functions.PROTOTYPES:
        if _returns_status(name):
            getattr(library, name).errcheck = _check
    return library


def _returns_status(name: str) -> bool:
    """All that are int32_t, also mdp_comm_world_rank (-1 is a failure), but the two whose argument is never wrong. mdp_last_error_info is
    called while an error is made."""
    return (_raw_functions.PROTOTYPES[name][0] is ctypes.c_int32 and
            name not in ("mdp_comm_rank", "mdp_comm_size", "mdp_last_error_info"))


lib = _bind(_load())
