# SPDX-License-Identifier: Apache-2.0
"""Every field and flag of the C configurations can be given."""
import json
import unittest
from unittest import mock

import megadp
import support
from megadp import _comm, _optimizer, _optimizer_config, _param_group, _params, _scaler

with open(support.ABI_JSON, encoding="utf-8") as abi_file:
    ABI = json.load(abi_file)
# For the future; and what the function there, which is Python's own, does not need.
WITHOUT = ("reserved", "interrupted_context")
BIG = [("w", (2**50,))]


def given(module, struct, call):
    """What the C library would be given by a call with all options, which may be refused for them."""
    made, real = [], module.sized

    def sized(kind, **fields):
        made.append(real(kind, **fields))
        return made[-1]

    with mock.patch.object(module, "sized", sized):
        try:
            call()
        except megadp.MegaDPError:
            pass
    return next(config for config in made if type(config).__name__ == struct)


class Options(unittest.TestCase):
    def check(self, config, flags):
        left_out = [name for name in ABI["structs"][type(config).__name__]["fields"] if name not in WITHOUT and not getattr(config, name)]
        self.assertEqual(left_out, [])
        known = {name: value for name, value in ABI["enums"].items() if name.startswith(flags)}
        self.assertTrue(known)
        self.assertEqual([name for name, value in known.items() if not config.flags & value], [])

    def test_comm(self):
        self.check(given(_comm, "mdp_comm_config", lambda: megadp.Comm(megadp.unique_id(), 1, 1, backend="host", device=1, timeout=1.0,
                                                                       exact_sums=True, sockets=True,
                                                                       host_threads=1, threads_always=True,
                                                                       bootstrap=lambda mine: [mine])), "MDP_COMM_")
        with megadp.Comm(sockets=True, exact_sums=True, threads_always=True, backend="host") as comm:
            self.assertEqual(comm.size, 1)

    def test_buffer(self):
        self.check(given(_params, "mdp_buffer_config", lambda: megadp.plan(
            BIG, grad_dtype="same", sharding="zero_0", missing="skip", scaling="sum", bucket_elements=1, bucket_count=1, pool_buckets=1,
            spill_limit=1, overlap=False, high_bandwidth_padding=True, reference_buckets=True, ignore_memory=True, wire_dtype="bf16",
            error_feedback=True, check_finite=True, check_large=True)), "MDP_BUFFER_")

    def test_param(self):
        (struct,), _ = _params.native_params([megadp.Param("w", (2, 3), "bf16", 2, True, "sharded", 1, 2, 3, True, True, "tie", -4,
                                                        "whole", 2.5)])
        known = ABI["structs"]["mdp_param"]["fields"]
        self.assertEqual([name for name in known if name not in WITHOUT and not getattr(struct, name)], [])
        self.assertEqual((struct.sharding, struct.cost), (ABI["enums"]["MDP_SHARDING_WHOLE"], 2.5))
        self.assertEqual(struct.use_order, -4)
        self.assertEqual(struct.flags, sum(value for name, value in ABI["enums"].items() if name in ("MDP_PARAM_FROZEN", "MDP_PARAM_OWN_BUCKET")))

    def test_optimizer_and_step(self):
        with megadp.Comm() as comm, megadp.Buffer(comm, [("w", (2,))]) as buffer:
            self.check(given(_optimizer_config, "mdp_optimizer_config", lambda: megadp.Optimizer(
                buffer, rule="lion", lr=1, betas=(0.5, 0.5), eps=1, weight_decay=1, momentum=0.5, max_grad_norm=1, max_grad_value=1,
                norm="inf", param_groups=[megadp.ParamGroup()], first_param_group=1, state=["mean"], average_decay=0.5, state_dtype="bf16",
                stochastic_state=True, no_master=True, seed=1, check_update=True,
                param_states={"rows": {"w": ((2,), "f32")}})), "MDP_OPTIMIZER_")
            group = megadp.ParamGroup(1, 1, (0.5, 0.5), 1, 0.5)
            self.check(given(_param_group, "mdp_param_group", lambda: megadp.Optimizer(buffer, param_groups=[group])), "MDP_PARAM_GROUP_")
            with megadp.Optimizer(buffer) as optimizer:
                self.check(given(_optimizer, "mdp_step_config", lambda: optimizer.step(lr=1, loss_scale=1, grad_divisor=1, stream=8, unchecked=True)), "MDP_STEP_")
                scaler = megadp.Scaler(8, 3, 0.25, 5, 2, 2, True, 1, 1)
                self.check(given(_scaler, "mdp_scaler", lambda: optimizer.set_scaler(scaler)), "MDP_SCALER_")
                self.assertEqual(optimizer.scaler(), scaler)

    def test_memory_is_ignored(self):
        """Nothing is taken of what no machine has: without the flag because of the check, with it because the system refuses it."""
        with megadp.Comm() as comm:
            for options, told in (({}, "MDP_BUFFER_IGNORE_MEMORY"), ({"ignore_memory": True}, "cannot map")):
                with self.assertRaisesRegex(megadp.MegaDPError, told) as caught:
                    megadp.Buffer(comm, BIG, **options)
                self.assertEqual(caught.exception.code, megadp.Status.MEMORY)


if __name__ == "__main__":
    unittest.main()
