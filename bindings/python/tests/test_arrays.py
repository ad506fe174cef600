# SPDX-License-Identifier: Apache-2.0
"""Library memory as others see it, others' memory as the library takes it."""
import array
import ctypes
import gc
import sys
import threading
import unittest
import unittest.mock
import weakref

import megadp
from megadp import _dlpack
from megadp._library import lib
from megadp._waiting import wait_for

try:
    import numpy as np
except ImportError:
    np = None
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

needs_numpy = unittest.skipIf(np is None, "numpy is not installed")
needs_bf16 = unittest.skipIf(np is None or ml_dtypes is None, "ml_dtypes is not installed")


# Capsules keep the address of their name.
USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


class Producer:
    """Somebody's array that is given by DLPack alone, of either kind."""

    def __init__(self, values, typecode="f", versioned=True, flags=0, device=(1, 0), dtype=(2, 32), shape=None):
        self.memory = array.array(typecode, values)
        self.versioned, self.flags, self.device, self.dtype = versioned, flags, device, dtype
        self.shape = shape or (len(self.memory),)
        self.capsules = 0

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if not self.versioned and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.capsules += 1
        kind = _dlpack.DLManagedTensorVersioned if self.versioned else _dlpack.DLManagedTensor
        self.sizes = (ctypes.c_int64 * len(self.shape))(*self.shape)
        self.lent = kind()
        self.lent.tensor = _dlpack.DLTensor(data=self.memory.buffer_info()[0], device_type=self.device[0], device_id=self.device[1],
                                            ndim=len(self.shape), code=self.dtype[0], bits=self.dtype[1], lanes=1,
                                            shape=ctypes.cast(self.sizes, ctypes.POINTER(ctypes.c_int64)))
        if self.versioned:
            self.lent.major, self.lent.flags = 1, self.flags
        return _dlpack._new_capsule(ctypes.addressof(self.lent), b"dltensor_versioned" if self.versioned else b"dltensor", None)


class World(unittest.TestCase):
    def setUp(self):
        self.comm = megadp.Comm()
        self.addCleanup(self.comm.close)

    def buffer(self, *params, **options):
        buffer = megadp.Buffer(self.comm, params, **options)
        self.addCleanup(buffer.close)
        return buffer


