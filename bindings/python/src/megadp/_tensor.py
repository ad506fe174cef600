# SPDX-License-Identifier: Apache-2.0
"""Arrays: the library's memory as everybody's, and everybody's arrays as the library's operands."""
import ctypes
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from . import _dlpack, _raw
from ._dtypes import BY_CODE, BY_DLPACK, BY_FORMAT, BY_TYPESTR, DTYPES, DType, one_of
from ._errors import invalid
from ._handles import InProcess
from ._library import lib, sized

if TYPE_CHECKING:
    from numpy.typing import NDArray

Among = Tuple[DType, ...]


def _dense(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _count(shape: Tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


class _Interface:
    """The base of a numpy view: what numpy reads the memory's place from, and holds on to."""

    def __init__(self, tensor: "Tensor") -> None:
        self._lease = tensor._lease
        self.__array_interface__ = tensor._interface()


class Tensor(InProcess):
    """A view of library memory: a parameter, a gradient, or an owned slice of optimizer state.

    The memory stays valid for as long as the Tensor or anything made from it (numpy arrays, memoryviews, DLPack consumers) lives, also
    after close() of what it was taken from. When it may be read and written is said where it was taken. Local, any thread.

    shape, strides (in elements), dtype (numpy's name), device ("cpu" or "cuda:N"), readonly, data (an address).
    """

    def __init__(self, view: "_raw.mdp_tensor", lease: Any, readonly: bool = False, lendable: bool = False) -> None:
        self._dtype: DType = BY_CODE[view.dtype]
        self._device = (view.device_type or _dlpack.CPU, view.device_id)
        self._lease = lease
        self.shape: Tuple[int, ...] = tuple(view.shape[:view.ndim])
        self.strides: Tuple[int, ...] = tuple(view.strides[:view.ndim]) if view.strides else _dense(self.shape)
        self.data: int = view.data or 0
        self.readonly = readonly
        self._lendable = lendable  # by mdp_buffer_to_dlpack

    @property
    def dtype(self) -> str:
        return self._dtype.name

    @property
    def device(self) -> str:
        return "cpu" if self._device[0] == _dlpack.CPU else f"cuda:{self._device[1]}"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return _count(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self._dtype.size

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self.dtype!r}, device={self.device!r}, readonly={self.readonly})"

    def _interface(self) -> Dict[str, Any]:
        return {"version": 3, "shape": self.shape, "typestr": self._dtype.typestr, "data": (self.data, self.readonly),
                "strides": tuple(stride * self._dtype.size for stride in self.strides)}

    def _on_host(self) -> None:
        if self._device[0] != _dlpack.CPU:
            raise BufferError(f"this tensor is on {self.device}: take it by DLPack or __cuda_array_interface__, or copy it by Buffer.read")

    def numpy(self) -> "NDArray[Any]":
        """A numpy array on the same memory. bfloat16 needs the package ml_dtypes; without it, memoryview gives the bits."""
        self._on_host()
        import numpy

        if self.size == 0:
            array = numpy.empty(self.shape, numpy.dtype(self._dtype.typestr))
            array.flags.writeable = not self.readonly
        else:
            array = numpy.asarray(_Interface(self))
        if self.dtype == "bfloat16":
            try:
                import ml_dtypes
            except ImportError:
                raise TypeError("numpy has no bfloat16 of its own: install ml_dtypes, or take the bits by .memoryview") from None
            array = array.view(ml_dtypes.bfloat16)
        return array

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> "NDArray[Any]":
        array = self.numpy()
        if copy is False and dtype is not None and array.dtype != dtype:
            raise ValueError(f"a {self.dtype} tensor cannot become {dtype} without a copy")
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    @property
    def memoryview(self) -> memoryview:
        """The memory as a memoryview of its shape; bfloat16 and float16 as "H", their bits. Empty tensors are one-dimensional."""
        self._on_host()
        if self.strides != _dense(self.shape) and self.size:
            raise BufferError(f"this tensor has strides {self.strides}; a memoryview must be row-major and dense")
        block: Any = (ctypes.c_ubyte * self.nbytes).from_address(self.data) if self.size else (ctypes.c_ubyte * 0)()
        block._lease = self._lease  # the view refers to the block, and the block to this
        flat: Any = memoryview(block).cast("B")
        shaped: memoryview = flat.cast(self._dtype.format, self.shape) if self.size else flat.cast(self._dtype.format)
        return shaped.toreadonly() if self.readonly else shaped

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        """Version 3. Stream 1: ordered with the default stream, as calls without a stream are. On the host there is no such attribute."""
        if self._device[0] != _dlpack.CUDA:
            raise AttributeError(f"this tensor is on {self.device}; __cuda_array_interface__ is for memory of a GPU")
        if self.dtype == "bfloat16":
            raise AttributeError("__cuda_array_interface__ has no bfloat16; take this tensor by DLPack")
        return {**self._interface(), "stream": 1}

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: Any = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """A capsule that shares this memory: versioned where max_version allows, old otherwise (which needs numpy; and read-only memory
        is then a BufferError). On a GPU the consumer's stream must come after the one that the library's calls were given; nothing is
        waited for here."""
        if copy:
            raise BufferError("this tensor is lent, never copied: ask without copy=True, and copy what you get")
        if dl_device is not None and tuple(dl_device) != self._device:
            raise BufferError(f"this tensor is on DLPack device {self._device}, and cannot be lent as {tuple(dl_device)}")
        if max_version is not None and max_version[0] >= 1 and self._lendable:
            return _dlpack.versioned(self._managed(), self.readonly)
        if self.readonly:
            raise BufferError("this tensor is read-only, which DLPack says since version 1.0 only: ask for max_version=(1, 0)")
        try:
            import numpy
        except ImportError:
            raise BufferError("an old DLPack capsule (max_version below 1.0) is made by numpy, which is not installed") from None
        array = numpy.asarray(_Interface(self)) if self.size else numpy.empty(self.shape, self._dtype.typestr)
        return _dlpack.old(array, self._device, self._dtype.dlpack)

    def _managed(self) -> int:
        view = _struct(self._dtype, self._device, self.data, self.shape, self.strides)
        out = ctypes.POINTER(_raw.DLManagedTensorVersioned)()
        self._lease.call(lib.mdp_buffer_to_dlpack, ctypes.byref(view), ctypes.byref(out))
        return ctypes.cast(out, ctypes.c_void_p).value or 0


def operand(array: Any, argument: str, writable: bool = False, stream: int = 0, among: Among = DTYPES) -> Tuple[Any, Any]:
    """(mdp_tensor, what keeps its memory alive) of anything that holds an array: a Tensor, a numpy array, whatever has __dlpack__
    or __cuda_array_interface__, a memoryview. Nothing is copied. InvalidError names the argument where that is not possible, or the type of
    its elements is none of `among`."""
    if isinstance(array, Tensor):
        if writable and array.readonly:
            raise invalid(f"{argument} is a read-only Tensor, and would be written to")
        return _struct(array._dtype, array._device, array.data, array.shape, array.strides), array
    for read in (_from_interface, _from_dlpack, _from_buffer):
        found: Optional[Tuple[Any, Any]] = read(array, argument, writable, stream, among)
        if found is not None:
            return found
    raise invalid(f"{argument} is {_described(array)}; it must be an array: numpy's, or anything with DLPack or the buffer protocol")


def _described(array: Any) -> str:
    text = repr(array)
    return f"a {type(array).__name__}" if len(text) > 40 else f"{text}, a {type(array).__name__}"


def _struct(dtype: DType, device: Tuple[int, int], data: int, shape: Any, strides: Any) -> Any:
    ndim = len(shape)
    sizes = ctypes.c_int64 * ndim
    return sized(_raw.mdp_tensor, dtype=dtype.code, device_type=device[0], device_id=device[1], ndim=ndim, data=data or None,
                 shape=sizes(*shape), strides=None if strides is None else sizes(*strides))


def _refuse_read_only(argument: str, array: Any) -> None:
    raise invalid(f"{argument}, a {type(array).__name__}, is read-only, and would be written to")


def _refuse_scalar(argument: str, array: Any) -> None:
    """numpy's scalars lend a copy of themselves, which the interface keeps: it may be read, and claims that it may be written to."""
    if not getattr(getattr(array, "flags", None), "writeable", True):
        raise invalid(f"{argument} is {_described(array)}: a scalar, which cannot be written to; it must be an array, such as "
                      "numpy.asarray makes of it, which then has the result")


def _from_interface(array: Any, argument: str, writable: bool, stream: int, among: Among) -> Any:
    interface, device = getattr(array, "__array_interface__", None), (_dlpack.CPU, 0)
    if interface is None:
        if hasattr(array, "__dlpack__"):
            return None
        interface = getattr(array, "__cuda_array_interface__", None)
        device = (_dlpack.CUDA, getattr(getattr(array, "device", None), "id", 0))
        if interface is None:
            return None
    name, dtype = "", BY_TYPESTR.get(interface["typestr"])
    if dtype is None or dtype not in among:  # numpy takes microseconds to say a name
        name = getattr(getattr(array, "dtype", None), "name", "")
        dtype = BY_DLPACK[4, 16] if name == "bfloat16" else dtype
    if dtype is None or dtype not in among:
        raise invalid(f"{argument} has dtype {name or interface['typestr']}; it {one_of(among)}, in this machine's byte order: "
                      f".astype(numpy.{among[0].name}), say")
    data, readonly = interface["data"]
    if writable and readonly:
        _refuse_read_only(argument, array)
    shape, strides = interface["shape"], interface.get("strides")
    if writable and not shape:
        _refuse_scalar(argument, array)
    if strides is not None:
        if any(stride % dtype.size for stride in strides):
            raise invalid(f"{argument} has strides of {strides} bytes, which are not whole elements of {dtype.name}")
        strides = [stride // dtype.size for stride in strides]
    return _struct(dtype, device, data, shape, strides), (array, interface)


def _from_dlpack(array: Any, argument: str, writable: bool, stream: int, among: Among) -> Any:
    if not hasattr(array, "__dlpack__"):
        return None
    if getattr(array, "is_deleted", bool)() is True:  # JAX's
        raise invalid(f"{argument}, a {type(array).__name__}, has been deleted: it was donated to a function (donate_argnums), whose result has "
                      "its memory, or delete() was called; give an array that is still there")
    on_gpu = hasattr(array, "__dlpack_device__") and int(array.__dlpack_device__()[0]) in (_dlpack.CUDA, _dlpack.CUDA_MANAGED)
    options = {"stream": stream or 1} if on_gpu else {}  # 1 is CUDA's default stream
    try:
        try:
            capsule = array.__dlpack__(max_version=(1, 0), **options)
        except TypeError:  # older than DLPack 1.0
            capsule = array.__dlpack__(**options)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise invalid(f"{argument}, a {type(array).__name__}, cannot be taken by DLPack: {error}") from error
    found = _dlpack.read_capsule(capsule)
    if found is None:
        raise invalid(f"{argument}, a {type(array).__name__}, has a __dlpack__ that does not return a DLPack capsule of version 0 or 1")
    tensor, flags = found
    # JAX's say nothing of it in their flags.
    if writable and (flags & _dlpack.READ_ONLY or type(array).__module__.partition(".")[0] in ("jax", "jaxlib")):
        _refuse_read_only(argument, array)
    if writable and flags & _dlpack.IS_COPIED:
        raise invalid(f"{argument}, a {type(array).__name__}, lends a copy of itself, so that it cannot be written to")
    dtype = BY_DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    device = {_dlpack.CUDA_HOST: _dlpack.CPU, _dlpack.CUDA_MANAGED: _dlpack.CUDA}.get(tensor.device_type, tensor.device_type)
    if dtype is None or dtype not in among or device not in (_dlpack.CPU, _dlpack.CUDA):
        raise invalid(f"{argument} has DLPack type (code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes) on device type "
                      f"{tensor.device_type}; it {one_of(among)} on a CPU (1) or CUDA (2)")
    shape = tensor.shape[:tensor.ndim] if tensor.ndim else ()
    strides = tensor.strides[:tensor.ndim] if tensor.ndim and tensor.strides else None
    place = (device, 0 if device == _dlpack.CPU else tensor.device_id)
    return _struct(dtype, place, (tensor.data or 0) + tensor.byte_offset, shape, strides), capsule


def _from_buffer(array: Any, argument: str, writable: bool, stream: int, among: Among) -> Any:
    try:
        view = memoryview(array)
    except TypeError:
        return None
    dtype = BY_FORMAT.get(view.format.lstrip("@=<" if view.itemsize > 1 else "@=<>!"))
    if dtype is None or dtype not in among or dtype.size != view.itemsize:
        named = one_of(tuple(dtype for dtype in among if dtype.name != "bfloat16"))
        raise invalid(f"{argument} has elements of format {view.format!r}; it {named}")
    if writable and view.readonly:
        _refuse_read_only(argument, array)
    if not view.c_contiguous:
        raise invalid(f"{argument}, a memoryview, is not row-major and dense")
    address = _address(view)
    return _struct(dtype, (_dlpack.CPU, 0), address, view.shape, None), (array, view)


class _PyBuffer(ctypes.Structure):
    """Python's Py_buffer: ctypes' from_buffer refuses read-only memory."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


_get_buffer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)(
    ("PyObject_GetBuffer", ctypes.pythonapi))
_release_buffer = ctypes.PYFUNCTYPE(None, ctypes.POINTER(_PyBuffer))(("PyBuffer_Release", ctypes.pythonapi))


def _address(view: memoryview) -> int:
    raw = _PyBuffer()
    _get_buffer(view, ctypes.byref(raw), 0x18)  # PyBUF_STRIDES; the memoryview itself keeps the memory where it is
    address = raw.buf or 0
    _release_buffer(ctypes.byref(raw))
    return address
