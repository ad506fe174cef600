# SPDX-License-Identifier: Apache-2.0
"""Programs of test_jax_tp.py, one rank each.

usage: jax_tp_cases.py CASE [ARGUMENT ...]
"""
import gc
import itertools
import json
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np

import megadp
import megadp.jax as mj
from megadp import _jax_cp, _jax_tp
from support import refused

FEATURES, HIDDEN, TOKENS, BATCH = 12, 32, 8, 4


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def close(found, expected, tolerance=1e-5):
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max(initial=1))


def part(whole, dim, comm):
    return jnp.split(whole, comm.size, dim)[comm.rank]


def pulled(function, *inputs):
    """Outside jit and inside: the output, and gradients of its product with fixed weights."""
    weights = draw(9, *jax.eval_shape(function, *inputs).shape)
    every = jax.value_and_grad(lambda *given: (lambda out: ((out * weights).sum(), out))(function(*given)), tuple(range(len(inputs))), has_aux=True)
    found = []
    for run in (every, jax.jit(every)):
        (_, out), grads = run(*inputs)
        found.append((out, *grads))
    for a, b in zip(*found):
        assert np.array_equal(a, b)
    assert np.array_equal(jax.jit(function)(*inputs), found[0][0])  # without a gradient
    return (*found[0], weights)


def regions(comm):
    n = comm.size
    whole, mine, total = draw(1, 4, 6, 2), draw(2 + comm.rank, 4, 6, 2), sum(draw(2 + rank, 4, 6, 2) for rank in range(n))
    out, grad, weights = pulled(lambda x: mj.copy_to_tensor_parallel(x, comm) * (comm.rank + 1), whole)
    close(out, whole * (comm.rank + 1))
    close(grad, weights * sum(range(n + 1)))
    out, grad, weights = pulled(lambda x: mj.reduce_from_tensor_parallel(x, comm), mine)
    close(out, total)
    close(grad, weights)
    for dim in (0, 1, -1):
        out, grad, weights = pulled(lambda x: mj.scatter_to_tensor_parallel(x, comm, dim), whole)
        close(out, part(whole, dim, comm))
        close(grad, jnp.concatenate([weights] * n, dim))
        for kind, factor in (("replicated", 1), ("partial", n)):
            out, grad, weights = pulled(lambda x: mj.gather_from_tensor_parallel(x, comm, dim, grad=kind), part(whole, dim, comm))
            close(out, whole)
            close(grad, factor * part(weights, dim, comm))
        out, grad, weights = pulled(lambda x: mj.reduce_scatter_to_tensor_parallel(x, comm, dim), mine)
        close(out, part(total, dim, comm))
        close(grad, jnp.concatenate([weights] * n, dim))
    out, grad, weights = pulled(lambda x: mj.all_to_all_tensor_parallel(x, comm, 0, -1), part(whole, 0, comm))
    close(out, part(whole, 2, comm))
    close(grad, part(jnp.concatenate([weights] * n, 2), 0, comm))
    unlike_replicas(comm, whole)


def unlike_replicas(comm, whole):
    """What is said to be the same on all ranks and is not."""
    reduced = jax.jit(jax.grad(lambda x, factor: (mj.reduce_from_tensor_parallel(x, comm) * factor).sum()))
    close(reduced(whole, 1.0 + comm.rank), jnp.full(whole.shape, 1.0 + comm.rank))  # wrong, without a word
    megadp.tp.set_check_replicated(True)
    checked = jax.jit(jax.grad(lambda x, factor: (mj.reduce_from_tensor_parallel(x, comm) * factor).sum()))
    for call in (lambda: checked(whole, 1.0 + comm.rank), lambda: mj.copy_to_tensor_parallel(whole + comm.rank, comm)):
        refused(lambda: jax.block_until_ready(call()), "from is not the same on ranks 0 and 1", Exception)
    close(checked(whole, 2.0), jnp.full(whole.shape, 2.0))
    megadp.tp.set_check_replicated(False)


