# SPDX-License-Identifier: Apache-2.0
"""Convolutions and pooling of images that are cut over ranks, against torch's on the whole image. The programs are in spatial_cases.py."""
import os
import unittest

import support

CASES = "spatial_cases.py"
NETWORK = os.path.join(support.PACKAGE, "examples", "digits_cnn.py")


class Spatial(unittest.TestCase):
    def run_case(self, ranks, case):
        support.run_case(self, ranks, CASES, case)

    def test_layers(self):
        for ranks in (2, 4):
            self.run_case(ranks, "layers")

    def test_padding(self):
        for ranks in (1, 2, 3):
            self.run_case(ranks, "padding")

    def test_own_layers(self):
        self.run_case(2, "own_layers")

    def test_copied(self):
        self.run_case(2, "copied")

    def test_refused(self):
        self.run_case(2, "refused")

    def losses(self, ranks, rows, columns):
        out = support.check_ended(self, support.run_ranks(ranks, [NETWORK, support.DIGITS, *map(str, (rows, columns, 50))]))
        return [float(line.rpartition(" ")[2]) for line in out.splitlines()]

    def test_network(self):
        """50 steps of examples/digits_cnn.py: grids of 2 x 1, 2 x 2 and 4 x 1 ranks an image, and two images at a time, beside one rank."""
        whole = self.losses(1, 1, 1)
        self.assertEqual(len(whole), 50)
        self.assertLess(whole[-1], whole[0] - 1)
        for ranks, rows, columns in ((2, 2, 1), (4, 2, 2), (4, 4, 1), (4, 2, 1)):
            apart = max(abs(a - b) for a, b in zip(self.losses(ranks, rows, columns), whole))
            print(f"{rows} x {columns} ranks an image, {ranks} in all: at most {apart:.1e} apart", flush=True)
            self.assertLess(apart, 1e-5)


if __name__ == "__main__":
    unittest.main(verbosity=2)
