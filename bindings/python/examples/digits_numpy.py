# SPDX-License-Identifier: Apache-2.0
"""Trains a two-layer network on handwritten digits, in numpy alone, on any number of ranks: tests/bindings/README.md describes the model.

usage: megadp run -n 2 python digits_numpy.py digits.csv      (prints the loss of each step)
digits.csv is what tests/bindings/digits.py writes.
"""
import sys

import numpy as np

import megadp

STEPS, BATCH = 100, 64
SHAPES = {"w1": (64, 32), "b1": (32,), "w2": (32, 10), "b2": (10,)}


def initialize(buffer):
    """The same weights on every rank, written through views of the library's memory."""
    state = 1
    for name in ("w1", "w2"):
        weights = buffer.param(name).numpy()
        rows, columns = weights.shape
        for i in range(rows):
            for j in range(columns):
                state = (state * 1664525 + 1013904223) % 2**32
                weights[i, j] = (state / 2**32 - 0.5) * 2 / np.sqrt(rows)
    buffer.changed()


def train_step(buffer, x, labels):
    """Forward and backward. Gradients leave as soon as they are known, the last layer's first. Returns the loss."""
    rows = np.arange(len(labels))
    for name in SHAPES:
        buffer.wait(name)
    w1, b1, w2, b2 = (buffer.param(name).numpy() for name in SHAPES)
    before = x @ w1 + b1
    h = np.maximum(before, 0)
    logits = h @ w2 + b2
    logits -= logits.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(logits).sum(axis=1, keepdims=True))
    loss = np.mean(log_sum[:, 0] - logits[rows, labels])

    d_logits = np.exp(logits - log_sum)
    d_logits[rows, labels] -= 1
    d_logits /= np.float32(len(labels))
    buffer.put("b2", d_logits.sum(axis=0))
    buffer.put("w2", h.T @ d_logits)
    d_before = (d_logits @ w2.T) * (before > 0)
    buffer.put("b1", d_before.sum(axis=0))
    buffer.put("w1", x.T @ d_before)
    return loss


def main(path):
    data = np.loadtxt(path, delimiter=",", dtype=np.float32)
    pixels, digits = data[:, :64] / 16, data[:, 64].astype(int)
    with megadp.Comm() as comm:
        buffer = megadp.Buffer(comm, SHAPES)
        initialize(buffer)
        optimizer = megadp.Optimizer(buffer, lr=1e-2, weight_decay=0.01)
        share = range(BATCH * comm.rank // comm.size, BATCH * (comm.rank + 1) // comm.size)
        for t in range(STEPS):
            batch = (BATCH * t + np.array(share)) % len(digits)
            mean = np.array([train_step(buffer, pixels[batch], digits[batch])], np.float64)
            optimizer.step(wait=False)  # parameters are gathered while the next forward begins
            comm.all_reduce(mean, op="avg")
            if comm.rank == 0:
                print(f"{mean[0]:.9f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1])