def layers(comm):
    count = 0
    for split, bias, sequence, transposed, whole_io in itertools.product(("column", "row"), *[(False, True)] * 4):
        column = split == "column"
        if whole_io and sequence and not column:
            continue
        replicated = whole_io if column else not sequence
        layer = mj.ParallelLinear(comm, split, FEATURES, HIDDEN, bias=bias, sequence=sequence, transposed=transposed,
                                  gather_output=column and whole_io, whole_input=whole_io and not column,
                                  grad="replicated" if replicated else None)
        w, b, x = draw(1, FEATURES, HIDDEN), draw(2, HIDDEN), draw(3, TOKENS, BATCH, FEATURES)
        tokens = (lambda values: part(values, 0, comm)) if sequence else (lambda values: values)
        into = tokens(x) if column else x if whole_io else part(x, -1, comm)
        to = (lambda values: values if whole_io else part(values, -1, comm)) if column else tokens
        params = layer.part(w if transposed else w.T, *([b] if bias else []))
        assert [p.shape for p in params] == [layer.weight_shape, *([layer.bias_shape] if bias else [])]
        out, dx, dw, *db, _ = pulled(layer, into, *params)
        y, back = jax.vjp(lambda x, w, b: x @ w + b * bias, x, w, b)
        close(out, to(y))
        weights = draw(9, *out.shape)  # of this rank's output
        if not (column and whole_io) and (column or sequence):
            weights = mj.gather_from_tensor_parallel(weights, comm, -1 if column else 0, grad="replicated")
        whole_dx, whole_dw, whole_db = back(weights)
        close(dx, tokens(whole_dx) if column else whole_dx if whole_io else part(whole_dx, -1, comm))
        close(dw, layer.part(whole_dw if transposed else whole_dw.T)[0])
        if bias:
            close(db[0], part(whole_db, 0, comm) if column else draw(9, *out.shape).sum((0, 1)))
        count += 1
    half = mj.ParallelLinear(comm, "column", FEATURES, HIDDEN, bias=False, dtype="bf16")
    w, x = draw(1, FEATURES, HIDDEN).astype(jnp.bfloat16), draw(3, 5, FEATURES).astype(jnp.bfloat16)
    out = jax.jit(half)(x, *half.part(w))
    assert out.dtype == jnp.bfloat16
    close(out.astype(jnp.float32), part(x @ w, -1, comm).astype(jnp.float32), 0.05)
    for call in (lambda: half(x, w), lambda: half(x, *half.part(w), w), lambda: half(x.astype(jnp.float32), *half.part(w))):
        try:
            call()
            raise AssertionError("not refused")
        except megadp.InvalidError:
            pass
    print(f"{count} layers", flush=True)


def vocabulary(comm):
    """Of 12 rows, 11 classes and one of padding."""
    n, count = comm.size, 0
    table, ids = draw(1, 12, FEATURES), jnp.asarray(np.random.default_rng(2).integers(0, 12, (TOKENS, BATCH)))
    for sequence, grad in ((False, "replicated"), (False, "partial"), (True, "replicated")):
        tokens = (lambda values: part(values, 0, comm)) if sequence else (lambda values: values)
        out, of_table, weights = pulled(
            lambda w: mj.vocab_parallel_embedding(ids, w, comm, grad=grad, sequence=sequence), part(table, 0, comm))
        close(out, tokens(table[ids]))
        if sequence:
            weights = mj.gather_from_tensor_parallel(weights, comm, 0, grad="replicated")
        _, back = jax.vjp(lambda w: w[ids], table)
        close(of_table, (n if grad == "partial" else 1) * part(back(weights)[0], 0, comm))
        count += 1
    inside = jax.jit(lambda rows, w: mj.vocab_parallel_embedding(rows, w, comm))  # of ids that are not constants
    close(inside(ids, part(table, 0, comm)), table[ids])

    logits = draw(3, TOKENS, BATCH, 12)
    for classes, ignored, smoothing, z in itertools.product((0, 11), (-100, 3), (0.0, 0.1), (0.0, 0.01)):
        targets = jnp.asarray(np.random.default_rng(4).integers(0, 11, (TOKENS, BATCH))).at[2].set(ignored)

        def expected(x):
            x = x[..., :classes or 12]
            wanted = (1 - smoothing) * jax.nn.one_hot(targets, x.shape[-1]) + smoothing / x.shape[-1]
            losses = -(wanted * jax.nn.log_softmax(x)).sum(-1) + z * jax.nn.logsumexp(x, -1) ** 2
            return jnp.where(targets == ignored, 0, losses)

        out, grad, weights = pulled(lambda x: mj.vocab_parallel_cross_entropy(
            x, targets, comm, ignore_index=ignored, label_smoothing=smoothing, z_loss=z, classes=classes), part(logits, -1, comm))
        losses, back = jax.vjp(expected, logits)
        close(out, losses)
        close(grad, part(back(weights)[0], -1, comm))
        count += 1
    for call in (lambda: mj.vocab_parallel_embedding(logits, table, comm), lambda: mj.vocab_parallel_cross_entropy(logits, logits[..., 0], comm),
                 lambda: mj.vocab_parallel_cross_entropy(logits, ids, comm, label_smoothing=1.1)):
        try:
            call()
            raise AssertionError("not refused")
        except megadp.InvalidError:
            pass
    jax.effects_barrier()
    print(f"{count} of a vocabulary", flush=True)


