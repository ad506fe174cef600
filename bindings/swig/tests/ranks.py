# SPDX-License-Identifier: Apache-2.0
"""Running programs of any language as ranks, with this build's library, and judging what they print."""
import json
import os
import re
import subprocess
import sys

TESTS = os.path.dirname(os.path.abspath(__file__))
SWIG = os.path.dirname(TESTS)
ROOT = os.path.dirname(os.path.dirname(SWIG))
BUILD = os.path.join(ROOT, "build")
LIBRARY = os.environ.get("MEGADP_LIBRARY", os.path.join(BUILD, "lib", "libmegadp.so"))
PROGRAM = os.environ.get("MEGADP_PROGRAM", os.path.join(BUILD, "bin", "megadp"))
ABI_JSON = os.environ.get("MEGADP_ABI_JSON", os.path.join(BUILD, "lib", "abi.json"))
DIGITS = os.environ.get("MEGADP_DIGITS", os.path.join(BUILD, "bindings", "digits.csv"))
MADE = os.path.join(os.environ.get("MEGADP_BINDINGS_BUILD", os.path.join(BUILD, "bindings")), "swig")
PATIENCE = 240  # seconds until a program counts as hanging
TOLERANCE_RANKS, TOLERANCE_REFERENCE = 1e-6, 1e-4

sys.path.insert(0, SWIG)


def skip(why):
    print(why)
    sys.exit(77)


def environment(**more):
    """This one's, without what would make a launcher of a test's own surroundings."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(("MEGADP_RANK", "MEGADP_NRANKS", "SLURM_", "OMPI_"))}
    found.update(MEGADP_LIBRARY=LIBRARY, **more)
    return found


def run(command, **options):
    """The finished process; killed when it hangs."""
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, timeout=PATIENCE,
                          env=options.pop("env", None) or environment(), **options)


def run_ranks(ranks, command, **options):
    return run([PROGRAM, "run", "-n", str(ranks), "--grace", "5", "--no-prefix", *command], **options)


def check_ended(test, ended, code=0):
    test.assertEqual(ended.returncode, code, f"stdout:\n{ended.stdout}\nstderr:\n{ended.stderr}")
    return ended.stdout


def check_losses(test, of_one, of_two):
    """Losses with 1 and 2 ranks, a line each, against each other and the reference; prints what was found."""
    with open(os.path.join(ROOT, "tests", "bindings", "mlp_losses.json"), encoding="ascii") as file:
        expected = json.load(file)["losses"]
    of_one, of_two = ([float(line) for line in output.split()] for output in (of_one, of_two))
    test.assertEqual((len(of_one), len(of_two)), (len(expected), len(expected)))
    between = max(abs(a - b) for a, b in zip(of_one, of_two))
    apart = max(abs(a - b) for losses in (of_one, of_two) for a, b in zip(losses, expected))
    print(f"loss {of_one[0]:.6f} to {of_one[-1]:.6f} with 1 rank, {of_two[-1]:.6f} with 2; "
          f"between 1 and 2 ranks at most {between:.1e}, from the reference {apart:.1e}", flush=True)
    test.assertLess(between, TOLERANCE_RANKS)
    test.assertLess(apart, TOLERANCE_REFERENCE)


def first_example(test, path, language):
    """(source, commands) of a README's first example: its first block in `language` and its first one in sh."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    blocks = [re.search(rf"^```{name}\n(.*?)^```", text, re.M | re.S) for name in (language, "sh")]
    test.assertTrue(all(blocks), f"{path} has no example in {language} with its commands in sh")
    return [block[1] for block in blocks]
