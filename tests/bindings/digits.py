#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes scikit-learn's bundled handwritten digits (1797 pictures of 8 x 8, pixels 0 to 16) as a CSV file: 64 pixels and the digit a line.

usage: digits.py FILE      (written whole or not at all; left alone where it is there)
"""
import os
import sys


def main(path):
    if os.path.exists(path):
        return 0
    from sklearn.datasets import load_digits  # only here: who has the file needs nothing

    digits = load_digits()
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    unfinished = f"{path}.{os.getpid()}"
    with open(unfinished, "w", encoding="ascii") as file:
        for pixels, label in zip(digits.data, digits.target):
            file.write(",".join(str(int(pixel)) for pixel in pixels) + f",{int(label)}\n")
    os.replace(unfinished, path)
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
