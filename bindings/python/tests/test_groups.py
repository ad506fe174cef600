# SPDX-License-Identifier: Apache-2.0
"""Collectives, splits, grids, plans and information; without numpy."""
import importlib
import os
import tempfile
import unittest

import megadp
import support

COLLECTIVES = """
import array, select, megadp
def floats(*values):
    return array.array("f", values)
with megadp.Comm() as comm:
    r, n = comm.rank, comm.size
    assert (n, repr(comm)) == (4, f"<megadp.Comm rank {r} of 4>")
    out = floats(0, 0)
    comm.all_reduce(floats(r, 10 * r), out)
    assert out.tolist() == [6, 60], out
    for op, expected in (("avg", 1.5), ("max", 3), ("min", 0)):
        values = floats(r)
        comm.all_reduce(values, op=op)
        assert values.tolist() == [expected], (op, values)
    out = floats(0)
    comm.reduce_scatter(floats(*(10 * r + i for i in range(4))), out)
    assert out.tolist() == [60 + 4 * r], out
    out = array.array("q", [0] * 4)
    comm.all_gather(array.array("q", [r * 7]), out)
    assert out.tolist() == [0, 7, 14, 21], out
    values = floats(*(10 * r + i for i in range(4)))
    comm.all_to_all(values)
    assert values.tolist() == [10 * i + r for i in range(4)], values
    values = bytearray([r] * 3)
    comm.broadcast(values, root=2)
    assert list(values) == [2, 2, 2], values
    comm.barrier()
    meeting = comm.barrier(wait=False)
    assert meeting.wait() and meeting.done()

    sizes = [i + 1 for i in range(n)]
    out = floats(*[0] * sum(sizes))
    comm.all_gather_v(floats(*[r] * (r + 1)), out, sizes)
    assert out.tolist() == [i for i in range(n) for _ in range(i + 1)], out
    part = floats(*[0] * (r + 1))
    comm.reduce_scatter_v(out, part, sizes, "sum")
    assert part.tolist() == [4 * r] * (r + 1), part
    got = floats(*[0] * (n * (r + 1)))
    comm.all_to_all_v(floats(*[10 * r + i for i in range(n) for _ in range(i + 1)]), sizes, got, [r + 1] * n)
    assert got.tolist() == [10 * i + r for i in range(n) for _ in range(r + 1)], got
    got = floats(0, 0)
    comm.send_recv(floats(r, 7), (r + 1) % n, got, (r - 1) % n)
    assert got.tolist() == [(r - 1) % n, 7], got
    if r == 0:
        comm.send(floats(5), 3)
    elif r == 3:
        got = floats(0)
        assert comm.recv(got, 0, wait=False).wait() and got.tolist() == [5], got
    comm.send_recv(floats(r) if r < 3 else None, r + 1 if r < 3 else None, floats(0) if r else None, r - 1 if r else None)
    for call in (lambda: comm.send(floats(1), r), lambda: comm.all_gather_v(floats(1), out, [1]), lambda: comm.recv(floats(1), -1)):
        try:
            call()
            raise AssertionError("not refused")
        except megadp.InvalidError:
            pass

    events = comm.fileno()
    requests = [comm.all_reduce(floats(r), wait=False) for _ in range(3)]
    while not all([request.done() for request in requests]):
        select.select([events], [], [], 100)
    assert all(request.wait(timeout=0) for request in requests)

    part = comm.split(color=r % 2, key=-r)
    assert (part.rank, part.size) == (1 - r // 2, 2)
    assert [part.world_rank(0), part.world_rank(1), part.world_rank()] == [2 + r % 2, r % 2, r] and comm.world_rank() == r
    values = floats(r)
    part.all_reduce(values)
    assert values.tolist() == [2 if r % 2 == 0 else 4]
    assert comm.split(color=-1) is None

    grid = megadp.Grid(comm, tp=2)
    assert grid.coords("tp") == (r % 2, 2) and grid.coords("dp") == (r // 2, 2) and grid.coords("tp-dp")[1] == 4
    with grid.comm("dp") as data_parallel:
        values = floats(r)
        data_parallel.all_reduce(values)
        assert values.tolist() == [2 if r % 2 == 0 else 4]
    buffer = megadp.Buffer(grid, [megadp.Param("w", (64,), placement="sharded"), megadp.Param("b", (3,), placement="replicated")])
    for how in ({}, {"wait": False}):
        buffer.param("b").memoryview[0] = r // 2  # tensor-parallel ranks hold the same
        buffer.changed()
        try:
            buffer.verify()
            raise AssertionError("not noticed")
        except megadp.MegaDPError as error:
            assert error.code == megadp.Status.DESYNC and "'b'" in error.text, error
        sent = buffer.broadcast(1, **how)
        assert sent is None if not how else sent.wait()
        buffer.verify()
        assert buffer.param("b").memoryview[0] == 1, buffer.param("b").memoryview.tolist()
print("done", flush=True)
"""

FROM_ID = """
import os, sys, time, megadp
path, rank = sys.argv[1], int(os.environ["MEGADP_RANK"])
for name in [name for name in os.environ if name.startswith("MEGADP_") and name != "MEGADP_LIBRARY"]:
    del os.environ[name]
if rank == 0:
    with open(path + ".new", "wb") as file:
        file.write(megadp.unique_id())
    os.rename(path + ".new", path)
while not os.path.exists(path):
    time.sleep(0.01)
with open(path, "rb") as file:
    comm = megadp.Comm.from_id(file.read(), 1 - rank, 2, timeout=100)
print(comm.rank == 1 - rank, comm.size, flush=True)
comm.barrier()
"""


