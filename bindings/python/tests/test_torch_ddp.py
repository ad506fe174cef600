# SPDX-License-Identifier: Apache-2.0
"""megadp.torch beside DistributedDataParallel on two ranks: torch_cases.py, one program for all of it, since starting takes long."""
import os
import subprocess
import sys
import unittest

import support

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_cases.py")
CASES = ("clip_grad_norm", "clip_grad_value", "clip_half_width", "norm_for_a_log", "grad_scaler", "resumed", "zero_2", "instances",
         "changed_gradients", "batch_norm", "sync_batch_norm", "frozen", "frozen_for_a_while", "accumulation", "ends_earlier", "thrown_away",
         "own_optimizer", "words")


class BesideDDP(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cases = os.environ.get("MEGADP_TORCH_CASES", " ".join(CASES)).split()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", PROGRAM, *cases]
        environment = {name: value for name, value in support.environment(OMP_NUM_THREADS="1").items() if not name.startswith("MEGADP_R")}
        ended = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=2 * support.PATIENCE)
        cls.lines = ended.stdout.splitlines()
        cls.errors = ended.stderr
        print(*(line for line in cls.lines if line.startswith("#")), sep="\n", flush=True)


def of(case):
    def test(self):
        found = [line.partition(": ")[2] for line in self.lines if line.startswith(case + ": ")]
        self.assertEqual(found, ["ok", "ok"], self.errors[-4000:])

    return test


for name in CASES:
    setattr(BesideDDP, "test_" + name, of(name))


if __name__ == "__main__":
    unittest.main()
