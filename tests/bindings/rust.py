#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one stage of the Rust binding's tests by cargo, with the environment of tests/bindings/CMakeLists.txt. Leaves with 77 and a reason
where cargo is missing or too old, or crates have not been fetched (scripts/setup_rust).

usage: rust.py STAGE      (see STAGES)
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RUST = os.path.join(ROOT, "bindings", "rust")
OLDEST = (1, 89)  # cargo: what burn's crates need; candle's need 1.88


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


def without_digits():
    """Why what trains on the digits cannot run; None where it can."""
    path = os.environ["MEGADP_DIGITS"]
    return None if os.path.exists(path) else f"the digits (tests/bindings/digits.py) are not in {path}"


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
        version = subprocess.run([self.cargo, "-vV"], capture_output=True, text=True, check=True).stdout
        host = re.search(r"^host: (\S+)", version, re.M)[1]  # without it, crates of other systems would be asked for too
        answer = subprocess.run([self.cargo, "fetch", "--locked", "--target", host], cwd=folder, env=self.env, capture_output=True, text=True,
                                check=False)
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

    def run_cargo_alone(self, *arguments, folder=RUST, **environment):
        return self.run([self.cargo, *arguments], folder, **environment)

    def run_cargo(self, *arguments, folder=RUST, **environment):
        return self.run([self.cargo, *arguments[:1], "--locked", *arguments[1:]], folder, **environment)


def raw(stage):
    """The mirror of the header against abi.json."""
    stage.run_cargo("test", "-p", "megadp-sys")
    # Beside the other builds, which another variable would have made anew.
    refused = subprocess.run([stage.cargo, "check", "--locked", "-p", "megadp-sys"], cwd=RUST, capture_output=True, text=True, check=False,
                             env=dict(stage.env, MEGADP_LIB_DIR="no/such", CARGO_TARGET_DIR=stage.env["CARGO_TARGET_DIR"] + "-refused"))
    if refused.returncode == 0 or f"MEGADP_LIB_DIR: no/such in {os.path.join(RUST, 'megadp-sys')}: " not in refused.stderr:
        sys.exit(f"a relative MEGADP_LIB_DIR: {refused.stderr}")


def library(stage):
    """Unit tests, tests over ranks as threads and processes, examples of the documentation."""
    left_out = []
    if why := without_digits():
        print(f"skipped plain_rust_trains_as_the_reference: {why}")
        left_out = ["--", "--skip", "plain_rust_trains_as_the_reference"]
    stage.run_cargo("test", "-p", "megadp", "--features", "half", "--no-fail-fast", *left_out)


def candle(stage):
    """The adapter for candle, and its example on 1 and 2 ranks."""
    if why := without_digits():
        skip(why)
    stage.run_cargo("build", "-p", "megadp", "--features", "candle", "--example", "candle_digits")
    tests = [argument for name in ("candle_test", "candle_tp_test", "candle_cp_test", "candle_halo_test") for argument in ("--test", name)]
    stage.run_cargo("test", "-p", "megadp", "--features", "candle", *tests, "--", "--nocapture")
    stage.run_cargo("test", "-p", "megadp", "--features", "candle", "--doc", "candle")


def losses(output):
    return [float(line.split()[2]) for line in output.splitlines() if line.startswith("loss ")]


def burn(stage):
    """The example for burn on 1 and 2 ranks, and its own test. What 2 ranks leave in a checkpoint, 1 rank goes on from."""
    if why := without_digits():
        skip(why)
    folder = os.path.join(RUST, "examples-burn")
    stage.fetched(folder)
    stage.run_cargo_alone("fmt", "--check", folder=folder)
    stage.run_cargo("build", folder=folder)
    program = os.path.join(stage.env["CARGO_TARGET_DIR"], "debug", "burn-digits")
    stage.run_cargo("test", folder=folder)
    with tempfile.TemporaryDirectory() as empty:
        one, two, on = (losses(stage.run([os.environ["MEGADP_PROGRAM"], "run", "--no-prefix", "-n", *ranks]))
                        for ranks in (("1", program), ("2", program, empty), ("1", program, empty)))
    with open(os.path.join(ROOT, "tests", "bindings", "mlp_losses.json"), encoding="utf-8") as file:
        reference = json.load(file)["losses"]
    if not len(one) == len(two) == len(reference):
        sys.exit(f"{len(one)} losses on 1 rank, {len(two)} on 2; {len(reference)} are right")
    apart = max(abs(a - b) for a, b in zip(one, two))
    off = max(abs(a - b) for a, b in zip(one, reference))
    print(f"burn-digits: 1 and 2 ranks differ by {apart:.1e}, from the reference by {off:.1e}")
    if not (apart <= 1e-6 and off <= 1e-4):
        sys.exit("more than 1e-6, or 1e-4")
    if not on[0] < one[0] / 2:
        sys.exit(f"a loss of {on[0]} after a checkpoint that was trained; {one[0]} is that of an untrained model")
    stage.passed += 1


