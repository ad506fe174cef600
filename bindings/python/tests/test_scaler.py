# SPDX-License-Identifier: Apache-2.0
"""The loss scaler that the device keeps, and optimizers that have groups of one buffer; without numpy."""
import array
import dataclasses
import math
import tempfile
import unittest

import megadp
import support


class Scales(unittest.TestCase):
    def setUp(self):
        self.comm = megadp.Comm(backend="host")
        self.addCleanup(self.comm.close)
        self.buffer = megadp.Buffer(self.comm, {"w": (3,)})
        self.optimizer = megadp.Optimizer(self.buffer, rule="sgd", lr=0.5)

    def steps(self, marks, gradient=4.0):
        """The scale after each step, of which those marked x overflow."""
        scales = []
        for mark in marks:
            self.buffer.put("w", array.array("f", [gradient, 0, math.nan if mark == "x" else 0]))
            report = self.optimizer.step()
            self.assertEqual(report.skipped, mark == "x")
            scales.append(self.optimizer.scaler().scale)
            self.assertEqual(self.optimizer.scale().memoryview.tolist(), scales[-1:])
        return scales

    def test_vectors(self):
        for scaler, marks, expected in (
                (megadp.Scaler(1024, growth_interval=3, hysteresis=2), "x.xx...x", [1024, 1024, 512, 256, 256, 256, 512, 512]),
                (megadp.Scaler(4, hysteresis=1, min_scale=1), "xxxx", [2, 1, 1, 1]),
                (megadp.Scaler(4, growth_interval=2, growth_factor=8, backoff_factor=0.25), "..x..", [4, 32, 8, 8, 64]),
                (megadp.Scaler(64, growth_interval=1, constant=True), ".x.", [64, 64, 64]),
                (megadp.Scaler(4, growth_interval=4, clean_steps=2), "..", [4, 8]),
                (megadp.Scaler(4, hysteresis=3, overflows=2), "x", [2]),
                (megadp.Scaler(1e37, growth_interval=1), "..", [1e37, 1e37])):
            with self.subTest(scaler=scaler):
                self.optimizer.set_scaler(scaler)
                self.assertEqual([float(f"{scale:.6g}") for scale in self.steps(marks)], expected)

    def test_counts(self):
        """What scaler() tells is what goes on from there; a scaler that is taken away leaves nothing."""
        self.optimizer.set_scaler(megadp.Scaler(1024, growth_interval=3, hysteresis=2))
        self.steps("..x.")
        now = self.optimizer.scaler()
        self.assertEqual(now, megadp.Scaler(1024, growth_interval=3, hysteresis=2, clean_steps=1, overflows=1))
        ended = self.steps("x..")
        self.optimizer.set_scaler(now)
        self.assertEqual(self.steps("x.."), ended)
        self.optimizer.set_scaler(None)
        for call in (self.optimizer.scaler, self.optimizer.scale):
            with self.assertRaisesRegex(megadp.MegaDPError, "no loss scaler") as caught:
                call()
            self.assertEqual(caught.exception.code, megadp.Status.STATE)
        self.buffer.put("w", array.array("f", [math.inf, 0, 0]))
        with self.assertRaises(megadp.MegaDPError) as caught:
            self.optimizer.step()
        self.assertEqual(caught.exception.code, megadp.Status.NUMERIC)

    def test_divides(self):
        self.optimizer.set_scaler(megadp.Scaler(8, growth_interval=2))
        self.buffer.put("w", array.array("f", [8, 16, 0]))
        report = self.optimizer.step(grad_divisor=2)
        self.assertEqual((report.loss_scale, self.buffer.param("w").memoryview.tolist()), (8, [-0.25, -0.5, 0]))
        self.buffer.put("w", array.array("f", [8, 16, 0]))
        self.assertIsNone(self.optimizer.step(report=False))
        self.assertEqual((self.buffer.param("w").memoryview.tolist(), self.optimizer.scaler().scale), ([-0.75, -1.5, 0], 16))

    def test_refused(self):
        for values, text in (({"scale": 0}, "scaler.scale is 0"), ({"growth_factor": 0}, "scaler.growth_factor is 0"),
                             ({"growth_factor": 0.5}, "growth_factor is 0.5; it must be at least 1"),
                             ({"backoff_factor": 0}, "scaler.backoff_factor is 0"), ({"backoff_factor": 1}, "backoff_factor is 1; .* below 1"),
                             ({"growth_interval": 0}, "scaler.growth_interval is 0; it must be from 1"),
                             ({"hysteresis": 0}, "scaler.hysteresis is 0; it must be from 1"), ({"hysteresis": 1.5}, "hysteresis is 1.5"),
                             ({"growth_interval": 2**32}, "growth_interval is 4294967296"), ({"min_scale": 0}, "scaler.min_scale is 0"),
                             ({"scale": 2, "min_scale": 4}, "scale is 2, below scaler.min_scale, 4"), ({"scale": math.nan}, "scale is nan"),
                             ({"clean_steps": 2000}, "clean_steps is 2000; it must be below growth_interval"),
                             ({"overflows": 2}, "overflows is 2; it must be at most hysteresis"), ({"overflows": -1}, "overflows is -1")):
            with self.subTest(values=values), self.assertRaisesRegex(ValueError, text):
                self.optimizer.set_scaler(megadp.Scaler(**values))
        with self.assertRaises(dataclasses.FrozenInstanceError):
            megadp.Scaler().scale = 3
        self.optimizer.set_scaler(megadp.Scaler())
        self.buffer.put("w", array.array("f", [1, 1, 1]))
        with self.assertRaisesRegex(ValueError, "loss_scale is 2, but the optimizer has a scaler"):
            self.optimizer.step(loss_scale=2)

    def test_on_ranks(self):
        """What overflows on one rank skips the step on all; scalers that differ are said to; scales are alike and go into checkpoints."""
        with tempfile.TemporaryDirectory() as folder:
            out = support.check_ended(self, support.run_source(3, f"""
                import array, megadp
                with megadp.Comm() as comm:
                    buffer = megadp.Buffer(comm, {{"w": (300,)}}, bucket_elements=100)
                    optimizer = megadp.Optimizer(buffer, rule="lion")
                    try:
                        optimizer.set_scaler(megadp.Scaler(scale=8 + comm.rank // 2))
                    except megadp.MegaDPError as error:
                        assert error.code == megadp.Status.DESYNC and "scale 9" in error.text, error
                    optimizer.set_scaler(megadp.Scaler(scale=8))
                    for number in range(6):
                        before = buffer.param("w").memoryview.tolist()
                        spoils = number % 3 == comm.rank and number < 3
                        buffer.put("w", array.array("f", [float("inf") if spoils and i == 250 else 1 for i in range(300)]))
                        report = optimizer.step()
                        assert report.skipped == (number < 3) == (before == buffer.param("w").memoryview.tolist())
                    buffer.verify()
                    assert optimizer.scaler() == megadp.Scaler(scale=1, clean_steps=3, overflows=1), optimizer.scaler()
                    megadp.save_checkpoint({folder!r}, optimizer)
                    optimizer.set_scaler(megadp.Scaler(scale=8))
                    megadp.load_checkpoint({folder!r}, optimizer)
                    print(optimizer.scaler().scale, optimizer.scaler().clean_steps, flush=True)
            """))
        self.assertEqual(out.splitlines(), ["1.0 3"] * 3)


