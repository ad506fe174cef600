# SPDX-License-Identifier: Apache-2.0
"""What type checkers make of the package: nothing to complain of inside of it and in right use, and an error for each wrong word."""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

import support

SOURCES = os.path.join(support.PACKAGE, "src")
TYPED = os.path.join(support.PACKAGE, "tests", "typed")
FILES = [os.path.join(TYPED, name) for name in ("right.py", "wrong.py", "wrong_jax.py")]


def expected():
    """(file, line) of all that is marked as wrong."""
    found = set()
    for path in FILES:
        with open(path, encoding="utf-8") as file:
            found |= {(os.path.basename(path), number) for number, line in enumerate(file, 1) if line.rstrip().endswith("# wrong")}
    return found


def run(arguments, **environment):
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=TYPED, env=dict(os.environ, **environment), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=2 * support.PATIENCE)


class Types(unittest.TestCase):
    def agree(self, found, output):
        self.assertEqual((sorted(found - expected()), sorted(expected() - found)), ([], []),
                         f"errors where nothing is wrong, and the other way round; all of it:\n{output}")
        print(f"{len(found)} errors found, on the lines that are wrong", flush=True)

    @unittest.skipIf(importlib.util.find_spec("mypy") is None, "mypy is not installed")
    def test_mypy(self):
        """Strictly, the package itself too; megadp.torch only where torch is there."""
        files = [os.path.join(SOURCES, "megadp", name) for name in sorted(os.listdir(os.path.join(SOURCES, "megadp"))) if name.endswith(".py")]
        if importlib.util.find_spec("torch") is None:
            files = [path for path in files if "torch" not in os.path.basename(path)]
        with tempfile.TemporaryDirectory() as folder:
            ended = run(["mypy", "--strict", "--cache-dir", folder, "--no-error-summary", "--hide-error-context", *files, *FILES],
                        MYPYPATH=SOURCES)
        lines = [line for line in ended.stdout.splitlines() if ": error:" in line]
        self.agree({(os.path.basename(path), int(number)) for path, number, *_ in (line.split(":") for line in lines)},
                   ended.stdout + ended.stderr)

    @unittest.skipIf(importlib.util.find_spec("pyright") is None, "pyright is not installed")
    def test_pyright(self):
        ended = run(["pyright", "--outputjson", "--pythonpath", sys.executable, *FILES], PYTHONPATH=SOURCES)
        try:
            told = json.loads(ended.stdout)["generalDiagnostics"]
        except ValueError:
            self.skipTest(f"pyright cannot be run: {(ended.stderr or ended.stdout)[-300:]}")
        errors = [one for one in told if one["severity"] == "error"]
        self.agree({(os.path.basename(one["file"]), one["range"]["start"]["line"] + 1) for one in errors}, ended.stdout)


if __name__ == "__main__":
    unittest.main()
