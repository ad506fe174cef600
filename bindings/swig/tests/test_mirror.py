# SPDX-License-Identifier: Apache-2.0
"""The shim against the build's abi.json. Structs and enumerators come from megadp.h by way of the compiler, so nothing is repeated that
could differ; what can be wrong is a header of another build, and an enumerator, a field or a flag that the shim does not offer."""
import json
import os
import re
import subprocess
import tempfile
import unittest

import ranks

# Enumerators that megadp.h groups by these prefixes, and the shim's enumeration for them.
OFFERED = {"MDP_BACKEND_": "Backend", "MDP_DTYPE_": "DType", "MDP_OP_": "Op", "MDP_AXIS_": "Axis", "MDP_PARAM_CLASS_": "ParamClass",
           "MDP_PLACEMENT_": "Placement", "MDP_SHARDING_": "Sharding", "MDP_MISSING_": "Missing", "MDP_SCALING_": "Scaling", "MDP_NORM_": "Norm",
           "MDP_RULE_": "Rule",
           "MDP_BUCKET_": "BucketState", "MDP_TP_REGION_": "TpRegion", "MDP_TP_GRAD_": "TpGrad", "MDP_TP_SPLIT_": "TpSplit",
           "MDP_RANDOM_": "Random", "MDP_EDGE_": "Edge"}
# ERROR is a macro or a word in some languages; megadp.h names regions and splits without their enumeration.
RENAMED = {"MDP_MISSING_ERROR": "Missing::REFUSE", "MDP_TP_COLUMN": "TpSplit::COLUMN", "MDP_TP_ROW": "TpSplit::ROW",
           **{f"MDP_TP_{name}": f"TpRegion::{name}" for name in ("COPY", "REDUCE", "SCATTER", "GATHER", "REDUCE_SCATTER", "EXCHANGE")}}
# Flags become members of the options. Messages go where the library sends them.
FLAGS = ("MDP_COMM_", "MDP_PARAM_FROZEN", "MDP_PARAM_OWN_BUCKET", "MDP_BUFFER_", "MDP_GRAD_", "MDP_PARAM_GROUP_", "MDP_OPTIMIZER_",
         "MDP_SCALER_", "MDP_STEP_", "MDP_STEPPED_", "MDP_CHECKPOINT_", "MDP_TP_LINEAR_", "MDP_TP_REGION_CHECK_",
         "MDP_TP_EMBEDDING_", "MDP_TP_CROSS_ENTROPY_", "MDP_HALO_",
         "MDP_LOG_")
NOT_OFFERED = "MDP_CP_"  # the attention of a block is a function, of which SWIG hands no language's own


def enumerators(abi):
    """(name, value) of all of them, whether abi.json groups them or not."""
    for name, value in abi["enums"].items():
        if isinstance(value, dict):
            yield from value.items()
        else:
            yield name, value


def mirrored(name):
    """How the shim calls an enumerator; None where it is a flag."""
    if name in RENAMED:
        return RENAMED[name]
    if name.startswith((*FLAGS, NOT_OFFERED)):
        return None
    for prefix, enumeration in OFFERED.items():
        if name.startswith(prefix):
            return f"{enumeration}::{name[len(prefix):]}"
    return f"Status::{name[len('MDP_'):]}"


def assertions(abi):
    for name, struct in abi["structs"].items():
        yield f'static_assert(sizeof({name}) == {struct["size"]}, "{name}");'
        for field, offset in struct["fields"].items():
            yield f'static_assert(offsetof({name}, {field}) == {offset}, "{name}.{field}");'
    for name, value in enumerators(abi):
        yield f'static_assert({name} == {value}, "{name}");'
        if mirrored(name):
            yield f'static_assert(static_cast<long long>(megadp::{mirrored(name)}) == {value}, "{mirrored(name)}");'


# Options of which no field is zero, and the configuration that the shim makes of them; the names of the configuration's flags.
CONFIGURATIONS = {
    "mdp_comm_config": ("CommOptions", "describe(&config, failure)", "MDP_COMM_"),
    "mdp_buffer_config": ("BufferOptions", "describe(&config, failure)", "MDP_BUFFER_"),
    "mdp_param_group": ("ParamGroup", "config()", "MDP_PARAM_GROUP_"),
    "mdp_optimizer_config": ("OptimizerOptions", "describe(1, &described, &config, failure)", "MDP_OPTIMIZER_"),
    "mdp_scaler": ("Scaler", "config()", "MDP_SCALER_"),
    "mdp_step_config": ("StepOptions", "config()", "MDP_STEP_"),
    "mdp_tp_linear_config": ("TpLinearOptions", "config()", "MDP_TP_LINEAR_"),
    "mdp_tp_region_config": ("TpRegionOptions", "config({1}, {1})", "MDP_TP_REGION_CHECK_"),
    "mdp_tp_embedding_config": ("TpEmbeddingOptions", "config()", "MDP_TP_EMBEDDING_"),
    "mdp_tp_cross_entropy_config": ("TpCrossEntropyOptions", "config()", "MDP_TP_CROSS_ENTROPY_"),
    "mdp_halo_config": ("HaloOptions", "config()", "MDP_HALO_FACES"),
    "mdp_conv_config": ("ConvOptions", "config()", "no flags"),
}
# What is given by a method, and not as a member.
ADDED = {"OptimizerOptions": ("add_param_group(megadp::ParamGroup())", 'add_state("m")', 'add_param_state("f", one)'),
         "TpLinearOptions": ("add_block(1)",), "HaloOptions": ("add_dimension(1, 1, 1, 1, megadp::Edge::ZERO)", "stagger(0, 0)"),
         "ConvOptions": ("add_part(1)",)}
