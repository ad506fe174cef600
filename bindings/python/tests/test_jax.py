# SPDX-License-Identifier: Apache-2.0
"""megadp.jax: the digits with 1 and 2 ranks on both paths, gradients that leave in backward order, overlap; averages for optax."""
import ast
import importlib.util
import os
import tempfile
import unittest

import support

EXAMPLE = os.path.join(support.PACKAGE, "examples", "digits_jax.py")
FAILURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jax_failures_cases.py")

# Eight layers in two or more buckets. The gradient of the first layer, the last to be known, is held back until bucket 0 has been reduced
# on all ranks: where buckets were launched at sync only, that would never happen.
OVERLAP = """
import time
import jax, jax.numpy as jnp, numpy as np
import megadp, megadp.jax
LAYERS, WIDTH = 8, 96
comm = megadp.Comm()
params = [0.1 * jax.random.normal(jax.random.key(i), (WIDTH, WIDTH)) for i in range(LAYERS)]
training = megadp.jax.DataParallel(comm, params, bucket_count=4)
order, held, put = [], [], training.buffer.put
def watched(number, grad):
    order.append(number)
    if number == 0:
        end = time.monotonic() + 100
        while training.buffer.bucket(0).reduce_end_ns <= begun and time.monotonic() < end:
            time.sleep(0.001)
        held.append(time.monotonic_ns())
    put(number, grad)
training.buffer.put = watched
@jax.jit
def backward(params, x):
    def loss(params):
        y = x
        for weights in training.track(params):
            y = jnp.tanh(y @ weights)
        return (y ** 2).mean()
    return jax.value_and_grad(loss)(params)[0]
x = jnp.ones((WIDTH, WIDTH))
for step in range(3):
    del order[:], held[:]
    begun = time.monotonic_ns()
    backward(training.read(), x)
    training.step()
    first, last = training.buffer.bucket(0), training.buffer.bucket(3)
    assert order == list(reversed(range(LAYERS))), order
    assert begun < first.reduce_begin_ns < first.reduce_end_ns < held[0] < first.sync_ns, (first, held)
    assert last.reduce_begin_ns > held[0], (last, held)
    assert training.buffer.stats().launched_in_backward >= 3 * (step + 1)
training.buffer.wait()
print(f"bucket 0 reduced {(first.sync_ns - first.reduce_end_ns) / 1e6:.1f} ms before the end of backward", flush=True)
"""

