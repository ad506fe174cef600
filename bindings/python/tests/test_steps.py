# SPDX-License-Identifier: Apache-2.0
"""The shortest training: gradients and steps; and that a number which is given is meant, also 0. Without numpy."""
import array
import unittest

import megadp
import support


def floats(*values):
    return array.array("f", values)


class Steps(unittest.TestCase):
    def test_a_step_syncs(self):
        """With two ranks on a communicator, a step in each of its ways takes the mean of what was put; a sync before it changes nothing."""
        out = support.check_ended(self, support.run_source(2, """
            import array, megadp
            ways = [{}, {"wait": False}, {"report": False}, {"wait": False, "report": False}]
            with megadp.Comm() as comm:
                ended = []
                for sync in (False, True):
                    buffer = megadp.Buffer(comm, {"w": (3,), "b": (2,)}, bucket_elements=1)
                    optimizer = megadp.Optimizer(buffer, lr=0.5, betas=(0.0, 0.0))
                    for way in ways:
                        buffer.put("b", array.array("f", [3 * comm.rank, 1]))
                        buffer.put("w", array.array("f", [1, 2 * comm.rank, -4 * comm.rank]))
                        if sync:
                            buffer.sync()
                        report = optimizer.step(**way)
                        assert (report is None) == ("report" in way), report
                        assert report is None or round(report.grad_norm ** 2, 6) == 1 + 1 + 4 + 2.25 + 1, report
                    buffer.wait()
                    buffer.verify()
                    assert buffer.stats().syncs == len(ways)
                    ended.append([buffer.read(name, array.array("f", [0] * size)).tolist() for name, size in (("w", 3), ("b", 2))])
                print(ended, flush=True)
        """))
        self.assertEqual(out.splitlines(), [str([[[-2.0, -2.0, 2.0], [-2.0, -2.0]]] * 2)] * 2)

    def test_unchecked(self):
        """Without a norm, in one pass or not, parameters become the same bits."""
        out = support.check_ended(self, support.run_source(2, """
            import array, math, megadp
            with megadp.Comm() as comm:
                ended = []
                for overlap, unchecked in ((True, False), (True, True), (False, True)):
                    buffer = megadp.Buffer(comm, {"w": (3,), "b": (2,)}, overlap=overlap)
                    optimizer = megadp.Optimizer(buffer, lr=0.5)
                    for step in range(3):
                        buffer.put("b", array.array("f", [3 * comm.rank + step, 1]))
                        buffer.put("w", array.array("f", [1, 2 * comm.rank, -4 * comm.rank]))
                        report = optimizer.step(unchecked=unchecked)
                        assert report.unchecked == unchecked == math.isnan(report.grad_norm) and report.step == step + 1, report
                    buffer.verify()
                    ended.append([buffer.read(name, array.array("f", [0] * size)).tobytes() for name, size in (("w", 3), ("b", 2))])
                assert ended[0] == ended[1] == ended[2], ended
                buffer.put("b", array.array("f", [1, 1]))
                buffer.put("w", array.array("f", [1, 1, 1]))
                try:
                    optimizer.step(loss_scale=2, unchecked=True)
                except megadp.MegaDPError as error:
                    print(isinstance(error, megadp.InvalidError), "MDP_STEP_UNCHECKED" in str(error), flush=True)
                optimizer.step(unchecked=True)
        """))
        self.assertEqual(out.split(), ["True"] * 4)

    def test_a_step_without_a_gradient(self):
        """All ranks are told as by a sync; nothing has changed, and the step can begin anew."""
        out = support.check_ended(self, support.run_source(2, """
            import array, megadp
            with megadp.Comm() as comm:
                buffer = megadp.Buffer(comm, {"w": (3,), "b": (2,)})
                optimizer = megadp.Optimizer(buffer, lr=0.5)
                for wait in (True, False):
                    buffer.put("b", array.array("f", [1, 2]))
                    comm.rank == 0 and buffer.put("w", array.array("f", [1, 2, 3]))
                    try:
                        optimizer.step(wait=wait)
                    except megadp.MegaDPError as error:
                        print("refused", error.code.name, error.param, error.rank, "'w'" in error.text, flush=True)
                    buffer.zero_grad()
                    buffer.put("b", array.array("f", [1, 2]))
                    buffer.put("w", array.array("f", [1, 2, 3]))
                    print("stepped", optimizer.step(wait=wait).step, flush=True)
                    buffer.wait()
        """))
        self.assertEqual(sorted(out.splitlines()), ["refused STATE 0 1 True"] * 4 + ["stepped 1"] * 2 + ["stepped 2"] * 2)

    def test_part_of_the_world(self):
        """A buffer on a communicator that was split: only its ranks are averaged over."""
        out = support.check_ended(self, support.run_source(4, """
            import array, megadp
            with megadp.Comm() as comm:
                part = comm.split(comm.rank % 2)
                buffer = megadp.Buffer(part, {"w": (1,)}, sharding="zero_0")
                buffer.put("w", array.array("f", [comm.rank]))
                megadp.Optimizer(buffer).step()
                print(comm.rank % 2, buffer.grad("w").memoryview.tolist(), flush=True)
                comm.barrier()  # rank 0 relays what the other half still has to register
        """))
        self.assertEqual(sorted(out.splitlines()), ["0 [1.0]"] * 2 + ["1 [2.0]"] * 2)

    def test_zero_2(self):
        """Gradients that are put, or written where acquire says, in either order of the parameters; what a rank owns of their sums."""
        out = support.check_ended(self, support.run_source(2, """
            import array, megadp
            with megadp.Comm() as comm:
                params = {"w": (3,), "b": (2,)}
                pooled = megadp.Buffer(comm, params, sharding="zero_2", bucket_elements=1, pool_buckets=1)
                whole = megadp.Buffer(comm, params, sharding="zero_1", bucket_elements=1)
                optimizers = [megadp.Optimizer(buffer) for buffer in (pooled, whole)]
                for names in (("b", "w"), ("w", "b")):
                    for last in (False, True):
                        for buffer in (pooled, whole):
                            buffer.begin_microbatch(last)
                        for name in names:
                            size = params[name][0]
                            lent, first = pooled.acquire(name)
                            assert first and lent.shape == (size,)
                            pooled.release(name)
                            lent, first = pooled.acquire(name)
                            for i in range(size):
                                lent.memoryview[i] = comm.rank + i
                            pooled.ready(name)
                            whole.put(name, array.array("f", [comm.rank + i for i in range(size)]))
                    pooled.sync()
                    whole.sync()
                    for piece in pooled.owned():
                        values = pooled.owned_grad(piece.param).memoryview.tolist()
                        assert values == [2 * (0.5 + piece.param_begin + i) for i in range(piece.end - piece.begin)], values
                        assert values == whole.owned_grad(piece.param).memoryview.tolist()
                    for optimizer in optimizers:
                        optimizer.step()
                    assert all(pooled.param(name).memoryview.tolist() == whole.param(name).memoryview.tolist() for name in params)
                try:
                    pooled.grad("w")
                except megadp.MegaDPError as error:
                    assert error.code == megadp.Status.UNSUPPORTED and "mdp_grad_acquire" in error.text
                    print(pooled.stats().spill_peak_bytes > 0, flush=True)
        """))
        self.assertEqual(out.split(), ["True"] * 2)

    def test_partial_gradients(self):
        """Of a replica on tensor-parallel ranks each has a part of the gradient: the sum, and the mean, over them."""
        out = support.check_ended(self, support.run_source(4, """
            import array, megadp
            with megadp.Comm() as comm:
                params = [megadp.Param(how, (50,), placement=how) for how in ("replicated", "partial_sum", "partial_mean")]
                buffer = megadp.Buffer(megadp.Grid(comm, tp=2), params)
                for name in ("partial_mean", "partial_sum", "replicated"):
                    buffer.put(name, array.array("f", [1 if name == "replicated" else comm.rank + 1] * 50))
                buffer.sync()
                assert abs(buffer.grad_norm() - (50 * (1 + 5**2 + 2.5**2)) ** 0.5) < 1e-5, buffer.grad_norm()
                print("summed", flush=True)
        """))
        self.assertEqual(out.split(), ["summed"] * 4)

    def test_instances(self):
        """Two instances of two ranks take the steps of one of four, bit for bit; each has all of the state."""
        out = support.check_ended(self, support.run_source(4, """
            import array, megadp
            with megadp.Comm() as comm:
                for sharding in ("zero_1", "zero_2"):
                    ended, owned = [], []
                    for instances in (1, 2):
                        buffer = megadp.Buffer(megadp.Grid(comm, instances=instances), {"w": (300,)}, sharding=sharding)
                        optimizer = megadp.Optimizer(buffer)
                        for step in range(2):
                            buffer.put("w", array.array("f", [((i + step) * (comm.rank + 1) % 11 - 4) / 7 for i in range(300)]))
                            optimizer.step()
                        buffer.verify()
                        ended.append(buffer.read("w", array.array("f", [0] * 300)).tobytes())
                        owned.append(sum(piece.end - piece.begin for piece in buffer.owned()))
                    assert ended[0] == ended[1] != bytes(1200)
                    sums = array.array("q", owned)
                    comm.all_reduce(sums)
                    assert sums.tolist() == [300, 600], sums
                print("same", flush=True)
        """))
        self.assertEqual(out.split(), ["same"] * 4)


