# SPDX-License-Identifier: Apache-2.0
"""A small character-level GPT in JAX: the matrices inside its blocks by Muon, embeddings, head and norms by AdamW.

usage: megadp run -n 2 python gpt_muon.py TEXT [--steps N] [--lr X] [--adamw] [--search]
       (prints the loss of each step, then that of the last tenth of the text; --adamw: all by AdamW; --search: those in the end, of both,
       for several learning rates)
"""
import argparse
import math

import jax
import jax.numpy as jnp
import numpy as np

import megadp
import muon

WIDTH, LAYERS, HEADS, CONTEXT, BATCH = 64, 2, 4, 64, 16
RATES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)


def shapes(vocab):
    """In the order of the forward pass."""
    found = {"tokens": (vocab, WIDTH), "places": (CONTEXT, WIDTH)}
    for layer in range(LAYERS):
        found.update({f"{layer}.norm1": (WIDTH,), f"{layer}.q": (WIDTH, WIDTH), f"{layer}.k": (WIDTH, WIDTH), f"{layer}.v": (WIDTH, WIDTH),
                      f"{layer}.out": (WIDTH, WIDTH), f"{layer}.norm2": (WIDTH,), f"{layer}.up": (WIDTH, 4 * WIDTH),
                      f"{layer}.down": (4 * WIDTH, WIDTH)})
    found.update({"norm": (WIDTH,), "head": (WIDTH, vocab)})
    return found


def inside(name, shape):
    """A matrix of a block: what Muon is for. Embeddings and the head are AdamW's."""
    return len(shape) == 2 and "." in name


def normed(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * (1 + scale)


def loss_of(p, windows):
    """Of the next character, over rows of CONTEXT + 1."""
    inputs, targets = windows[:, :-1], windows[:, 1:]
    x = p["tokens"][inputs] + p["places"]
    cut = lambda y: y.reshape(len(y), CONTEXT, HEADS, -1).swapaxes(1, 2)
    for layer in range(LAYERS):
        w = lambda name: p[f"{layer}.{name}"]
        h = normed(x, w("norm1"))
        q, k, v = (cut(h @ w(name)) for name in "qkv")
        scores = jnp.where(jnp.tri(CONTEXT, dtype=bool), q @ k.swapaxes(2, 3) / math.sqrt(WIDTH // HEADS), -1e9)
        x = x + (jax.nn.softmax(scores) @ v).swapaxes(1, 2).reshape(x.shape) @ w("out")
        x = x + jax.nn.gelu(normed(x, w("norm2")) @ w("up")) @ w("down")
    logits = jax.nn.log_softmax(normed(x, p["norm"]) @ p["head"])
    return -jnp.take_along_axis(logits, targets[..., None], -1).mean()


grad_of, value_of = jax.jit(jax.value_and_grad(loss_of)), jax.jit(loss_of)


def windows_of(text, begins):
    return np.stack([text[begin:begin + CONTEXT + 1] for begin in begins])


def initialize(buffer):
    random = np.random.default_rng(1)
    for each in buffer.params:
        spread = 0 if len(each.shape) == 1 else 0.02 if each.name in ("tokens", "places", "head") else each.shape[0] ** -0.5
        buffer.write(each.name, (spread * random.standard_normal(each.shape)).astype(np.float32))


def train(comm, text, vocab, steps, lr, by_muon, told=lambda loss: None):
    """Returns the loss of the last tenth of the text."""
    buffer = megadp.Buffer(comm, [muon.param(name, shape, by_muon and inside(name, shape)) for name, shape in shapes(vocab).items()])
    initialize(buffer)
    if by_muon:
        optimizers = muon.optimizers(buffer, lr, weight_decay=0.1)
    else:
        optimizers = [megadp.Optimizer(buffer, lr=lr, betas=(0.9, 0.95), weight_decay=0.1, first_param_group=muon.REST)]
    learned, share = len(text) * 9 // 10, slice(BATCH * comm.rank // comm.size, BATCH * (comm.rank + 1) // comm.size)
    read = lambda: {each.name: jnp.asarray(buffer.read(each.name)) for each in buffer.params}
    for t in range(steps):
        begins = np.random.default_rng((1, t)).integers(0, learned - CONTEXT - 1, BATCH)[share]  # of the whole batch, alike on all ranks
        loss, grads = grad_of(read(), windows_of(text, begins))
        for each in reversed(buffer.params):
            buffer.put(each.name, np.asarray(grads[each.name]))
        now = lr * min((t + 1) / 20, 0.5 + 0.5 * math.cos(math.pi * t / steps))
        for optimizer, group in zip(optimizers, (muon.MATRICES, muon.REST) if by_muon else (muon.REST,)):
            optimizer.set_param_group(group, megadp.ParamGroup(lr=now))
        megadp.step_many(optimizers, wait=False)
        mean = np.array([loss], np.float64)
        comm.all_reduce(mean, op="avg")
        told(mean[0])
    held_out = windows_of(text, range(learned, len(text) - CONTEXT - 1, CONTEXT))
    return float(value_of(read(), held_out))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("text")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--lr", type=float, default=0.016)
    options.add_argument("--adamw", action="store_true")
    options.add_argument("--search", action="store_true")
    given = options.parse_args()
    with open(given.text, "rb") as file:
        alphabet, text = np.unique(np.frombuffer(file.read(), np.uint8), return_inverse=True)
    with megadp.Comm() as comm:
        say = (lambda *words: print(*words, flush=True)) if comm.rank == 0 else (lambda *words: None)
        if not given.search:
            say("held out", train(comm, text, len(alphabet), given.steps, given.lr, not given.adamw, lambda loss: say(f"{loss:.9f}")))
            return
        say("| learning rate | AdamW | Muon + AdamW |\n|---|---|---|")
        for lr in RATES:
            found = [train(comm, text, len(alphabet), given.steps, lr, by_muon) for by_muon in (False, True)]
            say(f"| {lr} |", " | ".join(f"{loss:.4f}" for loss in found), "|")


if __name__ == "__main__":
    main()
