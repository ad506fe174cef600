# SPDX-License-Identifier: Apache-2.0
"""Averages of parameters: read, and in the place of parameters for a block; without numpy."""
import array
import tempfile
import unittest

import megadp
import support


def put(buffer, *values):
    buffer.put("w", array.array("f", values))


class Averages(unittest.TestCase):
    def setUp(self):
        self.comm = megadp.Comm(backend="host")
        self.addCleanup(self.comm.close)
        self.buffer = megadp.Buffer(self.comm, {"w": (2,)})
        self.optimizer = megadp.Optimizer(self.buffer, rule="sgd", lr=1, average_decay=0.75)

    def values(self):
        return self.buffer.param("w").memoryview.tolist()

    def step(self):
        put(self.buffer, -4, 8)
        self.optimizer.step()

    def test_block(self):
        self.step()
        self.assertEqual(self.optimizer.state("w", "average").memoryview.tolist(), [1, -2])
        with self.optimizer.averaged():
            self.assertEqual(self.values(), [1, -2])
            for call in (lambda: put(self.buffer, 1, 1), self.optimizer.step, self.buffer.changed, lambda: self.optimizer.state("w", "master"),
                         lambda: megadp.save_checkpoint(".", self.optimizer)):
                with self.assertRaisesRegex(megadp.MegaDPError, "are an optimizer's averages; swap them back first") as caught:
                    call()
                self.assertEqual(caught.exception.code, megadp.Status.STATE)
            self.assertTrue(self.optimizer.info()["swapped"])
        self.assertEqual(self.values(), [4, -8])
        self.step()
        self.assertEqual((self.values(), self.optimizer.state("w", "average").memoryview.tolist()), ([8, -16], [2.75, -5.5]))
        self.optimizer.swap_average(wait=False)
        self.buffer.wait()
        self.assertEqual(self.values(), [2.75, -5.5])
        self.optimizer.swap_average()
        self.assertEqual(self.values(), [8, -16])

    def test_error_in_the_block(self):
        self.step()
        with self.assertRaisesRegex(KeyError, "mine"):
            with self.optimizer.averaged():
                raise KeyError("mine")
        self.assertEqual(self.values(), [4, -8])

    def test_refused(self):
        with self.assertRaisesRegex(megadp.InvalidError, "average_decay is 1; it must be at least 0 and below 1"):
            megadp.Optimizer(self.buffer, average_decay=1)
        plain = megadp.Optimizer(self.buffer)
        with self.assertRaisesRegex(megadp.MegaDPError, "keeps no average") as caught:
            with plain.averaged():
                pass
        self.assertEqual(caught.exception.code, megadp.Status.STATE)

    def test_plan(self):
        self.assertGreater(megadp.plan({"w": (100,)}).average_bytes, 2 * 4 * 100 - 1)

    def test_on_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            out = support.check_ended(self, support.run_source(2, f"""
                import array, megadp
                with megadp.Comm() as comm:
                    buffer = megadp.Buffer(comm, [megadp.Param("w", (300,), "bf16")], bucket_elements=100)
                    optimizer = megadp.Optimizer(buffer, rule="lion", average_decay=0.5)
                    for number in range(3):
                        buffer.put("w", array.array("f", [1] * 300))
                        optimizer.step(lr=1.0)
                    values = array.array("f", [0] * 300)
                    with optimizer.averaged():
                        buffer.verify()
                        assert set(buffer.read("w", values)) == {{-2.125}}, set(values)
                    assert set(buffer.read("w", values)) == {{-3}}, set(values)
                    megadp.save_checkpoint({folder!r}, optimizer)
                    again = megadp.Optimizer(buffer, rule="lion", average_decay=0.5)
                    megadp.load_checkpoint({folder!r}, again)
                    with again.averaged():
                        print(buffer.read("w", values)[299], flush=True)
            """))
        self.assertEqual(out.splitlines(), ["-2.125"] * 2)


if __name__ == "__main__":
    unittest.main()
