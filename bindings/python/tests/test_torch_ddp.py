# SPDX-License-Identifier: Apache-2.0
"""megadp.torch beside DistributedDataParallel on two ranks: torch_cases.py, torch_grads_cases.py, torch_state_cases.py,
torch_rule_cases.py, torch_habits_cases.py, torch_elementwise_cases.py and torch_whole_cases.py, one program for many cases, since starting takes long."""
import os
import subprocess
import sys
import unittest

import support

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = ("clip_grad_norm", "clip_grad_value", "clip_half_width", "norm_for_a_log", "grad_scaler", "zero_2", "instances",
         "changed_gradients", "batch_norm", "buffers_unlike", "sync_batch_norm", "frozen", "frozen_for_a_while", "accumulation", "ends_earlier",
         "thrown_away", "own_optimizer", "words", "asked_of_the_wrapper")
GRADS_CASES = ("norms_of_other_kinds", "norms_beside_other_tensors", "two_models", "assigned_data", "default_types",
               "values_beside_the_step")
STATE_CASES = ("resumed", "torch_and_back", "consolidated", "saved_by_trainers", "distributed_checkpoint")
RULE_CASES = ("rules", "schedules", "states", "lion", "several", "several_saved", "scaler", "scaler_clipped_infinity", "scaler_of_several",
              "scaler_state", "scaler_refused")

ELEMENTWISE_CASES = ("elementwise", "elementwise_saved", "elementwise_beside_others", "elementwise_fails", "elementwise_refused",
                     "elementwise_beside_parameters", "elementwise_later", "elementwise_by_shape")
HABITS_CASES = ("reentrant", "two_losses", "graph_from_before", "shared_memory", "wrapped_otherwise", "methods_in_no_sync", "groups_without_some",
                "groups_with_more", "trials", "no_rate", "autograd_grad", "assigned_gradients", "compiled_with_buffers", "compiled_while_gradients", "compiled_uses_of_gradients",
                "conversions_of_nothing", "given_up_batches", "adversarial", "second_derivative", "words_of_other_calls", "zero_grad_on_one_rank",
                "gradients_of_none", "gradients_of_none_beside_torch", "evaluation_on_one_rank")
WHOLE_CASES = ("whole", "whole_owned_once", "whole_saved", "whole_half_width", "whole_refused", "whole_lbfgs")


class Cases:
    @classmethod
    def setUpClass(cls):
        cases = [case for case in os.environ.get("MEGADP_TORCH_CASES", " ".join(cls.CASES)).split() if case in cls.CASES]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", os.path.join(HERE, cls.PROGRAM), *cases]
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


class BesideDDP(Cases, unittest.TestCase):
    PROGRAM, CASES = "torch_cases.py", CASES


class Grads(Cases, unittest.TestCase):
    PROGRAM, CASES = "torch_grads_cases.py", GRADS_CASES


class State(Cases, unittest.TestCase):
    PROGRAM, CASES = "torch_state_cases.py", STATE_CASES


class Rules(Cases, unittest.TestCase):
    PROGRAM, CASES = "torch_rule_cases.py", RULE_CASES


class Habits(Cases, unittest.TestCase):
    PROGRAM, CASES = "torch_habits_cases.py", HABITS_CASES


class Elementwise(Cases, unittest.TestCase):
    PROGRAM, CASES = "torch_elementwise_cases.py", ELEMENTWISE_CASES


class Whole(Cases, unittest.TestCase):
    PROGRAM, CASES = "torch_whole_cases.py", WHOLE_CASES


for owner in (BesideDDP, Grads, State, Rules, Habits, Elementwise, Whole):
    for name in owner.CASES:
        setattr(owner, "test_" + name, of(name))


if __name__ == "__main__":
    unittest.main()
