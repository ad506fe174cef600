# SPDX-License-Identifier: Apache-2.0
"""Java 22 and newer without SWIG (without/java): layouts against abi.json, and a line fitted with 1 and 2 ranks."""
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import build
import ranks

SOURCE = os.path.join(ranks.SWIG, "without", "java", "ForeignLine.java")


def find_jdk():
    """The bin folder of a JDK whose foreign-function interface is final: the PATH's, or one beside the system's other ones."""
    on_path = shutil.which("javac")
    for folder in [*([os.path.dirname(on_path)] if on_path else []), *sorted(glob.glob("/usr/lib/jvm/*/bin"))]:
        javac = os.path.join(folder, "javac")
        if os.path.exists(javac):
            version = re.search(r"javac (\d+)", subprocess.run([javac, "-version"], capture_output=True, text=True, check=False).stdout)
            if version and int(version[1]) >= 22:
                return folder
    raise unittest.SkipTest("no JDK 22 or newer is installed")


class Foreign(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = find_jdk()
        cls.classes = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.classes.cleanup)
        build.run(os.path.join(folder, "javac"), "-Xlint:all,-restricted", "-Werror", "-d", cls.classes.name, SOURCE)
        cls.command = [os.path.join(folder, "java"), "--enable-native-access=ALL-UNNAMED", "-cp", cls.classes.name, "ForeignLine"]

    def test_layouts(self):
        with open(ranks.ABI_JSON, encoding="utf-8") as file:
            structs = json.load(file)["structs"]
        lines = ranks.check_ended(self, ranks.run([*self.command, "layouts"])).splitlines()
        self.assertEqual(len(lines), 3)
        for line in lines:
            name, size, *fields = line.split()
            found = {field.split("=")[0]: int(field.split("=")[1]) for field in fields}
            self.assertEqual((int(size), found), (structs[name]["size"], structs[name]["fields"]))

    def test_one_and_two_ranks(self):
        for count in (1, 2):
            printed = ranks.check_ended(self, ranks.run_ranks(count, self.command)).splitlines()
            self.assertEqual(sorted(printed), ["fit 2.23 -0.89"] * count + ["refused true"] * count)


if __name__ == "__main__":
    unittest.main()
