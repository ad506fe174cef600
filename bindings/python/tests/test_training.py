# SPDX-License-Identifier: Apache-2.0
"""The network of tests/bindings/README.md, in numpy alone, with one and two ranks."""
import os
import unittest

import support


class Training(unittest.TestCase):
    def test_losses(self):
        """Equal with 1 and 2 ranks, and those of the reference in float64."""
        example = os.path.join(support.PACKAGE, "examples", "digits_numpy.py")
        losses = [[float(line) for line in support.check_ended(self, support.run_ranks(n, [example, support.DIGITS])).split()]
                  for n in (1, 2)]
        support.check_losses(self, *losses)

    def test_usage(self):
        """Without the file the example says how it is called, and where the file is from."""
        ended = support.run_ranks(1, [os.path.join(support.PACKAGE, "examples", "digits_numpy.py")])
        self.assertEqual(ended.returncode, 1)
        self.assertIn("usage: megadp run -n 2 python digits_numpy.py digits.csv", ended.stderr)
        self.assertIn("tests/bindings/digits.py", ended.stderr)


if __name__ == "__main__":
    unittest.main()
