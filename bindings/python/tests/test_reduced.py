# SPDX-License-Identifier: Apache-2.0
"""Reduced gradients between sync and the step; without numpy."""
import ast
import unittest

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


if __name__ == "__main__":
    unittest.main()