DETAILS = """
import jax, jax.numpy as jnp, numpy as np
import megadp, megadp.jax
comm = megadp.Comm()

# Shared weights leave once, summed; bfloat16 stays bfloat16; scalars too.
params = {"shared": jnp.full((2, 2), 2.0), "half": jnp.ones(2, jnp.bfloat16), "scale": jnp.float32(3)}
training = megadp.jax.DataParallel(comm, params, lr=0.1)
def loss(p):
    p = training.track(p)
    return p["scale"] * ((p["shared"] @ p["shared"]).sum() + p["half"].astype(jnp.float32).sum())
value, grads = jax.jit(jax.value_and_grad(loss))(training.read())
assert float(value) == 3 * (32 + 2)
training.sync()
for name in params:
    np.testing.assert_allclose(training.buffer.grad(f"['{name}']").numpy(), np.asarray(grads[name], np.float32))
training.optimizer.step()
after = training.read()
assert after["half"].dtype == jnp.bfloat16 and after["scale"].shape == ()
assert jax.tree.structure(after) == jax.tree.structure(params)

# An array that was donated is not there any more.
donated = jnp.ones(4)
jax.jit(lambda x: x + 1, donate_argnums=0)(donated)
for give in (lambda: comm.all_reduce(donated, np.zeros(4, np.float32)), lambda: megadp.Buffer(comm, {"w": (4,)}).put("w", donated)):
    try:
        give()
        raise SystemExit("a deleted array was taken")
    except megadp.InvalidError as error:
        assert "has been deleted: it was donated" in error.text, error

# A parameter that is not used is named; and a put that fails in backward fails the sync.
try:
    jax.grad(lambda p: training.track(p)["scale"] * 2)(training.read())
    training.sync()
except megadp.MegaDPError as error:
    assert "'scale'" not in error.text and error.code == megadp.Status.STATE, error
    print("missing")
training.buffer.zero_grad()
jax.jit(jax.grad(loss))(training.read())
jax.jit(jax.grad(loss))(training.read())
try:
    training.sync()
except megadp.MegaDPError as error:
    assert error.code == megadp.Status.STATE and "differentiated twice" in error.text and "uses_per_step" not in error.text, error
    print("too often")

# Microbatches.
one = jax.jit(jax.grad(loss))
training.begin_microbatch(last=False)
grads = one(training.read())
training.begin_microbatch(last=True)
one(training.read())
training.sync()
np.testing.assert_allclose(training.buffer.grad("['shared']").numpy(), 2 * np.asarray(grads["shared"]), rtol=1e-6)

# Another rule, and a scaler, with which a step is skipped where a gradient is not finite.
training = megadp.jax.DataParallel(comm, {"w": jnp.zeros(2)}, rule="sgd_momentum", momentum=0.5, lr=0.25, check_finite=True)
training.optimizer.set_scaler(megadp.Scaler(scale=8))
for factor in (8.0, np.inf, 8.0):
    jax.grad(lambda p: (factor * training.track(p)["w"]).sum())(training.read())
    assert training.step().skipped == (factor == np.inf)
assert training.optimizer.scaler().scale == 4
np.testing.assert_array_equal(training.read()["w"], [-0.25 - 0.25 * 2.5] * 2)

# An unchecked step waits for gradients that are still being computed, and raises what their puts have raised.
training = megadp.jax.DataParallel(comm, {"w": jnp.zeros(500)}, rule="sgd", lr=1.0, missing="zero")
def slow(p, x):
    for _ in range(20):
        x = jnp.tanh(x @ x)
    return (training.track(p)["w"] * (1 + 0 * x[0])).sum()
for step in range(3):
    jax.jit(jax.grad(slow))(training.read(), jnp.ones((500, 500)))
    training.step(unchecked=True)
    assert float(training.read()["w"][0]) == -1 - step, step

# A step that meets another thread's call on the buffer is taken when it is called again.
for again in ("sync", "step"):
    training = megadp.jax.DataParallel(comm, {"w": jnp.zeros(2)}, rule="sgd", lr=1.0)
    def meets(*_, **__):
        setattr(within, again, usual)
        raise megadp.MegaDPError(megadp.Status.STATE, "buffer is in use by mdp_checkpoint_save on another thread")
    within = training.buffer if again == "sync" else training.optimizer
    usual = getattr(within, again)
    setattr(within, again, meets)
    jax.grad(lambda p: training.track(p)["w"].sum())(training.read())
    try:
        training.step()
        assert False
    except megadp.MegaDPError as error:
        assert "in use by" in error.text, error
    assert training.step().step == 1
    np.testing.assert_array_equal(training.read()["w"], [-1, -1])

# Arrays of JAX's are not written to.
mine = jnp.ones(4)
for wrong in (lambda: comm.all_reduce(mine), lambda: training.buffer.read(0, jnp.zeros(500))):
    try:
        wrong()
        assert False
    except megadp.InvalidError as error:
        assert "is read-only" in error.text, error
"""

# On one processor, where XLA would have one thread: without the other one this hangs within a few steps.
ONE_PROCESSOR = """
import faulthandler, os
faulthandler.dump_traceback_later(100, exit=True)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax, jax.numpy as jnp
import megadp, megadp.jax
with megadp.Comm() as comm:
    training = megadp.jax.DataParallel(comm, {"w": jnp.full((400, 400), 0.01), "b": jnp.zeros(400)}, rule="sgd", lr=1e-3)
    x = jnp.full((400, 400), 0.01)
    @jax.jit
    def loss_of(params, x):
        def loss(p):
            p, h = training.track(p), x
            for _ in range(40):
                h = jnp.tanh(h @ p["w"]) + p["b"]
            return h.sum() * 1e-3
        return jax.value_and_grad(loss)(params)[0]
    for step in range(30):
        loss_of(training.read(), x)
        training.step()
print("ended")
"""

