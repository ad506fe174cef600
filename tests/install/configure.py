#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Configures the project as where RapidCheck is not installed: the library is built without tests, which is said; tests that were asked for
are an error that says what to install.

usage: configure.py CMAKE GENERATOR
"""
import os
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))


def configure(cmake, generator, *options):
    with tempfile.TemporaryDirectory() as build:
        done = subprocess.run([cmake, "-G", generator, "-S", ROOT, "-B", build, "-DCMAKE_DISABLE_FIND_PACKAGE_rapidcheck=ON",
                               "-DMEGADP_TOOLS=OFF", "-DMEGADP_EXAMPLES=OFF", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=240, check=False)
        return done.returncode, " ".join(done.stdout.split()), os.path.isdir(os.path.join(build, "tests"))


def main():
    cmake, generator = sys.argv[1:]
    status, said, has_tests = configure(cmake, generator)
    assert status == 0 and not has_tests, said
    assert "the tests are left out, as RapidCheck (librapidcheck-dev) cannot be found; scripts/setup --test installs" in said, said
    status, said, _ = configure(cmake, generator, "-DMEGADP_TESTS=ON")
    assert status != 0, said
    assert "MEGADP_TESTS is on, but RapidCheck (librapidcheck-dev) cannot be found: install it (scripts/setup --test)" in said, said
    print("without RapidCheck: the library alone, or a sentence")


if __name__ == "__main__":
    main()
