#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Configures the project as where RapidCheck is not installed: the library is built without tests, which is said; tests that were asked for
are an error that says what to install. With whole paths for the installation's folders, as some packagers give them, pkg-config is told
these; and the Python package's folder outside of a checkout is refused.

usage: configure.py CMAKE GENERATOR
"""
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))


def configure(cmake, generator, *options):
    with tempfile.TemporaryDirectory() as build:
        done = subprocess.run([cmake, "-G", generator, "-S", ROOT, "-B", build, "-DCMAKE_DISABLE_FIND_PACKAGE_rapidcheck=ON",
                               "-DMEGADP_TOOLS=OFF", "-DMEGADP_EXAMPLES=OFF", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=240, check=False)
        return done.returncode, " ".join(done.stdout.split()), os.path.isdir(os.path.join(build, "tests")), pkg_config(build)


def pkg_config(build):
    path = os.path.join(build, "megadp.pc")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def check_python_package(cmake, generator):
    """It configured whatever project lay two folders above, and a source distribution held no library."""
    with tempfile.TemporaryDirectory() as project:
        with open(os.path.join(project, "CMakeLists.txt"), "w", encoding="utf-8") as file:
            file.write('message(STATUS "somebody else")\n')
        package = os.path.join(project, "vendor", "megadp")
        os.makedirs(package)
        shutil.copy(os.path.join(ROOT, "bindings", "python", "CMakeLists.txt"), package)
        for options, words in ([], "is not in a checkout of megadp"), (["-DSKBUILD_STATE=sdist"], "A source distribution would hold"):
            done = subprocess.run([cmake, "-G", generator, "-S", package, "-B", os.path.join(project, "build"), *options],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False)
            said = " ".join(done.stdout.split())
            assert done.returncode != 0 and words in said and "pip install ./bindings/python" in said and "somebody else" not in said, said


def main():
    cmake, generator = sys.argv[1:]
    status, said, has_tests, _ = configure(cmake, generator)
    assert status == 0 and not has_tests, said
    assert "the tests are left out, as RapidCheck (librapidcheck-dev) cannot be found; scripts/setup --test installs" in said, said
    status, said, _, _ = configure(cmake, generator, "-DMEGADP_TESTS=ON")
    assert status != 0, said
    assert "MEGADP_TESTS is on, but RapidCheck (librapidcheck-dev) cannot be found: install it (scripts/setup --test)" in said, said
    whole = [f"-DCMAKE_INSTALL_{name}=/opt/mdp{path}" for name, path in (("PREFIX", ""), ("LIBDIR", "/lib/x"), ("INCLUDEDIR", "/inc"))]
    told = configure(cmake, generator, *whole)[3]
    assert {"prefix=${pcfiledir}/../../..", "libdir=${prefix}/lib/x", "includedir=${prefix}/inc"} <= set(told), told
    check_python_package(cmake, generator)
    print("without RapidCheck: the library alone, or a sentence")


if __name__ == "__main__":
    main()
