# SPDX-License-Identifier: Apache-2.0
"""Programs of test_tp.py, one rank each.

usage: tp_cases.py CASE [ARGUMENT ...]
"""
import contextlib
import itertools
import json
import sys

import numpy as np

import megadp
from megadp import tp


def draw(seed, *shape):
    """The same on all ranks."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def scattered(shape, dtype=np.float32):
    """Memory of the shape with gaps, the last dimension not the densest, of NaN."""
    order = list(reversed(shape))
    whole = np.full([order[0], *(2 * size for size in order[1:])], np.nan, dtype)
    return whole[(slice(None), *(slice(None, None, 2),) * (len(shape) - 1))].T


def like(values):
    """The same values, scattered."""
    array = scattered(values.shape, values.dtype)
    array[...] = values
    return array


def close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=tolerance, atol=tolerance * np.abs(expected).max(initial=1))


def refused(call, code, text):
    try:
        call()
    except megadp.MegaDPError as error:
        assert error.code == code and text in error.text, str(error)
        return
    raise AssertionError(f"not refused: {text}")


# Regions

def cut(whole, dim, parts, rank):
    at = sum(parts[:rank])
    return whole[(slice(None),) * dim + (slice(at, at + parts[rank]),)]


def regions(comm):
    n, r = comm.size, comm.rank
    for dim, parts in itertools.product((0, 1, 2), (None, [3, 0, 6])):
        sizes = parts or [3] * n
        shape = [2, 2, 2]
        shape[dim] = 9
        every = [draw(10 + rank, *shape) for rank in range(n)]  # of all ranks
        mine, total, whole = every[r], sum(every), draw(1, *shape)

        def check(kind, source, expected, **options):
            out = scattered(expected.shape)
            tp.region(comm, kind, like(source), out, **({} if kind in ("copy", "reduce") else {"dim": dim, "parts": parts}), **options)
            close(out, expected)

        check("copy", whole, whole, grad="partial", check_replicated=True)
        check("copy", mine, total, grad="partial", backward=True)
        check("copy", whole, whole, grad="replicated", backward=True, check_replicated=True)
        check("reduce", mine, total, grad="replicated")
        check("reduce", whole, whole, grad="replicated", backward=True)
        check("reduce", mine, total, grad="partial", backward=True)
        check("scatter", whole, cut(whole, dim, sizes, r))
        check("scatter", cut(whole, dim, sizes, r), whole, backward=True)
        check("gather", cut(whole, dim, sizes, r), whole, grad="partial")
        check("gather", whole, cut(whole, dim, sizes, r), grad="replicated", backward=True)
        check("gather", mine, cut(total, dim, sizes, r), grad="partial", backward=True)
        check("reduce_scatter", mine, cut(total, dim, sizes, r))
        check("reduce_scatter", cut(whole, dim, sizes, r), whole, backward=True)
    whole = draw(3, 6, 2, 3 * n)
    for parts, to_parts in ((None, None), ([1, 2, 3], [4, 5, 0])):
        options = dict(dim=0, to_dim=2, parts=parts, to_parts=to_parts)
        before, after = cut(whole, 0, parts or [2] * n, r), cut(whole, 2, to_parts or [3] * n, r)
        for source, expected, backward in ((before, after, False), (after, before, True)):
            out = scattered(expected.shape)
            tp.region(comm, "exchange", like(source), out, backward=backward, **options)
            close(out, expected)

    out, invalid = np.empty((3, 2), np.float32), megadp.Status.INVALID
    refused(lambda: tp.region(comm, "gather", out[:1], out), invalid, "MDP_TP_GRAD")
    refused(lambda: tp.region(comm, "copy", out, out, grad="same"), invalid, "grad is 'same'")
    refused(lambda: tp.region(comm, "send", out, out), invalid, "kind is 'send'")
    refused(lambda: tp.region(comm, "scatter", np.empty((4, 2), np.float32), out[:1]), invalid, "3 ranks cannot share evenly")
    refused(lambda: tp.region(comm, "scatter", out, out[:1], parts=[1, 2]), invalid, "parts has 2 numbers")
    refused(lambda: tp.region(comm, "scatter", out, np.empty((1, 2), np.float32), dim=-1), invalid, "dim")
    read_only = np.empty((3, 2), np.float32)
    read_only.flags.writeable = False
    refused(lambda: tp.region(comm, "reduce", out, read_only, grad="partial"), invalid, "read-only")
    refused(lambda: tp.region(comm, "copy", np.full(2, r, np.float32), np.empty(2, np.float32), grad="partial", check_replicated=True),
            invalid, "from")


# Layers

IN, OUT, BLOCKS = 12, 24, {"column": (16, 4, 4), "row": (8, 4)}


class Whole:
    """A whole layer's values and gradients."""

    def __init__(self, seed, dtype=np.float32):
        as_type = lambda values: values.astype(dtype).astype(np.float64)  # noqa: E731
        self.x, self.w, self.b = (as_type(draw(seed + i, *shape)) for i, shape in enumerate(((4, 3, IN), (OUT, IN), (OUT,))))
        self.y = self.x @ self.w.T
        self.dy = as_type(draw(seed + 3, *self.y.shape))
        self.dx = self.dy @ self.w
        self.dw = np.einsum("tbo,tbi->oi", self.dy, self.x)
        self.db = self.dy.sum((0, 1))