class Views(World):
    def test_memoryview(self):
        buffer = self.buffer(("w", (2, 3)), ("scalar", ()), ("empty", (2, 0)), megadp.Param("h", (2,), "bf16"), megadp.Param("f", (2,), "f16"))
        buffer.param("w").memoryview[1, 2] = 5.5
        self.assertEqual(buffer.param("w").memoryview.tolist(), [[0, 0, 0], [0, 0, 5.5]])
        self.assertEqual(buffer.param("scalar").memoryview.tolist(), 0.0)
        self.assertEqual(buffer.param("empty").memoryview.nbytes, 0)
        buffer.write("h", array.array("f", [1.0, -2.0]))
        self.assertEqual(buffer.param("h").memoryview.tolist(), [0x3F80, 0xC000])
        self.assertEqual(buffer.param("f").memoryview.nbytes, 4)
        readonly = buffer.param("w", readonly=True).memoryview
        self.assertTrue(readonly.readonly)
        with self.assertRaises(TypeError):
            readonly[0, 0] = 1.0

    @needs_numpy
    def test_numpy(self):
        buffer = self.buffer(("w", (2, 3)), ("scalar", ()), ("empty", (2, 0)), megadp.Param("f", (2,), "f16"))
        view = buffer.param("w").numpy()
        view[:] = np.arange(6).reshape(2, 3)
        self.assertTrue(np.shares_memory(view, buffer.param("w").numpy()))
        np.testing.assert_array_equal(np.asarray(buffer.param("w")), view)
        np.testing.assert_array_equal(buffer.read("w"), view)
        self.assertEqual(np.asarray(buffer.param("w"), dtype=np.float64).dtype, np.float64)
        self.assertEqual((buffer.param("scalar").numpy().shape, buffer.param("empty").numpy().shape), ((), (2, 0)))
        self.assertEqual(buffer.param("f").numpy().dtype, np.float16)
        for name in ("w", "scalar", "empty"):
            self.assertFalse(buffer.param(name, readonly=True).numpy().flags.writeable)

    @needs_bf16
    def test_bfloat16(self):
        buffer = self.buffer(megadp.Param("h", (3,), ml_dtypes.bfloat16))
        view = buffer.param("h").numpy()
        self.assertEqual(view.dtype, ml_dtypes.bfloat16)
        view[:] = [1, 2, 1.0078125]
        self.assertEqual(buffer.read("h").tolist(), [1, 2, 1.0078125])
        buffer.write("h", np.array([4, 5, 6], ml_dtypes.bfloat16))
        self.assertEqual(view.astype(np.float32).tolist(), [4, 5, 6])
        buffer.put("h", np.array([1, 2, 3], ml_dtypes.bfloat16))
        self.assertEqual(buffer.grad("h").memoryview.tolist(), [1, 2, 3])
        out = np.empty(3, ml_dtypes.bfloat16)
        buffer.read("h", out)
        self.assertEqual(out.tolist(), [4, 5, 6])

    def test_no_gpu_interface_on_the_host(self):
        buffer = self.buffer(("w", (2,)))
        self.assertFalse(hasattr(buffer.param("w"), "__cuda_array_interface__"))
        self.assertEqual((buffer.param("w").device, buffer.param("w").__dlpack_device__()), ("cpu", (1, 0)))

    def test_gpu_interface(self):
        """Of a view that says it is on a GPU: its memory is never touched."""
        shape, strides = (ctypes.c_int64 * 2)(2, 3), (ctypes.c_int64 * 2)(3, 1)
        view = megadp._library.sized(megadp._raw.mdp_tensor, dtype=megadp._raw.MDP_DTYPE_F32, device_type=2, device_id=1, ndim=2,
                                     data=0x7000, shape=shape, strides=strides)
        tensor = megadp.Tensor(view, None, readonly=True)
        self.assertEqual(tensor.__cuda_array_interface__, {"version": 3, "shape": (2, 3), "typestr": "<f4", "data": (0x7000, True),
                                                           "strides": (12, 4), "stream": 1})
        self.assertEqual((tensor.device, tensor.__dlpack_device__()), ("cuda:1", (2, 1)))
        for read in (lambda: tensor.memoryview, tensor.numpy):
            with self.assertRaises(BufferError):
                read()
        operand, _ = megadp._tensor.operand(type("Cupy", (), {"__cuda_array_interface__": tensor.__cuda_array_interface__})(), "array")
        self.assertEqual((operand.device_type, operand.data, list(operand.shape[:2])), (2, 0x7000, [2, 3]))


