# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: what is saved is loaded, on another number of ranks too; what is refused. Without numpy."""
import array
import ast
import json
import os
import tempfile
import unittest

import megadp
import support

TRAINED = """
    import array, os, sys, threading, time, megadp

    def job(comm, **options):
        buffer = megadp.Buffer(comm, {"w": (15,), "b": (7,)}, **options)
        return buffer, megadp.Optimizer(buffer, lr=0.125, weight_decay=0.25)

    def step(buffer, optimizer, number):
        for name, size in (("b", 7), ("w", 15)):
            buffer.put(name, array.array("f", [number + i for i in range(size)]))
        optimizer.step()

    def values(buffer):
        return [buffer.param(name).memoryview.tolist() for name in ("w", "b")]
"""


def parsed(out):
    return [ast.literal_eval(line) for line in out.splitlines()]


class Checkpoints(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = os.path.join(folder.name, "checkpoints")
        os.mkdir(self.directory)

    def run_ranks(self, ranks, source):
        env = support.environment(CHECKPOINTS=self.directory)
        return parsed(support.check_ended(self, support.run_source(ranks, TRAINED + source, env=env)))

    def job(self, comm, params=None, **options):
        buffer = megadp.Buffer(comm, params or {"w": (4,), "b": (2,)})
        return buffer, megadp.Optimizer(buffer, **options)

    def refused(self, code, word, call, *arguments, **keywords):
        with self.assertRaisesRegex(megadp.MegaDPError, word) as caught:
            call(*arguments, **keywords)
        self.assertEqual(caught.exception.code, code)

    def test_training_goes_on_while_it_is_written(self):
        """What is loaded is what was there when the call returned; a failure comes out of the request, or of the next save."""
        with megadp.Comm() as comm:
            buffer, optimizer = self.job(comm)
            buffer.write("w", array.array("f", [1, 2, 3, 4]))
            request = megadp.save_checkpoint(self.directory, optimizer, wait=False)
            buffer.write("w", array.array("f", [5, 6, 7, 8]))
            self.assertTrue(request.wait() and request.done())
            megadp.load_checkpoint(self.directory, optimizer)
            self.assertEqual(buffer.param("w").memoryview.tolist(), [1, 2, 3, 4])
            request = megadp.save_checkpoint("/dev/null", buffer, wait=False)
            self.refused(megadp.Status.SYSTEM, "Not a directory", request.wait)
            self.assertIsNone(megadp.save_checkpoint(self.directory, buffer))
            del request
            megadp.save_checkpoint("/dev/null", buffer, wait=False)
            self.refused(megadp.Status.SYSTEM, "the save before this one", megadp.save_checkpoint, self.directory, buffer)

    def test_nothing_is_lost_at_the_end(self):
        """Nobody waits, and what is saved is closed, or is gone with the function that made it, before it is written."""
        for number, end in enumerate(("return", "optimizer.close(); buffer.close(); comm.close()", "sys.exit(0)", "ended.set(); time.sleep(60)")):
            self.run_ranks(2, f"""
    def train():
        comm = megadp.Comm()
        buffer = megadp.Buffer(comm, {{"w": (3_000_000,)}})
        optimizer = megadp.Optimizer(buffer)
        request = megadp.save_checkpoint(os.environ["CHECKPOINTS"], optimizer, wait=False)
        {end}
    ended = threading.Event()
    if "ended" in {end!r}:
        threading.Thread(target=train, daemon=True).start()
        ended.wait()
    else:
        train()
        """)
            self.assertEqual(int(megadp.checkpoint_info(self.directory)["path"][-6:]), number + 1, end)
            megadp.verify_checkpoint(self.directory)

    def test_a_failure_that_nobody_asked_for_is_printed(self):
        for way in ("", "del request", "comm.close()"):
            ended = support.run_source(1, TRAINED + f"""
    comm = megadp.Comm()
    buffer, optimizer = job(comm)
    request = megadp.save_checkpoint("/dev/null", buffer, wait=False)
    while not request.ended():
        time.sleep(0.01)
    {way}
        """, env=support.environment())
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertRegex(ended.stderr, "warning: the checkpoint that was saved into /dev/null is not there: .*Not a directory", way)

    def test_other_ranks_go_on(self):
        """Two ranks save after two steps and take a third; one and three ranks load, and take the same third."""
        ended = self.run_ranks(2, """
    with megadp.Comm() as comm:
        buffer, optimizer = job(comm)
        for number in (1, 2):
            step(buffer, optimizer, number)
        frozen = array.array("d", [0.5, 0.25])
        megadp.save_checkpoint(os.environ["CHECKPOINTS"], buffer, optimizer, tensors={"frozen": frozen},
                               shared_data=b"\\0all" if comm.rank == 0 else b"no", rank_data=b"r" * (2 * comm.rank))
        saved = values(buffer)
        step(buffer, optimizer, 3)
        print([saved, values(buffer)], flush=True)
        """)
        saved, after = ended[0]
        self.assertNotEqual(saved, after)
        for ranks in (1, 3):
            with self.subTest(ranks=ranks):
                ended = self.run_ranks(ranks, """
    with megadp.Comm() as comm:
        buffer, optimizer = job(comm, sharding="zero_2", bucket_elements=4)
        frozen = array.array("d", [9, 9])
        megadp.load_checkpoint(os.environ["CHECKPOINTS"], optimizer, tensors={"frozen": frozen})
        loaded = values(buffer)
        taken = optimizer.steps("w")
        step(buffer, optimizer, 3)
        print([frozen.tolist(), loaded, values(buffer), taken], flush=True)
        """)
                self.assertEqual(ended, [[[0.5, 0.25], saved, after, 2]] * ranks)
        self.assertEqual([megadp.checkpoint_data(self.directory, rank) for rank in (-1, 0, 1)], [b"\0all", b"", b"rr"])
        self.assertEqual(megadp.checkpoint_data(self.directory), b"\0all")
        info = megadp.checkpoint_info(self.directory)
        self.assertEqual(os.path.dirname(info["path"]), self.directory)
        self.assertEqual((len(info["files"]), sorted(one["name"] for one in info["arrays"])), (2, ["b", "frozen", "w"]))
        megadp.verify_checkpoint(self.directory)
        self.assertEqual(megadp.checkpoint_damage(self.directory), [])
        for file in info["files"]:
            with open(os.path.join(info["path"], file["name"]), "r+b") as damaged:
                damaged.seek(-1, os.SEEK_END)
                last = damaged.read(1)
                damaged.seek(-1, os.SEEK_END)
                damaged.write(bytes([last[0] ^ 1]))
        found = megadp.checkpoint_damage(self.directory)
        self.assertEqual(len(found), 2)
        self.assertTrue(all("the checksum of bytes" in one for one in found), found)
        self.refused(megadp.Status.CORRUPT, "the checksum of bytes", megadp.verify_checkpoint, self.directory)
        self.assertEqual(len(megadp.checkpoint_damage(os.path.join(self.directory, "absent"))), 1)
        self.refused(megadp.Status.INVALID, "rank is 2", megadp.checkpoint_data, self.directory, 2)
        self.refused(megadp.Status.INVALID, "rank is -2", megadp.checkpoint_data, self.directory, -2)

    def test_models(self):
        """A checkpoint is exported as others write models; such a model is loaded, also from several files."""
        with megadp.Comm() as comm:
            buffer, optimizer = self.job(comm)
            buffer.write("w", array.array("f", [1, 2, 3, 4]))
            megadp.save_checkpoint(self.directory, optimizer, tensors={"frozen": array.array("d", [0.5])})
            path = os.path.join(self.directory, "model.safetensors")
            megadp.export_checkpoint(self.directory, path)
            with open(path, "rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
                data = file.read()
            self.assertEqual((header.pop("__metadata__"), sorted(header)), ({"format": "pt"}, ["b", "frozen", "w"]))
            self.assertEqual((header["w"]["dtype"], header["w"]["shape"]), ("F32", [4]))
            begin, end = header["w"]["data_offsets"]
            self.assertEqual(data[begin:end], array.array("f", [1, 2, 3, 4]).tobytes())
            several = os.path.join(self.directory, "parts.safetensors")
            megadp.export_checkpoint(self.directory, several, most_bytes=1)
            for model in (path, several + ".index.json"):
                buffer.write("w", array.array("f", [0, 0, 0, 0]))
                self.refused(megadp.Status.INVALID, "PARAMS_ONLY", megadp.load_checkpoint, model, optimizer, optional="frozen")
                megadp.load_checkpoint(model, optimizer, params_only=True, optional="frozen")
                self.assertEqual(buffer.param("w").memoryview.tolist(), [1, 2, 3, 4])
            self.refused(megadp.Status.INVALID, "is there already", megadp.export_checkpoint, self.directory, path)
            self.refused(megadp.Status.INVALID, "most_bytes is -1", megadp.export_checkpoint, self.directory, path, most_bytes=-1)
            self.refused(megadp.Status.INVALID, "path is 3", megadp.export_checkpoint, self.directory, 3)
            self.refused(megadp.Status.SYSTEM, "absent", megadp.verify_checkpoint, os.path.join(self.directory, "absent"))

    def test_parameters_without_state_and_values_of_the_optimizer(self):
        with megadp.Comm() as comm:
            buffer, optimizer = self.job(comm, lr=0.5)
            optimizer.set_steps(5)
            buffer.write("w", array.array("f", [1, 2, 3, 4]))
            optimizer.state("w", "exp_avg").memoryview[0] = 0.75
            megadp.save_checkpoint(self.directory, optimizer)
            for params_only, load_hyper, lr, steps, moment in ((False, False, 0.25, 5, 0.75), (True, False, 0.25, 0, 0.0),
                                                               (False, True, 0.5, 5, 0.75)):
                with self.subTest(params_only=params_only, load_hyper=load_hyper):
                    other, adamw = self.job(comm, lr=0.25)
                    megadp.load_checkpoint(self.directory, other, adamw, params_only=params_only, load_hyper=load_hyper)
                    self.assertEqual(other.param("w").memoryview.tolist(), [1, 2, 3, 4])
                    self.assertEqual((adamw.info()["lr"], adamw.steps("w"), adamw.state("w", "exp_avg").memoryview[0]), (lr, steps, moment))
            alone, _ = self.job(comm)
            megadp.load_checkpoint(self.directory, alone)  # a Buffer without its Optimizer
            self.assertEqual(alone.param("w").memoryview.tolist(), [1, 2, 3, 4])

    def test_names_of_one_side(self):
        with megadp.Comm() as comm:
            buffer, _ = self.job(comm)
            buffer.write("w", array.array("f", [1, 2, 3, 4]))
            megadp.save_checkpoint(self.directory, buffer)
            other = megadp.Buffer(comm, {"w": (4,), "c": (2,)})
            for optional in ((), ("c",), "c", ("b",), ("*\n*",)):
                self.refused(megadp.Status.INVALID, "", megadp.load_checkpoint, self.directory, other, optional=optional)
            self.assertEqual(other.param("w").memoryview.tolist(), [0] * 4)
            megadp.load_checkpoint(self.directory, other, optional=("b", "c"))
            self.assertEqual(other.param("w").memoryview.tolist(), [1, 2, 3, 4])
            megadp.load_checkpoint(self.directory, other, optional="?")

    def test_the_newest_are_kept(self):
        with megadp.Comm() as comm:
            buffer, _ = self.job(comm)
            for _ in range(4):
                megadp.save_checkpoint(self.directory, buffer, keep=2)
        kept = sorted(name for name in os.listdir(self.directory) if name.startswith("checkpoint-"))
        self.assertEqual(len(kept), 2)
        self.assertEqual(os.path.basename(megadp.checkpoint_info(self.directory)["path"]), kept[1])

    def test_relative_to_what(self):
        """Ranks of one host that are in folders of their own: that is no matter of hosts."""
        out = support.run_source(2, f"""
            import os
            import megadp

            def refused(call):
                try:
                    call("run", buffer)
                except megadp.MegaDPError as error:
                    assert "the path is relative, here to " + os.path.join(top, "1") in str(error), error
                else:
                    raise AssertionError("nothing was said")

            comm, top = megadp.Comm(timeout=30), os.path.realpath({os.path.dirname(self.directory)!r})
            buffer = megadp.Buffer(comm, [megadp.Param("w", (5,))])
            os.mkdir(os.path.join(top, str(comm.rank)))
            os.chdir(os.path.join(top, str(comm.rank)))
            comm.barrier()
            refused(megadp.save_checkpoint)
            megadp.save_checkpoint(os.path.join(top, "0", "run"), buffer)
            refused(megadp.load_checkpoint)
            print("ok", flush=True)
        """)
        self.assertEqual(support.check_ended(self, out).splitlines(), ["ok", "ok"])

    def test_refused(self):
        """Nothing is saved, and the sentence names the argument."""
        invalid = megadp.Status.INVALID
        with megadp.Comm() as comm:
            buffer, optimizer = self.job(comm)
            second = megadp.Optimizer(buffer)
            for word, parts, options in (("part_count", (), {}), ("Comm", (comm,), {}), ("parts\\[0\\]", (optimizer, second), {}),
                                         ("keep", (buffer,), {"keep": -1}), ("rank_data", (buffer,), {"rank_data": "text"}),
                                         ("tensor 'x'", (buffer,), {"tensors": {"x": [1, 2]}}),
                                         ("'w'", (buffer,), {"tensors": {"w": array.array("f", [1])}}),
                                         ("placement", (buffer,), {"tensors": {"x": megadp.CheckpointTensor(b"1", "partial_sum")}})):
                self.refused(invalid, word, megadp.save_checkpoint, self.directory, *parts, **options)
            for directory in ("", "a\0b", 3):
                self.refused(invalid, "directory", megadp.save_checkpoint, directory, buffer)
            self.refused(invalid, "read-only", megadp.load_checkpoint, self.directory, buffer, tensors={"x": b"123"})
            self.assertEqual(os.listdir(self.directory), [])
            for call in (megadp.checkpoint_info, megadp.checkpoint_data, lambda directory: megadp.load_checkpoint(directory, buffer)):
                self.refused(megadp.Status.SYSTEM, self.directory, call, self.directory)
            optimizer.close()
            self.refused(megadp.Status.STATE, "closed", megadp.save_checkpoint, self.directory, buffer, optimizer)
            sharded = megadp.CheckpointTensor(b"123", "sharded", 0, 1)
            megadp.save_checkpoint(self.directory, buffer, tensors={"x": sharded}, rank_data=bytearray(b"r"))
            into = bytearray(3)
            megadp.load_checkpoint(self.directory, buffer, tensors={"x": into})
            self.assertEqual((into, megadp.checkpoint_data(self.directory, 0)), (b"123", b"r"))


if __name__ == "__main__":
    unittest.main()