def order(comm):
    """Branches that do not depend on each other: their collectives come in the same order on all ranks, forward and backward."""
    def loss(x):
        every = [mj.reduce_from_tensor_parallel(x[i] * (i + 1), comm, grad="partial") for i in range(12)]
        return sum(value.sum() * (i + 1) for i, value in enumerate(every))

    gradient = jax.value_and_grad(loss)
    text = str(jax.make_jaxpr(gradient)(draw(0, 12, 3)))
    assert (text.count("ordered=True"), text.count("ordered=False")) == (24, 0), text
    gradient = jax.jit(gradient)
    for step in range(5):
        value, grad = gradient(draw(step, 12, 3))
        close(value, comm.size * sum((i + 1) ** 2 * draw(step, 12, 3)[i].sum() for i in range(12)), 1e-4)
        close(grad, comm.size * jnp.broadcast_to(jnp.arange(1.0, 13)[:, None] ** 2, (12, 3)))
    jax.effects_barrier()


def operators(comm):
    """Functions of a weight of [4, 3], of all that has callbacks."""
    n, ids, z, q = comm.size, jnp.asarray([[1, 2, 3]]), jnp.float32(0.1), jnp.ones((1, 2 * comm.size, comm.size, 2))
    layer, pad = mj.ParallelLinear(comm, "column", 3, 2 * n), mj.HaloPad(comm, (n, 1), (1, 0), (1, 0))
    given, attend = layer.part(jnp.ones((3, 2 * n)), jnp.ones(2 * n)), _jax_cp._plain_attention(0.5)
    return {"copy": lambda w: mj.copy_to_tensor_parallel(w, comm), "reduce": lambda w: mj.reduce_from_tensor_parallel(w, comm),
            "scatter": lambda w: mj.scatter_to_tensor_parallel(w, comm, 0, [4 - 3 * (n - 1), *[3] * (n - 1)]),
            "gather": lambda w: mj.gather_from_tensor_parallel(w, comm, grad="partial"),
            "reduce_scatter": lambda w: mj.reduce_scatter_to_tensor_parallel(w, comm, 0, np.array([4 - (n - 1), *[1] * (n - 1)])),
            "exchange": lambda w: mj.all_to_all_tensor_parallel(w[:, :1], comm, 1, 0),
            "linear": lambda w: layer(w, *given), "halo": pad,
            "embedding": lambda w: mj.vocab_parallel_embedding(ids, w, comm),
            "cross entropy": lambda w: mj.vocab_parallel_cross_entropy(w, jnp.zeros(4, int), comm, z_loss=z),
            "attention": lambda w: mj.context_parallel_attention(q * w[0, 0], q, q, comm, causal=True, bounds=[0, 1, 2 * n * n]),
            "own attention": lambda w: mj.context_parallel_attention(q * w[0, 0], q, q, comm, attention=attend)}


def kept(comm):
    """Outside of jit JAX compiles of each callback that it has not seen, and keeps that for ever: all calls made new ones. And nothing that is traced
    gets into them."""
    callbacks, made, usual, custom_vjp = set(), [], _jax_tp.io_callback, jax.custom_vjp

    def watched(callback, *given, **options):
        callbacks.add(callback)
        return usual(callback, *given, **options)

    def counted(function):
        made.append(function)
        return custom_vjp(function)

    _jax_tp.io_callback, jax.custom_vjp = watched, counted
    w = draw(1, 4, 3)
    for name, function in operators(comm).items():
        def loss(w):
            return function(w).sum()

        with jax.checking_leaks():
            inside = jax.jit(jax.grad(loss))(w)
        before, counts = (len(callbacks), len(made)), set()
        for _ in range(20):
            close(jax.grad(loss)(w), inside)
            counts.add((len(callbacks), len(made)))
        assert counts == {before}, (name, before, counts)
    _jax_tp.io_callback, jax.custom_vjp = usual, custom_vjp
    told_apart(comm)


def told_apart(comm):
    """What looks alike, or has been changed since; and with a communicator all goes that was made of it."""
    n, x, sizes = comm.size, jnp.ones((4, 1)), [1] * comm.size
    for _ in range(2):
        assert mj.gather_from_tensor_parallel(x[:1], comm, 0, grad="partial", parts=sizes).shape == (n, 1)
        refused(lambda: mj.gather_from_tensor_parallel(x[:1], comm, 0, grad="partial", parts=[1.0] * n), "parts is 1.0; it must be an integer")
    sizes[:] = [2] * n
    assert mj.gather_from_tensor_parallel(x[:2], comm, 0, grad="partial", parts=sizes).shape == (2 * n, 1)
    assert mj.gather_from_tensor_parallel(x[:1], comm, 0, grad="partial", parts=(1,) * n).shape == (n, 1)
    other = comm.split(0)
    close(jax.grad(lambda x: mj.reduce_from_tensor_parallel(x, other, "partial").sum())(x), jnp.full(x.shape, n))
    other.close()
    refused(lambda: jax.block_until_ready(mj.reduce_from_tensor_parallel(x, other, "partial")), "STATE: this Comm is closed", Exception)
    gone = weakref.ref(other)
    del other
    jax.clear_caches()
    gc.collect()
    assert gone() is None


