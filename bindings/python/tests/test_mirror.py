# SPDX-License-Identifier: Apache-2.0
"""The raw layer against what the compiler made of megadp.h."""
import ctypes
import json
import unittest

import megadp
import support
from megadp import _raw, _raw_functions

with open(support.ABI_JSON, encoding="utf-8") as abi_file:
    ABI = json.load(abi_file)


class Mirror(unittest.TestCase):
    def test_structs(self):
        mirror = {}
        for struct in _raw.STRUCTS:
            fields = {name: getattr(struct, name).offset for name, *_ in struct._fields_}
            mirror[struct.__name__] = {"size": ctypes.sizeof(struct), "align": ctypes.alignment(struct), "fields": fields}
        self.assertEqual(mirror, ABI["structs"])

    def test_enumerations(self):
        mirror = {name: value for name, value in vars(_raw).items() if name.startswith("MDP_")}
        self.assertEqual(mirror, ABI["enums"])

    def test_types(self):
        self.assertEqual({name: ctypes.sizeof(kind) for name, kind in _raw.ALIASES.items()}, ABI["types"])

    def test_functions(self):
        self.assertEqual(sorted(_raw_functions.PROTOTYPES), sorted(ABI["functions"]))

    def test_version(self):
        self.assertEqual(megadp.__version__, ABI["version"])

    def test_every_status_has_a_name(self):
        codes = {value for name, value in ABI["enums"].items() if name.startswith("MDP_E_") or name in ("MDP_OK", "MDP_PENDING")}
        self.assertEqual({int(status) for status in megadp.Status}, codes)
        for status in megadp.Status:
            self.assertIn(status.name, megadp._library.lib.mdp_status_name(int(status)).decode())


if __name__ == "__main__":
    unittest.main()
