#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one file of these tests. Where nothing of it could be run, says why on the last line and leaves with 77.

usage: run.py NAME      (NAME of test_NAME.py, or of a language of test_scripting.py)
"""
import os
import sys
import unittest

import ranks  # for the path of build.py, too


def main(name):
    if not os.path.exists(ranks.LIBRARY):
        sys.exit(f"{ranks.LIBRARY} is not there: run scripts/build")
    found = os.path.exists(os.path.join(ranks.TESTS, f"test_{name}.py"))
    suite = unittest.defaultTestLoader.loadTestsFromName(f"test_{name}" if found else f"test_scripting.{name.capitalize()}")
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    if not result.wasSuccessful():
        return 1
    if result.skipped and len(result.skipped) >= result.testsRun:
        print("; ".join(sorted({reason for _, reason in result.skipped})))
        return 77
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.path.insert(0, ranks.TESTS)
    sys.exit(main(sys.argv[1]))