def start():
    return {"norm": jnp.ones(FEATURES), "up": (0.3 * draw(1, FEATURES, HIDDEN), 0.1 * draw(2, HIDDEN)),
            "down": (0.2 * draw(3, HIDDEN, FEATURES), 0.1 * draw(4, FEATURES))}


def normal(x, scale):
    return x * jax.lax.rsqrt((x ** 2).mean(-1, keepdims=True) + 1e-5) * scale


def batch_of(step, comm):
    """This data-parallel rank's, [tokens, batch, features]."""
    rows = slice(comm.rank * BATCH // comm.size, (comm.rank + 1) * BATCH // comm.size)
    return draw(100 + 2 * (step % 4), TOKENS, BATCH, FEATURES)[:, rows], jnp.tanh(draw(101 + 2 * (step % 4), TOKENS, BATCH, FEATURES))[:, rows]


def training(comm, size):
    for sequence in (False, True):
        train(comm, int(size), sequence)


def plain(x, weight, bias):
    return x @ weight + bias


class Training:
    """Of size 1 without the layers that are tested."""

    def __init__(self, grid, over, data_parallel, sequence, lr=1e-2):
        up = mj.ParallelLinear(over, "column", FEATURES, HIDDEN, sequence=sequence)
        down = mj.ParallelLinear(over, "row", HIDDEN, FEATURES, sequence=sequence, grad=None if sequence else "replicated")
        whole = start()
        params = {"norm": whole["norm"], "up": up.part(*whole["up"]), "down": down.part(*whole["down"])}
        first, second = (up, down) if over.size > 1 else (plain, plain)
        placements = {"norm": "partial_sum" if sequence else "replicated", "up": up.placements, "down": down.placements}
        self.trained = trained = mj.DataParallel(grid, params, lr=lr, max_grad_norm=0.3, placements=placements)
        self.data_parallel = data_parallel

        def loss(params, x, target):
            params = trained.track(params)
            x = mj.scatter_to_tensor_parallel(x, over, 0) if sequence else x
            x = x + second(jax.nn.relu(first(normal(x, params["norm"]), *params["up"])), *params["down"])
            x = mj.gather_from_tensor_parallel(x, over, 0, grad="replicated") if sequence else x
            return ((x - target) ** 2).mean()

        self.gradient = jax.jit(jax.value_and_grad(loss))

    def step(self, number):
        value, _ = self.gradient(self.trained.read(), *batch_of(number, self.data_parallel))
        self.trained.step()
        total = np.array([value])
        self.data_parallel.all_reduce(total, op="avg")
        return float(total[0])


def train(comm, size, sequence):
    with megadp.Grid(comm, tp=size) as grid, grid.comm("tp") as over, grid.comm("dp") as data_parallel:
        training = Training(grid, over, data_parallel, sequence)
        losses = [training.step(number) for number in range(20)]
        training.trained.buffer.verify()
        if comm.rank == 0:
            print("losses", json.dumps(losses), flush=True)


def saved_training(comm, folder, mode, size):
    """mode save: three steps, a checkpoint, three more; go_on: from the checkpoint."""
    with megadp.Grid(comm, tp=int(size)) as grid, grid.comm("tp") as over, grid.comm("dp") as data_parallel:
        training = Training(grid, over, data_parallel, False, 1e-2 if mode == "save" else 0.5)
        state = {"mean": jnp.zeros(3), "count": 0}
        if mode == "save":
            for number in range(3):
                training.step(number)
            state = {"mean": jnp.arange(3.0) + comm.rank, "count": 3}  # rank 0's counts
            mj.save_checkpoint(folder, training.trained, state=state, extra={"epoch": 2})
        else:
            state, extra = mj.load_checkpoint(folder, training.trained, state=state)
            assert extra == {"epoch": 2} and state["count"] == 3 and state["mean"].tolist() == [0, 1, 2], (state, extra)
        params = training.trained.read()
        saved = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves({"norm": params["norm"], "up": gather(params["up"], over, (1, 0)),
                                                                       "down": gather(params["down"], over, (0, None))})]
        losses = [training.step(number) for number in range(3, 6)]
        if comm.rank == 0:
            print("found", json.dumps({"saved": saved, "losses": losses}), flush=True)


def gather(leaves, comm, dims):
    return [leaf if dim is None else mj.gather_from_tensor_parallel(leaf, comm, dim, grad="replicated") for leaf, dim in zip(leaves, dims)]


if __name__ == "__main__":
    name, *more = sys.argv[1:]
    with megadp.Comm(backend="host") as world:
        globals()[name](world, *more)
    print(f"{name} done", flush=True)
