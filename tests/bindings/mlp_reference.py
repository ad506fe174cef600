#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The losses of README.md's model, in float64, by numpy alone: what every binding's training is compared with.

usage: mlp_reference.py DIGITS.csv [--write mlp_losses.json]      (without --write: prints them, one a line)
"""
import argparse
import json

import numpy as np

STEPS, BATCH, LR, BETA1, BETA2, EPS, DECAY = 100, 64, 1e-2, 0.9, 0.999, 1e-8, 0.01


def initial_weights():
    state = 1
    weights = []
    for rows, columns in ((64, 32), (32, 10)):
        draws = np.empty(rows * columns)
        for i in range(draws.size):
            state = (state * 1664525 + 1013904223) % 2**32
            draws[i] = (state / 2**32 - 0.5) * 2 / np.sqrt(rows)
        weights += [draws.astype(np.float32).astype(np.float64).reshape(rows, columns), np.zeros(columns)]
    return weights


def loss_and_gradients(params, x, labels):
    w1, b1, w2, b2 = params
    rows = np.arange(len(labels))
    before = x @ w1 + b1
    h = np.maximum(before, 0)
    logits = h @ w2 + b2
    logits -= logits.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(logits).sum(axis=1, keepdims=True))
    loss = float(np.mean(log_sum[:, 0] - logits[rows, labels]))
    d_logits = np.exp(logits - log_sum)
    d_logits[rows, labels] -= 1
    d_logits /= len(labels)
    d_before = (d_logits @ w2.T) * (before > 0)
    return loss, [x.T @ d_before, d_before.sum(axis=0), h.T @ d_logits, d_logits.sum(axis=0)]


def losses(path):
    data = np.loadtxt(path, delimiter=",")
    x, labels = data[:, :64] / 16, data[:, 64].astype(int)
    params = initial_weights()
    m, v = ([np.zeros_like(p) for p in params] for _ in range(2))
    found = []
    for t in range(STEPS):
        batch = (BATCH * t + np.arange(BATCH)) % len(labels)
        loss, grads = loss_and_gradients(params, x[batch], labels[batch])
        found.append(loss)
        for i, g in enumerate(grads):
            m[i] = BETA1 * m[i] + (1 - BETA1) * g
            v[i] = BETA2 * v[i] + (1 - BETA2) * g * g
            corrected = m[i] / (1 - BETA1 ** (t + 1)) / (np.sqrt(v[i] / (1 - BETA2 ** (t + 1))) + EPS)
            params[i] = params[i] - LR * (corrected + DECAY * params[i])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("digits")
    parser.add_argument("--write")
    arguments = parser.parse_args()
    found = losses(arguments.digits)
    if arguments.write:
        with open(arguments.write, "w", encoding="ascii") as file:
            json.dump({"losses": [round(loss, 9) for loss in found]}, file, indent=1)
            file.write("\n")
    else:
        print("\n".join(f"{loss:.9f}" for loss in found))


if __name__ == "__main__":
    main()
