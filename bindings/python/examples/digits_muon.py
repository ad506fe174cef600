# SPDX-License-Identifier: Apache-2.0
"""The network of digits_numpy.py, its matrices trained by Muon and its biases by AdamW, on any number of ranks.

usage: megadp run -n 2 python digits_muon.py digits.csv [--search]
       (prints the loss of each step; --search: those at the end, of AdamW alone too, for several learning rates)
digits.csv is what tests/bindings/digits.py writes.
"""
import sys

import numpy as np

import megadp
import muon
from digits_numpy import BATCH, SHAPES, STEPS, initialize, train_step

RATES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)


def adamw(buffer, lr):
    return [megadp.Optimizer(buffer, lr=lr, betas=(0.9, 0.95))]


def train(comm, pixels, digits, make, lr, told=lambda loss: None):
    """Returns the losses of all steps."""
    by_muon = make is muon.optimizers
    buffer = megadp.Buffer(comm, [muon.param(name, shape, by_muon and len(shape) == 2) if by_muon else megadp.Param(name, shape)
                                  for name, shape in SHAPES.items()])
    initialize(buffer)
    optimizers, losses = make(buffer, lr), []
    share = range(BATCH * comm.rank // comm.size, BATCH * (comm.rank + 1) // comm.size)
    for t in range(STEPS):
        batch = (BATCH * t + np.array(share)) % len(digits)
        mean = np.array([train_step(buffer, pixels[batch], digits[batch])], np.float64)
        megadp.step_many(optimizers, wait=False) if by_muon else optimizers[0].step(wait=False)
        comm.all_reduce(mean, op="avg")
        losses.append(mean[0])
        told(mean[0])
    return losses


def main(path, search):
    data = np.loadtxt(path, delimiter=",", dtype=np.float32)
    pixels, digits = data[:, :64] / 16, data[:, 64].astype(int)
    with megadp.Comm() as comm:
        say = (lambda *words: print(*words, flush=True)) if comm.rank == 0 else (lambda *words: None)
        if not search:
            train(comm, pixels, digits, muon.optimizers, 0.05, lambda loss: say(f"{loss:.9f}"))
            return
        say("| learning rate | AdamW | Muon + AdamW |\n|---|---|---|")
        for lr in RATES:  # the mean of the last pass over the digits
            say(f"| {lr} |", " | ".join(f"{np.mean(train(comm, pixels, digits, make, lr)[-28:]):.4f}" for make in (adamw, muon.optimizers)), "|")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], "--search" in sys.argv)
