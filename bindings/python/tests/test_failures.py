# SPDX-License-Identifier: Apache-2.0
"""What goes wrong becomes an exception that says what went wrong: bad arguments, missing gradients, lost peers, closed objects."""
import array
import math
import tempfile
import unittest

import megadp
import support

try:
    import numpy as np
except ImportError:
    np = None

TWO = {"w": (3, 4), "b": (4,)}


def floats(*values):
    return array.array("f", values)


class BadArguments(unittest.TestCase):
    def refused(self, words, call, *arguments, **options):
        """INVALID, also a ValueError, with these words in its sentence."""
        with self.assertRaises(ValueError) as caught:
            call(*arguments, **options)
        self.assertIsInstance(caught.exception, megadp.MegaDPError)
        self.assertEqual(caught.exception.code, megadp.Status.INVALID)
        for word in words:
            self.assertIn(word, str(caught.exception))
        return caught.exception

    def test_comm(self):
        self.refused(["backend", "'gpu'", "'host'"], megadp.Comm, backend="gpu")
        self.refused(["size", "'2'"], megadp.Comm, size="2")
        self.refused(["timeout", "-1"], megadp.Comm, timeout=-1)
        self.refused(["timeout", "nan"], megadp.Comm, timeout=math.nan)
        self.refused(["id", "3 bytes", "128"], megadp.Comm, b"abc", 0, 1)
        self.refused(["rank and size"], megadp.Comm, megadp.unique_id())
        self.refused(["rank", "3"], megadp.Comm, megadp.unique_id(), 3, 2)  # found by the library

    def test_collectives(self):
        with megadp.Comm() as comm:
            values = floats(1, 2)
            self.refused(["array", "[1.0, 2.0]", "list"], comm.all_reduce, [1.0, 2.0])
            self.refused(["op", "'mean'"], comm.all_reduce, values, op="mean")
            self.refused(["array", "read-only"], comm.all_reduce, bytes(8))
            self.refused(["out", "read-only"], comm.all_gather, bytearray(8), bytes(8))
            self.refused(["array", "'i'"], comm.all_reduce, array.array("i", [1]))
            self.refused(["root", "-1"], comm.broadcast, values, root=-1)
            self.refused(["dense"], comm.all_reduce, memoryview(bytearray(8))[::2])
            self.refused(["rank", "1"], comm.world_rank, 1)
            self.refused(["rank", "-1"], comm.world_rank, -1)
            self.refused([], comm.all_gather, values, floats(1, 2, 3))  # counts that differ: the library's sentence

    def test_registration(self):
        with megadp.Comm() as comm:
            error = self.refused(["'w'", "dtype", "'f8'"], megadp.Buffer, comm, [megadp.Param("b", (4,)), megadp.Param("w", (3,), dtype="f8")])
            error = self.refused(["w"], megadp.Buffer, comm, [("w", (3,)), ("b", (4,)), ("w", (5,))])
            self.assertEqual(error.param, 2)
            error = self.refused(["params[1].shape[1]", "-1"], megadp.Buffer, comm, {"b": (4,), "w": (3, -1)})
            self.assertEqual(error.param, 1)
            self.refused(["params", "3"], megadp.Buffer, comm, [3])
            self.refused(["sharding", "'zero_3'"], megadp.Buffer, comm, TWO, sharding="zero_3")
            self.refused(["bucket_elements", "-1"], megadp.Buffer, comm, TWO, bucket_elements=-1)
            self.refused(["tp", "2"], megadp.Grid, comm, tp=2)
            self.refused(["an axis", "'xp'"], megadp.Grid(comm).coords, "dp-xp")
            self.refused(["rank", "7"], megadp.plan, TWO, world=2, rank=7)

    @unittest.skipIf(np is None, "numpy is not installed")
    def test_arrays_of_other_types_by_name(self):
        """numpy's default is float64: the sentence names the parameter, and says in numpy's words what to do."""
        with megadp.Comm() as comm:
            for dtype in (np.float64, np.int32, np.int64, np.uint8):
                self.refused(["parameter 'w'", np.dtype(dtype).name, "float32", ".astype(numpy.float32)"], megadp.Buffer, comm,
                             {"b": (4,), "w": np.zeros(3, dtype)})
                self.refused(["parameter 'w'", np.dtype(dtype).name], megadp.plan, [megadp.Param("w", (3,), dtype)])
            self.refused(["parameter 'w'", "f64", "float32"], megadp.Buffer, comm, [megadp.Param("w", (3,), "f64")])
            buffer = megadp.Buffer(comm, TWO)
            for dtype in (np.int32, np.int64, np.uint8, bool):
                for call in (buffer.put, buffer.write):
                    error = self.refused(["parameter 'b'", np.dtype(dtype).name, ".astype(numpy.float32)"], call, "b", np.zeros(4, dtype))
                    self.assertNotIn("uint8,", error.text.partition("must")[2])
                self.refused(["out", "parameter 'b'", np.dtype(dtype).name], buffer.read, "b", np.zeros(4, dtype))
            buffer.put("b", np.arange(4.0))  # float64 gradients are rounded
            self.assertEqual(buffer.grad("b").memoryview.tolist(), [0, 1, 2, 3])

    def test_step(self):
        with megadp.Comm() as comm:
            buffer = megadp.Buffer(comm, TWO)
            self.refused(["param", "'bias'"], buffer.put, "bias", floats(1))
            self.refused(["param", "2"], buffer.put, 2, floats(1))
            self.refused(["param", "-1"], buffer.put, -1, floats(1))
            self.refused(["name", "'bias'", "2 parameters"], buffer.index, "bias")
            self.refused(["name", "NUL"], buffer.index, "w\0")
            self.refused(["name", "NUL"], megadp.Buffer, comm, {"w": (3,), "w\0": (3,)})
            self.assertEqual([buffer.index("w"), buffer.index("b")], [0, 1])
            self.refused(["param", "1.0"], buffer.put, 1.0, floats(1))
            error = self.refused(["b"], buffer.put, "b", floats(1, 2, 3))
            self.assertEqual(error.param, 1)
            self.refused(["lr"], megadp.Optimizer, buffer, lr=-1.0)
            self.refused(["beta"], megadp.Optimizer, buffer, betas=(0.9, 1.0))
            optimizer = megadp.Optimizer(buffer)
            self.refused(["name"], optimizer.state, "w", "momentum")
            self.refused(["group", "1"], optimizer.set_param_group, 1, megadp.ParamGroup())

    def test_an_error_carries_what_the_library_said(self):
        with megadp.Comm() as comm:
            buffer = megadp.Buffer(comm, TWO)
            with self.assertRaises(megadp.MegaDPError) as caught:
                megadp.Optimizer(buffer).step()
            error = caught.exception
            self.assertEqual((error.code, error.rank, error.bucket, error.operation), (megadp.Status.STATE, 0, 0, None))
            self.assertIn(repr(buffer.params[error.param].name), error.text)
            self.assertNotIsInstance(error, ValueError)
            self.assertEqual(str(error), f"STATE: {error.text}")
            self.assertIn("mdp_grad_sync", error.text)
            self.assertEqual(error.text, megadp._library.lib.mdp_last_error().decode())


