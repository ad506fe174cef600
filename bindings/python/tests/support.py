# SPDX-License-Identifier: Apache-2.0
"""Running Python programs as ranks, with this build's library and this checkout's package, and what such programs have in common."""
import json
import os
import re
import subprocess
import sys
import textwrap

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(os.path.dirname(PACKAGE))
BUILD = os.path.join(ROOT, "build")
PROGRAM = os.environ.get("MEGADP_PROGRAM", os.path.join(BUILD, "bin", "megadp"))
ABI_JSON = os.environ.get("MEGADP_ABI_JSON", os.path.join(BUILD, "lib", "abi.json"))
DIGITS = os.environ.get("MEGADP_DIGITS", os.path.join(BUILD, "bindings", "digits.csv"))
# JAX keeps all that it has compiled, and does not optimise it: every rank of every case compiles the same, for longer than it computes.
JAX_SETTINGS = {"XLA_FLAGS": "--xla_backend_optimization_level=0",
                "JAX_COMPILATION_CACHE_DIR": os.path.join(os.environ.get("MEGADP_BINDINGS_BUILD", os.path.join(BUILD, "bindings")), "jax-compiled"),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
DEVICE = os.environ.get("MEGADP_TEST_DEVICE", "cpu")  # PyTorch's default one, as device/sitecustomize.py makes it
PATIENCE = 240  # seconds until a program counts as hanging
TOLERANCE_RANKS, TOLERANCE_REFERENCE = 1e-6, 1e-4


def python_path():
    """Our package, and what moves PyTorch to a device where one is to be tested."""
    folders = [os.path.join(PACKAGE, "src")]
    if "MEGADP_TEST_DEVICE" in os.environ:
        folders.append(os.path.join(PACKAGE, "tests", "device"))
    return os.pathsep.join(folders)


def environment(**more):
    """This one's, with our package to be imported, and without what would make a launcher of a test's own surroundings."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(("MEGADP_RANK", "MEGADP_NRANKS", "SLURM_", "OMPI_"))}
    found.update(PYTHONPATH=python_path(), PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED="1", **JAX_SETTINGS, **more)
    return found


def run_ranks(ranks, arguments, python=sys.executable, program=PROGRAM, env=None):
    """The finished process of python with `arguments` (a path and more, or ["-c", source]) on so many ranks; killed when it hangs."""
    command = [program, "run", "-n", str(ranks), "--grace", "5", "--no-prefix", python, *arguments]
    return subprocess.run(command, env=env or environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE)


def run_source(ranks, source, **options):
    return run_ranks(ranks, ["-c", textwrap.dedent(source)], **options)


def no_products():
    """Why layers of tensor parallelism cannot be made on this machine, or None."""
    import megadp

    with megadp.Comm() as comm:
        try:
            megadp.TpLinear(comm, "column", 2, 2).close()
        except megadp.MegaDPError as error:
            if error.code != megadp.Status.UNSUPPORTED:
                raise
            return error.text
    return None


def reference_losses():
    with open(os.path.join(ROOT, "tests", "bindings", "mlp_losses.json"), encoding="ascii") as file:
        return json.load(file)["losses"]


def check_losses(test, of_one, of_two):
    """Losses with 1 and 2 ranks, as lists of numbers, against each other and the reference; prints what was found."""
    expected = reference_losses()
    test.assertEqual((len(of_one), len(of_two)), (len(expected), len(expected)))
    between = max(abs(a - b) for a, b in zip(of_one, of_two))
    apart = max(abs(a - b) for losses in (of_one, of_two) for a, b in zip(losses, expected))
    print(f"loss {of_one[0]:.6f} to {of_one[-1]:.6f} with 1 rank, {of_two[-1]:.6f} with 2; "
          f"between 1 and 2 ranks at most {between:.1e}, from the reference {apart:.1e}", flush=True)
    test.assertLess(between, TOLERANCE_RANKS)
    test.assertLess(apart, TOLERANCE_REFERENCE)


def check_ended(test, ended, code=0):
    test.assertEqual(ended.returncode, code, f"stdout:\n{ended.stdout}\nstderr:\n{ended.stderr}")
    return ended.stdout


def run_case(test, ranks, program, case, *more):
    """What a program of this folder prints, with a case and its arguments, on so many ranks: each says at its end that the case is done."""
    out = check_ended(test, run_ranks(ranks, [os.path.join(PACKAGE, "tests", program), case, *map(str, more)]))
    test.assertEqual(out.count(f"{case} done"), ranks, out)
    return out


def check_trained(test, out, ranks, what):
    """Of a model that ranks have trained together, beside the same on whole arrays: each rank prints "found" and, as JSON, the first and the last
    loss of the latter, and how far apart losses and parameters were."""
    found = [json.loads(line) for line in re.findall(r"found (\{.*\})", out)]
    test.assertEqual(len(found), ranks)
    print(f"{what}: {found[0]}", flush=True)
    for each in found:
        test.assertLess(each["last"], 0.9 * each["first"])
        test.assertLess(each["losses"], 1e-5)
        test.assertLess(each["parameters"], 1e-4)


def refused(call, text, kind=None):
    """In a program: that call() raises an error of this kind (None: MegaDPError) which says the text."""
    import megadp

    try:
        call()
    except kind or megadp.MegaDPError as error:
        assert text in str(error), str(error)
        return
    raise AssertionError(f"not refused: {text}")
