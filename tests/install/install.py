#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs the build into a prefix of its own, moves that elsewhere, and builds and runs a C program against it: through CMake's
find_package and through pkg-config. Builds and runs the program printed in README.md, alone and under the installed `megadp run`. Also
installs with DESTDIR, as packagers do, and runs the commands printed below that program, in a path with spaces.

usage: install.py CMAKE BUILD_DIR GENERATOR CC VERSION
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", ".."))
sys.path.insert(0, os.path.join(HERE, "..", "multi"))
from launcher_variables import without_launcher  # pylint: disable=wrong-import-position

# The library's place must come from the installation.
DROPPED = re.compile(r"(LD_LIBRARY_PATH|DESTDIR|PKG_CONFIG)")
ENVIRONMENT = {name: value for name, value in without_launcher().items() if not DROPPED.match(name)}


class Failure(Exception):
    pass


def run(*command, cwd=None, **extra):
    done = subprocess.run(command, cwd=cwd, env={**ENVIRONMENT, **extra}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=240, check=False)
    if done.returncode:
        raise Failure(f"{' '.join(command)} left with {done.returncode}:\n{done.stdout}")
    return done.stdout.strip()


def files_below(root):
    return sorted(os.path.relpath(os.path.join(directory, name), root) for directory, _, names in os.walk(root) for name in names)


def expect_files(root, build, version):
    present = files_below(root)
    patterns = [r"include/megadp\.h", r"include/megadp_layers\.h", r"lib.*/libmegadp\.so", r"lib.*/libmegadp\.so\.0", rf"lib.*/libmegadp\.so\.{re.escape(version)}",
                r"lib.*/cmake/megadp/megadpConfig\.cmake", r"lib.*/cmake/megadp/megadpConfigVersion\.cmake",
                r"lib.*/cmake/megadp/megadpTargets\.cmake", r"lib.*/pkgconfig/megadp\.pc", r"share/megadp/abi\.json", r"bin/megadp",
                r"share/doc/megadp/LICENSE"]
    if os.path.exists(os.path.join(build, "lib", "libmegadp_cuda.so")):
        patterns.append(r"lib.*/libmegadp_cuda\.so")
    lacking = [pattern for pattern in patterns if not any(re.fullmatch(pattern, path) for path in present)]
    if lacking:
        raise Failure(f"not installed: {lacking}; installed: {present}")
    headers = [path for path in present if path.startswith("include/")]
    if headers != ["include/megadp.h", "include/megadp_layers.h"]:
        raise Failure(f"megadp.h and what it includes are the public headers, but installed are {headers}")
    return present


def through_cmake(cmake, generator, prefix, work):
    run(cmake, "-G", generator, "-S", os.path.join(HERE, "cmake_user"), "-B", work, f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DCMAKE_BUILD_TYPE=Release")
    run(cmake, "--build", work)
    return run(os.path.join(work, "user"))


def through_pkg_config(cc, prefix, pc_dir, version, work):
    if not shutil.which("pkg-config"):
        raise Failure("pkg-config is not installed")
    if pkg_config(pc_dir, "--modversion") != [version]:
        raise Failure(f"pkg-config says version {pkg_config(pc_dir, '--modversion')}, the build is {version}")
    os.makedirs(work)
    program = os.path.join(work, "user")
    run(cc, "-std=c99", "-Wall", "-Wextra", "-Werror", *pkg_config(pc_dir, "--cflags"), os.path.join(HERE, "user.c"), "-o", program,
        *pkg_config(pc_dir, "--libs"))
    return run(program, LD_LIBRARY_PATH=os.path.dirname(pc_dir))


def pkg_config(pc_dir, *what):
    return run("pkg-config", *what, "megadp", PKG_CONFIG_PATH=pc_dir).split()


def readme_block(pattern):
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        block = re.search(rf"^```{pattern}^```$", file.read(), re.S | re.M)
    if not block:
        raise Failure(f"README.md has no {pattern}")
    return block[1]


def readme_commands(cc, build, work):
    """The commands below README.md's program, as they stand there, in a tree whose path has spaces."""
    os.makedirs(work)
    os.symlink(os.path.join(ROOT, "include"), os.path.join(work, "include"))
    os.symlink(build, os.path.join(work, "build"))
    with open(os.path.join(work, "line.c"), "w", encoding="utf-8") as file:
        file.write(readme_block(r"c\n(.*?)"))
    commands = readme_block(r"sh\n(cc .*?)")
    said = run("sh", "-e", "-c", f'cd "$0"; cc() {{ "$CC" "$@"; }}; {commands}', work, CC=cc)
    if sorted(re.findall(r"rank . of .: y = 3.00 x \+ 1.00$", said, re.M)) != [f"rank {rank} of 2: y = 3.00 x + 1.00" for rank in range(2)]:
        raise Failure(f"README.md's commands said {said}")


def readme_program(cc, prefix, pc_dir, work):
    """The first C program of README.md: one rank and two must find the line that it says."""
    source = readme_block(r"c\n(.*?)")
    os.makedirs(work)
    program = os.path.join(work, "line")
    with open(program + ".c", "w", encoding="utf-8") as file:
        file.write(source)
    run(cc, "-std=c99", "-Wall", "-Wextra", "-Werror", *pkg_config(pc_dir, "--cflags"), program + ".c", "-o", program,
        *pkg_config(pc_dir, "--libs"))
    for ranks, command in ((1, [program]), (2, [os.path.join(prefix, "bin", "megadp"), "run", "-n", "2", "--no-prefix", "--", program])):
        said = sorted(run(*command, LD_LIBRARY_PATH=os.path.dirname(pc_dir)).splitlines())
        expected = [f"rank {rank} of {ranks}: y = 3.00 x + 1.00" for rank in range(ranks)]
        if said != expected:
            raise Failure(f"README.md's program on {ranks} rank(s) said {said}, not {expected}")


def main(cmake, build, generator, cc, version):
    with tempfile.TemporaryDirectory() as directory:
        first, prefix = os.path.join(directory, "first"), os.path.join(directory, "moved here")
        run(cmake, "--install", build, "--prefix", first)
        os.rename(first, prefix)
        present = expect_files(prefix, build, version)
        pc_dir = os.path.join(prefix, os.path.dirname(next(path for path in present if path.endswith("megadp.pc"))))
        by_cmake = through_cmake(cmake, generator, prefix, os.path.join(directory, "by cmake"))
        os.rename(prefix, first)  # pkg-config does not do spaces
        by_pkg_config = through_pkg_config(cc, first, pc_dir.replace(prefix, first), version, os.path.join(directory, "by_pkg_config"))
        if by_cmake != by_pkg_config or not by_cmake.startswith(f"megadp {version.rsplit('.', 1)[0]}: rank 0 of 1"):
            raise Failure(f"the programs said {by_cmake!r} and {by_pkg_config!r}")
        readme_program(cc, first, pc_dir.replace(prefix, first), os.path.join(directory, "readme"))
        readme_commands(cc, build, os.path.join(directory, "a path with spaces"))
        staged = os.path.join(directory, "staged")
        run(cmake, "--install", build, DESTDIR=staged)
        if len(files_below(staged)) != len(present):
            raise Failure(f"with DESTDIR other files are installed: {files_below(staged)}")
    print(f"{len(present)} files installed; {by_cmake}")


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except Failure as failure:
        sys.exit(str(failure))
