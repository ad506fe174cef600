# SPDX-License-Identifier: Apache-2.0
"""On what was measured: the machine and the versions of all that takes part, as the page of `run` names them."""
import json
import os
import platform
import re
import shutil
import subprocess

PACKAGES = {"torch": "PyTorch", "numpy": "numpy", "deepspeed": "DeepSpeed"}
ASK_PYTHON = """
import importlib.metadata, json, platform, sys
found = {"Python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def output(command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, timeout=60)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def caches():
    """Of the first core, as the kernel lists them; where one is shared, by how many."""
    found, root = [], "/sys/devices/system/cpu/cpu0/cache"
    for name in sorted(os.listdir(root) if os.path.isdir(root) else []):
        of = {key: read(f"{root}/{name}/{key}") for key in ("level", "type", "size", "shared_cpu_map")}
        if not of["level"] or of["type"] == "Instruction":
            continue
        sharers = sum(bin(int(part, 16)).count("1") for part in of["shared_cpu_map"].split(",") if part)
        kib = int(of["size"].rstrip("K") or 0)
        size = f"{kib >> 10} MiB" if kib % 1024 == 0 else f"{kib} KiB"
        found.append(f"L{of['level']} {size}" + (f" for {sharers} cores" if sharers > 1 else ""))
    return ", ".join(found)


def describe():
    model = re.search(r"model name\s*:\s*(.*)", read("/proc/cpuinfo"))
    total = re.search(r"MemTotal:\s*(\d+)", read("/proc/meminfo"))
    system = re.search(r'PRETTY_NAME="?([^"\n]*)', read("/etc/os-release"))
    huge = re.search(r"\[(\w+)\]", read("/sys/kernel/mm/transparent_hugepage/enabled"))
    return {"processor": model[1] if model else platform.machine(), "cores": len(os.sched_getaffinity(0)), "caches": caches(),
            "virtual": "hypervisor" in read("/proc/cpuinfo").split(), "memory_gib": round(int(total[1]) / 2**20, 1) if total else None,
            "kernel": platform.release(), "system": system[1] if system else "", "huge_pages": huge[1] if huge else ""}


def load():
    """What else the machine was doing in the last minute, in running programs."""
    return round(os.getloadavg()[0], 2)


def commit_of(build):
    """The commit that the build folder's checkout is at, and whether its sources differ from it."""
    commit = output(["git", "-C", build, "rev-parse", "--short", "HEAD"])
    top = output(["git", "-C", build, "rev-parse", "--show-toplevel"])
    if not commit or not top:
        return ""
    sources = ["src", "include", "tools", "bindings/python"]
    changed = output(["git", "-C", top, "status", "--porcelain", "--untracked-files=no", "--", *sources])
    return commit + (" with changes" if changed else "")


def versions(place):
    info = output([place.megadp, "info", "--json"])
    library = json.loads(info) if info else {}
    found = {"megadp": " ".join(filter(None, (library.get("version", ""), commit_of(place.build)))),
             "built": library.get("build", {}).get("description", "")}
    for backend in library.get("backends", []):
        if backend.get("name") == "host":
            found["host backend"] = backend.get("detail", "")
    launcher = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
    words = output([launcher, "--version"]).splitlines() if launcher else []
    if words and ("Open MPI" in words[0] or "OpenRTE" in words[0]):
        found["Open MPI"] = words[0].split()[-1]
    packages = json.loads(output([place.python, "-c", ASK_PYTHON, *PACKAGES]) or "{}")
    found.update({PACKAGES.get(name, name): value for name, value in packages.items()})
    return found