# AdamW by optax, clipping by the global norm, on gradients that were averaged over the ranks: on both paths, then with two microbatches,
# against the same on one rank with all of the batch, without megadp. Weights, one of them bfloat16, are never written by the library.
AVERAGE = """
import jax, jax.numpy as jnp, numpy as np, optax
import megadp, megadp.jax
comm = megadp.Comm()
def start():
    random = np.random.default_rng(1)
    some = lambda *shape: 0.3 * random.standard_normal(shape, np.float32)
    return jax.tree.map(jnp.asarray, {"a": some(16, 32), "b": {"half": some(32).astype(jnp.bfloat16)}, "c": [some(32, 1), np.float32(0.5)]})
def loss_of(params, x):
    hidden = jnp.tanh(x @ params["a"] + params["b"]["half"].astype(jnp.float32))
    return ((hidden @ params["c"][0] * params["c"][1] - x.sum(1, keepdims=True)) ** 2).mean()
ROWS, STEPS = 48, 12
x = STEPS * [np.random.default_rng(2).standard_normal((ROWS, 16), np.float32)]
loss = jax.jit(loss_of)
share = slice(ROWS * comm.rank // comm.size, ROWS * (comm.rank + 1) // comm.size)
rule = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(3e-2))
@jax.jit
def update(params, state, grads):
    changes, state = rule.update(grads, state, params)
    return optax.apply_updates(params, changes), state
def train(average):
    params, losses = start(), []
    state = rule.init(params)
    for t in range(STEPS):
        losses.append(float(loss(params, x[t])))
        params, state = update(params, state, average(params, x[t]))
    return np.array(losses)
plain = jax.jit(jax.grad(loss_of))
averaging = megadp.jax.Averaging(comm, start(), bucket_elements=1)
tracked = jax.jit(jax.grad(lambda p, x: loss_of(averaging.track(p), x)))
def by_track(p, x):
    tracked(p, x[share])
    return averaging.average()
def by_put(p, x):
    grads = plain(p, x[share])
    kept = jax.tree.map(np.array, grads)
    found = averaging.average(grads)
    assert jax.tree.structure(found) == jax.tree.structure(p)
    assert all(a.dtype == b.dtype and a.shape == b.shape for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(p)))
    jax.tree.map(np.testing.assert_array_equal, grads, kept)
    return found
def by_microbatches(p, x):
    rows, half = x[share], ROWS // comm.size // 2
    averaging.begin_microbatch(last=False)
    averaging.put(jax.tree.map(lambda g: np.asarray(g) / 2, plain(p, rows[:half])))
    averaging.begin_microbatch(last=True)
    return averaging.average(jax.tree.map(lambda g: np.asarray(g) / 2, plain(p, rows[half:])))
alone = train(plain)
for average in (by_put, by_track, by_microbatches):
    print(average.__name__, np.abs(train(average) - alone).max(), flush=True)
assert alone[-1] < alone[0] / 2, alone
assert averaging.buffer.stats().launched_in_backward > 0
assert averaging.buffer.param(0).numpy().sum() == 0

# What was returned stays as it is; wrong shapes are named before anything has been put; a gradient that one rank lacks fails on all ranks,
# and the next call begins anew.
params = start()
ones = jax.tree.map(lambda p: np.full(p.shape, 1.0 + comm.rank, p.dtype), params)
first = averaging.average(ones)
averaging.average(jax.tree.map(lambda g: 2 * g, ones))
mean = (1 + comm.size) / 2
jax.tree.map(lambda g: np.testing.assert_array_equal(np.asarray(g, np.float32), mean), first)
try:
    averaging.average({**ones, "a": np.ones((32, 16))})
except megadp.InvalidError as error:
    assert "['a']" in error.text and "(32, 16)" in error.text and "(16, 32)" in error.text, error
    print("shape")
try:
    averaging.average({"a": ones["a"]})
except ValueError:
    print("tree")
if comm.rank == 0:
    averaging.buffer.put(0, np.asarray(ones["a"]))
else:
    averaging.put(ones)
try:
    averaging.average()
except megadp.MegaDPError as error:
    assert error.code == megadp.Status.STATE and (error.rank, error.param) == (0, 3) and "['c'][1]" in error.text, error
    print("missing")
again = averaging.average(ones)
jax.tree.map(lambda g: np.testing.assert_array_equal(np.asarray(g, np.float32), mean), again)
try:
    megadp.jax.Averaging(comm, params, sharding="zero_1")
except megadp.InvalidError as error:
    assert "zero_0" in error.text
    print("sharding", flush=True)
"""