class MissingGradients(unittest.TestCase):
    def test_one_rank(self):
        with megadp.Comm() as comm:
            buffer = megadp.Buffer(comm, TWO)
            buffer.put("b", floats(1, 2, 3, 4))
            with self.assertRaises(megadp.MegaDPError) as caught:
                buffer.sync()
            self.assertEqual((caught.exception.code, caught.exception.param, caught.exception.rank), (megadp.Status.STATE, 0, 0))
            self.assertIn("'w'", caught.exception.text)

    def test_two_ranks(self):
        """Both are told which rank has no gradient of which parameter; after that the training goes on."""
        out = support.check_ended(self, support.run_source(2, """
            import array, megadp
            with megadp.Comm() as comm:
                buffer = megadp.Buffer(comm, {"w": (3,), "b": (4,)})
                optimizer = megadp.Optimizer(buffer, lr=0.5)
                buffer.put("b", array.array("f", [1, 2, 3, 4]))
                if comm.rank == 0:
                    buffer.put("w", array.array("f", [1, 2, 3]))
                try:
                    buffer.sync()
                except megadp.MegaDPError as error:
                    print("refused", error.code.name, error.param, error.rank, "'w'" in error.text, flush=True)
                buffer.begin_microbatch(last=True)
                buffer.put("b", array.array("f", [1, 2, 3, 4]))
                buffer.put("w", array.array("f", [1, 2, 3]))
                buffer.sync()
                print("stepped", optimizer.step().step, flush=True)
        """))
        self.assertEqual(sorted(out.splitlines()), ["refused STATE 0 1 True"] * 2 + ["stepped 1"] * 2)

    def test_a_fresh_start(self):
        """After a failed sync zero_grad begins the step anew on both ranks, and the training ends as if nothing had happened: neither the
        first gradients of the failed step count, nor that step itself."""
        out = support.check_ended(self, support.run_source(2, """
            import array, megadp

            def train(comm, forget):
                buffer = megadp.Buffer(comm, {"w": (3,), "b": (4,)}, bucket_elements=1)
                optimizer = megadp.Optimizer(buffer, lr=0.5)
                step, refused = 0, 0
                while step < 5:
                    if forget == step and refused == 0:
                        buffer.put("b", array.array("f", [100] * 4))  # its bucket may be reduced already when the sync fails
                        comm.rank == 0 and buffer.put("w", array.array("f", [100] * 3))
                    else:
                        buffer.put("b", array.array("f", [step + comm.rank, 2, 3, 4]))
                        buffer.put("w", array.array("f", [1, step, 3 * comm.rank]))
                    try:
                        buffer.sync()
                    except megadp.MegaDPError as error:
                        assert error.code == megadp.Status.STATE and (error.param, error.rank) == (0, 1), error
                        refused += 1
                        for call in (optimizer.step, lambda: buffer.put("b", array.array("f", [0] * 4))):
                            try:
                                call()
                            except megadp.MegaDPError as error:
                                assert error.code == megadp.Status.STATE, error
                            else:
                                raise AssertionError("not refused")
                        buffer.zero_grad()
                        continue
                    step = optimizer.step().step
                return refused, buffer.param("w").memoryview.tolist() + buffer.param("b").memoryview.tolist()

            with megadp.Comm() as comm:
                plain = train(comm, None)
                for forget in (0, 2):
                    assert train(comm, forget) == (1, plain[1]), (forget, plain)
                print("as if nothing had happened", plain[0], flush=True)
        """))
        self.assertEqual(out.splitlines(), ["as if nothing had happened 0"] * 2)

    def test_skipped_everywhere(self):
        """A parameter that every rank skips is left alone, weight decay included."""
        with megadp.Comm() as comm:
            buffer = megadp.Buffer(comm, TWO, missing="skip")
            buffer.param("w").memoryview[1, 1] = 7.0
            buffer.changed()
            optimizer = megadp.Optimizer(buffer, lr=0.5, weight_decay=0.5)
            buffer.put("b", floats(1, 2, 3, 4))
            buffer.skip("w")
            buffer.sync()
            optimizer.step()
            self.assertEqual(buffer.param("w").memoryview[1, 1], 7.0)
            self.assertLess(buffer.param("b").memoryview[0], -0.4)

    def test_not_finite(self):
        with megadp.Comm() as comm:
            buffer = megadp.Buffer(comm, TWO)
            optimizer = megadp.Optimizer(buffer)

            def put():
                buffer.put("b", floats(1, math.inf, 3, 4))
                buffer.put("w", memoryview(bytes(48)).cast("f", (3, 4)))
                buffer.sync()

            put()
            with self.assertRaises(megadp.MegaDPError) as caught:
                optimizer.step()
            self.assertEqual((caught.exception.code, caught.exception.param), (megadp.Status.NUMERIC, 1))
            put()
            report = optimizer.step(loss_scale=2.0)
            self.assertTrue(report.skipped)
            self.assertEqual(report.step, 0)


