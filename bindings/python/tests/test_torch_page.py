# SPDX-License-Identifier: Apache-2.0
"""docs/from-ddp.md: its script as it is, and with the page's three changed lines, on two ranks: the same losses."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

import support

PAGE = os.path.join(support.ROOT, "docs", "from-ddp.md")
CLOSE = 1e-6
LINE = r"rank (\d) step (\d+) loss (\d+\.\d{9}) norm (\d+\.\d{6})(?: evaluated (\d+\.\d{9}))?"  # two ranks' lines may run into one
GLOO_ABORTS = "terminate called without an active exception"  # now and then a process of PyTorch's own DDP, as its interpreter ends


def read_page():
    """(the script, [(a line, what it becomes)])"""
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    script = re.search(r"```python\n(.*?)```", text, re.S).group(1)
    lines = re.search(r"```diff\n(.*?)```", text, re.S).group(1).splitlines()
    return script, [(old[1:], new[1:]) for old, new in zip(lines[::2], lines[1::2])]


class Page(unittest.TestCase):
    def run_script(self, source, folder, is_ours):
        path = os.path.join(folder, "train.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(source)
        command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", path]
        environment = {name: value for name, value in support.environment(OMP_NUM_THREADS="1").items() if not name.startswith("MEGADP_R")}
        for _ in range(1 if is_ours else 4):
            ended = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   timeout=support.PATIENCE)
            if GLOO_ABORTS not in ended.stderr:
                break
        found = re.findall(LINE, support.check_ended(self, ended))
        found.sort(key=lambda values: (int(values[0]), int(values[1])))
        return {name: [float(values[i]) for values in found if values[i]] for i, name in enumerate(("loss", "norm", "evaluated"), 2)}

    def test_three_lines(self):
        script, changes = read_page()
        self.assertEqual(len(changes), 3)
        changed = script
        for old, new in changes:
            self.assertEqual(changed.count(old + "\n"), 1, old)
            changed = changed.replace(old + "\n", new + "\n")
        with tempfile.TemporaryDirectory() as folder:
            theirs, ours = self.run_script(script, folder, False), self.run_script(changed, folder, True)
        self.assertEqual([len(theirs[name]) for name in ("loss", "norm", "evaluated")], [100, 100, 10])
        self.assertLess(theirs["loss"][49], 0.85 * theirs["loss"][0])
        for name in theirs:
            apart = max(abs(a - b) / abs(b) for a, b in zip(ours[name], theirs[name]))
            print(f"{name}: {theirs[name][0]:.6f} to {theirs[name][-1]:.6f}, at most {apart:.1e} from DDP's", flush=True)
            self.assertLessEqual(apart, CLOSE if name != "norm" else 1e-5, name)


if __name__ == "__main__":
    unittest.main()
