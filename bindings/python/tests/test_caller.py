# SPDX-License-Identifier: Apache-2.0
"""Updates of the caller's, on 1, 2 and 3 ranks: caller_cases.py."""
import array
import copy
import gc
import os
import tempfile
import unittest
import weakref

import megadp
import support

CASES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "caller_cases.py")


class Caller(unittest.TestCase):
    def run_case(self, name, ranks=(1, 2, 3)):
        for number in ranks:
            with self.subTest(ranks=number), tempfile.TemporaryDirectory() as folder:
                out = support.check_ended(self, support.run_ranks(number, [CASES, name, os.path.join(folder, "saved")]))
                self.assertEqual(out.splitlines(), number * [f"{name}: ok"])

    def test_beside_the_librarys(self):
        self.run_case("beside")

    def test_together(self):
        self.run_case("together")

    def test_fails_on_one_rank(self):
        self.run_case("fails")

    def test_calls_from_within(self):
        self.run_case("within", (1, 2))

    def test_views(self):
        self.run_case("views", (1, 2))

    def test_words(self):
        self.run_case("words", (1, 2))

    def test_checked(self):
        self.run_case("checked", (1, 2))

    def test_whole(self):
        self.run_case("whole", (1, 2, 3))

    def test_whole_words(self):
        self.run_case("whole_words", (2,))

    def test_interrupted(self):
        self.run_case("interrupted", (1, 3))

    def test_kept(self):
        self.run_case("kept", (1, 2))

    def test_interrupted_at_the_ends(self):
        self.run_case("interrupted_at_the_ends", (1, 2))


class Garbage(unittest.TestCase):
    """Optimizers whose end waits for nothing that their update functions refer to."""

    def test_collected(self):
        """The update function refers to its optimizer, whose finalizer waited for that one's end."""
        class Trainer:
            def __init__(self, buffer):
                self.optimizer = megadp.Optimizer(buffer, rule="caller")
                self.optimizer.set_update(self.update)

            def update(self, piece):
                self.master = piece.master

        buffer = megadp.Buffer(megadp.Comm(), {"w": (2,)})
        trainer = Trainer(buffer)
        buffer.put("w", array.array("f", [1, 2]))
        copy.copy(trainer.optimizer).step()
        handle = trainer.optimizer._handle
        self.assertEqual(trainer.master.shape, (2,))
        del trainer
        gc.collect()
        self.assertTrue(handle.closed)
        self.assertIsNone(handle.pointer)

    def test_closed(self):
        """The update function keeps a view, which keeps the optimizer's memory."""
        buffer = megadp.Buffer(megadp.Comm(), {"w": (2,)})
        optimizer = megadp.Optimizer(buffer, rule="caller")
        optimizer.set_update(lambda piece, kept=[]: kept.append(piece.master))
        buffer.put("w", array.array("f", [1, 2]))
        optimizer.step()
        optimizer.close()
        self.assertIsNone(optimizer._handle.pointer)

    def test_closed_in_the_midst(self):
        """Of the update function nothing else is left, and it is called once more."""
        def set_update(steps):
            def update(piece):
                steps.append(piece.param)
                optimizer.close()
                gc.collect()

            gone.append(weakref.ref(update))
            optimizer.set_update(update)

        buffer, gone, steps = megadp.Buffer(megadp.Comm(), {"v": (2,), "w": (2,)}), [], []
        optimizer = megadp.Optimizer(buffer, rule="caller")
        set_update(steps)
        for name in "vw":
            buffer.put(name, array.array("f", [1, 2]))
        optimizer.step()
        self.assertEqual(sorted(steps), [0, 1])
        self.assertIsNone(optimizer._handle.pointer)
        optimizer.close()
        gc.collect()
        self.assertIsNone(gone[0]())


if __name__ == "__main__":
    unittest.main()
