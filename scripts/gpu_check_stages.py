# SPDX-License-Identifier: Apache-2.0
"""The stages of gpu_check, in the order in which they run. Each takes the stage it fills and the place it works in."""
import glob
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
import xml.etree.ElementTree

import gpu_check_pack as pack
from gpu_check_run import Stop, row, tail

RANKS_AS_PROCESSES = "NCCL before 2.30 refuses ranks whose host and device are equal; ranks as processes are given hosts of their own by " \
                     "NCCL_HOSTID, threads of one process cannot be"
TARGETS = ["megadp", "megadp_cuda", "megadp_tool", "gpt", "cuda_thread_work", "cuda_device", "cuda_gemm_speed", "conformance_test"]


class Place:
    """Folders, programs and environment of one run."""

    def __init__(self, check, build, jobs):
        self.check, self.build, self.jobs = check, os.path.abspath(build), jobs
        self.packages = os.path.join(self.build, "packages")
        self.nccl, self.cublas, self.device, self.capability = None, None, None, None
        self.cuda_home = next((home for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home and os.path.exists(home)), None)
        self.env = {}

    def program(self, name):
        path = os.path.join(self.build, "bin", name)
        if not os.path.exists(path):
            raise Stop("skipped", f"{name} was not built")
        return path

    def plugin(self):
        path = os.path.join(self.build, "lib", "libmegadp_cuda.so")
        if not os.path.exists(path):
            raise Stop("skipped", "the plugin was not built")
        return path

    def need_device(self):
        if self.device is None:
            raise Stop("skipped", "there is no device here")

    def tool(self, name):
        """A program of the CUDA toolkit, or None."""
        return shutil.which(name) or next((path for path in glob.glob(f"{self.cuda_home}/bin/{name}") if os.access(path, os.X_OK)), None)


def library_folder(packages, libraries):
    """Where the wheels that PyTorch uses have a library, or the system has: its folder and its name, or None twice."""
    folders = []
    for package in packages:
        try:
            spec = importlib.util.find_spec(package)
            folders += [os.path.join(folder, "lib") for folder in (spec.submodule_search_locations or [] if spec else [])]
        except (ImportError, AttributeError, ValueError):
            pass
    folders += ["/usr/lib/x86_64-linux-gnu", "/usr/local/cuda/lib64"]
    return next(((folder, name) for folder in folders for name in libraries if os.path.exists(os.path.join(folder, name))), (None, None))


def look_around(stage, place):
    check = place.check
    asked = {"kernel": platform.release(), "machine": platform.machine(), "cores": str(os.cpu_count())}
    commands = {"nvcc": ["nvcc", "--version"], "g++": ["g++", "--version"], "cmake": ["cmake", "--version"], "ninja": ["ninja", "--version"]}
    for name, command in commands.items():
        path = place.tool(command[0])
        asked[name] = check.run([path, *command[1:]], 20).output.strip() if path else "not there"
    asked["nvcc"] = asked["nvcc"].splitlines()[-1]
    for name in ("g++", "cmake"):
        asked[name] = asked[name].splitlines()[0]
    place.nccl, _ = library_folder(["nvidia.nccl"], ["libnccl.so.2"])
    asked["libnccl.so.2"] = place.nccl or "not there"
    folder, library = library_folder(["nvidia.cu13", "nvidia.cublas"], [f"libcublasLt.so.{version}" for version in (13, 12, 11)])
    place.cublas = folder and os.path.join(folder, library)
    asked["libcublasLt.so"] = place.cublas or "not there"
    # Ranks that share a device: NCCL from 2.30 on by the first, older ones by the host ids that each rank gets. Between such hosts it takes
    # the loopback.
    place.env = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "WARN"}
    folders = [place.nccl, folder, os.environ.get("LD_LIBRARY_PATH")]
    if place.nccl or folder:
        place.env["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    if place.tool("nvidia-smi"):
        query = "name,uuid,driver_version,memory.total,compute_cap"
        done = check.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], 30)
        if done.good and done.output.strip() and "No devices" not in done.output:
            fields = [field.strip() for field in done.output.splitlines()[0].split(",")]
            asked.update({f"device: {name}": field for name, field in zip(query.split(","), fields)})
            place.device = fields[0]
            place.capability = fields[-1] if re.fullmatch(r"\d+\.\d+", fields[-1]) else None
    for name, value in asked.items():
        row(stage, name, None if value == "not there" else True, value=value)
    if place.device is None:
        stage["notes"].append("No device: what needs one is skipped.")


