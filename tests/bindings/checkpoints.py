#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One language's checkpoint in the others: two ranks of C, of Python and of Julia each save one; Python, Rust and Julia, of which each is
left out where it is not installed, load all of them and find the same numbers."""
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BINDINGS = os.path.join(ROOT, "bindings")
PATIENCE = 280  # seconds until a program counts as hanging
JULIA_PROGRAM = os.path.join(BINDINGS, "julia", "test", "programs", "checkpoint.jl")
PYTHON_PROGRAM = """
import array, os, sys, megadp
with megadp.Comm() as comm:
    buffer = megadp.Buffer(comm, {"w": (15,), "b": (7,)})
    optimizer = megadp.Optimizer(buffer, lr=0.125, weight_decay=0.25)
    frozen = memoryview(array.array("d", [1, 2, 3, 4])).cast("B").cast("d", (2, 2))
    if sys.argv[2] == "save":
        for number in (1, 2):
            for name, size in (("b", 7), ("w", 15)):
                buffer.put(name, array.array("f", [number + i for i in range(size)]))
            optimizer.step()
        megadp.save_checkpoint(sys.argv[1], optimizer, tensors={"frozen": frozen}, shared_data=b"all")
    else:
        frozen = memoryview(bytearray(32)).cast("d", (2, 2))
        megadp.load_checkpoint(sys.argv[1], optimizer, tensors={"frozen": frozen})
    if comm.rank == 0:
        print("loaded", *(value for name in ("w", "b") for value in buffer.param(name).memoryview.tolist()))
        print("frozen", *sum(frozen.tolist(), []))
        print("steps", optimizer.steps("w"), "data", megadp.checkpoint_data(sys.argv[1]).decode(), flush=True)
    comm.barrier()
"""


def numbers(output):
    """What was loaded: of each name its numbers as float32 has them, or its word. Printed by rank 0 alone, or first."""
    found = {}
    for name, rest in re.findall(r"^(?:rank 0 )?(loaded|frozen|steps|data) (.*)$", output.replace(" data ", "\ndata "), re.M):
        words = rest.strip('[]"').replace(",", " ").split()
        found[name] = words if name == "data" else [struct.unpack("f", struct.pack("f", float(word)))[0] for word in words]
    return found


class Languages(unittest.TestCase):
    def ended(self, command, environment, folder=ROOT):
        """What it printed, if it ended well."""
        ended = subprocess.run(command, env=dict(os.environ, **environment), cwd=folder, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, timeout=PATIENCE)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        return ended.stdout

    def launch(self, ranks, *command, **environment):
        return numbers(self.ended([os.environ["MEGADP_PROGRAM"], "run", "--no-prefix", "-n", str(ranks), *command], environment))

    def python(self, ranks, folder, what):
        return self.launch(ranks, sys.executable, "-B", "-c", PYTHON_PROGRAM, folder, what,
                           PYTHONPATH=os.path.join(BINDINGS, "python", "src"))

    def julia(self, ranks, folder):
        setup = os.path.join(ROOT, "scripts", "setup_julia")
        found = subprocess.run([setup, "--print-path"], stdout=subprocess.PIPE, text=True, check=True)
        if not found.stdout.strip():
            self.skipTest("no julia (scripts/setup_julia makes one on Debian 12)")
        return self.launch(ranks, found.stdout.strip(), "-O0", "--startup-file=no", "--project=" + os.path.join(BINDINGS, "julia"),
                           JULIA_PROGRAM, folder, JULIA_DEPOT_PATH=os.path.join(os.environ["MEGADP_BINDINGS_BUILD"], "julia-depot"))

    def rust(self, folder):
        sys.path.insert(0, HERE)
        import rust
        try:
            stage = rust.Stage()
            stage.fetched()
        except SystemExit as skipped:
            self.assertEqual(skipped.code, 77)
            self.skipTest("cargo, or a crate, is not there (scripts/setup_rust)")
        command = [stage.cargo, "test", "--locked", "-p", "megadp", "--features", "half", "--test", "checkpoint_test", "--"]
        return numbers(self.ended([*command, "--ignored", "--exact", "--nocapture", "loaded_values"],
                                  dict(stage.env, MEGADP_CHECKPOINTS=folder), os.path.join(BINDINGS, "rust")))

    def all_load(self, folder, saved):
        self.assertEqual((len(saved["loaded"]), saved["frozen"], saved["steps"], saved["data"]), (22, [1, 2, 3, 4], [2], ["all"]))
        self.assertNotIn(0, saved["loaded"])
        for language, load in (("Python", lambda: self.python(1, folder, "load")), ("Rust", lambda: self.rust(folder)),
                               ("Julia", lambda: self.julia(1, folder))):
            with self.subTest(language):
                found = load()
                self.assertEqual(found, saved)

    def test_of_c(self):
        with tempfile.TemporaryDirectory() as folder:
            self.all_load(folder, self.launch(2, os.environ["MEGADP_C_CHECKPOINT"], folder))

    def test_of_python(self):
        with tempfile.TemporaryDirectory() as folder:
            self.all_load(folder, self.python(2, folder, "save"))

    def test_of_julia(self):
        with tempfile.TemporaryDirectory() as folder:
            self.all_load(folder, self.julia(2, folder))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main(verbosity=2)
