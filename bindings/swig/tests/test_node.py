# SPDX-License-Identifier: Apache-2.0
"""Node through koffi (without/node): structs against abi.json, failures, the digits with 1 and 2 ranks."""
import glob
import os
import shutil
import unittest

import ranks

SOURCES = os.path.join(ranks.SWIG, "without", "node")


def prepare():
    """The folder with koffi in it, and the programs beside; a module is looked for from where the program lies."""
    if not shutil.which("node"):
        raise unittest.SkipTest("node is not installed")
    # scripts/setup_swig fetches into the checkout's build folder, whatever MEGADP_BINDINGS_BUILD says.
    for folder in (os.path.join(ranks.MADE, "node"), os.path.join(ranks.BUILD, "bindings", "swig", "node")):
        if os.path.isdir(os.path.join(folder, "node_modules", "koffi")):
            for path in glob.glob(os.path.join(SOURCES, "*.mjs")):
                shutil.copy(path, folder)
            return folder
    raise unittest.SkipTest("koffi has not been fetched (scripts/setup_swig)")


class Node(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = prepare()

    def program(self, name, *arguments):
        return ["node", os.path.join(self.folder, name), *arguments]

    def test_structs_and_failures(self):
        ended = ranks.run_ranks(2, self.program("failures.mjs", ranks.ABI_JSON))
        arrays = [f"true an array must be a Float32Array or a Float64Array, not {kind}" for kind in ("Int32Array", "Uint8Array", "Array")]
        options = ["lr must be a number, not undefined", "there is no option learningRate; there are lr and weightDecay"]
        numbers = [f"a parameter's number must be a whole number from 0, not {i}" for i in ("1.5", "-1", "1", "undefined")]
        self.assertEqual(sorted(ranks.check_ended(self, ended).splitlines()),
                         sorted(2 * [*arrays, *options, *numbers, "1,2,3,4", "-1 -1 -1 false", "-1 1 -1 false", "-2 0 1 true"]))

    @unittest.skipUnless(os.path.exists(ranks.DIGITS), "the digits are not there (scripts/setup_python writes them)")
    def test_training(self):
        ranks.check_losses(self, *(ranks.check_ended(self, ranks.run_ranks(n, self.program("digits.mjs", ranks.DIGITS))) for n in (1, 2)))


if __name__ == "__main__":
    unittest.main()