def configure(stage, place):
    stage["notes"].append("Unpacked: " + (", ".join(pack.unpack(place.packages)) or "nothing, .gpu/ is not here; the system's packages are used"))
    ninja = shutil.which("ninja") is not None
    make = ["-G", "Ninja"] if ninja else ["-G", "Unix Makefiles"]
    options = {"CMAKE_BUILD_TYPE": "Release", "MEGADP_CUDA": "ON", "MEGADP_WERROR": "OFF", "MEGADP_TESTS": "ON", "MEGADP_TOOLS": "ON",
               "MEGADP_EXAMPLES": "ON", "CMAKE_PREFIX_PATH": os.path.join(place.packages, "usr"), "CMAKE_POLICY_VERSION_MINIMUM": "3.5"}
    if place.capability:  # for this device alone: half the time
        options["CMAKE_CUDA_ARCHITECTURES"] = place.capability.replace(".", "") + "-real"
    for header in (f"{pack.FOLDER}/include", os.path.join(os.path.dirname(place.nccl or ""), "include")):
        if os.path.exists(f"{header}/nccl.h"):
            options["MEGADP_NCCL_INCLUDE"] = os.path.abspath(header)
            break
    if place.nccl:
        options["MEGADP_NCCL_LIBRARY"] = os.path.join(place.nccl, "libnccl.so.2")
    if place.cublas:
        options["MEGADP_CUBLASLT_LIBRARY"] = place.cublas
    compiler = os.environ.get("CUDACXX") or place.tool("nvcc")
    env = {"CUDACXX": compiler} if compiler else {}
    for stale in ("CMakeCache.txt", "CMakeFiles"):  # another machine's, or another device's
        path = os.path.join(place.build, stale)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.remove(path)
    done = place.check.run(["cmake", "-S", ".", "-B", place.build, *make, *(f"-D{name}={value}" for name, value in options.items())], 120, env)
    row(stage, "cmake", done.good, seconds=round(done.seconds, 1), generator=make[1])
    if not done.good:
        raise Stop("failed", f"cmake: {done.how()}\n{tail(done)}")


def build(stage, place):
    """Everything that later stages run. One target that cannot be built does not keep the others from it."""
    on = "-k0" if os.path.exists(os.path.join(place.build, "build.ninja")) else "-k"
    help_text = place.check.run(["cmake", "--build", place.build, "--target", "help"], 30).output
    more = sorted(set(re.findall(r"^(?:\.\.\. )?((?:capi|cuda|nccl|cublaslt)_[a-z_0-9]+)(?::|$| )", help_text, re.M)))
    targets = TARGETS + [target for target in more if target not in TARGETS]
    done = place.check.run(["cmake", "--build", place.build, "-j", place.jobs, "--target", *targets, "--", on], 330)
    row(stage, f"{len(targets)} targets", done.good, seconds=round(done.seconds, 1), jobs=place.jobs)
    if not done.good:
        raise Stop("failed", f"the build: {done.how()}\n{tail(done)}")


def info(stage, place):
    done = place.check.run([place.program("megadp"), "info", "--json"], 60, place.env)
    if not done.good:
        raise Stop("failed", f"megadp info: {done.how()}\n{tail(done)}")
    line = next(line for line in done.output.splitlines() if line.startswith("{"))
    for backend in json.loads(line)["backends"]:
        needed = backend["name"] != "cuda" or place.device is not None
        row(stage, backend["name"], backend["available"] or (None if not needed else False), detail=backend["detail"])


def ctest(stage, place, suite, limit, env=None, only=None):
    """Runs a suite of the tests and makes a line of each."""
    report = os.path.join(place.build, f"{suite}.xml")
    if os.path.exists(report):
        os.remove(report)
    chosen = ["-R", only] if only else []
    done = place.check.run(["ctest", "--test-dir", os.path.join(place.build, "tests", suite), "-j", min(place.jobs, 4), "--timeout", "100",
                            "--output-on-failure", "--output-junit", report, *chosen], limit, env)
    if not os.path.exists(report):
        raise Stop("failed", f"ctest: {done.how()}\n{tail(done)}")
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        status = {"run": True, "notrun": None, "disabled": None}.get(case.get("status"), False)
        row(stage, case.get("name"), status, seconds=float(case.get("time", 0)))
    if not done.good:
        raise Stop("failed", f"ctest: {done.how()}\n{tail(done)}")


def plugin_tests(stage, place):
    ctest(stage, place, "cuda", 150, place.env)


def capi(stage, place):
    ctest(stage, place, "capi", 120, place.env, "^capi_")
    stage["notes"].append("These run on the host backend; the calls on a device are exercised by the example and the tests of the suite cuda.")


def read_conformance(stage, ranks, done):
    """A line for all that passed, and one for each case that did not."""
    passed = re.findall(r"^ok +(\S+)", done.output, re.M)
    skipped = re.findall(r"^skipped (\S+): (.*)", done.output, re.M)
    failures = list(re.finditer(r"^FAILED +(\S+)", done.output, re.M))
    failed = [failure[1] for failure in failures]
    finished = re.search(r"^\d+ cases, \d+ checks", done.output, re.M) is not None
    row(stage, f"{ranks} rank{'s' if ranks > 1 else ''}", bool(passed) and not failed and finished, passed=len(passed), failed=", ".join(failed),
        skipped=len(skipped), seconds=round(done.seconds, 1))
    if not finished:
        stage["notes"].append(f"With {ranks} ranks: {done.how()} after {passed[-1] if passed else 'nothing'}\n{tail(done)}")
    for failure in failures[:5]:
        at = failure.start()
        stage["notes"].append(f"With {ranks} ranks, {failure[1]}:\n{done.output[max(0, at - 900):at + 900]}")
    return skipped


