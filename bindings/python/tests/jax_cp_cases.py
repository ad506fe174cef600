# SPDX-License-Identifier: Apache-2.0
"""Programs of test_jax_cp.py, one rank each.

usage: jax_cp_cases.py CASE
"""
import itertools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

import megadp
import megadp.jax as mj
from jax_tp_cases import close, draw
from megadp import _cp_blocks, _jax_cp
from megadp.jax import context_parallel_attention, context_parallel_part, context_parallel_positions
from support import refused

BATCH, SEQUENCE, SIZE = 2, 24, 5  # the sequence divides into 1, 2, 3 and 4 parts, and each of these into 2
BOUNDS = (0, 5, 5, 14, 24)  # one sequence is empty


def whole_attention(q, k, v, causal, bounds=None, scale=None):
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    number = np.searchsorted(bounds or [0, SEQUENCE], np.arange(SEQUENCE), "right")
    seen = number[:, None] == number[None, :]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = jnp.where(np.tril(seen) if causal else seen, scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def pulled(attend, inputs, weights):
    """The output, and gradients of its product with the weights."""
    def weighed(*given):
        out = attend(*given)
        return (out * weights).sum(), out

    (_, out), grads = jax.value_and_grad(weighed, (0, 1, 2), has_aux=True)(*inputs)
    return (out, *grads)


def check(comm, heads, kv_heads, causal, jitted=True, dtype=jnp.float32, tolerance=1e-5, **options):
    """Outputs and gradients of the parts against those of the whole, inside jit or outside."""
    arrays = [draw(seed, BATCH, SEQUENCE, count, SIZE).astype(dtype) for seed, count in enumerate((heads, kv_heads, kv_heads, heads))]
    known = {name: value for name, value in options.items() if name in ("bounds", "scale")}
    expected = jax.jit(lambda q, k, v, weights: pulled(lambda *given: whole_attention(*given, causal, **known), (q, k, v), weights))(*arrays)

    def own(q, k, v, weights):
        return pulled(lambda *given: context_parallel_attention(*given, comm, causal=causal, **options), (q, k, v), weights)

    found = (jax.jit(own) if jitted else own)(*(context_parallel_part(x, comm, causal=causal) for x in arrays))
    for ours, all_of_it in zip(found, expected):
        assert ours.dtype == dtype, ours.dtype
        close(ours, context_parallel_part(all_of_it, comm, causal=causal), tolerance)


def equal(comm):
    count = 0
    for causal, form, grouped, bounds in itertools.product((False, True), ("ring", "all_to_all"), (False, True), (None, BOUNDS)):
        check(comm, comm.size * (1 + grouped), comm.size, causal, form=form, bounds=bounds)
        count += 1
    for causal, form in itertools.product((False, True), ("ring", "all_to_all", "auto")):
        check(comm, comm.size, comm.size, causal, jitted=False, form=form)
        count += 1
    check(comm, 3, 1, True, form="ring", scale=0.3)
    check(comm, 3, 1, True, jitted=False, scale=jnp.float32(0.3))
    check(comm, 4, 2, True, dtype=jnp.bfloat16, tolerance=0.05, form="ring")
    plain = _jax_cp._plain_attention(0.25)
    q, k, v = (context_parallel_part(draw(seed, 1, SEQUENCE, 2, SIZE), comm) for seed in range(3))
    assert np.array_equal(context_parallel_attention(q, k, v, comm, attention=plain), context_parallel_attention(q, k, v, comm, scale=0.25))
    _cp_blocks.MOST = 100  # a few queries at a time
    for causal, bounds in itertools.product((False, True), (None, BOUNDS)):
        check(comm, 2 * comm.size, comm.size, causal, bounds=bounds)
    print(f"{count + 7} attentions", flush=True)


def parts(comm):
    for causal in (False, True):
        positions = context_parallel_positions(SEQUENCE, comm, causal=causal)
        whole = draw(1, 3, SEQUENCE, 2)
        assert positions.shape == (SEQUENCE // comm.size,) and jnp.issubdtype(positions.dtype, jnp.integer)
        assert np.array_equal(context_parallel_part(whole, comm, causal=causal), whole[:, positions])
        assert np.array_equal(context_parallel_part(whole.swapaxes(1, 2), comm, -1, causal=causal), whole[:, positions].swapaxes(1, 2))
        every = np.empty(SEQUENCE, np.int64)
        comm.all_gather(np.asarray(positions, np.int64), every)
        assert np.array_equal(np.sort(every), np.arange(SEQUENCE))
    refused(lambda: context_parallel_positions(2 * comm.size + 1, comm, causal=True), "would do")
    refused(lambda: context_parallel_part(whole, comm, 3), "dim is 3; it must be one of whole's 3 dimensions, from -3 to 2")


def refusals(comm):
    def fails(text, q, k, v, kind=megadp.MegaDPError, **options):
        refused(lambda: context_parallel_attention(q, k, v, comm, **options), text, kind)

    x = draw(1, 1, 6, 4, 3)
    fails("q has shape (6, 4, 3); it must be [batch, positions, heads, head_dim]", x[0], x[0], x[0])
    fails("k has shape (1, 5, 4, 3) and q (1, 6, 4, 3); only the number of heads, dimension 2, may differ", x, x[:, :5], x)
    fails("v has shape (1, 6, 4, 2); it must be that of k, (1, 6, 4, 3)", x, x, x[..., :2])
    fails("q has dtype int32; it must be float32, bfloat16 or float16", *[x.astype(jnp.int32)] * 3)
    fails("k has dtype bfloat16 and q float32; they must be equal", x, x.astype(jnp.bfloat16), x)
    fails("k has 3 heads and q 4; each head of k serves equally many of q, so its number must divide 4", x, x[:, :, :3], x[:, :, :3])
    fails("form is 'rings'; it must be one of 'auto', 'ring', 'all_to_all'", x, x, x, form="rings")
    fails("bounds is 1.5; it must be an integer", x, x, x, bounds=(0, 1.5))
    fails("scale is inf; it must be a finite number", x, x, x, scale=float("inf"))
    refused(lambda: jax.jit(lambda x: context_parallel_attention(x, x, x, comm, scale=jnp.float32(0.5)))(x), "there it must be a number of Python's")
    fails("scale is 0.5 beside an attention", x, x, x, scale=0.5, attention=print)
    fails("attention is 3; it must be a function", x, x, x, attention=3)
    # What only the library knows comes as JAX's error, on all ranks.
    fails("4 or 8 would do", x[:, :3], x[:, :3], x[:, :3], Exception, causal=True)
    fails("which 2 ranks cannot share evenly", *[x[:, :, :3]] * 3, Exception, form="all_to_all")
    attend = jax.grad(lambda q: context_parallel_attention(q, x, x, comm).sum())
    refused(lambda: jax.grad(lambda q: (attend(q) ** 2).sum())(x), "IO callbacks do not support JVP", Exception)
    attend(x)  # the communicator stays
    other = comm.split(0)
    other.close()
    refused(lambda: jax.block_until_ready(context_parallel_attention(x, x, x, other)), "STATE: this Comm is closed", Exception)


HEADS, WIDTH, TOKENS = 4, 16, 11


def begin():
    sizes = {"embedding": (TOKENS, WIDTH), "places": (SEQUENCE, WIDTH), "q": (WIDTH, WIDTH), "kv": (WIDTH, WIDTH), "out": (WIDTH, WIDTH),
             "up": (WIDTH, 32), "down": (32, WIDTH), "head": (WIDTH, TOKENS)}
    return {name: draw(seed, *shape) * 0.2 for seed, (name, shape) in enumerate(sizes.items())}


def loss_of(params, tokens, labels, positions, attend):
    """Of one block of a transformer, with 4 heads of q and 2 of k and v."""
    def norm(x):
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)

    x = params["embedding"][tokens] + params["places"][positions]
    normed = norm(x)
    q, (k, v) = normed @ params["q"], jnp.split(normed @ params["kv"], 2, -1)
    q, k, v = (y.reshape(*y.shape[:2], -1, WIDTH // HEADS) for y in (q, k, v))
    x = x + attend(q, k, v).reshape(x.shape) @ params["out"]
    x = x + jax.nn.gelu(norm(x) @ params["up"]) @ params["down"]
    told = jax.nn.log_softmax(x @ params["head"])
    return -jnp.take_along_axis(told, labels[..., None], -1).mean()


def training(comm):
    """On a grid of cp 2 and the rest dp, against one rank's of its own with all of the batch and all of the sequence."""
    with megadp.Grid(comm, cp=2) as grid, comm.split(comm.rank) as alone:
        cp, at, copies = grid.comm("cp"), *grid.coords("dp")
        cut, whole = mj.DataParallel(grid, begin(), lr=1e-2), mj.DataParallel(alone, begin(), lr=1e-2)
        positions = context_parallel_positions(SEQUENCE, cp, causal=True)

        @jax.jit
        def of_part(params, tokens, labels):
            return jax.value_and_grad(lambda p: loss_of(cut.track(p), tokens, labels, positions,
                                                        lambda q, k, v: context_parallel_attention(q, k, v, cp, causal=True)))(params)[0]

        @jax.jit
        def of_whole(params, tokens, labels):
            return jax.value_and_grad(lambda p: loss_of(whole.track(p), tokens, labels, jnp.arange(SEQUENCE),
                                                        lambda q, k, v: whole_attention(q, k, v, True)))(params)[0]

        losses, apart = [], 0.0
        for step in range(10):
            tokens = np.random.default_rng(step % 3).integers(TOKENS, size=(2 * copies, SEQUENCE))
            labels = (3 * tokens + np.roll(tokens, 1, 1)) % TOKENS  # of this token and the one before
            mine = [context_parallel_part(jnp.asarray(x[2 * at:2 * at + 2]), cp, causal=True) for x in (tokens, labels)]
            mean = np.array([of_part(cut.read(), *mine)])
            cut.step()
            losses.append(float(of_whole(whole.read(), tokens, labels)))
            whole.step()
            comm.all_reduce(mean, op="avg")
            apart = max(apart, abs(float(mean[0]) - losses[-1]) / losses[-1])
        values = max(float(abs(a - b).max()) for a, b in zip(*map(jax.tree_util.tree_leaves, (cut.read(), whole.read()))))
        cp.close()
    print("found", json.dumps({"first": losses[0], "last": losses[-1], "losses": apart, "parameters": values}), flush=True)


if __name__ == "__main__":
    with megadp.Comm() as world:
        globals()[sys.argv[1]](world)
    print(f"{sys.argv[1]} done", flush=True)