REFUSED = """
import jax, jax.numpy as jnp, numpy as np
import megadp, megadp.jax
comm = megadp.Comm()
params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
def losses(*faults, where=comm, **options):
    training, found = megadp.jax.DataParallel(where, params, lr=0.1, bucket_elements=1, **options), []
    whole = jax.jit(jax.grad(lambda p: sum(leaf.sum() ** 2 for leaf in jax.tree.leaves(training.track(p)))))
    part = jax.jit(jax.grad(lambda p: training.track(p)["w"].sum()))
    for fault in faults:
        now = training.read()
        found.append([np.asarray(leaf).tolist() for leaf in jax.tree.leaves(now)])
        if fault == "numeric" and comm.rank == 1:
            now = jax.tree.map(lambda leaf: leaf * np.nan, now)
        (part if fault == "state" and comm.rank == 1 else whole)(now)
        try:
            step = training.step().step
        except megadp.MegaDPError as error:
            assert error.code.name == fault.upper(), error
            print(error.code.name, flush=True)
            del found[-1]
    training.buffer.wait()
    return found, step
plain = losses(None, None)
assert losses("state", None, "numeric", None) == plain
for pool in (1, 2):
    assert losses("state", None, "numeric", None, sharding="zero_2", pool_buckets=pool) == plain
assert losses(None, None, where=megadp.Grid(comm, instances=2)) == plain
assert losses("state", None, "numeric", None, check_finite=True) == plain
print("stepped", plain[1], flush=True)
"""

# A dict, whose leaves JAX sorts by name, used in another order; and a loss scale where gradients are checked.
ORDER = """
import jax, jax.numpy as jnp
import megadp, megadp.jax
comm = megadp.Comm()
params, order = {name: jnp.eye(4) for name in "abcd"}, None
for attempt in range(2):
    training = megadp.jax.DataParallel(comm, params, use_order=order, bucket_elements=1, check_finite=True)
    gradient = jax.jit(jax.grad(lambda p, x: (x @ p["c"] @ p["a"] @ p["d"] @ p["b"]).sum()))
    for name in "bdac":
        training.buffer.put(f"['{name}']", jnp.ones((4, 4)))
    training.sync()
    order = training.use_order()
    assert order == [1, 3, 0, 2], order
    ready = [training.buffer.bucket(number).ready_ns for number in range(4)]
    assert (ready == sorted(ready)) == (attempt == 1), ready
    training.begin_microbatch(last=True)
training.put(gradient(training.read(), jnp.full((4, 4), jnp.inf if comm.rank == 1 else 1)))
assert training.step(loss_scale=2.0).skipped
training.put(gradient(training.read(), jnp.ones((4, 4))))
assert training.step(loss_scale=2.0).step == 1
try:
    megadp.jax.Averaging(comm, params, use_order=[1])
except megadp.InvalidError as error:
    assert "use_order has 1 entries; params has 4 leaves" in error.text, error
averaging = megadp.jax.Averaging(comm, params, use_order=order, wire_dtype="bf16")
mean = averaging.average(jax.tree.map(lambda leaf: leaf * (1 + comm.rank), params))
assert float(mean["a"][0, 0]) == 1.5
print("ordered", flush=True)
"""

