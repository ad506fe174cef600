# SPDX-License-Identifier: Apache-2.0
"""The README's first example, as printed."""
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

import support


class Readme(unittest.TestCase):
    def test_first_example(self):
        with open(os.path.join(support.PACKAGE, "README.md"), encoding="utf-8") as file:
            text = file.read()
        program = re.search(r"```python\n(.*?)```", text, re.S)[1]
        command = shlex.split(re.search(r"```sh\n(.*?)```", text, re.S)[1])
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "train.py"), "w", encoding="utf-8") as file:
                file.write(program)
            self.assertEqual((command[0], "python"), (os.path.basename(support.PROGRAM), command[4]))
            path = os.pathsep.join([os.path.dirname(sys.executable), os.path.dirname(support.PROGRAM), os.environ["PATH"]])
            ended = subprocess.run(command, cwd=folder, env=support.environment(PATH=path), text=True, timeout=support.PATIENCE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out = support.check_ended(self, ended)
        numbers = [float(number) for number in re.findall(r"-?\d+\.\d*", out)]
        self.assertEqual(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 3], out)


if __name__ == "__main__":
    unittest.main()
