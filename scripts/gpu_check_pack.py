# SPDX-License-Identifier: Apache-2.0
"""What a GPU machine without a network lacks: collected into .gpu/ by --pack here, unpacked into a folder of their own there."""
import glob
import json
import os
import shutil
import subprocess
import sys

FOLDER = ".gpu"
PACKAGES = ["libhwy-dev", "libxxhash-dev", "nlohmann-json3-dev", "libcli11-dev", "libfmt-dev", "libcmocka-dev", "libcmocka0", "librapidcheck-dev"]
FMT_LIBRARIES = ["libfmt9", "libfmt10", "libfmt8"]  # its CMake files ask for the library although only the headers are used
DIGITS = "build/bindings/digits.csv"
LIMIT_BYTES = 50 << 20
# The host's losses are recorded with these; the text is the project's own, so that both machines have the same. With f32 parameters alone:
# another machine has another BLAS, and what that changes in the last bit, rounding to bf16 makes large.
MODEL = ["--text", "LICENSE", "--layers", "2", "--width", "32", "--heads", "2", "--context", "32", "--batch", "24", "--steps", "50",
         "--timeout", "60", "--json", "--no-hash"]
LOSS_LIMIT = 1e-3
RANKS = (1, 2, 4)


def losses(output):
    """The losses of a run of gpt, in order of the steps; its stdout may hold lines of others."""
    found = []
    for line in output.splitlines():
        if line.startswith("{"):
            step = json.loads(line)
            if "step" in step:
                found.append(step["loss"])
    return found


def furthest(one, other):
    """The largest relative difference, or None where they cannot be compared."""
    if not one or len(one) != len(other) or None in one or None in other:
        return None
    return max(abs(a - b) / abs(b) for a, b in zip(one, other))


def nccl_header():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for path in (f"{cache}/megadp/cuda-13.0/nvidia/nccl/include/nccl.h", "/usr/include/nccl.h", "/usr/local/cuda/include/nccl.h"):
        if os.path.exists(path):
            return path
    return None


def download(folder):
    """The package files, as this machine's own distribution has them. A sentence where that fails."""
    os.makedirs(folder)
    for package in PACKAGES:
        done = subprocess.run(["apt-get", "-q", "download", package], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            return f"apt-get download {package} failed (apt-get update first?): {done.stderr.strip()[-300:]}"
    for package in FMT_LIBRARIES:
        done = subprocess.run(["apt-get", "-q", "download", package], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode == 0:
            return None
    return f"none of {', '.join(FMT_LIBRARIES)} can be downloaded"


def record(gpt, megadp):
    """Losses of the host backend on 1, 2 and 4 ranks: {ranks: [loss]}, or a sentence why not."""
    recorded = {}
    for ranks in RANKS:
        command = [megadp, "run", "--no-prefix", "-n", str(ranks), "--", gpt, *MODEL, "--backend", "host"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0 or not losses(done.stdout):
            return None, f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()[-300:]}"
        recorded[str(ranks)] = losses(done.stdout)
    return recorded, None


def pack():
    """Makes .gpu/ anew; returns the exit code."""
    new = f"{FOLDER}.new"
    shutil.rmtree(new, ignore_errors=True)
    os.makedirs(f"{new}/include")
    why = download(f"{new}/packages")
    header = nccl_header()
    if why is None and header is None:
        why = "nccl.h is not here: run scripts/setup --cuda"
    if why is None:
        shutil.copy(header, f"{new}/include/nccl.h")
        programs = [f"build/bin/{name}" for name in ("gpt", "megadp")]
        missing = [path for path in programs if not os.path.exists(path)]
        if missing:
            why = f"{missing[0]} is not built, and the host's losses are recorded with it: run scripts/build first"
    if why is None:
        recorded, why = record(*programs)
    if why is None and not os.path.exists(DIGITS):
        why = f"{DIGITS} is not here, which tests of the Python binding train on: run scripts/setup_python"
    if why is not None:
        shutil.rmtree(new, ignore_errors=True)
        print(f"gpu_check: --pack: {why}", file=sys.stderr)
        return 1
    with open(f"{new}/losses.json", "w", encoding="utf-8") as file:
        json.dump({"model": MODEL, "losses": recorded}, file)
    shutil.copy(DIGITS, new)
    total = sum(os.path.getsize(path) for path in glob.glob(f"{new}/**", recursive=True) if os.path.isfile(path))
    if total > LIMIT_BYTES:
        shutil.rmtree(new, ignore_errors=True)
        print(f"gpu_check: --pack: {total} bytes were collected; more than {LIMIT_BYTES} cannot be taken along", file=sys.stderr)
        return 1
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.rename(new, FOLDER)
    print(f"gpu_check: {FOLDER}/ holds {len(glob.glob(f'{FOLDER}/packages/*.deb'))} packages, nccl.h, the digits and the host's losses, {total / 2**20:.1f} MiB")
    return 0


def unpack(to):
    """Lays the packages into the folder `to`; returns what was unpacked. dpkg-deb needs no root and touches nothing else."""
    packages = sorted(glob.glob(f"{FOLDER}/packages/*.deb"))
    shutil.rmtree(to, ignore_errors=True)
    os.makedirs(to)
    for package in packages:
        subprocess.run(["dpkg-deb", "-x", package, to], check=True, timeout=60)
    return [os.path.basename(package) for package in packages]


def recorded_losses():
    try:
        with open(f"{FOLDER}/losses.json", encoding="utf-8") as file:
            return json.load(file)["losses"]
    except (OSError, ValueError, KeyError):
        return {}