# An average in the place of the parameters, which read() then gives; of a rule and of a transformation's.
AVERAGES = """
import jax, jax.numpy as jnp
import megadp, megadp.jax
comm = megadp.Comm()
try:
    import optax
    kinds = [dict(rule="sgd", lr=1.0), dict(transformation=optax.sgd(1.0))]
except ImportError:
    kinds = [dict(rule="sgd", lr=1.0)]
for kind in kinds:
    training = megadp.jax.DataParallel(comm, {"w": jnp.zeros((4, 4))}, average_decay=0.75, bucket_elements=1, **kind)
    for _ in range(2):
        training.put({"w": jnp.full((4, 4), -4.0)})
        training.step()
    with training.averaged():
        training.buffer.verify()
        assert (training.read()["w"] == 2.75).all(), training.read()
    assert (training.read()["w"] == 8).all(), training.read()
print("averaged", flush=True)
"""

# One training, saved half-way ("save") or gone on with, with a pytree of state of many types beside it.
CHECKPOINT = """
import os, sys
import jax, jax.numpy as jnp, numpy as np
import megadp, megadp.jax
mode, directory, sharding = sys.argv[1:]
with megadp.Comm(timeout=60) as comm:
    def start(number):
        w = jax.random.normal(jax.random.key(number), (5, 3))
        return megadp.jax.DataParallel(comm, {"w": w, "half": jnp.ones(3, jnp.bfloat16)}, lr=0.1 / number, sharding=sharding)
    @jax.jit
    def gradients(p, key, mean):
        x = jax.random.normal(jax.random.fold_in(key, comm.rank), (8, 5))
        def loss(p):
            return ((x @ p["w"] + p["half"].astype(jnp.float32) - x[:, :3] - mean) ** 2).mean()
        return *jax.value_and_grad(loss)(p), 0.9 * mean + 0.1 * x[:, :3].mean()
    def step(training, state):
        state["key"], key = jax.random.split(state["key"])
        loss, grads, own = gradients(training.read(), key, state["mean"])
        state["mean"] = own
        averaged = np.array(own)
        comm.all_reduce(averaged, op="avg")
        state.update(mean=jnp.asarray(averaged), count=state["count"] + 1)
        training.put(grads)
        training.step()
        return float(loss).hex()
    def bits(training, state):
        state = {name: leaf for name, leaf in state.items() if name not in ("begun", "factor", "flag")}
        leaves = jax.tree.leaves([training.read(), {**state, "key": jax.random.key_data(state["key"])}])
        return [(np.asarray(leaf).dtype.name, np.asarray(leaf).tobytes().hex()) for leaf in leaves]
    training = start(1 if mode == "save" else 2)
    state = {"key": jax.random.key(4), "old": jax.random.PRNGKey(3), "mean": jnp.zeros(3), "count": 0, "scale": np.float64(0.5),
             "mask": np.array([True, False]), "none": None, "empty": np.zeros((0, 2), np.int32), "small": jnp.int8(-3), "rate": 0.25,
             "begun": 0, "factor": 1.0, "flag": False, "weak": jnp.asarray(0.3), "weaks": jnp.full((2, 2), 0.7)}
    if mode == "save":  # as a function of jit returns what began as Python's numbers
        state.update(begun=jnp.int32(7), factor=jnp.float32(0.5), flag=jnp.bool_(True))
    if mode == "save":
        for _ in range(3):
            step(training, state)
        saving = megadp.jax.save_checkpoint(directory, training, state=state, extra={"epoch": (2, "x")}, wait=False)
        saved = bits(training, state)
        losses = [step(training, state)]
        assert saving.wait()
    else:
        state = jax.tree.map(lambda leaf: leaf if jnp.ndim(leaf) and not leaf.size else leaf * 0 if not jnp.issubdtype(
            jnp.result_type(leaf), jax.dtypes.prng_key) else jax.random.key(9), state)
        state.update(mask=np.array([False, False]), flag=False)
        for word, changed in (("state['more']", {**state, "more": 1}), ("is bool here and int8", {**state, "small": jnp.bool_(0)}),
                              ("state['text'] is a str", {**state, "text": "x"}), ("state['count']", {**state, "count": np.zeros(3, int)}),
                              ("state['swapped'] has dtype >f4", {**state, "swapped": np.zeros(2, ">f4")})):
            try:
                megadp.jax.load_checkpoint(directory, training, state=changed)
                raise SystemExit(f"nothing was said of {word}")
            except megadp.InvalidError as error:
                assert word in error.text, error
        try:
            megadp.jax.load_checkpoint(directory, training, state={**state, "begun": np.zeros(())})
            raise SystemExit("an array became a count")
        except megadp.InvalidError as error:
            assert "is float64 here and int32" in error.text and "numpy.zeros((), 'int32')" in error.text, error
        again = megadp.jax.load_checkpoint(directory, training, state={**state, "more": 5}, optional="*more*")[0]
        assert again["more"] == 5
        state, extra = megadp.jax.load_checkpoint(directory, training, state=state)
        assert extra == {"epoch": (2, "x")} and state["count"] == 3 and type(state["count"]) is int and type(state["scale"]) is np.float64
        assert state["begun"] == 7 and type(state["begun"]) is int and state["factor"] == 0.5 and state["flag"] is True, state
        assert state["weak"].weak_type and state["weaks"].weak_type and not state["mean"].weak_type and state["weaks"].shape == (2, 2), state
        assert (jnp.ones(2, jnp.bfloat16) * state["weak"]).dtype == jnp.bfloat16
        assert state["none"] is None and state["small"].dtype == jnp.int8 and training.optimizer.info()["lr"] == 0.1
        saved = bits(training, state)
        losses = [step(training, state)]
    losses += [step(training, state) for _ in range(2)]
    try:
        megadp.jax.save_checkpoint(directory, megadp.jax.Averaging(comm, state["mean"]))
    except megadp.InvalidError as error:
        assert "Averaging" in error.text
    sys.stdout.write(repr((saved, losses, bits(training, state))) + "\\n")
    sys.stdout.flush()
"""