def style(stage):
    """Formatting, lints, documentation: without a warning."""
    packages = ["--workspace", "--features", "candle"]
    stage.run_cargo_alone("fmt", "--check")
    stage.run_cargo("clippy", *packages, "--all-targets", "--", "-D", "warnings")
    stage.run_cargo("doc", *packages, "--no-deps", RUSTDOCFLAGS="-D warnings")
    stage.passed = 3


def readme_blocks(language):
    with open(os.path.join(RUST, "README.md"), encoding="utf-8") as file:
        return re.findall(rf"^```{language}\n(.*?)^```", file.read(), re.M | re.S)


def write(folder, name, text):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def start_crate(stage, name, *features):
    """A new crate, in an empty folder, that depends on ours; with the README's first program."""
    parent = os.path.join(os.environ["MEGADP_BINDINGS_BUILD"], "rust-crates")
    crate = os.path.join(parent, name)
    shutil.rmtree(crate, ignore_errors=True)
    os.makedirs(parent, exist_ok=True)
    stage.run_cargo_alone("new", "--vcs", "none", name, folder=parent)
    stage.run_cargo_alone("add", "--path", os.path.join(RUST, "megadp"), *features, folder=crate)
    write(crate, "src/main.rs", readme_blocks("rust")[0])
    return crate


def expect(output, ranks):
    line = f"{ranks} ranks: y = 2.00x + 1.00, loss 0.000"
    if line not in output.splitlines() or f"# {line}\n" not in "".join(readme_blocks("sh")):
        sys.exit(f"the README promises {line!r}")


def new_crate(stage):
    """The README's programs in a crate of its own, as printed there: the first by cargo run, and both as two ranks."""
    crate = start_crate(stage, "first")
    expect(stage.run_cargo_alone("run", folder=crate), 1)
    write(crate, "build.rs", readme_blocks("rust")[1])
    stage.run_cargo_alone("build", folder=crate)
    program = os.path.join(stage.env["CARGO_TARGET_DIR"], "debug", "first")
    # Without the variable that it was built with: the program itself knows where the library lies.
    expect(stage.run([os.environ["MEGADP_PROGRAM"], "run", "--no-prefix", "-n", "2", program], crate, MEGADP_LIBRARY=""), 2)
    expect_layers(stage, crate)
    stage.passed = 3


def expect_layers(stage, crate):
    """The README's layers that are cut over two ranks, in place of the first program."""
    write(crate, "src/main.rs", readme_blocks("rust")[2])
    stage.run_cargo_alone("build", folder=crate)
    program = os.path.join(stage.env["CARGO_TARGET_DIR"], "debug", "first")
    printed = stage.run([os.environ["MEGADP_PROGRAM"], "run", "--no-prefix", "-n", "2", program], crate, MEGADP_LIBRARY="")
    with open(os.path.join(RUST, "README.md"), encoding="utf-8") as file:
        promised = re.search(r"As two ranks it prints `(.*?)`", file.read())[1]
    if promised not in printed.splitlines():
        sys.exit(f"the README promises {promised!r}")


def like_the_library(build_dir):
    """What makes the build script compile as this build's library was compiled, so that a compiler cache has all of it: the same options, from
    a folder that lies to the sources as this build's does, since the cache knows paths by how they lie to that."""
    generator = {"CMAKE_GENERATOR": "Ninja"} if shutil.which("ninja") else {}
    return dict(generator, MEGADP_LIBRARY="", MEGADP_CMAKE_OPTIONS="-DMEGADP_WERROR=ON", MEGADP_BUILD_DIR=build_dir,
                CCACHE_BASEDIR=os.path.dirname(build_dir))


