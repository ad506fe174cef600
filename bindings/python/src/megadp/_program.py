# SPDX-License-Identifier: Apache-2.0
"""The command `megadp`: becomes the program of that name, which is inside the package because it looks for the CUDA plugin from there."""
import os
import signal
import sys


def main() -> None:
    """Does not return. The program gets signals as this process got them: Python ignores two, and what is ignored stays so."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "megadp")
    os.execv(program, ["megadp", *sys.argv[1:]])