class Values(unittest.TestCase):
    def step(self, param=8.0, grad=0.0, params=(megadp.Param("w", (1,)),), **options):
        """The optimizer after a step of parameters that were `param`, with gradients `grad`, and its buffer."""
        comm = megadp.Comm()
        self.addCleanup(comm.close)
        buffer = megadp.Buffer(comm, params)
        for i in range(len(params)):
            buffer.write(i, floats(param))
        optimizer = megadp.Optimizer(buffer, **options)
        self.again(optimizer, buffer, grad)
        return optimizer, buffer

    @staticmethod
    def again(optimizer, buffer, grad=0.0, **options):
        for i in range(len(buffer)):
            buffer.put(i, floats(grad))
        optimizer.step(**options)

    @staticmethod
    def values(buffer):
        return [buffer.param(i).memoryview[0] for i in range(len(buffer))]

    def test_learning_rate(self):
        optimizer, buffer = self.step(grad=1.0, lr=0)
        self.assertEqual(self.values(buffer), [8])
        self.again(optimizer, buffer, 1.0, lr=0.5)
        self.assertAlmostEqual(self.values(buffer)[0], 7.5, places=5)
        self.again(optimizer, buffer, 1.0, lr=0)
        self.again(optimizer, buffer, 1.0)  # a zero that was asked for stays one
        self.assertAlmostEqual(self.values(buffer)[0], 7.5, places=5)
        self.assertAlmostEqual(self.values(self.step(grad=1.0)[1])[0], 8 - 1e-3, places=5)

    def test_betas(self):
        for betas, moments in ((None, (0.2, 0.004)), ((0.0, 0.5), (2, 2)), ((0.5, 0.0), (1, 4)), ((0.0, 0.0), (2, 4))):
            optimizer, _ = self.step(grad=2.0, betas=betas)
            for name, expected in zip(("exp_avg", "exp_avg_sq"), moments):
                self.assertAlmostEqual(optimizer.state("w", name).memoryview[0], expected, places=6)

    def test_groups(self):
        """What a group does not say is the optimizer's; what it says is meant."""
        groups = [megadp.ParamGroup(), megadp.ParamGroup(weight_decay=0), megadp.ParamGroup(weight_decay=0.25),
                  megadp.ParamGroup(lr=0), megadp.ParamGroup(lr=1.0)]
        params = [megadp.Param(str(i), (1,), param_group=i) for i in range(len(groups))]
        optimizer, buffer = self.step(params=params, lr=0.5, weight_decay=0.5, param_groups=groups)
        self.assertEqual(self.values(buffer), [6, 8, 7, 8, 4])
        optimizer.set_param_group(1, megadp.ParamGroup())
        optimizer.set_param_group(2, megadp.ParamGroup(lr=1.0, weight_decay=0))
        self.again(optimizer, buffer)
        self.assertEqual(self.values(buffer), [4.5, 6, 7, 8, 2])

    def test_what_cannot_be_zero(self):
        with self.assertRaisesRegex(ValueError, "eps is 0"):
            self.step(eps=0)
        optimizer, buffer = self.step()
        with self.assertRaisesRegex(ValueError, "loss_scale is 0"):
            self.again(optimizer, buffer, loss_scale=0.0)


if __name__ == "__main__":
    unittest.main()