class LostPeers(unittest.TestCase):
    def test_killed(self):
        """The others are told who died, long before the timeout, in every kind of call that waits; local memory stays readable."""
        with tempfile.TemporaryDirectory() as folder:
            ended = self.run_and_kill(folder)
        self.assertEqual(sorted(ended.stdout.splitlines()), ["PEER 1"] * 8 + ["kept PEER 1 True"] * 2, ended.stderr)
        self.assertEqual(ended.returncode, 137)

    def run_and_kill(self, folder):
        return support.run_source(3, f"""
            import os, signal, time, megadp, array
            comm = megadp.Comm(timeout=200)
            buffer = megadp.Buffer(comm, [("w", (3,))])
            optimizer = megadp.Optimizer(buffer)
            buffer.put("w", array.array("f", [1, 2, 3]))
            if comm.rank == 1:
                while len(os.listdir({folder!r})) < 2:
                    time.sleep(0.001)
                os.kill(os.getpid(), signal.SIGKILL)
            open(os.path.join({folder!r}, str(comm.rank)), "w").close()
            def told(call):
                try:
                    call()
                    print("not told", flush=True)
                except megadp.MegaDPError as error:
                    print(error.code.name, error.rank, flush=True)
            told(buffer.sync if comm.rank == 0 else comm.barrier)
            told(lambda: comm.all_reduce(array.array("f", [1.0])))
            told(lambda: comm.split(0))
            told(lambda: megadp.Grid(comm))
            print("kept", comm.error.code.name, comm.error.rank, comm.rank in (0, 2), flush=True)
            assert buffer.param("w").memoryview.tolist() == [0, 0, 0]
        """)

    def test_exception_in_the_loop(self):
        """A rank that leaves the block by an exception takes the others along, naming itself."""
        out = support.run_source(2, """
            import megadp
            with megadp.Comm(timeout=200) as comm:
                if comm.rank == 1:
                    raise KeyError("the data")
                try:
                    comm.barrier()
                except megadp.MegaDPError as error:
                    print(error.code.name, error.rank, flush=True)
        """)
        self.assertEqual(out.stdout.split(), ["ABORTED", "1"], out.stderr)
        self.assertIn("KeyError: 'the data'", out.stderr)
        self.assertEqual(out.returncode, 1)

    def test_somebody_does_not_come(self):
        with self.assertRaises(megadp.MegaDPError) as caught:
            megadp.Comm.from_id(megadp.unique_id(), 0, 2, timeout=0.2)
        self.assertEqual(caught.exception.code, megadp.Status.TIMEOUT)
        self.assertIn("rank 1", caught.exception.text)


