# SPDX-License-Identifier: Apache-2.0
"""Go: `go test` of bindings/swig/go, which trains with 1 and 2 ranks and has the failures, and the README's first example."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import build
import ranks

GO = os.path.join(ranks.SWIG, "go")
OLDEST = (1, 19)


def find_go():
    go = shutil.which("go") or "/usr/local/go/bin/go"
    version = re.search(r"go(\d+)\.(\d+)", build.ask(go, "version")) if os.path.exists(go) else None
    if not version or tuple(map(int, version.groups())) < OLDEST:
        raise unittest.SkipTest(f"go {OLDEST[0]}.{OLDEST[1]} or newer is not installed (scripts/setup_swig)")
    if not shutil.which("swig"):
        raise unittest.SkipTest("swig is not installed (scripts/setup_swig)")
    return go


class Go(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.go = find_go()
        folder = os.path.dirname(os.path.realpath(ranks.LIBRARY))
        # The go command does not see what shim.swigcxx includes; a definition that changes with it makes it compile again. Nothing is fetched.
        cls.env = ranks.environment(
            CGO_LDFLAGS=f"-L{folder} -Wl,-rpath,{folder}", CGO_CPPFLAGS=f"-DMEGADP_FINGERPRINT={build.fingerprint('go')[:16]}", CGO_CXXFLAGS="-O1",
            GOPROXY="off", GOTOOLCHAIN="local", GOFLAGS="-mod=mod", CGO_ENABLED="1",
            PATH=os.pathsep.join([os.path.dirname(ranks.PROGRAM), os.path.dirname(cls.go), os.environ["PATH"]]))
        cls.env.setdefault("HOME", ranks.MADE)

    def test_formatting(self):
        gofmt = shutil.which("gofmt", path=self.env["PATH"])
        listed = subprocess.run([gofmt, "-l", GO], capture_output=True, text=True, check=True).stdout
        self.assertEqual(listed, "")

    def test_package(self):
        ended = ranks.run([self.go, "test", "-count=1", "-v", "."], cwd=GO, env=self.env)
        print(ended.stdout, flush=True)
        ranks.check_ended(self, ended)
        self.assertEqual(len(re.findall(r"^--- PASS", ended.stdout, re.M)) + len(re.findall(r"^--- SKIP", ended.stdout, re.M)), 31)

    def test_readme(self):
        """Its first example runs as printed."""
        source, commands = ranks.first_example(self, os.path.join(GO, "README.md"), "go")
        self.assertEqual(self.printed(source, commands), ["[0] w 2.00 b -1.00"])

    def test_readme_layers(self):
        """Its layers that are cut over two ranks run as printed, by the first example's commands."""
        with open(os.path.join(GO, "README.md"), encoding="utf-8") as file:
            section = file.read().split("## Tensor and sequence parallelism")[1]
        _, commands = ranks.first_example(self, os.path.join(GO, "README.md"), "go")
        promised = re.search(r"As two ranks it prints `(.*?)`", section)[1]
        self.assertEqual(self.printed(re.search(r"^```go\n(.*?)^```", section, re.M | re.S)[1], commands), [f"[0] {promised}"])

    def printed(self, source, commands):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "main.go"), "w", encoding="utf-8") as file:
                file.write(source)
            ended = ranks.run(["bash", "-euc", commands], cwd=folder, env=dict(self.env, MEGADP=ranks.ROOT))
            return ranks.check_ended(self, ended).splitlines()


if __name__ == "__main__":
    unittest.main()
