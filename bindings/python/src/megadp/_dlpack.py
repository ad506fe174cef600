# SPDX-License-Identifier: Apache-2.0
"""DLPack's structs and capsules: reading what others lend, lending what is ours.

What others lend is looked at, not taken: the capsule stays unused and is dropped after the call, and its own destructor gives the array
back. What is lent must not run Python when it is given back, since that may happen while an exception is on its way, or when there is no
Python any more. Versioned capsules have the library's deleter, old ones numpy's or the C library's free; and capsules that nobody has taken
are found by looking, not by a destructor.
"""
import ctypes
import sys
import threading
from typing import Any, List, Optional, Sequence, Tuple

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
READ_ONLY, IS_COPIED = 1, 2
_OLD, _VERSIONED = b"dltensor", b"dltensor_versioned"
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_VERSIONED))  # capsules keep the address of their name, and may outlive this module


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


# Prototypes of our own: ctypes.pythonapi's functions are shared with everybody, and so are their types.
_object, _pointer = ctypes.py_object, ctypes.c_void_p
_new_capsule = ctypes.PYFUNCTYPE(_object, _pointer, ctypes.c_char_p, _pointer)(("PyCapsule_New", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(_pointer, _object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, _object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_malloc = ctypes.CFUNCTYPE(_pointer, ctypes.c_size_t)(("malloc", ctypes.CDLL(None)))
_free = ctypes.cast(ctypes.CDLL(None).free, _pointer).value


def read_capsule(capsule: Any) -> Optional[Tuple[DLTensor, int]]:
    """(tensor, flags) of an unused capsule of either kind; None where it is not one. The tensor lives as long as the capsule."""
    if _is_valid(capsule, _VERSIONED):
        managed = DLManagedTensorVersioned.from_address(_get_pointer(capsule, _VERSIONED))
        return (managed.tensor, managed.flags) if managed.major == 1 else None
    if _is_valid(capsule, _OLD):
        return DLManagedTensor.from_address(_get_pointer(capsule, _OLD)).tensor, 0
    return None


_waiting: List[Any] = []  # versioned capsules of ours that may not have been taken yet
_lock = threading.RLock()


def versioned(address: int, readonly: bool) -> Any:
    """A capsule around a DLManagedTensorVersioned of the library's."""
    managed = DLManagedTensorVersioned.from_address(address)
    if readonly:
        managed.flags |= READ_ONLY
    give_back_untaken()
    capsule = _new_capsule(address, _VERSIONED, None)
    with _lock:
        _waiting.append(capsule)
    return capsule


def give_back_untaken() -> None:
    """Calls the deleters of capsules that everybody else has dropped without taking the tensor, and forgets those that were taken."""
    with _lock:
        used: List[Any] = []
        try:
            while _waiting:  # each is this call's alone, since a finalizer or a signal's handler may call this again meanwhile
                one = [_waiting.pop()]
                if not _is_valid(one[0], _VERSIONED):
                    continue
                if sys.getrefcount(one[0]) > 2:  # the list's and the argument's
                    used += one
                    continue
                address = _get_pointer(one[0], _VERSIONED)
                ctypes.CFUNCTYPE(None, _pointer)(DLManagedTensorVersioned.from_address(address).deleter)(address)
        finally:
            _waiting.extend(used)


def old(array: Any, device: Tuple[int, int], dtype: Tuple[int, int]) -> Any:
    """An old capsule from a numpy array on the same memory. numpy knows no bfloat16, and no memory but the host's: what it has written
    down of these is put right."""
    capsule = array.__dlpack__()
    found = read_capsule(capsule)
    if found is None:
        raise BufferError("numpy's __dlpack__ returned something else than an unused capsule")
    tensor, _ = found
    tensor.device_type, tensor.device_id = device
    tensor.code, tensor.bits = dtype
    return capsule


def borrowed(data: int, device: Tuple[int, int], dtype: Tuple[int, int], shape: Sequence[int], strides: Sequence[int]) -> Any:
    """An old capsule of memory that somebody else keeps while it is used, for who takes it at once. The struct may outlive that use (a
    traceback holds on to tensors), so it lies in memory that the C library's free gives back, which is its deleter."""
    ndim, size = len(shape), ctypes.sizeof(DLManagedTensor)
    numbers = ctypes.c_int64 * (2 * ndim)
    address = _malloc(size + ctypes.sizeof(numbers))
    if not address:
        raise MemoryError
    ctypes.memset(address, 0, size)
    managed = DLManagedTensor.from_address(address)
    managed.deleter = _free
    tensor = managed.tensor
    tensor.data, tensor.ndim, tensor.lanes = data, ndim, 1
    (tensor.device_type, tensor.device_id), (tensor.code, tensor.bits) = device, dtype
    numbers.from_address(address + size)[:] = [*shape, *strides]
    tensor.shape, tensor.strides = (ctypes.cast(address + size + at * ctypes.sizeof(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64))
                                    for at in (0, ndim))
    return _new_capsule(address, _OLD, None)
