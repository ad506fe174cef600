#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one file of these tests with the Python that scripts/setup_python has set up (MEGADP_PYTHON names another one), or says on its
last line what is missing, and leaves with 77.

usage: run.py NAME      (NAME of test_NAME.py)
"""
import os
import subprocess
import sys

import support

HERE = os.path.dirname(os.path.abspath(__file__))
# What a file cannot do without. Those that work without numpy skip the cases that need it.
NEEDS = {"training": ("numpy",), "rules": ("numpy",), "small_state": ("numpy",), "readme": ("numpy",), "jax": ("numpy", "jax"), "jax_tp": ("numpy", "jax"),
         "jax_cp": ("numpy", "jax"), "jax_elementwise": ("numpy", "jax"), "jax_whole": ("numpy", "jax"), "caller": ("numpy",), "muon": ("numpy",),
         "torch": ("torch",), "torch_checkpoint": ("torch",), "torch_cp": ("torch",), "torch_ddp": ("torch",), "torch_gather": ("torch",), "torch_page": ("torch",),
         "torch_spatial": ("torch",), "torch_tp": ("torch",), "torch_tp_habits": ("torch",), "torch_training": ("torch",), "torch_writes": ("torch",),
         "wheel": ("numpy", "scikit_build_core"), "types": ("numpy", "jax", "mypy")}
NEEDS_DIGITS = ("training", "muon", "jax", "torch_spatial", "torch_training", "wheel")


def interpreter():
    named = os.environ.get("MEGADP_PYTHON")
    made = os.path.join(os.environ.get("MEGADP_BINDINGS_BUILD", ""), "python-venv", "bin", "python")
    return named or (made if os.path.exists(made) else sys.executable)


def lacks(python, module):
    found = subprocess.run([python, "-c", f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"], check=False)
    return found.returncode != 0


def main(name):
    python = interpreter()
    missing = [module for module in NEEDS.get(name, ()) if lacks(python, module)]
    if missing:
        print(f"{', '.join(missing)} not installed for {python}" + ("" if missing == ["torch"] else " (scripts/setup_python)"))
        return 77
    if name in NEEDS_DIGITS and not os.path.exists(os.environ.get("MEGADP_DIGITS", "")):
        print("the digits are not there (scripts/setup_python writes them)")
        return 77
    environment = dict(os.environ, PYTHONPATH=support.python_path(), PYTHONDONTWRITEBYTECODE="1")
    return subprocess.run([python, "-m", "unittest", "-v", f"test_{name}"], cwd=HERE, env=environment, stderr=subprocess.STDOUT,
                          check=False).returncode


if __name__ == "__main__":
    if len(sys.argv) != 2 or not os.path.exists(os.path.join(HERE, f"test_{sys.argv[1]}.py")):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
