# SPDX-License-Identifier: Apache-2.0
"""The wheel, built from this build's library, in an empty virtual environment: what it holds, and that it trains."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import support


def run(test, *command, **options):
    ended = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=support.PATIENCE, **options)
    test.assertEqual(ended.returncode, 0, f"{command}:\n{ended.stdout}")
    return ended.stdout


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="megadp-wheel-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.python = os.path.join(cls.folder, "venv", "bin", "python")
        # Neither our library, nor our package, nor a launcher's variables: as on a machine that knows nothing of the checkout.
        cls.environment = {name: value for name, value in support.environment().items() if not name.startswith(("MEGADP_", "PYTHONPATH"))}

    def test_install_and_train(self):
        build = os.path.dirname(os.path.dirname(os.path.abspath(support.PROGRAM)))
        run(self, sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index", "-w", self.folder,
            f"--config-settings=cmake.define.MEGADP_BUILT={build}", support.PACKAGE)
        wheel, = (name for name in os.listdir(self.folder) if name.endswith(".whl"))
        self.check_contents(os.path.join(self.folder, wheel), build)
        run(self, sys.executable, "-m", "venv", "--without-pip", os.path.join(self.folder, "venv"))
        run(self, sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-index", "--no-deps",
            os.path.join(self.folder, wheel), env=self.environment)
        self.check_import()
        self.check_program()
        self.check_training()

    def check_contents(self, path, build):
        with open(os.path.join(build, "lib", "abi.json"), encoding="utf-8") as file:
            abi = json.load(file)
        self.assertRegex(os.path.basename(path), rf"^megadp-{re.escape(abi['version'])}-py3-none-\w*linux\w*_{abi['arch']}\.whl$")
        names = set(zipfile.ZipFile(path).namelist())
        sources = {f"megadp/{name}" for name in os.listdir(os.path.join(support.PACKAGE, "src", "megadp")) if not name.startswith("__pyc")}
        self.assertEqual(sources - names, set())
        self.assertIn("megadp/lib/libmegadp.so.0", names)
        self.assertIn("megadp/bin/megadp", names)
        built = os.path.exists(os.path.join(build, "lib", "libmegadp_cuda.so"))
        self.assertEqual("megadp/lib/libmegadp_cuda.so" in names, built)

    def check_import(self):
        """Without numpy, a framework or a compiler; the library is the package's own."""
        environment = dict(self.environment, PATH="/nonexistent")
        out = run(self, self.python, "-m", "megadp.info", env=environment, cwd=self.folder)
        self.assertIn(os.path.join(self.folder, "venv"), json.loads(out)["library"])
        run(self, self.python, "-c", "import sys, megadp; assert not {'numpy', 'torch', 'jax'} & set(sys.modules)", env=environment)

    def check_program(self):
        """Sees what the library sees, of the CUDA plugin too; gets signals as this process gets them."""
        program = os.path.join(self.folder, "venv", "bin", "megadp")
        of_library = json.loads(run(self, self.python, "-m", "megadp.info", env=self.environment, cwd=self.folder))
        of_program = json.loads(run(self, program, "info", "--json", env=self.environment, cwd=self.folder))
        self.assertEqual(of_program["backends"], of_library["backends"])
        ignored = run(self, program, "run", "-n", "1", "--no-prefix", "--", "grep", "SigIgn", "/proc/self/status", env=self.environment)
        self.assertEqual(ignored, run(self, "grep", "SigIgn", "/proc/self/status", env=self.environment))

    def check_training(self):
        """The example, with the wheel's own program; numpy is lent by the environment that this test runs in."""
        lent = os.path.join(self.folder, "lent")
        os.mkdir(lent)
        packages = os.path.dirname(os.path.dirname(__import__("numpy").__file__))
        for name in ("numpy", "numpy.libs"):
            if os.path.exists(os.path.join(packages, name)):
                os.symlink(os.path.join(packages, name), os.path.join(lent, name))
        example = shutil.copy(os.path.join(support.PACKAGE, "examples", "digits_numpy.py"), self.folder)
        program = os.path.join(self.folder, "venv", "bin", "megadp")
        losses = [[float(line) for line in support.check_ended(self, support.run_ranks(
            ranks, [example, support.DIGITS], python=self.python, program=program, env=dict(self.environment, PYTHONPATH=lent))).split()]
            for ranks in (1, 2)]
        support.check_losses(self, *losses)


if __name__ == "__main__":
    unittest.main()