def features(array, slices):
    return np.concatenate([array[..., part] for part in slices], -1)


def check_layer(comm, split, bias, transposed, sequence, blocks, whole_io, partial, dtype=np.float32, tolerance=1e-5):
    """One layer of these options against the whole one, from the caller's arrays."""
    whole, n, r, column = Whole(5, dtype), comm.size, comm.rank, split == "column"
    y = whole.y + whole.b * bias
    replicated = whole_io if column else not sequence
    layer = megadp.TpLinear(comm, split, IN, OUT, bias=bias, transposed=transposed, sequence=sequence, blocks=blocks,
                            gather_output=column and whole_io, whole_input=not column and whole_io,
                            grad=("partial" if partial else "replicated") if replicated else None, dtype=np.dtype(dtype).name,
                            check_replicated=True)
    rows = slice(4 * r // n, 4 * (r + 1) // n) if sequence else slice(None)
    if column:
        x, out = whole.x[rows], y if whole_io else features(y, layer.slices)
        w, b = features(whole.w.T, layer.slices).T, features(whole.b, layer.slices)
        dy, dx = whole.dy if whole_io else features(whole.dy, layer.slices), whole.dx[rows]
        dw, db = features(whole.dw.T, layer.slices).T, features(whole.db, layer.slices)
    else:
        x, out, w, b = whole.x if whole_io else features(whole.x, layer.slices), y[rows], features(whole.w, layer.slices), whole.b
        dy, dx = whole.dy[rows], whole.dx if whole_io else features(whole.dx, layer.slices)
        dw, db = features(whole.dw, layer.slices), whole.dy[rows].sum((0, 1))
    if replicated and partial:  # shares that add up to the gradient
        dy = dy * (r + 1) / (n * (n + 1) / 2)
    w, dw = (w.T, dw.T) if transposed else (w, dw)
    assert layer.weight_shape == w.shape and layer.bias_shape == (b.shape if bias else None), (layer.weight_shape, w.shape)
    x, w, b, dy = (like(values.astype(dtype)) for values in (x, w, b, dy))
    b = b if bias else None
    found = scattered(out.shape, dtype)
    saved = layer.forward(x, found, weight=w, bias=b)
    close(found, out, tolerance)
    for given in ({"saved": saved}, {"x": x}):
        grads = [scattered(shape, dtype) for shape in (x.shape, w.shape, *([b.shape] if bias else []))]
        layer.backward(dy, *grads[:1], weight=w, grad_weight=grads[1], grad_bias=grads[2] if bias else None, **given)
        for grad, expected in zip(grads, (dx, dw, db)):
            close(grad, expected, tolerance)
    layer.backward(dy, x=x, grad_weight=grads[1], add=True)
    close(grads[1], 2 * dw, 2 * tolerance)
    layer.backward(dy, grads[0], weight=w)  # of a frozen weight
    close(grads[0], dx, tolerance)
    layer.close()


def linear(comm):
    count = 0
    for split, bias, transposed, sequence in itertools.product(("column", "row"), (False, True), (False, True), (False, True)):
        for blocks, whole_io in itertools.product(((), BLOCKS[split]), (False, True)):
            if whole_io and split == "row" and sequence:
                continue
            replicated = whole_io if split == "column" else not sequence
            if replicated and blocks:  # partial gradients once for each of the others
                check_layer(comm, split, bias, transposed, sequence, blocks, whole_io, True)
            else:
                check_layer(comm, split, bias, transposed, sequence, blocks, whole_io, False)
            count += 1
    print(f"{count} layers", flush=True)


def bf16(comm):
    import ml_dtypes

    for split, sequence in itertools.product(("column", "row"), (False, True)):
        check_layer(comm, split, True, False, sequence, (), False, False, ml_dtypes.bfloat16, 0.03)


def saved(comm):
    """Several are alive at once; one is good for one backward, of its own layer."""
    layer, other = (megadp.TpLinear(comm, "column", 2, 2) for _ in range(2))
    w, out, state = np.ones((2 // comm.size, 2), np.float32), np.empty((1, 2 // comm.size), np.float32), megadp.Status.STATE
    kept = [layer.forward(np.full((1, 2), value, np.float32), out, weight=w) for value in (1, 2, 3)]
    assert layer.forward(np.ones((1, 2), np.float32), out, weight=w, save=False) is None
    grad, one = np.empty_like(w), np.ones_like(out)
    layer.backward(one, saved=kept[2], grad_weight=grad)
    close(grad, np.full(w.shape, 3.0))
    with kept[0]:
        layer.backward(one, saved=kept[0], grad_weight=grad)
        close(grad, np.full(w.shape, 1.0))
        refused(lambda: layer.backward(one, saved=kept[0], grad_weight=grad), state, "one backward")
    refused(lambda: layer.backward(one, saved=kept[0], grad_weight=grad), state, "TpSaved is closed")
    refused(lambda: other.backward(one, saved=kept[1], grad_weight=grad), state, "another layer")
    kept[1].close()
    layer.close()
    refused(lambda: layer.forward(w, out, weight=w), state, "TpLinear is closed")


def refused_calls(comm):
    invalid, out = megadp.Status.INVALID, np.empty((1, 2), np.float32)
    refused(lambda: megadp.TpLinear(comm, "row", 4, 2), invalid, "MDP_TP_GRAD")
    refused(lambda: megadp.TpLinear(comm, "column", 4, 3), invalid, "2 or 4 would do")
    refused(lambda: megadp.TpLinear(comm, "columns", 4, 2), invalid, "split is 'columns'")
    refused(lambda: megadp.TpLinear(comm, "column", 4, 2, weight="w"), invalid, "weight is 'w', a parameter of a buffer")
    refused(lambda: megadp.TpLinear(comm, "column", 4, 2, weight=1), invalid, "config.buffer is NULL")
    refused(lambda: megadp.TpLinear(comm, "column", 4, 2, blocks=(2, 2)), invalid, "sum of config.blocks")
    refused(lambda: tp.part_slices(2, 0, 4, (3, 1)), invalid, "3 features")
    refused(lambda: tp.part_slices(2, 0, 4, (2,)), invalid, "sum of blocks is 2")
    layer = megadp.TpLinear(comm, "column", 4, 4, bias=True)
    x, w = np.ones((1, 4), np.float32), np.ones((2, 4), np.float32)
    refused(lambda: layer.forward(x, out, weight=w), invalid, "bias")
    refused(lambda: layer.forward(x, out, weight=w.T, bias=w[:, 0]), invalid, "weight has shape")
    refused(lambda: layer.forward(x.astype(np.float64), out, weight=w, bias=w[:, 0]), invalid, "input.dtype is f64")
    with megadp.Grid(comm, tp=2) as grid:
        params = [megadp.Param("w", (2, 4), placement="sharded"), megadp.Param("b", (2,), placement="sharded")]
        buffer = megadp.Buffer(grid, params)
        over = grid.comm("tp")
        refused(lambda: megadp.TpLinear(over, "column", 4, 4, buffer=buffer, weight="c"), invalid, "'c'")
        refused(lambda: megadp.TpLinear(over, "row", 8, 2, buffer=buffer, weight="w", grad="partial"), invalid, "shard_dim")
        held = megadp.TpLinear(over, "column", 4, 4, buffer=buffer, weight="w", bias=True, bias_param="b")
        refused(lambda: held.forward(x, out, weight=w), invalid, "leave it NULL")
        buffer.write("w", w)
        over.close()  # the layer goes on
        held.forward(x, out, save=False)
        close(out, np.full((1, 2), 4.0))
        buffer.close()
        held.forward(x, out, save=False)


# A vocabulary

CLASSES, FEATURES, SEQUENCE = 11, 3, 12  # of 12 rows, one is padding; tokens that 1 to 4 ranks can share


def vocabulary(comm):
    count = 0
    for sequence, partial in ((False, False), (False, True), (True, False)):
        for ids_type in (np.int64, np.int32, np.uint8):
            check_embedding(comm, sequence, partial, ids_type)
            count += 1
    for classes, ignored, smoothing, z in itertools.product((0, CLASSES), (None, 3, -100), (0.0, 0.2), (0.0, 0.01)):
        check_cross_entropy(comm, classes, ignored, smoothing, z)
        count += 1
    print(f"{count} of a vocabulary", flush=True)


def check_embedding(comm, sequence, partial, ids_type):
    n, r, rows = comm.size, comm.rank, 12
    whole, ids = draw(1, rows, FEATURES), np.random.default_rng(2).integers(0, rows, (SEQUENCE, 2)).astype(ids_type)
    table, dy = cut(whole, 0, [rows // n] * n, r), draw(3, SEQUENCE, 2, FEATURES)
    tokens = (lambda values: cut(values, 0, [SEQUENCE // n] * n, r)) if sequence else (lambda values: values)
    embedding = tp.Embedding(comm, rows, grad="partial" if partial else None if sequence else "replicated", sequence=sequence,
                             check_replicated=True)
    out = scattered(tokens(dy).shape)
    assert embedding.forward(like(ids), like(table), out) is out
    close(out, tokens(whole[ids]))
    assert np.array_equal(embedding.forward(ids, table), out)
    grads = np.zeros(whole.shape, np.float64)
    np.add.at(grads, ids, dy.astype(np.float64))
    expected = cut(grads, 0, [rows // n] * n, r)
    given = tokens(dy) * (2 * (r + 1) / (n * (n + 1)) if partial else 1)  # shares that add up
    given = given.astype(np.float32)
    found = embedding.backward(ids, like(given))
    close(found, expected)
    grad = like(table)
    embedding.backward(ids, given, grad, add=True)
    close(grad, table + expected)


def check_cross_entropy(comm, classes, ignored, smoothing, z):
    n, r, columns = comm.size, comm.rank, 12 // comm.size
    x, dy, count = draw(4, 5, 2, 12), draw(5, 5, 2), classes or 12
    targets = np.random.default_rng(6).integers(0, count, (5, 2))
    if ignored is not None:
        targets[1] = ignored
    kept = (targets != ignored)[..., None] if ignored is not None else np.ones((5, 2, 1), bool)
    logits = x[..., :count].astype(np.float64)
    log_sum = np.log(np.exp(logits).sum(-1, keepdims=True))
    at = np.arange(count) == targets[..., None]
    wanted = np.where(at, 1 - smoothing, smoothing / (count - 1))
    losses = kept[..., 0] * ((wanted * (log_sum - logits)).sum(-1) + z * log_sum[..., 0] ** 2)
    grads = np.zeros(x.shape)
    grads[..., :count] = kept * dy[..., None] * (np.exp(logits - log_sum) * (1 + 2 * z * log_sum) - wanted)
    own = slice(r * columns, (r + 1) * columns)
    loss = tp.CrossEntropy(comm, classes, ignored, smoothing, z, check_replicated=True)
    given = like(x[..., own])
    found, saved = loss.forward(given, like(targets))
    assert found.dtype == saved.dtype == np.float32
    close(found, losses)
    again, kept_too = scattered(found.shape), scattered(saved.shape)
    assert loss.forward(given, targets.astype(np.int16), again, kept_too)[0] is again
    assert np.array_equal(again, found) and np.array_equal(kept_too, saved)
    close(loss.backward(given, targets, like(saved), like(dy)), grads[..., own])
    assert loss.backward(given, targets, saved, dy, given) is given  # in the logits' place
    close(given, grads[..., own])


def vocabulary_refused(comm):
    invalid, table, ids = megadp.Status.INVALID, np.ones((3, 2), np.float32), np.zeros(4, np.int64)
    embedding = tp.Embedding(comm, 6, grad="replicated")
    for wrong, text in ((np.zeros(4, np.float32), "ids has dtype float32; it must be int64"), (np.zeros(4, bool), "ids has dtype bool"),
                        ([0, 1], "ids is [0, 1], a list"), (memoryview(b"ab"), "ids has elements of format 'B'; it must be int64")):
        refused(lambda: embedding.forward(wrong, table), invalid, text)
    refused(lambda: embedding.forward(ids, table[:2]), invalid, "weight has shape")
    refused(lambda: embedding.forward(np.array([6]), table), invalid, "between 0 and 5")
    refused(lambda: embedding.forward(np.array([-1], np.int8), table), invalid, "between 0 and 5")
    refused(lambda: embedding.backward(ids, np.ones((4, 2), np.float32), add=True), invalid, "add is True and grad_weight is None")
    refused(lambda: tp.Embedding(comm, 5, grad="partial").forward(ids, table), invalid, "cannot share evenly")
    refused(lambda: tp.Embedding(comm, 6).forward(ids, table), invalid, "MDP_TP_GRAD")
    refused(lambda: tp.Embedding(comm, 6, grad="sum"), invalid, "grad is 'sum'")
    refused(lambda: tp.Embedding(comm, 6.0), invalid, "rows is 6.0")
    logits = np.ones((4, 3), np.float32)
    refused(lambda: tp.CrossEntropy(comm).forward(logits, ids.astype(np.float32)), invalid, "targets has dtype float32; it must be int64")
    refused(lambda: tp.CrossEntropy(comm, 5).forward(logits, ids + 5), invalid, "targets")
    refused(lambda: tp.CrossEntropy(comm, 7).forward(logits, ids), invalid, "config.classes is 7")
    refused(lambda: tp.CrossEntropy(comm, ignore_index=0.5), invalid, "ignore_index is 0.5")
    refused(lambda: tp.CrossEntropy(comm, label_smoothing=1.5).forward(logits, ids), invalid, "label_smoothing is 1.5")
    refused(lambda: tp.CrossEntropy(comm).forward(logits, ids[:3]), invalid, "it goes with targets")
    with megadp.Grid(comm, tp=2) as grid:
        assert [grid.seed(7, stream) for stream in ("replicated", "tensor")] == [7, 7 + 2718 + comm.rank]
        refused(lambda: grid.seed(7, "dropout"), invalid, "stream is 'dropout'")
        refused(lambda: grid.seed(-1, "tensor"), invalid, "seed is -1")
    with megadp.Grid(comm, ep=2) as grid:
        assert grid.seed(2**63, "expert") == 2**63 + 1024 + 100 * comm.rank


# A network whose parameters are in a buffer

HIDDEN, TOKENS, BATCH = 32, 8, 4


def params_of(size, sequence):
    part = HIDDEN // size
    sharded = lambda name, shape, dim: megadp.Param(name, shape, placement="sharded", shard_dim=dim)  # noqa: E731
    return [sharded("w1", (part, IN), 0), sharded("b1", (part,), 0), sharded("w2", (IN, part), 1),
            megadp.Param("b2", (IN,), placement="partial_sum" if sequence else "replicated")]


class Plain:
    """A layer of numpy's, in the place of one that is cut."""

    slices = (slice(0, HIDDEN),)

    def __init__(self, buffer, weight, bias):
        self.buffer, self.weight, self.bias = buffer, weight, bias

    def forward(self, x, out):
        self.buffer.wait()
        out[...] = x @ self.buffer.param(self.weight).numpy().T + self.buffer.param(self.bias).numpy()
        return Kept(x)

    def backward(self, grad, grad_x=None, *, saved):
        if grad_x is not None:
            grad_x[...] = grad @ self.buffer.param(self.weight).numpy()
        self.buffer.put(self.bias, grad.sum((0, 1)))
        self.buffer.put(self.weight, np.einsum("tbo,tbi->oi", grad, saved.x))


class Kept(contextlib.nullcontext):
    def __init__(self, x):
        super().__init__(self)
        self.x = x


def training(comm, size):
    for sequence in (False, True):
        train(comm, size, sequence)


def train(comm, size, sequence):
    """Of [tokens, batch, features], each data-parallel rank takes some of the batch."""
    with megadp.Grid(comm, tp=int(size)) as grid, grid.comm("tp") as over, grid.comm("dp") as data_parallel:
        buffer = megadp.Buffer(grid, params_of(over.size, sequence))
        column = megadp.TpLinear(over, "column", IN, HIDDEN, bias=True, sequence=sequence, buffer=buffer, weight="w1", bias_param="b1")
        row = megadp.TpLinear(over, "row", HIDDEN, IN, bias=True, sequence=sequence, grad=None if sequence else "replicated", buffer=buffer,
                              weight="w2", bias_param="b2")
        if size == "1":
            column, row = Plain(buffer, "w1", "b1"), Plain(buffer, "w2", "b2")
        own = column.slices[0]
        for name, values in (("w1", draw(1, HIDDEN, IN)[own] / 4), ("w2", draw(2, IN, HIDDEN)[:, own] / 4)):
            buffer.write(name, values)
        optimizer = megadp.Optimizer(buffer, lr=1e-2, max_grad_norm=0.5)
        tokens = slice(over.rank * TOKENS // over.size, (over.rank + 1) * TOKENS // over.size) if sequence else slice(None)
        batch = slice(data_parallel.rank * BATCH // data_parallel.size, (data_parallel.rank + 1) * BATCH // data_parallel.size)
        losses = []
        for step in range(20):
            x, target = (draw(100 + 2 * step % 8 + i, TOKENS, BATCH, IN)[tokens, batch] for i in (0, 1))
            hidden = np.empty((TOKENS, x.shape[1], HIDDEN // over.size), np.float32)
            y, grad_hidden = np.empty_like(x), np.empty_like(hidden)
            with column.forward(x, hidden) as kept:
                with row.forward(np.maximum(hidden, 0), y) as kept_hidden:
                    error = y - np.tanh(target)
                    row.backward(2 * error / (TOKENS * x.shape[1] * IN), grad_hidden, saved=kept_hidden)
                column.backward(grad_hidden * (hidden > 0), saved=kept)
            total = np.array([np.square(error, dtype=np.float64).sum()])
            (comm if sequence else data_parallel).all_reduce(total)
            losses.append(total[0] / (TOKENS * BATCH * IN))
            optimizer.step()
            assert buffer.stats().syncs == step + 1
        buffer.verify()
        if comm.rank == 0:
            print("losses", json.dumps(losses), flush=True)


if __name__ == "__main__":
    name, *more = sys.argv[1:]
    with megadp.Comm(backend="host") as world:
        {"refused": refused_calls}.get(name, globals().get(name))(world, *more)
    print(f"{name} done", flush=True)