class Lending(World):
    @needs_numpy
    def test_numpy_takes_both_kinds(self):
        view = self.buffer(("w", (2, 3))).param("w")
        for taken in (np.from_dlpack(view), np.from_dlpack(OldOnly(view))):
            view.memoryview[1, 1] += 3
            self.assertEqual(taken[1, 1], view.memoryview[1, 1])
            self.assertTrue(np.shares_memory(taken, view.numpy()))

    def check(self, capsule, kind, view, dtype=(2, 32), flags=0):
        self.assertIn(f'"{kind}"', repr(capsule))
        tensor, found = _dlpack.read_capsule(capsule)
        self.assertEqual((tensor.data, tuple(tensor.shape[:tensor.ndim]), found), (view.data, view.shape, flags))
        if tensor.strides:
            self.assertEqual(tuple(tensor.strides[:tensor.ndim]), view.strides)
        self.assertEqual((tensor.code, tensor.bits, tensor.lanes), (*dtype, 1))
        self.assertEqual((tensor.device_type, tensor.device_id, tensor.byte_offset), (1, 0, 0))

    def test_versioned(self):
        buffer = self.buffer(("w", (2, 3)), megadp.Param("h", (2,), "bf16"), megadp.Param("f", (), "f16"))
        for versions in ((1, 0), (1, 3), (2, 0)):
            self.check(buffer.param("w").__dlpack__(max_version=versions), "dltensor_versioned", buffer.param("w"))
        self.check(buffer.param("h").__dlpack__(max_version=(1, 0)), "dltensor_versioned", buffer.param("h"), (4, 16))
        self.check(buffer.grad("f").__dlpack__(max_version=(1, 0)), "dltensor_versioned", buffer.grad("f"))

    @needs_numpy
    def test_old(self):
        buffer = self.buffer(("w", (2, 3)), megadp.Param("h", (2,), "bf16"), megadp.Param("f", (), "f16"))
        for versions in (None, (0, 8)):
            self.check(buffer.param("w").__dlpack__(max_version=versions), "dltensor", buffer.param("w"))
        self.check(buffer.param("h").__dlpack__(), "dltensor", buffer.param("h"), (4, 16))
        self.check(buffer.param("f").__dlpack__(), "dltensor", buffer.param("f"), (2, 16))
        optimizer = megadp.Optimizer(buffer)
        self.check(optimizer.state("w", "exp_avg").__dlpack__(), "dltensor", optimizer.state("w", "exp_avg"))

    def test_borrowed(self):
        """Of memory on a device too, with strides; its own memory is given back by who takes it."""
        view = self.buffer(("w", (2, 3))).param("w")
        self.check(_dlpack.borrowed(view.data, (1, 0), (2, 32), view.shape, view.strides), "dltensor", view)
        tensor, _ = _dlpack.read_capsule(_dlpack.borrowed(4096, (2, 3), (4, 16), (5, 2), (1, 5)))
        self.assertEqual((tensor.data, tensor.device_type, tensor.device_id, tensor.code, tensor.bits), (4096, 2, 3, 4, 16))
        self.assertEqual((tensor.shape[:2], tensor.strides[:2]), ([5, 2], [1, 5]))
        capsule = _dlpack.borrowed(view.data, (1, 0), (2, 32), (3,), (1,))
        managed = _dlpack.DLManagedTensor.from_address(_dlpack._get_pointer(capsule, b"dltensor"))
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)(ctypes.addressof(managed))  # as a consumer does

    def test_read_only(self):
        view = self.buffer(("w", (2,))).param("w", readonly=True)
        self.check(view.__dlpack__(max_version=(1, 0)), "dltensor_versioned", view, flags=_dlpack.READ_ONLY)
        with self.assertRaisesRegex(BufferError, "read-only"):
            view.__dlpack__()

    @needs_numpy
    def test_numpy_sees_read_only(self):
        view = self.buffer(("w", (2,)))
        try:
            self.assertTrue(np.from_dlpack(view.param("w")).flags.writeable)
        except AssertionError:
            self.skipTest("this numpy takes old capsules only")
        self.assertFalse(np.from_dlpack(view.param("w", readonly=True)).flags.writeable)

    def test_what_cannot_be_lent(self):
        view = self.buffer(("w", (2,))).param("w")
        for options in ({"copy": True}, {"dl_device": (2, 0)}):
            with self.assertRaises(BufferError):
                view.__dlpack__(max_version=(1, 0), **options)
        view.__dlpack__(max_version=(1, 0), copy=False, dl_device=(1, 0), stream=None)

    def consumed(self, versions, name):
        """What a consumer has taken from a buffer that is closed since: (address, weak reference to the buffer's handle)."""
        comm = megadp.Comm()
        buffer = megadp.Buffer(comm, {"w": (4,)})
        capsule = buffer.param("w").__dlpack__(max_version=versions)
        address = _dlpack._get_pointer(capsule, name)
        ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))(capsule, USED[name])
        del capsule
        buffer.close()
        comm.close()
        return address, weakref.ref(buffer._handle)

    @needs_numpy
    def test_consumer_keeps_the_memory(self):
        """The deleter may be called at any time; until then the memory is there."""
        for kind, arguments in ((_dlpack.DLManagedTensorVersioned, ((1, 0), b"dltensor_versioned")),
                                (_dlpack.DLManagedTensor, (None, b"dltensor"))):
            address, handle = self.consumed(*arguments)
            gc.collect()
            managed = kind.from_address(address)
            data = (ctypes.c_float * 4).from_address(managed.tensor.data)
            data[3] = 2.0
            self.assertEqual(list(data), [0, 0, 0, 2])
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)(address)
            gc.collect()
            self.assertIsNone(handle())

    def test_untaken_capsules_are_given_back(self):
        view = self.buffer(("w", (2,))).param("w")
        _dlpack.give_back_untaken()
        capsules = [view.__dlpack__(max_version=(1, 0)) for _ in range(3)]
        self.assertEqual(len(_dlpack._waiting), 3)
        _dlpack.give_back_untaken()
        self.assertEqual(len(_dlpack._waiting), 3)
        del capsules[1:]
        _dlpack.give_back_untaken()
        self.assertEqual(len(_dlpack._waiting), 1)

    def test_given_back_by_a_finalizer_meanwhile(self):
        """Or by a signal's handler: the outer call went on by numbers of a list that had become shorter."""
        view = self.buffer(("w", (2,))).param("w")
        _dlpack.give_back_untaken()
        capsules = [view.__dlpack__(max_version=(1, 0)) for _ in range(4)]
        del capsules[1:]
        real = _dlpack._is_valid

        def is_valid(*arguments):
            _dlpack._is_valid = real
            _dlpack.give_back_untaken()
            return real(*arguments)

        with unittest.mock.patch.object(_dlpack, "_is_valid", is_valid):
            _dlpack.give_back_untaken()
        self.assertEqual(len(_dlpack._waiting), 1)

    @needs_numpy
    def test_given_back_while_an_exception_is_on_its_way(self):
        """Nothing of ours may swallow it."""
        view = self.buffer(("w", (2,)), ("empty", (0,))).param("w")

        def fail(lent):
            taken = np.from_dlpack(lent)
            return taken[7]

        for lent in (view, OldOnly(view)):
            with self.assertRaisesRegex(IndexError, "out of bounds"):
                fail(lent)


