#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same sum, to the last bit, on every number of ranks; and that of the same steps in plain Python.

usage: heat_test.py MEGADP HEAT
"""
import os
import subprocess
import sys
import unittest

MEGADP, HEAT = sys.argv[1], sys.argv[2]
# Launchers and schedulers leave their marks in the environment.
LAUNCHERS = ("MEGADP_", "OMPI_", "PMI", "PRTE_", "SLURM_", "MASTER_", "TORCHELASTIC_")
ALONE = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS) and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}


def heat(ranks, *arguments):
    command = [MEGADP, "run", "--no-prefix", "-n", str(ranks), "--", HEAT, *map(str, arguments)]
    return subprocess.run(command, env=ALONE, capture_output=True, text=True, timeout=120, check=False)


def in_python(rows, columns, steps):
    width = columns + 2
    now = [[0.0] * width for _ in range(rows + 2)]
    for r in range(rows):
        for c in range(columns):
            y, x = (2 * r + 1) / rows - 1, (2 * c + 1) / columns - 1
            now[r + 1][c + 1] = 100.0 if x * x + y * y < 0.25 else 10.0
    for _ in range(steps):
        new = [[0.0] * width for _ in range(rows + 2)]
        for r in range(1, rows + 1):
            for c in range(1, columns + 1):
                new[r][c] = now[r][c] + 0.2 * (now[r - 1][c] + now[r + 1][c] + now[r][c - 1] + now[r][c + 1] - 4 * now[r][c])
        now = new
    total = 0.0
    for r in range(1, rows + 1):
        for c in range(1, columns + 1):
            total += now[r][c]
    return total


class Heat(unittest.TestCase):
    def test_every_number_of_ranks(self):
        """Of a plate whose parts are uneven, and narrower than three cells."""
        for size in ((23, 17, 40), (3, 2, 9)):
            printed = []
            for ranks in (1, 2, 3, 4, 6):
                ended = heat(ranks, *size)
                self.assertEqual((ended.returncode, ended.stderr), (0, ""))
                printed.append(ended.stdout)
            self.assertEqual(set(printed), {printed[0]})
            self.assertAlmostEqual(float(printed[0].split("sum ")[1]), in_python(*size), delta=1e-9)

    def test_bad_arguments(self):
        for arguments in (("1",), ("0", "5", "5"), ("5", "x", "5"), ("5", "5", "-1")):
            ended = subprocess.run([HEAT, *arguments], env=ALONE, capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual((ended.returncode, ended.stdout, ended.stderr.count("\n")), (2, "", 1))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
