# SPDX-License-Identifier: Apache-2.0
"""The shim against the build's abi.json. Structs and enumerators come from megadp.h by way of the compiler, so nothing is repeated that
could differ; what can be wrong is a header of another build, and an enumerator that the shim's enumerations do not offer."""
import json
import os
import subprocess
import tempfile
import unittest

import ranks

# Enumerators that megadp.h groups by these prefixes, and the shim's enumeration for them.
OFFERED = {"MDP_BACKEND_": "Backend", "MDP_DTYPE_": "DType", "MDP_OP_": "Op", "MDP_AXIS_": "Axis", "MDP_PARAM_CLASS_": "ParamClass",
           "MDP_PLACEMENT_": "Placement", "MDP_SHARDING_": "Sharding", "MDP_MISSING_": "Missing", "MDP_BUCKET_": "BucketState"}
RENAMED = {"MDP_MISSING_ERROR": "Missing::REFUSE"}  # ERROR is a macro or a word in some languages
# Flags become members of the options.
FLAGS = ("MDP_COMM_", "MDP_PARAM_FROZEN", "MDP_PARAM_OWN_BUCKET", "MDP_BUFFER_", "MDP_GRAD_", "MDP_GROUP_", "MDP_OPTIMIZER_", "MDP_STEP_",
         "MDP_STEPPED_", "MDP_RULE_")


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
    if name.startswith(FLAGS):
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


class Mirror(unittest.TestCase):
    def compile(self, lines):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "mirror.cc")
            with open(path, "w", encoding="ascii") as file:
                file.write('#include "shim/optimizer.h"\n' + "\n".join(lines) + "\n")
            return subprocess.run([*os.environ.get("CXX", "c++").split(), "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                                   "-I", ranks.SWIG, "-I", os.path.join(ranks.ROOT, "include"), path], capture_output=True, text=True,
                                  check=False)

    def test_abi(self):
        with open(ranks.ABI_JSON, encoding="utf-8") as file:
            lines = list(assertions(json.load(file)))
        self.assertGreater(len(lines), 150)
        ended = self.compile(lines)
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_a_difference_is_seen(self):
        for wrong in ('static_assert(sizeof(mdp_param) == 63, "");', 'static_assert(static_cast<int>(megadp::DType::F32) == 3, "");'):
            self.assertNotEqual(self.compile([wrong]).returncode, 0)


if __name__ == "__main__":
    unittest.main()
