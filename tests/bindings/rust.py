#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one stage of the Rust binding's tests by cargo, with the environment of tests/bindings/CMakeLists.txt. Leaves with 77 and a reason
where cargo is missing or too old, or crates have not been fetched (scripts/setup_rust).

usage: rust.py STAGE      (see STAGES)
"""
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RUST = os.path.join(ROOT, "bindings", "rust")
OLDEST = (1, 85)  # cargo: what the crates of the feature `candle` need


def skip(why):
    print(why)
    sys.exit(77)


def find_cargo():
    cargo = shutil.which("cargo") or os.path.expanduser("~/.cargo/bin/cargo")
    if not os.access(cargo, os.X_OK):
        skip("cargo is not installed")
    answer = subprocess.run([cargo, "--version"], capture_output=True, text=True, check=False)
    version = re.match(r"cargo (\d+)\.(\d+)", answer.stdout)
    if not version or tuple(map(int, version.groups())) < OLDEST:
        skip(f"cargo is {answer.stdout.strip() or 'not working'}; {OLDEST[0]}.{OLDEST[1]} or newer is needed")
    return cargo


class Stage:
    def __init__(self):
        self.cargo = find_cargo()
        self.passed = 0
        # Never the network: a test must not depend on it, and the crates' versions are those of Cargo.lock.
        self.env = dict(os.environ, CARGO_NET_OFFLINE="true", CARGO_TERM_COLOR="never",
                        CARGO_TARGET_DIR=os.path.join(os.environ["MEGADP_BINDINGS_BUILD"], "rust"))
        for name in ("MEGADP_LIB_DIR", "LD_LIBRARY_PATH", "RUSTFLAGS"):
            self.env.pop(name, None)

    def fetched(self, folder=RUST):
        answer = subprocess.run([self.cargo, "fetch", "--locked"], cwd=folder, env=self.env, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            if "offline" not in answer.stderr:
                sys.exit(answer.stderr)
            skip("crates have not been fetched (scripts/setup_rust)")

    def run(self, command, folder=RUST, **environment):
        """Runs it to the end, shows what it says, and counts the tests that cargo reports."""
        print("$", *command, flush=True)
        with subprocess.Popen(command, cwd=folder, env=dict(self.env, **environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace") as process:
            output = []
            for line in process.stdout:
                output.append(line)
                print(line, end="", flush=True)
        if process.returncode != 0:
            sys.exit(f"{command[0]} left with {process.returncode}")
        output = "".join(output)
        self.passed += sum(map(int, re.findall(r"^test result: ok\. (\d+) passed", output, re.M)))
        return output

    def run_cargo(self, *arguments, folder=RUST, **environment):
        return self.run([self.cargo, *arguments[:1], "--locked", *arguments[1:]], folder, **environment)


def raw(stage):
    """The mirror of the header against abi.json."""
    stage.run_cargo("test", "-p", "megadp-sys")


STAGES = {function.__name__: function for function in (raw,)}


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in STAGES:
        sys.exit(f"{__doc__}\nstages: {' '.join(STAGES)}")
    stage = Stage()
    stage.fetched()
    STAGES[sys.argv[1]](stage)
    print(f"{max(stage.passed, 1)} tests")


if __name__ == "__main__":
    main()