class Jax(unittest.TestCase):
    def losses(self, ranks, *options):
        ended = support.run_ranks(ranks, [EXAMPLE, support.DIGITS, *options])
        return [float(line) for line in support.check_ended(self, ended).split()]

    def test_gradients_during_backward(self):
        support.check_losses(self, self.losses(1), self.losses(2))

    def test_plain(self):
        support.check_losses(self, self.losses(1, "--plain"), self.losses(2, "--plain"))

    def test_overlap(self):
        """Gradients leave in backward order, and buckets are reduced before it has ended."""
        out = support.check_ended(self, support.run_ranks(2, ["-c", OVERLAP]))
        print(out.strip(), flush=True)
        self.assertEqual(out.count("bucket 0 reduced"), 2)

    @unittest.skipIf(importlib.util.find_spec("optax") is None, "optax is not installed")
    def test_averaged_for_optax(self):
        """Losses as those of one rank with the whole batch and without this library."""
        for ranks in (1, 2):
            lines = support.check_ended(self, support.run_ranks(ranks, ["-c", AVERAGE])).splitlines()
            apart = [(name, float(number)) for name, number in (line.split() for line in lines if line.startswith("by_"))]
            print(f"{ranks} ranks:", apart, flush=True)
            self.assertEqual([len(lines), len(apart)], [7 * ranks, 3 * ranks], lines)
            # Of losses of about 15: the bfloat16 gradient is rounded before it is averaged, and its mean is rounded again.
            self.assertLess(max(number for _, number in apart), 5e-3)

    def test_a_step_after_a_refused_one(self):
        """A parameter that is not used is told on all ranks; the next step begins anew, without a word. With ZeRO-2 too,
        where losses are the same, as they are with an instance for each rank."""
        out = support.check_ended(self, support.run_ranks(2, ["-c", REFUSED]))
        self.assertEqual(sorted(out.splitlines()), ["NUMERIC"] * 8 + ["STATE"] * 8 + ["stepped 2"] * 2)

    def test_differentiated_twice(self):
        """A step that a gradient came to twice was refused for ever, and on one rank alone left the others waiting."""
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                self.assertEqual(support.check_ended(self, support.run_ranks(ranks, [FAILURES, "twice"])).split(), ["twice"] * ranks)

    def test_a_function_compiled_with_an_earlier_track(self):
        """Gradients went to a DataParallel that nobody stepped: without a word with missing="zero"."""
        self.assertEqual(support.check_ended(self, support.run_ranks(2, [FAILURES, "stale"])).split(), ["stale"] * 2)

    def test_gradients_that_nobody_takes(self):
        """Each rank trained alone, without a word."""
        self.assertEqual(support.check_ended(self, support.run_ranks(2, [FAILURES, "untaken"])).split(), ["untaken"] * 2)

    def test_a_step_that_ranks_are_told_differently(self):
        self.assertEqual(support.check_ended(self, support.run_ranks(2, [FAILURES, "unlike"])).split(), ["unlike"] * 2)

    def test_calls_inside_of_jit(self):
        """They ran as the function was compiled, once for ever."""
        self.assertEqual(support.check_ended(self, support.run_ranks(1, [FAILURES, "traced"])), "traced\n")

    def test_track_outside_of_the_differentiated_function(self):
        self.assertEqual(support.check_ended(self, support.run_ranks(1, [FAILURES, "outside"])), "outside\n")

    def test_put_of_a_wrong_leaf(self):
        """Half a step stayed behind where the last leaf had another dtype, or was donated."""
        self.assertEqual(support.check_ended(self, support.run_ranks(2, [FAILURES, "put"])).split(), ["put"] * 2)

    def test_put_of_a_wrong_leaf_on_one_rank(self):
        self.assertEqual(support.check_ended(self, support.run_ranks(2, [FAILURES, "put_on_one"])).split(), ["put_on_one"] * 2)

    def test_leaves_that_are_no_parameters(self):
        self.assertEqual(support.check_ended(self, support.run_ranks(1, [FAILURES, "leaves"])), "leaves\n")

    def test_order_of_use(self):
        self.assertEqual(support.check_ended(self, support.run_ranks(2, ["-c", ORDER])).split(), ["ordered"] * 2)

    def test_averages(self):
        self.assertEqual(support.check_ended(self, support.run_ranks(2, ["-c", AVERAGES])).split(), ["averaged"] * 2)

    def test_checkpoints(self):
        """Fresh processes go on with the same bits, parameters and state, and with as many ranks as there were the same losses."""
        def run(ranks, *arguments):
            found = support.check_ended(self, support.run_ranks(ranks, ["-c", CHECKPOINT, *arguments])).splitlines()
            self.assertEqual(len(found), ranks)
            return sorted(ast.literal_eval(line) for line in found)

        with tempfile.TemporaryDirectory() as folder:
            reference = run(2, "save", folder, "zero_1")
            self.assertEqual(run(2, "load", folder, "zero_2"), reference)
            for ranks in (1, 3):
                self.assertEqual([saved for saved, *_ in run(ranks, "load", folder, "zero_1")], ranks * [reference[0][0]])

    def test_details(self):
        self.assertEqual(support.check_ended(self, support.run_ranks(1, ["-c", DETAILS])).split("\n")[:2], ["missing", "too often"])

    def test_one_processor(self):
        self.assertEqual(support.check_ended(self, support.run_ranks(1, ["-c", ONE_PROCESSOR])), "ended\n")


if __name__ == "__main__":
    unittest.main()
