#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is in megadp.h is offered in every language: each function, and each flag that a caller may give, is named in the part of the binding
that is written by hand, or is listed below with what is there instead. Reads sources only."""
import json
import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LANGUAGES = {"python": ["python/src/megadp"], "julia": ["julia/src", "julia/ext"], "rust": ["rust/megadp/src"], "swig": ["swig/shim"]}
RAW = ("_raw.py", "_raw_core.py", "_raw_enums.py", "_raw_layers.py", "_raw_functions.py",
       "raw.jl", "raw_types.jl", "raw_layers.jl", "raw_functions.jl")  # what declares all of the header
FLAGS = ("MDP_COMM_", "MDP_PARAM_FROZEN", "MDP_PARAM_OWN_BUCKET", "MDP_BUFFER_", "MDP_GRAD_", "MDP_PARAM_GROUP_", "MDP_OPTIMIZER_",
         "MDP_STEP_", "MDP_CHECKPOINT_", "MDP_TP_LINEAR_", "MDP_TP_REGION_CHECK_", "MDP_TP_EMBEDDING_",
         "MDP_TP_CROSS_ENTROPY_", "MDP_HALO_", "MDP_CP_CAUSAL")
CONTEXT = {name: "SWIG hands no functions of a language's own, and the attention of a block is one" for name in
           ("mdp_cp_part", "mdp_cp_attention_fwd", "mdp_cp_attention_bwd", "MDP_CP_CAUSAL")}
LEFT_OUT = {
    "python": {"mdp_status_name": "megadp.Status"},
    "julia": {"mdp_comm_event_fd": "requests are waited for in slices, between which other tasks run", "mdp_last_error": "mdp_last_error_info's text",
              "mdp_tp_saved_free": "a pullback keeps the input itself", "mdp_version": "in info()", "mdp_log_set": "messages go to stderr",
              "mdp_optimizer_set_update": "step!(f, ...), by pieces",
              "mdp_optimizer_step": "mdp_optimizer_step_many of one", "mdp_plan": "megadp plan, the program", "mdp_plan_json": "the same", "mdp_grid_groups_json": "the same"},
    "rust": {"mdp_buffer_to_dlpack": "slices", "mdp_optimizer_set_update": "step_with, by pieces", "mdp_status_name": "megadp::Code"},
    "swig": {**CONTEXT, "mdp_request_peek": "done", "mdp_log_set": "messages go to stderr", "mdp_optimizer_set_update": "begin_step, by pieces", "mdp_plan": "in mdp_plan_json's text"},
}


def words(folders):
    """Those of the sources, without the raw layers."""
    found = set()
    for folder in folders:
        for parent, _, names in os.walk(os.path.join(ROOT, "bindings", folder)):
            for name in names:
                if name.endswith((".py", ".jl", ".rs", ".h")) and name not in RAW:
                    with open(os.path.join(parent, name), encoding="utf-8") as file:
                        found.update(re.findall(r"\bmdp_\w+|\bMDP_\w+", file.read()))
    return found


class Complete(unittest.TestCase):
    def test_every_language_has_all(self):
        with open(os.environ["MEGADP_ABI_JSON"], encoding="utf-8") as file:
            abi = json.load(file)
        offered = [*abi["functions"], *(name for name in abi["enums"] if name.startswith(FLAGS))]
        self.assertGreater(len(offered), 60)
        for language, folders in LANGUAGES.items():
            with self.subTest(language):
                self.assertEqual(sorted(set(offered) - words(folders)), sorted(LEFT_OUT[language]))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main(verbosity=2)