class UseAfterClose(unittest.TestCase):
    def closed(self, call, *arguments):
        with self.assertRaises(megadp.MegaDPError) as caught:
            call(*arguments)
        self.assertEqual(caught.exception.code, megadp.Status.STATE)
        self.assertIn("is closed", caught.exception.text)

    def test_every_class(self):
        comm = megadp.Comm()
        grid = megadp.Grid(comm)
        buffer = megadp.Buffer(grid, TWO)
        optimizer = megadp.Optimizer(buffer)
        for made in (comm, grid, buffer, optimizer):
            self.assertFalse(made.closed)
            made.close()
            made.close()
            self.assertTrue(made.closed)
        for call in (comm.barrier, comm.abort, comm.fileno, lambda: comm.split(0), lambda: megadp.Grid(comm), lambda: comm.error,
                     comm.world_rank, lambda: megadp.Buffer(comm, TWO), buffer.broadcast, lambda: buffer.index("w"),
                     lambda: buffer.bucket_count, lambda: comm.all_reduce(floats(1)), lambda: grid.coords("dp"), lambda: megadp.Buffer(grid, TWO), buffer.sync,
                     buffer.wait, buffer.zero_grad, buffer.stats, buffer.owned, lambda: buffer.param("w"), lambda: buffer.ready("w"),
                     lambda: buffer.put("b", floats(1, 2, 3, 4)), lambda: megadp.Optimizer(buffer), optimizer.step,
                     lambda: optimizer.state("b", "exp_avg")):
            self.closed(call)
        self.assertEqual((comm.rank, comm.size), (0, 1))

    def test_children_outlive_their_parents(self):
        comm = megadp.Comm()
        buffer = megadp.Buffer(comm, TWO)
        optimizer = megadp.Optimizer(buffer)
        comm.close()
        buffer.put("b", floats(1, 2, 3, 4))
        buffer.put("w", memoryview(bytes(48)).cast("f", (3, 4)))
        buffer.sync()
        self.assertEqual(optimizer.step().step, 1)

    def test_views_outlive_what_they_were_taken_from(self):
        comm = megadp.Comm()
        buffer = megadp.Buffer(comm, TWO)
        view = buffer.param("b").memoryview
        state = megadp.Optimizer(buffer).state("b", "exp_avg").memoryview
        buffer.close()
        comm.close()
        view[3] = 5.0
        state[1] = 6.0
        self.assertEqual((view.tolist(), state.tolist()), ([0, 0, 0, 5], [0, 6, 0, 0]))


if __name__ == "__main__":
    unittest.main()