class Groups(unittest.TestCase):
    def test_collectives(self):
        self.assertEqual(support.check_ended(self, support.run_ranks(4, ["-c", COLLECTIVES])), "done\n" * 4)

    def test_from_id(self):
        with tempfile.TemporaryDirectory() as folder:
            out = support.check_ended(self, support.run_ranks(2, ["-c", FROM_ID, os.path.join(folder, "id")]))
        self.assertEqual(out, "True 2\n" * 2)


class Planning(unittest.TestCase):
    PARAMS = [("w", (100, 10)), megadp.Param("h", (50,), "bf16")]

    def test_plan(self):
        plans = [megadp.plan(self.PARAMS, world=2, rank=rank) for rank in range(2)]
        self.assertEqual(sum(plan.owned_elements for plan in plans), 1050)
        layout = megadp.plan_layout(self.PARAMS, world=2)
        self.assertIn("w", str(layout))
        whole = megadp.plan(self.PARAMS, world=2, sharding="zero_0")
        self.assertGreater(whole.state_bytes, plans[0].state_bytes)

    def test_optimizer(self):
        def state_bytes(**optimizer):
            return megadp.plan({"w": (1024,)}, world=2, optimizer=optimizer).state_bytes

        self.assertEqual(megadp.plan({"w": (1024,)}, world=2).state_bytes, 8 * 512)
        self.assertEqual(state_bytes(), 8 * 512)
        self.assertEqual(state_bytes(rule="lion", lr=0, state_dtype="bf16", param_groups=[megadp.ParamGroup(lr=1)]), 2 * 512)
        self.assertEqual(state_bytes(rule="caller", state=["a", "b", "c"]), 12 * 512)
        kept = {"rule": "caller", "param_states": {"rows": {"h": ((10, 10), "bf16"), 0: ((7,), "i64")}}}
        bytes_of = [megadp.plan(self.PARAMS, 2, rank, optimizer=kept, sharding="whole").state_bytes for rank in range(2)]
        self.assertEqual(sorted(bytes_of), [64, 256])  # w and h have owners of their own; each takes whole lines of 64 bytes
        one, other = (megadp.plan_layout(self.PARAMS, optimizer=optimizer) for optimizer in (None, {"rule": "sgd", "no_master": True}))
        self.assertEqual(one["arenas"], other["arenas"])
        self.assertNotEqual(one, other)

    def test_optimizer_refused(self):
        grouped = [("w", (4,)), megadp.Param("h", (5,), param_group=1)]
        megadp.plan(grouped, optimizer={"param_groups": [megadp.ParamGroup()] * 2})
        for optimizer, told in (({}, "'h'.*parameter group 1; the optimizer has 1 group"), ({"rule": "adamax"}, "rule is 'adamax'"),
                                ({"first_param_group": 1}, "SOME_GROUPS"), ({"betas": (0.9, 1.5)}, "optimizer: .*beta2 is 1.5"),
                                ({"rule": "caller", "param_states": {"rows": {"v": ((1,), "f32")}}}, "'v'; no parameter of this name")):
            for function in (megadp.plan, megadp.plan_layout):
                with self.assertRaisesRegex(megadp.InvalidError, told):
                    function(grouped, optimizer=optimizer)
        with self.assertRaisesRegex(TypeError, "bettas"):
            megadp.plan(grouped, optimizer={"bettas": (0.9, 0.99)})

    def test_instances(self):
        of_one, of_two = (megadp.plan(self.PARAMS, world=4, grid={"instances": instances}) for instances in (1, 2))
        self.assertEqual(of_two.state_bytes, 2 * of_one.state_bytes)

    def test_plan_is_what_is_registered(self):
        plan = megadp.plan(self.PARAMS, bucket_count=3)
        with megadp.Comm() as comm:
            buffer = megadp.Buffer(comm, self.PARAMS, bucket_count=3)
            owned = buffer.owned()
            self.assertEqual((buffer.bucket_count, len(buffer)), (plan.buckets, 2))
            self.assertEqual(buffer.bucket(buffer.bucket_count - 1).state, 0)
            with self.assertRaises(ValueError):
                buffer.bucket(buffer.bucket_count)
        self.assertEqual(sum(piece.end - piece.begin for piece in owned), plan.owned_elements)
        self.assertEqual(len({piece.bucket for piece in owned}), plan.buckets)

    def test_grid_groups(self):
        self.assertEqual(megadp.grid_groups("dp", 4, grid={"tp": 2}), [[0, 2], [1, 3]])
        self.assertEqual(megadp.grid_groups("tp-dp", 4, grid={"tp": 2}), [[0, 1, 2, 3]])


class Information(unittest.TestCase):
    def test_info(self):
        found = megadp.info()
        self.assertEqual(found["version"], megadp.__version__)
        self.assertIn("backends", found)
        self.assertTrue(found["library"])

    def test_the_module_of_the_same_name(self):
        module = importlib.import_module("megadp.info")
        self.assertEqual(module()["version"], megadp.__version__)
        self.assertEqual(megadp.info()["version"], megadp.__version__)


if __name__ == "__main__":
    unittest.main()