class OldOnly:
    """Shows a view as packages did before DLPack 1.0."""

    def __init__(self, view):
        self.view = view

    def __dlpack_device__(self):
        return self.view.__dlpack_device__()

    def __dlpack__(self, stream=None, **_):
        return self.view.__dlpack__(stream=stream)


class Taking(World):
    def test_both_kinds_of_capsules(self):
        for versioned in (False, True):
            buffer = self.buffer(("w", (2, 2)))
            producer = Producer([1, 2, 3, 4], versioned=versioned, shape=(2, 2))
            buffer.put("w", producer)
            self.assertEqual(buffer.grad("w").memoryview.tolist(), [[1, 2], [3, 4]])
            self.assertEqual(producer.capsules, 1)

    @needs_numpy
    def test_capsules_are_given_back(self):
        """Neither a call nor a failed one holds on to the array."""
        class DLPackOnly:
            def __init__(self):
                self.values = np.ones(2, np.float32)

            def __dlpack__(self, **options):
                return self.values.__dlpack__(**options)

        buffer, producer = self.buffer(("w", (2,)), ("b", (3,))), DLPackOnly()
        before = sys.getrefcount(producer.values)
        buffer.put("w", producer)
        with self.assertRaises(megadp.InvalidError):
            buffer.put("b", producer)
        gc.collect()
        self.assertEqual(sys.getrefcount(producer.values), before)

    def test_bfloat16(self):
        buffer = self.buffer(("w", (2,)))
        buffer.put("w", Producer([0x3F80, 0xC000], "H", dtype=(4, 16)))
        self.assertEqual(buffer.grad("w").memoryview.tolist(), [1, -2])

    def test_read_only_is_respected(self):
        """It may be read, not written to; no more may what would be a copy."""
        buffer = self.buffer(("w", (2,)))
        buffer.put("w", Producer([1, 2], flags=_dlpack.READ_ONLY))
        for flags, word in ((_dlpack.READ_ONLY, "read-only"), (_dlpack.IS_COPIED, "copy")):
            with self.assertRaisesRegex(megadp.InvalidError, word):
                buffer.read("w", Producer([1, 2], flags=flags))
        with self.assertRaisesRegex(megadp.InvalidError, "read-only"):
            self.comm.all_reduce(buffer.param("w", readonly=True))
        target = Producer([1, 2])
        buffer.read("w", target)
        self.assertEqual(list(target.memory), [0, 0])

    def test_foreign_devices_and_types(self):
        buffer = self.buffer(("w", (2,)))
        for producer, word in ((Producer([1, 2], device=(7, 0)), "device type 7"), (Producer([1, 2], dtype=(0, 32)), "32 bits"),
                               (Producer([1, 2], device=(2, 0)), "device")):
            with self.assertRaisesRegex(megadp.MegaDPError, word):
                buffer.put("w", producer)

    def test_deleted(self):
        """As JAX deletes an array that was donated, whose memory is another one's now."""
        class Donated(Producer):
            def is_deleted(self):
                return True

        with self.assertRaisesRegex(megadp.InvalidError, "grad.*Donated, has been deleted: it was donated"):
            self.buffer(("w", (2,))).put("w", Donated([1.0, 2.0]))

    def test_producer_that_refuses(self):
        class Refusing:
            def __dlpack__(self, **_):
                raise BufferError("requires grad")

        with self.assertRaisesRegex(megadp.InvalidError, "grad.*Refusing.*requires grad"):
            self.buffer(("w", (2,))).put("w", Refusing())

    @needs_numpy
    def test_strides(self):
        buffer = self.buffer(("w", (2, 3)))
        values = np.arange(6, dtype=np.float32).reshape(3, 2).T
        buffer.put("w", values)
        np.testing.assert_array_equal(buffer.grad("w").numpy(), values)
        buffer.write("w", values[::-1])
        np.testing.assert_array_equal(buffer.param("w").numpy(), values[::-1])
        out = np.empty((3, 2)).T
        buffer.read("w", out)
        np.testing.assert_array_equal(out, values[::-1])

    @needs_numpy
    def test_dtypes_of_collectives(self):
        for dtype in (np.float32, np.float16, np.float64, np.int64, np.uint8):
            values = np.array([1, 2, 3], dtype)
            self.comm.all_reduce(values)
            self.assertEqual(values.tolist(), [1, 2, 3])
        for dtype in (np.int32, ">f4", bool, complex):
            with self.assertRaisesRegex(megadp.InvalidError, "array has dtype"):
                self.comm.all_reduce(np.zeros(2, dtype))

    @needs_numpy
    def test_read_only_numpy(self):
        values = np.ones(2, np.float32)
        values.flags.writeable = False
        self.comm.all_gather(values, np.empty(2, np.float32))
        with self.assertRaisesRegex(megadp.InvalidError, "read-only"):
            self.comm.all_reduce(values)

    @needs_numpy
    def test_numpy_scalars(self):
        """They lend a copy of themselves that claims to be writable. It may be read, and must not take a result."""
        for scalar in (np.float32(2), np.ones(3).mean(), np.int64(3)):
            for write in (self.comm.all_reduce, self.comm.broadcast, lambda to: self.comm.all_reduce(np.ones((), to.dtype), to)):
                with self.assertRaisesRegex(megadp.InvalidError, f"is .*{type(scalar).__name__}: a scalar.*numpy.asarray"):
                    write(scalar)
            array = np.asarray(scalar)
            self.comm.all_reduce(array)
            self.assertEqual(array, scalar)
        out = np.zeros(1, np.float32)
        self.comm.all_gather(np.float32(7), out)
        self.assertEqual(out.tolist(), [7])

    @needs_numpy
    def test_numpy_scalars_are_kept(self):
        """What a scalar lends is memory of nobody else's."""
        tensor, keep = megadp._tensor.operand(np.float64(7), "array")
        others = [np.float64(i) for i in range(1000)] + [np.asarray(np.float64(i)) for i in range(1000)]
        self.assertEqual(ctypes.c_double.from_address(tensor.data).value, 7)
        del others, keep

    def test_requests_keep_their_arrays(self):
        values = array.array("f", [1, 2])
        gone = weakref.ref(values)
        request = self.comm.all_reduce(values, wait=False)
        del values
        gc.collect()
        self.assertTrue(request.wait(60))
        self.assertTrue(request.done())
        gc.collect()
        self.assertIsNone(gone())

    def test_dropped_requests(self):
        """Their arrays are kept until the operation has ended, which is seen when the next request is made."""
        values = array.array("f", [1, 2])
        gone = weakref.ref(values)
        self.comm.all_reduce(values, wait=False)
        del values
        self.comm.barrier()
        self.comm.all_reduce(array.array("f", [1]), wait=False).wait()
        gc.collect()
        self.assertIsNone(gone())

    def test_requests_that_threads_drop(self):
        """Each looks after what the others have dropped; a call failed between them, and arrays that were worked on were freed."""
        def work():
            try:
                with megadp.Comm(megadp.unique_id(), 0, 1, host_threads=1) as comm:
                    for _ in range(3000):
                        comm.all_reduce(array.array("f", [1] * 1000), wait=False)
            except BaseException as error:
                failed.append(error)

        failed, before = [], sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(before)
        self.assertEqual(failed, [])

    def test_interrupted_behind_the_call(self):
        """A signal's handler raises when the operation has begun, and before anybody has its request: its arrays were freed."""
        def call(*arguments):
            self.comm._call(lib.mdp_barrier, *arguments)
            raise KeyboardInterrupt

        values = array.array("f", [1, 2])
        gone = weakref.ref(values)
        with self.assertRaises(KeyboardInterrupt):
            wait_for(call, keep=(values,))
        del values
        gc.collect()
        self.assertIsNotNone(gone())
        self.comm.barrier()
        self.comm.barrier()
        gc.collect()
        self.assertIsNone(gone())


if __name__ == "__main__":
    unittest.main()