# For the future; functions of C, which SWIG hands no language's own for: these pass the id around, and their
# interpreters' own look at signals is what is asked (`interrupted_in_language`).
LEFT_OUT = ("reserved", "bootstrap", "interrupted", "interrupted_context")
# Arguments of TpLinear::create_in.
LEFT_OUT_OF = {"mdp_tp_linear_config": ("buffer", "weight", "bias")}


def options_of(name):
    """The members of a struct of the shim: (type, name)."""
    with_members = []
    for header in ("comm.h", "params.h", "optimizer_options.h", "optimizer.h", "tp.h", "halo.h"):
        with open(os.path.join(ranks.SWIG, "shim", header), encoding="utf-8") as file:
            with_members += re.findall(rf"^struct {name} {{$(.*?)^}};$", file.read(), re.M | re.S)
    return re.findall(r"^  (long long|[\w:]+) (\w+)(?: = [^;]*)?;", with_members[0], re.M)


def configuring(abi):
    """A program that says which fields and flags are zero though all options are given."""
    yield "using namespace megadp;\nint main() {\n  megadp::Failure failure;\n  megadp::Counts one;\n  one.add(1);\n  megadp::OptimizerOptions::Described described;"
    for struct, (options, made, flags) in CONFIGURATIONS.items():
        yield f"  {{\n    megadp::{options} options;\n    {struct} config{{}};"
        for kind, name in options_of(options):
            yield f'    options.{name} = {"std::string(1, 0)" if kind == "std::string" else f"static_cast<{kind}>(1)"};'
        for added in ADDED.get(options, ()):
            yield f"    options.{added};"
        yield f"    options.{made};" if made.startswith("describe") else f"    config = options.{made};"
        for field in abi["structs"][struct]["fields"]:
            if field not in LEFT_OUT + LEFT_OUT_OF.get(struct, ()):
                yield f'    if (!config.{field}) std::puts("{struct}.{field}");'
        for name, _ in enumerators(abi):
            if name.startswith(flags):
                yield f'    if (!(config.flags & {name})) std::puts("{name}");'
        yield "  }"
    yield "}"


class Mirror(unittest.TestCase):
    def compile(self, lines, program=None):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "mirror.cc")
            with open(path, "w", encoding="ascii") as file:
                file.write('#include "shim/checkpoint.h"\n#include "shim/halo.h"\n#include "shim/tp.h"\n' + "\n".join(lines) + "\n")
            made = ["-o", program, ranks.LIBRARY] if program else ["-fsyntax-only"]
            return subprocess.run([*os.environ.get("CXX", "c++").split(), "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", ranks.SWIG,
                                   "-I", os.path.join(ranks.ROOT, "include"), path, *made], capture_output=True, text=True, check=False)

    def test_abi(self):
        with open(ranks.ABI_JSON, encoding="utf-8") as file:
            lines = list(assertions(json.load(file)))
        self.assertGreater(len(lines), 150)
        ended = self.compile(lines)
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_every_field_and_flag_can_be_given(self):
        with open(ranks.ABI_JSON, encoding="utf-8") as file:
            lines = list(configuring(json.load(file)))
        self.assertGreater(sum(line.startswith("    if (") for line in lines), 30)
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "options")
            ended = self.compile(lines, program)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            ended = ranks.run([program], env=ranks.environment(LD_LIBRARY_PATH=os.path.dirname(ranks.LIBRARY)))
            self.assertEqual((ended.returncode, ended.stdout), (0, ""))

    def test_a_difference_is_seen(self):
        for wrong in ('static_assert(sizeof(mdp_param) == 63, "");', 'static_assert(static_cast<int>(megadp::DType::F32) == 3, "");'):
            self.assertNotEqual(self.compile([wrong]).returncode, 0)


if __name__ == "__main__":
    unittest.main()
