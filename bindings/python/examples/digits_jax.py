# SPDX-License-Identifier: Apache-2.0
"""The network of digits_numpy.py in JAX: gradients leave during the backward pass of a jitted function.

usage: megadp run -n 2 python digits_jax.py digits.csv [--plain]      (prints the loss of each step; --plain: puts gradients afterwards)
digits.csv is what tests/bindings/digits.py writes.
"""
import sys

import jax
import jax.numpy as jnp
import numpy as np

import megadp
import megadp.jax

STEPS, BATCH = 100, 64


def initial_params():
    state, params = 1, {}
    for layer, (rows, columns) in enumerate(((64, 32), (32, 10)), 1):
        weights = np.empty((rows, columns), np.float32)
        for i in range(rows):
            for j in range(columns):
                state = (state * 1664525 + 1013904223) % 2**32
                weights[i, j] = (state / 2**32 - 0.5) * 2 / np.sqrt(rows)
        params[f"layer{layer}"] = {"weights": jnp.asarray(weights), "bias": jnp.zeros(columns)}
    return params


def loss_of(params, x, labels):
    hidden = jax.nn.relu(x @ params["layer1"]["weights"] + params["layer1"]["bias"])
    log_probabilities = jax.nn.log_softmax(hidden @ params["layer2"]["weights"] + params["layer2"]["bias"])
    return -log_probabilities[jnp.arange(len(labels)), labels].mean()


def main(path, plain):
    data = np.loadtxt(path, delimiter=",", dtype=np.float32)
    pixels, digits = data[:, :64] / 16, data[:, 64].astype(int)
    with megadp.Comm() as comm:
        training = megadp.jax.DataParallel(comm, initial_params(), lr=1e-2, weight_decay=0.01)

        @jax.jit
        def tracked(params, x, labels):
            return jax.value_and_grad(lambda p: loss_of(training.track(p), x, labels))(params)[0]

        untracked = jax.jit(jax.value_and_grad(loss_of))
        share = range(BATCH * comm.rank // comm.size, BATCH * (comm.rank + 1) // comm.size)
        for t in range(STEPS):
            batch = (BATCH * t + np.array(share)) % len(digits)
            if plain:
                loss, grads = untracked(training.read(), pixels[batch], digits[batch])
                training.put(grads)
            else:
                loss = tracked(training.read(), pixels[batch], digits[batch])
            training.step()
            mean = np.array([loss], np.float64)
            comm.all_reduce(mean, op="avg")
            if comm.rank == 0:
                print(f"{mean[0]:.9f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], "--plain" in sys.argv)