class Together(unittest.TestCase):
    def setUp(self):
        self.comm = megadp.Comm(backend="host")
        self.addCleanup(self.comm.close)
        self.buffer = self.make()

    def make(self):
        return megadp.Buffer(self.comm, [megadp.Param("w", (2,)), megadp.Param("b", (2,), "bf16", param_group=1),
                                         megadp.Param("c", (1,), param_group=2)])

    def put(self, buffer=None):
        for name, values in (("c", [3]), ("b", [1, 2]), ("w", [4, -4])):
            (buffer or self.buffer).put(name, array.array("f", values))

    def test_steps(self):
        first = megadp.Optimizer(self.buffer, rule="sgd", lr=0.25, first_param_group=0, max_grad_norm=100)
        rest = megadp.Optimizer(self.buffer, rule="lion", lr=0.5, first_param_group=1, param_groups=[megadp.ParamGroup(lr=2), megadp.ParamGroup()],
                                max_grad_norm=100)
        for wait in (True, False):
            self.put()
            report = megadp.step_many([first, rest], wait=wait, grad_divisor=2)
            self.assertAlmostEqual(report.grad_norm, (46 / 4) ** 0.5, places=6)
        self.buffer.wait()
        self.assertEqual(report.step, 2)
        self.assertEqual([self.buffer.read(name, array.array("f", [0] * size)).tolist() for name, size in (("w", 2), ("b", 2), ("c", 1))],
                         [[-1, 1], [-4, -4], [-1]])
        self.assertEqual((first.info()["rule"], rest.info()["rule"], rest.steps("c")), ("SGD", "Lion", 2))
        self.assertEqual(rest.state("b", "master").memoryview.tolist(), [-4, -4])
        rest.set_param_group(2, megadp.ParamGroup(lr=0))
        self.put()
        megadp.step_many([rest, first])
        self.assertEqual(self.buffer.param("c").memoryview.tolist(), [-1])

    def test_checkpoint(self):
        """The state of all of them, and each one's values."""
        kept = []
        with tempfile.TemporaryDirectory() as folder:
            for buffer in (self.buffer, self.make()):
                parts = [megadp.Optimizer(buffer, rule="adam", lr=0.25, first_param_group=0),
                         megadp.Optimizer(buffer, rule="sgd_momentum", lr=0.5, momentum=0.75 if kept else 0.5, first_param_group=1,
                                          param_groups=[megadp.ParamGroup()] * 2)]
                if kept:
                    megadp.load_checkpoint(folder, *parts, load_hyper=True)
                for _ in range(1 if kept else 2):
                    self.put(buffer)
                    megadp.step_many(parts)
                    if not kept:
                        megadp.save_checkpoint(folder, *parts, keep=1)
                if not kept:
                    megadp.load_checkpoint(folder, *parts)
                    self.put(buffer)
                    megadp.step_many(parts)
                kept.append([[buffer.param(name).memoryview.tolist() for name in ("w", "b", "c")], [part.info() for part in parts],
                             parts[1].state("c", "momentum_buffer").memoryview.tolist()])
        self.assertEqual(kept[0], kept[1])
        self.assertEqual(kept[0][2], [3 * 1.75])

    def test_refused(self):
        make = lambda first, **options: megadp.Optimizer(self.buffer, first_param_group=first, **options)  # noqa: E731
        first, second, third, every = make(0), make(1), make(2), megadp.Optimizer(self.buffer, param_groups=[megadp.ParamGroup()] * 3)
        scaled, clips = make(2), make(2, max_grad_value=1)
        scaled.set_scaler(megadp.Scaler())
        self.put()
        for listed, text in (([first, second], "'c' is in parameter group 2, which no optimizer of this step has"),
                             ([first, second, second, third], r"'b' .* which both optimizers\[1\] and optimizers\[2\] have"),
                             ([first, second, every], r"'w' .* both"), ([first, second, scaled], r"optimizers\[2\] has a loss scaler"),
                             ([first, second, clips], r"optimizers\[2\] clips otherwise"), ([], "optimizers is empty"),
                             ([first, self.buffer], r"optimizers\[1\] is a Buffer")):
            with self.assertRaisesRegex(ValueError, text):
                megadp.step_many(listed)
        with self.assertRaisesRegex(ValueError, "Step it together with the others"):
            first.step()
        for call, text in ((lambda: first.state("b", "master"), "another optimizer's"), (lambda: first.steps(1), "another optimizer's"),
                           (lambda: third.set_param_group(0, megadp.ParamGroup()), "group is 0; this optimizer has 1 group, number 2"),
                           (lambda: make(-1), "first_param_group is -1"), (lambda: make(0.5), "first_param_group is 0.5"),
                           (lambda: megadp.Optimizer(self.buffer, rule="adamax"), "rule is 'adamax'; it must be one of 'adamw'"),
                           (lambda: megadp.Optimizer(self.buffer, betas=(0.9,)), r"betas is \(0.9,\); it must be two numbers"),
                           (lambda: megadp.Optimizer(self.buffer, betas=0.9), "betas is 0.9; it must be two numbers"),
                           (lambda: megadp.Optimizer(self.buffer, betas=(0.9, None)), r"betas\[1\] is None; it must be a number"),
                           (lambda: megadp.Optimizer(self.buffer, lr="0.1"), "lr is '0.1'; it must be a number"),
                           (lambda: megadp.Optimizer(self.buffer, weight_decay=None), "weight_decay is None; it must be a number"),
                           (lambda: megadp.step_many([first, second], "2"), "loss_scale is '2'; it must be a number"),
                           (lambda: make(0, param_groups=[{"lr": 1}]), r"param_groups\[0\] is a dict; it must be a megadp.ParamGroup"),
                           (lambda: make(0, param_groups=[megadp.ParamGroup(lr="1")]), r"param_groups\[0\].lr is '1'; it must be a number"),
                           (lambda: make(0, momentum=0.9), "config.momentum is 0.9; AdamW has none"),
                           (lambda: make(0, rule="sgd", eps=0.5), "config.eps is 0.5; SGD has none"),
                           (lambda: make(0, rule="lion", param_groups=[megadp.ParamGroup(eps=1)]), r"param_groups\[0\].eps is 1; Lion has none"),
                           (lambda: make(0, param_groups=[megadp.ParamGroup(eps=0)]), r"param_groups\[0\].eps is 0"),
                           (lambda: make(0, rule="sgd_momentum", momentum=1), "momentum is 1; it must be at least 0 and below 1")):
            with self.subTest(text=text), self.assertRaisesRegex(ValueError, text):
                call()
        third.close()
        with self.assertRaisesRegex(megadp.MegaDPError, "this Optimizer is closed"):
            megadp.step_many([first, second, third])
        self.assertEqual(megadp.step_many([first, second, make(2)]).step, 1)


if __name__ == "__main__":
    unittest.main()