def conformance(stage, place):
    place.need_device()
    program = place.program("conformance_test")
    commands = {ranks: [program, "cuda", "processes", f"--ranks={ranks}"] for ranks in (1, 2, 4)}
    skipped = {}
    # Random programs begin with new communicators, which take NCCL a second or more: so there are few, and one that fails is not shrunk.
    fewer = {"RC_PARAMS": "max_success=8 noshrink=1"}
    for ranks, done in place.check.side_by_side(commands, 160, {**place.env, **fewer}).items():
        skipped.update({name: why for name, why in read_conformance(stage, ranks, done) if "other numbers of ranks" not in why})
    for name, why in skipped.items():
        row(stage, name, None, why=why)
    row(stage, "ranks as threads", None, why=RANKS_AS_PROCESSES)


TORCH_TESTS = ("torch", "torch_gather", "torch_ddp", "torch_training", "torch_tp", "torch_tp_habits", "torch_cp", "torch_spatial", "torch_checkpoint", "torch_writes")


def torch_tests(stage, place):
    """The tests of megadp.torch as they are, with PyTorch's tensors on the device."""
    place.need_device()
    if importlib.util.find_spec("torch") is None:
        raise Stop("skipped", "PyTorch is not installed")
    env = {**place.env, "NCCL_DEBUG": "", "MEGADP_TEST_DEVICE": "cuda", "MEGADP_PROGRAM": place.program("megadp"), "MEGADP_PYTHON": sys.executable,
           "MEGADP_LIBRARY": os.path.join(place.build, "lib", "libmegadp.so"), "MEGADP_DIGITS": os.path.abspath(f"{pack.FOLDER}/digits.csv")}
    commands = {name: [sys.executable, "-B", "bindings/python/tests/run.py", name] for name in TORCH_TESTS}
    for name, done in place.check.side_by_side(commands, 450, env).items():
        read_unittest(stage, name, done)


def read_unittest(stage, name, done):
    """A line of a file of tests: which of them failed, and why some were skipped."""
    ran = re.search(r"^Ran (\d+) tests?", done.output, re.M)
    failed = sorted(set(re.findall(r"^(?:FAIL|ERROR): (\S+)", done.output, re.M)))
    skipped = re.findall(r"\.\.\. skipped (.*)$", done.output, re.M)
    row(stage, name, done.good and ran is not None, tests=int(ran[1]) if ran else 0, failed=", ".join(failed), skipped=len(skipped),
        seconds=round(done.seconds, 1))
    for why in sorted(set(skipped)):
        row(stage, f"{name}, {skipped.count(why)} tests", None, why=why)
    if not done.good:
        stage["notes"].append(f"{name}: {done.how()}\n{tail(done)}")


def train(place, backend, ranks, dtype, limit=60):
    """A run of gpt: what it printed, with its losses."""
    host = 'NCCL_HOSTID=rank$MEGADP_RANK exec "$0" "$@"'
    command = [place.program("megadp"), "run", "--no-prefix", "-n", ranks, "--", "sh", "-c", host, place.program("gpt"), *pack.MODEL,
               "--dtype", dtype, "--backend", backend]
    done = place.check.run(command, limit, place.env)
    return done, pack.losses(done.output) if done.good else []


def example(stage, place):
    """The same model on both backends, with one, two and four ranks on one device."""
    recorded = pack.recorded_losses()
    if not recorded:
        stage["notes"].append("The losses of another machine are not here (scripts/gpu_check --pack records them).")
    for ranks, dtype in ((1, "f32"), (2, "f32"), (4, "f32"), (1, "bf16"), (2, "bf16"), (2, "f16")):
        host, host_losses = train(place, "host", ranks, dtype)
        if not host_losses:
            row(stage, f"{dtype}, {ranks} ranks on the host", False)
            stage["notes"].append(f"The host backend: {host.how()}\n{tail(host)}")
            continue
        known = pack.furthest(host_losses, recorded.get(str(ranks), [])) if dtype == "f32" else None
        if place.device is None:
            row(stage, f"{dtype}, {ranks} ranks on the host", known is None or known <= pack.LOSS_LIMIT, from_recorded=known)
            continue
        done, losses = train(place, "cuda", ranks, dtype)
        apart = pack.furthest(losses, host_losses)
        from_recorded = pack.furthest(losses, recorded.get(str(ranks), [])) if dtype == "f32" else None
        good = apart is not None and apart <= pack.LOSS_LIMIT and (from_recorded is None or from_recorded <= pack.LOSS_LIMIT)
        row(stage, f"{dtype}, {ranks} rank{'s' if ranks > 1 else ''}", good, last_loss=losses[-1] if losses else None, from_host=apart,
            from_recorded=from_recorded, seconds=round(done.seconds, 1))
        if not losses:
            stage["notes"].append(f"{dtype} on {ranks} ranks: {done.how()}\n{tail(done)}")