def expect_own_folder(stage, crate):
    """Without MEGADP_BUILD_DIR the build is in cargo's folder; where it fails, that is said."""
    options = {"MEGADP_LIBRARY": "", "MEGADP_CMAKE_OPTIONS": "-DCMAKE_CXX_COMPILER=/nowhere/c++"}
    ended = subprocess.run([stage.cargo, "build"], cwd=crate, env=dict(stage.env, **options), capture_output=True, text=True, check=False)
    own = re.escape(os.path.join(os.path.realpath(stage.env["CARGO_TARGET_DIR"]), "debug", "build", "megadp-sys-"))
    if ended.returncode == 0 or not re.search(rf'"-B" "{own}\w+/out/build".* ended with', ended.stderr) or "/nowhere/c++" not in ended.stderr:
        sys.exit(f"cargo build left with {ended.returncode} where the compiler is missing, and said\n{ended.stderr}")


def bundled(stage):
    """The same with the library inside of the program."""
    crate = start_crate(stage, "whole", "--features", "bundled")
    expect_own_folder(stage, crate)
    build = os.path.dirname(os.environ["MEGADP_BINDINGS_BUILD"])
    beside = f"{build}-crate" if os.path.dirname(build) == ROOT else os.path.join(os.environ["MEGADP_BINDINGS_BUILD"], "build-crate")
    stage.run_cargo_alone("build", folder=crate, **like_the_library(beside))
    program = os.path.join(stage.env["CARGO_TARGET_DIR"], "debug", "whole")
    if "libmegadp" in stage.run(["ldd", program]):
        sys.exit("the program still needs a shared library")
    expect(stage.run([os.environ["MEGADP_PROGRAM"], "run", "--no-prefix", "-n", "2", program], crate), 2)


def package(stage):
    """What a registry would be given: the packages, unpacked where nothing of the repository is, and in a program of its own, bundled."""
    version = subprocess.run([stage.cargo, "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, re.match(r"cargo (\d+)\.(\d+)", version).groups())) < (1, 90):
        skip("cargo 1.90 or newer is needed to package crates of a workspace that depend on each other")
    with tempfile.TemporaryDirectory(prefix="megadp-packages-") as outside:
        stage.env.update(CARGO_TARGET_DIR=os.path.join(outside, "target"))  # of its own: it holds nothing that was built before
        stage.run_cargo("package", "--workspace", "--no-verify", "--allow-dirty")
        for path in sorted(glob.glob(os.path.join(outside, "target", "package", "*.crate"))):
            print(f"{os.path.basename(path)}: {os.path.getsize(path)} bytes")
            stage.run(["tar", "-xzf", path], outside)
        crates = {re.sub(r"-[\d.]+$", "", name): os.path.join(outside, name) for name in os.listdir(outside) if name.startswith("megadp")}
        if sorted(crates) != ["megadp", "megadp-sys"]:
            sys.exit(f"packaged were {sorted(crates)}")
        stage.run_cargo_alone("new", "--vcs", "none", "outside", folder=outside)
        crate = os.path.join(outside, "outside")
        write(crate, "src/main.rs", readme_blocks("rust")[0])
        with open(os.path.join(crate, "Cargo.toml"), "a", encoding="utf-8") as file:  # a registry would say where both are
            file.write(f'megadp = {{ path = "{crates["megadp"]}", features = ["bundled"] }}\n\n'
                       f'[patch.crates-io]\nmegadp-sys = {{ path = "{crates["megadp-sys"]}" }}\n')
        stage.run_cargo_alone("build", folder=crate, **like_the_library(os.path.join(crates["megadp-sys"], "library", "build")))
        program = os.path.join(outside, "target", "debug", "outside")
        if "libmegadp" in stage.run(["ldd", program], outside):
            sys.exit("the program still needs a shared library")
        expect(stage.run([os.environ["MEGADP_PROGRAM"], "run", "--no-prefix", "-n", "2", program], crate), 2)


STAGES = {function.__name__: function for function in (raw, library, candle, burn, new_crate, bundled, package, style)}


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in STAGES:
        sys.exit(f"{__doc__}\nstages: {' '.join(STAGES)}")
    stage = Stage()
    stage.fetched()
    STAGES[sys.argv[1]](stage)
    print(f"{max(stage.passed, 1)} tests")


if __name__ == "__main__":
    main()
