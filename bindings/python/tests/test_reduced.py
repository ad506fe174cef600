# SPDX-License-Identifier: Apache-2.0
"""Gradients on their way to the ranks, and reduced ones between sync and the step; without numpy."""
import array
import ast
import unittest

import megadp
import support


class ReducedGradients(unittest.TestCase):
    def test_between_sync_and_step(self):
        """Norm, factor and what was written through views, with two ranks, by index and by name; and each parameter's steps."""
        out = support.check_ended(self, support.run_source(2, """
            import array, math, megadp
            def refused(call, *arguments):
                try:
                    call(*arguments)
                except megadp.MegaDPError as error:
                    return error.code.name
            with megadp.Comm() as comm:
                buffer = megadp.Buffer(comm, {"w": (4,), "b": (2,), "late": (3,)}, sharding="zero_0")
                optimizer = megadp.Optimizer(buffer)
                found = [refused(buffer.grad_norm), refused(buffer.scale_grads, 1.0), refused(buffer.grads_changed)]
                for step in range(2):
                    buffer.put("w", array.array("f", [2, 2, 2, 2]))
                    buffer.put("b", array.array("f", [6 * comm.rank, 0]))
                    buffer.skip("late") if step == 0 else buffer.put("late", array.array("f", [0, 0, 0]))
                    buffer.sync()
                    found += [buffer.grad_norm(), buffer.grad_norm(["b"]), buffer.grad_norm([]), refused(buffer.grad_norm, [0, "w"])]
                    buffer.scale_grads(0.5, ["w", 1])
                    found += [buffer.grad("b").memoryview[0], refused(buffer.scale_grads, math.nan)]
                    buffer.grad("w").memoryview[0] = 0.0
                    buffer.grads_changed()
                    found.append(round(buffer.grad_norm("w") ** 2, 9))
                    optimizer.step()
                    found.append([optimizer.steps(name) for name in ("w", "b", "late")])
                print(found, flush=True)
        """))
        norms = [5.0, 3.0, 0.0, "INVALID", 1.5, "INVALID", 3]
        expected = ["STATE"] * 3 + norms + [[1, 1, 0]] + norms + [[2, 2, 1]]
        self.assertEqual([ast.literal_eval(line) for line in out.splitlines()], [expected] * 2)

    def test_steps_are_set(self):
        with megadp.Comm() as comm:
            buffer = megadp.Buffer(comm, {"w": (4,), "b": (2,)})
            optimizer = megadp.Optimizer(buffer, lr=0.5, param_groups=[megadp.ParamGroup(weight_decay=0.25)])
            optimizer.set_steps(100)
            self.assertEqual([optimizer.steps(name) for name in ("w", "b")], [100, 100])
            optimizer.set_steps(9, [9, 7])
            self.assertEqual([optimizer.steps(name) for name in ("w", "b")], [9, 7])
            for taken, steps, word in ((8, [9, 7], "at most taken"), (9, [9], "count is 1"), (9, [], "count is 0"), (-1, None, "taken"),
                                       (9, [1, -1], r"steps\[1\]"), (2**63, None, "at most")):
                with self.assertRaisesRegex(megadp.MegaDPError, word):
                    optimizer.set_steps(taken, steps)
            for name in ("w", "b"):
                buffer.put(name, array.array("f", [1.0] * (4 if name == "w" else 2)))
            self.assertEqual((optimizer.step().step, optimizer.steps("b")), (10, 8))
            info = optimizer.info()
            self.assertEqual((info["rule"], info["steps"], info["groups"]),
                             ("AdamW", 10, [{"lr": 0.5, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.25}]))
            self.assertEqual([each["name"] for each in info["state"]], ["master", "exp_avg", "exp_avg_sq"])

    def test_divided_by_tokens(self):
        """Sums of 6 over 3 tokens and of 20 over 5: 26 / 8; the sum stays one, unless it is half-width. And what a step is told divides."""
        out = support.check_ended(self, support.run_source(2, """
            import array, megadp
            with megadp.Comm() as comm:
                found = []
                for dtype in ("f32", "bf16"):
                    buffer = megadp.Buffer(comm, [megadp.Param("w", (1,), dtype)], grad_dtype="same", sharding="zero_0", scaling="tokens")
                    optimizer = megadp.Optimizer(buffer)
                    for divisor in (None, 2):
                        buffer.tokens((3, 5)[comm.rank])
                        buffer.put("w", array.array("f", [(6, 20)[comm.rank]]))
                        buffer.sync()
                        found += [buffer.grad_norm(), optimizer.step(grad_divisor=divisor).grad_norm]
                try:
                    buffer.tokens(-1)
                except megadp.MegaDPError as error:
                    found.append(error.code.name)
                print(found, flush=True)
        """))
        self.assertEqual([ast.literal_eval(line) for line in out.splitlines()], [[3.25, 3.25, 3.25, 1.625] * 2 + ["INVALID"]] * 2)

    def test_summaries_and_clipping(self):
        """Norms and zeros of sets; and a step that clips by the largest, and one by value, with one rank."""
        out = support.check_ended(self, support.run_source(1, """
            import array, megadp
            with megadp.Comm() as comm:
                buffer = megadp.Buffer(comm, {"a": (3,), "b": (2,), "c": (2,)})
                found = []
                for options in (dict(norm="inf", max_grad_norm=3), dict(max_grad_value=3)):
                    optimizer = megadp.Optimizer(buffer, **options)
                    for name, values in (("c", [0, 0]), ("b", [12, 0]), ("a", [3, -4, 0])):
                        buffer.put(name, array.array("f", values))
                    buffer.sync()
                    found += [tuple(one) for one in buffer.grad_summaries([0, 1, None], 2)]
                    found.append(buffer.grad_summaries()[0].zeros)
                    report = optimizer.step()
                    moments = optimizer.state("a", "exp_avg").memoryview.tolist()
                    found += [round(report.grad_norm, 6), round(report.clip_factor, 6), [round(10 * one, 5) for one in moments]]
                for sets, count in (([0, 2, 0], 2), ([0], 1), (None, 0)):
                    try:
                        buffer.grad_summaries(sets, count)
                    except megadp.MegaDPError as error:
                        found.append(error.code.name)
                print(found, flush=True)
        """))
        sets = [(5.0, 4.0, 1, 0), (12.0, 12.0, 1, 0), 4]
        self.assertEqual(ast.literal_eval(out), [*sets, 12.0, 0.25, [0.75, -1.0, 0.0], *sets, 13.0, 1.0, [3.0, -3.0, 0.0], *["INVALID"] * 3])

    def test_sent_as_bfloat16(self):
        """Each rank's gradient is rounded once, the sum is not; what was lost is in the next step's."""
        out = support.check_ended(self, support.run_source(2, """
            import array, megadp
            with megadp.Comm() as comm:
                found = []
                for sharding in ("zero_0", "zero_1", "zero_2"):
                    buffer = megadp.Buffer(comm, {"w": (1,)}, sharding=sharding, scaling="sum", wire_dtype="bf16")
                    buffer.put("w", array.array("f", [(1.001, 1.006)[comm.rank]]))
                    buffer.sync()
                    found.append(buffer.grad_norm())
                buffer = megadp.Buffer(comm, {"w": (1,)}, scaling="sum", wire_dtype="bf16", error_feedback=True)
                optimizer = megadp.Optimizer(buffer)
                for step in range(2):
                    buffer.put("w", array.array("f", [1.003]))
                    found.append(optimizer.step().grad_norm)
                plans = [megadp.plan({"w": (8,)}, 2, wire_dtype="bf16", error_feedback=feedback) for feedback in (False, True)]
                print(found + [plan.feedback_bytes > 0 for plan in plans], flush=True)
        """))
        expected = [2.0078125] * 3 + [2.0, 2.015625, False, True]
        self.assertEqual([ast.literal_eval(line) for line in out.splitlines()], [expected] * 2)

    def test_checked(self):
        """Both ranks are told of the NaN of one. A step may follow: with a loss scale it is skipped. And a gradient grows 20 times."""
        out = support.check_ended(self, support.run_source(2, """
            import array, math, megadp
            def refused(call):
                try:
                    call()
                except megadp.MegaDPError as error:
                    return error.code.name, error.param, error.rank, "'b'" in error.text
            with megadp.Comm() as comm:
                buffer = megadp.Buffer(comm, {"w": (4,), "b": (3,)}, check_finite=True)
                optimizer = megadp.Optimizer(buffer)
                found = []
                for scale in (2, None, None):
                    buffer.put("b", array.array("f", [1, 1, math.nan if comm.rank == 1 and len(found) < 5 else 1]))
                    buffer.put("w", array.array("f", [1, 1, 1, 1]))
                    found.append(refused(buffer.sync))
                    try:
                        found += [optimizer.step(loss_scale=scale).skipped, optimizer.steps("w")]
                    except megadp.MegaDPError as error:
                        found += [error.code.name, optimizer.steps("w")]
                        buffer.begin_microbatch(True)
                buffer = megadp.Buffer(comm, {"w": (1,)}, check_large=True)
                optimizer = megadp.Optimizer(buffer)
                for value in [1] * 100 + [5, 20]:
                    buffer.put("w", array.array("f", [value]))
                    optimizer.step()
                print(found + [buffer.stats().large_gradients], flush=True)
        """))
        told = ("NUMERIC", 1, 1, True)
        self.assertEqual([ast.literal_eval(line) for line in out.splitlines()], [[told, True, 0, told, "NUMERIC", 0, None, False, 1, 1]] * 2)

    def test_order_of_use(self):
        """Registered in the order in which gradients come, which is the last first; told that, buckets fill one after another."""
        out = support.check_ended(self, support.run_source(2, """
            import array, megadp
            with megadp.Comm() as comm:
                names, orders, found = ("c", "b", "a"), (0, 0, 0), []
                for attempt in range(2):
                    params = [megadp.Param(name, (8,), use_order=order) for name, order in zip(names, orders)]
                    buffer = megadp.Buffer(comm, params, bucket_elements=1)
                    try:
                        buffer.use_order()
                    except megadp.MegaDPError as error:
                        found.append(error.code.name)
                    for name in names:
                        buffer.put(name, array.array("f", [1] * 8))
                    buffer.sync()
                    ready = [buffer.bucket(number).ready_ns for number in range(buffer.bucket_count)]
                    orders = buffer.use_order()
                    found += [orders, len(ready), ready == sorted(ready)]
                print(found, flush=True)
        """))
        self.assertEqual([ast.literal_eval(line) for line in out.splitlines()],
                         [["STATE", [2, 1, 0], 3, False, "STATE", [2, 1, 0], 3, True]] * 2)

    def test_tied_over_stages(self):
        """Each of two pipeline stages has a copy, at another place: gradients are added up, and both stay the same."""
        out = support.check_ended(self, support.run_source(2, """
            import array, megadp
            with megadp.Comm() as comm:
                grid = megadp.Grid(comm, pp=2)
                words, own = megadp.Param(f"words{comm.rank}", (3,), tie="words"), megadp.Param("own", (2,))
                buffer = megadp.Buffer(grid, [words, own] if comm.rank == 0 else [own, words])
                optimizer = megadp.Optimizer(buffer, lr=0.5)
                buffer.put(words.name, array.array("f", [1 + comm.rank] * 3))
                buffer.put("own", array.array("f", [0, 0]))
                buffer.sync()
                norm = buffer.grad_norm() ** 2
                optimizer.step()
                buffer.verify()
                print([round(norm, 9), buffer.param(words.name).memoryview[0] < -0.4], flush=True)
        """))
        self.assertEqual([ast.literal_eval(line) for line in out.splitlines()], [[27.0, True]] * 2)


if __name__ == "__main__":
    unittest.main()
