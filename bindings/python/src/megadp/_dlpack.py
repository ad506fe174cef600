# SPDX-License-Identifier: Apache-2.0
"""DLPack's structs and capsules: reading what others lend, lending what is ours.

What others lend is looked at, not taken: the capsule stays unused and is dropped after the call, and its own destructor gives the array
back. What is lent carries a deleter of ours, which runs Python. So that a consumer may also call it when there is no Python any more, the
deleters of all that is still lent when the interpreter ends are replaced by the C library's free(), which is all that is left to do.
"""
import atexit
import ctypes
from typing import Any, Dict, Optional, Sequence, Tuple

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
READ_ONLY, IS_COPIED = 1, 2
_OLD, _VERSIONED = b"dltensor", b"dltensor_versioned"


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.restype = None
_libc.free.argtypes = [ctypes.c_void_p]

# Prototypes of our own: ctypes.pythonapi's functions are shared with everybody, and so are their types.
_object, _pointer = ctypes.py_object, ctypes.c_void_p
_new_capsule = ctypes.PYFUNCTYPE(_object, _pointer, ctypes.c_char_p, _pointer)(("PyCapsule_New", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(_pointer, _object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, _object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
# A capsule that is being destroyed has no references left, and must not get one: it is passed as an address.
_dying_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, _pointer, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_dying_pointer = ctypes.PYFUNCTYPE(_pointer, _pointer, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


def read_capsule(capsule: Any) -> Optional[Tuple[DLTensor, int]]:
    """(tensor, flags) of an unused capsule of either kind; None where it is not one. The tensor lives as long as the capsule."""
    if _is_valid(capsule, _VERSIONED):
        managed = DLManagedTensorVersioned.from_address(_get_pointer(capsule, _VERSIONED))
        return (managed.tensor, managed.flags) if managed.major == 1 else None
    if _is_valid(capsule, _OLD):
        return DLManagedTensor.from_address(_get_pointer(capsule, _OLD)).tensor, 0
    return None


_lent: Dict[int, Tuple[Any, Any]] = {}  # address of what was lent: (the struct, what keeps its memory alive)


def lend(owner: Any, data: int, device: Tuple[int, int], dtype: Tuple[int, int], shape: Sequence[int], strides: Sequence[int],
         readonly: bool, versioned: bool) -> Any:
    """A capsule, versioned or old, whose consumer holds on to `owner` until it calls the deleter, from any thread. strides in elements.
    An old capsule cannot say that the memory is read-only: BufferError."""
    if readonly and not versioned:
        raise BufferError("this array is read-only, which DLPack says since version 1.0 only: ask for max_version=(1, 0)")
    kind = DLManagedTensorVersioned if versioned else DLManagedTensor
    ndim = len(shape)
    sizes = ctypes.c_int64 * (2 * ndim)
    address = _libc.malloc(ctypes.sizeof(kind) + ctypes.sizeof(sizes))  # one block, so that free() is a whole deleter
    if not address:
        raise MemoryError("no memory for a DLPack tensor")
    ctypes.memset(address, 0, ctypes.sizeof(kind))
    managed = kind.from_address(address)
    at = address + ctypes.sizeof(kind)
    sizes.from_address(at)[:] = [*shape, *strides]
    managed.tensor = DLTensor(data=data, device_type=device[0], device_id=device[1], ndim=ndim, code=dtype[0], bits=dtype[1], lanes=1,
                              shape=ctypes.cast(at, ctypes.POINTER(ctypes.c_int64)),
                              strides=ctypes.cast(at + 8 * ndim, ctypes.POINTER(ctypes.c_int64)))
    if versioned:
        managed.major, managed.flags = 1, READ_ONLY if readonly else 0
    managed.deleter = ctypes.cast(_delete, ctypes.c_void_p).value
    _lent[address] = (managed, owner)
    return _new_capsule(address, _VERSIONED if versioned else _OLD, ctypes.cast(_destruct, ctypes.c_void_p).value)


def _delete_lent(address: int, lent: Dict[int, Any] = _lent, free: Any = _libc.free) -> None:
    if lent.pop(address, None) is not None:
        free(address)


def _destruct_capsule(capsule: int, names: Tuple[bytes, bytes] = (_OLD, _VERSIONED), valid: Any = _dying_is_valid,
                      pointer: Any = _dying_pointer, delete: Any = _delete_lent) -> None:
    for name in names:
        if valid(capsule, name):  # a consumer renames what it takes
            delete(pointer(capsule, name))


_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete_lent)
_destruct = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destruct_capsule)
for _immortal in (_delete, _destruct):  # capsules may die after this module
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_immortal))


def _leave_to_free() -> None:
    free = ctypes.cast(_libc.free, ctypes.c_void_p).value
    for managed, _owner in list(_lent.values()):
        managed.deleter = free


atexit.register(_leave_to_free)
