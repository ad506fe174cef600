# SPDX-License-Identifier: Apache-2.0
"""What test_jax_elementwise.py runs on some ranks: gradient transformations on shards, beside the same ones on whole parameters. Prints
"CASE: ok" on each rank.

usage: jax_elementwise_cases.py CASE [FOLDER]
"""
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import megadp
import megadp.jax

STEPS, ROWS = 20, 12
SAYS_WHOLE = 'With DataParallel(..., sharding="whole") each parameter has one owner'
SAYS_AVERAGING = "With Averaging the optimizer is the program's own"
comm = megadp.Comm(timeout=60)


class Transformation(NamedTuple):
    init: Any
    update: Any


class Moments(NamedTuple):
    count: Any
    mean: Any
    scale: Any


def by_hand(rate=0.02, decay=0.9):
    """As optax makes them: a mean of gradients, corrected by a count of steps, over a scale that begins with 0.1; decoupled weight decay."""
    def init(params):
        return Moments(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), jax.tree.map(lambda p: jnp.full_like(p, 0.1), params))

    def update(grads, state, params):
        count = state.count + 1
        mean = jax.tree.map(lambda m, g: decay * m + (1 - decay) * g, state.mean, grads)
        scale = jax.tree.map(lambda s, g: jnp.maximum(0.99 * s, jnp.abs(g)), state.scale, grads)
        updates = jax.tree.map(lambda m, s, p: -rate * (m / (1 - decay ** count) / s + 0.1 * p), mean, scale, params)
        return updates, Moments(count, mean, scale)

    return Transformation(init, update)


def start(half=False):
    random = np.random.default_rng(1)
    some = lambda *shape: jnp.asarray(0.3 * random.standard_normal(shape, np.float32))
    params = {"a": some(16, 32), "b": some(32), "c": [some(32, 1), jnp.float32(0.5)]}
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params) if half else params


@jax.jit
def loss_of(params, x):
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    hidden = jnp.tanh(x @ params["a"] + params["b"])
    return ((hidden @ params["c"][0] * params["c"][1] - x.sum(1, keepdims=True)) ** 2).mean()


data = [np.random.default_rng(t).standard_normal((ROWS, 16), np.float32) for t in range(STEPS)]
share = slice(ROWS * comm.rank // comm.size, ROWS * (comm.rank + 1) // comm.size)
grad_of = jax.jit(jax.grad(loss_of))


def ours(transformation, half=False, **options):
    return megadp.jax.DataParallel(comm, start(half), transformation=transformation, bucket_elements=100, **options)


def train(training, steps):
    losses = []
    for t in steps:
        params = training.read()
        losses.append(float(loss_of(params, data[t])))
        training.put(grad_of(params, data[t][share]))
        training.step()
    return losses


def alone(transformation, clip=None):
    params, losses = start(), []
    state = transformation.init(params)
    for x in data:
        losses.append(float(loss_of(params, x)))
        grads = grad_of(params, x)
        if clip is not None:
            norm = np.sqrt(sum(float(jnp.sum(g.astype(jnp.float32) ** 2)) for g in jax.tree.leaves(grads)))
            grads = jax.tree.map(lambda g: g * min(1.0, clip / (norm + 1e-6)), grads)
        updates, state = transformation.update(grads, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return losses


def compare(name, mine, theirs):
    apart = max(abs(a - b) / abs(b) for a, b in zip(mine, theirs))
    assert len(mine) == len(theirs) == STEPS and apart < 1e-5, (name, apart, mine, theirs)
    assert sum(mine[-5:]) < 0.8 * sum(mine[:5]), mine


def case_by_hand():
    """Losses as on one rank without this library, clipped by max_grad_norm too, with every sharding."""
    for clip in (None, 0.5):
        expected = alone(by_hand(), clip)
        for sharding in ("zero_0", "zero_1", "zero_2"):
            training = ours(by_hand(), max_grad_norm=clip or 0.0, sharding=sharding)
            compare(sharding, train(training, range(STEPS)), expected)
            arrays = [each["name"] for each in training.optimizer.info()["state"]]
            assert arrays == ["master", "mean", "scale"], arrays


def case_optax():
    import optax

    rates = optax.schedules.cosine_decay_schedule(0.03, STEPS)
    kinds = {"adam": (optax.adam(0.02), 2), "adamw": (optax.adamw(rates, weight_decay=0.1), 2), "rmsprop": (optax.rmsprop(0.01, momentum=0.5), 2),
             "adagrad": (optax.adagrad(0.2), 1), "adabelief": (optax.adabelief(0.02), 2), "nadam": (optax.nadam(0.02), 2),
             "lion": (optax.lion(0.01), 1), "chain": (optax.chain(optax.clip(0.3), optax.scale_by_adam(), optax.trace(0.5), optax.scale(-0.01)), 3)}
    for name, (transformation, arrays) in kinds.items():
        training = ours(transformation)
        compare(name, train(training, range(STEPS)), alone(transformation))
        assert len(training.optimizer.info()["state"]) == 1 + arrays, (name, training.optimizer.info()["state"])


def case_saved():
    """In the middle, of bfloat16 parameters with masters; goes on with the same bits."""
    folder = sys.argv[2]
    training = ours(by_hand(), half=True)
    train(training, range(7))
    megadp.jax.save_checkpoint(folder, training)
    losses = train(training, range(7, STEPS))
    again = ours(by_hand(), half=True)
    megadp.jax.load_checkpoint(folder, again)
    assert train(again, range(7, STEPS)) == losses


def refused(text, call):
    """text: parts of the error's sentence. Of what to do instead it says one thing."""
    try:
        call()
    except megadp.MegaDPError as error:
        for part in text.split("|"):
            assert part in str(error), f"{part!r} is not in: {error}"
        assert SAYS_WHOLE not in str(error) or SAYS_AVERAGING not in str(error), error
        return
    raise AssertionError(f"nothing was said; expected {text!r}")


def whole_norm():
    def update(grads, state, params=None):
        return jax.tree.map(lambda g: -1e-9 * g / jnp.linalg.norm(g), grads), state

    return Transformation(lambda params: (), update)


def keeps(what):
    def update(grads, state, params=None):
        return grads, jax.tree.map(lambda s: s * 0.5 + 1, state)

    return Transformation(lambda params: {"kept": what}, update)


class Counts(NamedTuple):
    taken: Any
    late: Any


def by_count(every, late):
    """Moves in each step whose count, which begins anew after `every`, is 0; and further from step `late` on."""
    def update(grads, state, params):
        factor = jnp.where(state.taken == 0, 0.1, 0.0) + state.late
        return (jax.tree.map(lambda g: -factor * g, grads),
                Counts((state.taken + 1) % every, jnp.where(state.taken + 1 == late, 1.0, state.late)))

    return Transformation(lambda params: Counts(jnp.zeros((), jnp.int32), jnp.zeros(())), update)


def by_leaf(moves):
    """Moves the leaves that moves(path, leaf) says, or by the factor that it says."""
    def update(grads, state, params):
        return jax.tree_util.tree_map_with_path(lambda path, g: -0.1 * float(moves(path, g)) * g, grads), state

    return Transformation(lambda params: (), update)


def at_rank(by):
    """Of a rank's own rate, which is another one from step 700 on at rank 0, and a bit later at others."""
    def update(grads, count, params):
        rate = jnp.where(count < 700 + 100 * comm.rank, 0.02, 0.01) if by is None else 0.02 + by * comm.rank
        return jax.tree.map(lambda g: -rate * g, grads), count + 1

    return Transformation(lambda params: jnp.zeros((), jnp.int32), update)


def unlike(**options):
    """Ranks that have other numbers mixed parts of a parameter, without a word."""
    for by, says in ((0.01, "in step 2 "), (None, "in step 725 ")):
        refused(f"INVALID|not alike on all ranks|{says}|on rank 0|on rank 1", lambda by=by: ours(at_rank(by), **options))
    ours(at_rank(1e-7), **options)  # as machines round


def case_refused():
    unlike()
    refused("it must have init and update", lambda: ours("adam"))
    refused(f"its update is not the same|{SAYS_WHOLE}", lambda: ours(whole_norm()))
    refused("it keeps ['kept']|only counts of steps", lambda: ours(keeps(jnp.zeros(()))))
    refused("it keeps ['kept']|(3,)", lambda: ours(keeps(jnp.zeros(3))))
    for every, text in ((2, f"it keeps .taken|{SAYS_AVERAGING}"), (8, "after 200 steps"), (150, "after 200 steps"), (5000, "a count that is|begin_microbatch")):
        refused(text, lambda every=every: ours(by_count(every, late=-1)))
    refused("after 200 steps", lambda: ours(by_count(10 ** 9, late=30)))
    ours(by_count(10 ** 9, late=-1))
    for moves, leaf in ((lambda path, g: "a" in jax.tree_util.keystr(path), "['a']"), (lambda path, g: g.ndim > 0, "['c'][1]")):
        refused(f"{leaf} goes another way", lambda moves=moves: ours(by_leaf(moves)))
    refused("cannot be taken on pieces of parameters: IndexError", lambda: ours(by_leaf(lambda path, g: path[-1] is None)))
    refused("lr is 0.1 beside a transformation", lambda: ours(by_hand(), lr=0.1))
    training = ours(by_hand())
    training.put(grad_of(training.read(), data[0][share]))
    refused("lr is 0.1 beside a transformation", lambda: training.step(lr=0.1))
    training.step()


def clipped(size_of, threshold=1e6):
    """Of each leaf no more than `threshold` by this measure of all of it: more than a trial's values come to."""
    def update(grads, state, params=None):
        return jax.tree.map(lambda g: -0.1 * g * jnp.minimum(1.0, threshold / size_of(g)), grads), state

    return Transformation(lambda params: (), update)


def case_clips():
    """What goes by other elements than its own, of which no trial by values shows anything: pieces have not got them."""
    measures = (("a sum of elements", jnp.linalg.norm), ("a sum of elements", lambda g: jnp.sqrt(jnp.mean(g * g))),
                ("the largest of elements", lambda g: jnp.max(jnp.abs(g))), ("a product of vectors", lambda g: jnp.dot(g.ravel(), g.ravel())),
                ("a sum of elements", lambda g: jax.lax.fori_loop(0, 3, lambda _, x: x + jnp.sum(g) * 1e-9, 1.0)),
                ("whether any element", lambda g: jax.lax.cond(jnp.any(g > 1e9), lambda: 1e12, lambda: 1.0)))
    for words, measure in measures:
        refused(f"goes by {words}|{SAYS_WHOLE}", lambda measure=measure: ours(clipped(measure)))
        ours(clipped(measure), sharding="whole")
    moves = lambda g: g * jnp.where(jnp.arange(g.size).reshape(g.shape) > 10**6, 0.0, 1.0)
    refused("goes by the place of an element", lambda: ours(clipped(lambda g: jnp.where(moves(g) > 1e9, 2.0, 1.0))))
    # Of each element by itself, with several numbers of each.
    stack = lambda g: jnp.stack([g, -g, 2 * g])
    for measure in (lambda g: jnp.where(jnp.abs(g) > 1e9, 1e12, 1.0), lambda g: jnp.max(stack(g), 0) + 1, lambda g: 1 + jnp.median(stack(g), 0) ** 2,
                    lambda g: 1 + jnp.tanh(g.T).T ** 2,
                    lambda g: jax.vmap(lambda x: jax.lax.while_loop(lambda y: y > 3, lambda y: y / 2, x))(1 + abs(g.ravel())).reshape(g.shape)):
        ours(clipped(measure))


def case_unseen():
    """Functions that a trace of the update does not show, or shows elsewhere, and that may go by all elements; values that do not come from
    elements may go through them."""
    def on_host(g):
        return jax.pure_callback(lambda v: np.asarray(v) * np.float32(min(1.0, 1e6 / np.linalg.norm(v))), jax.ShapeDtypeStruct(g.shape, g.dtype), g)

    def in_ref(g):
        ref = jax.new_ref(jnp.float32(0))
        ref[...] = jnp.linalg.norm(g)
        return ref[...]

    def given(transformation, **options):
        return megadp.jax.DataParallel(comm, {"w": jnp.ones((4, 3))}, transformation=transformation, **options)

    each = lambda change: Transformation(lambda params: (), lambda grads, state, params=None: (jax.tree.map(change, grads), state))
    linear = lambda g: jax.custom_derivatives.linear_call(lambda r, x: x * jnp.minimum(1.0, 1e6 / jnp.linalg.norm(r)), lambda r, x: x, g, g)
    largest = lambda g: 1 + jax.lax.reduce(g * g, jnp.float32(0), lambda a, b: jnp.maximum(a, b) + 0 * a, (0, 1)[:g.ndim])
    for words, change in (("a function that is not looked into (pure_callback)", on_host), ("a sum of elements", linear)):
        refused(f"goes by {words}|{SAYS_WHOLE}", lambda change=change: given(each(change)))
    given(each(on_host), sharding="whole")
    refused("goes by what reduce makes of several elements", lambda: given(clipped(largest)))
    if hasattr(jax, "new_ref"):
        refused("goes by what is kept in a Ref", lambda: given(clipped(in_ref)))

    seen = []

    def shown(grads, count, params=None):
        rate = jax.pure_callback(lambda n: np.float32(2.0 ** -n), jax.ShapeDtypeStruct((), jnp.float32), count)
        jax.tree.map(lambda g: jax.debug.callback(lambda v: seen.append(v.shape), g), grads)
        return jax.tree.map(lambda g: -rate * g, grads), count + 1

    training = given(Transformation(lambda params: jnp.zeros((), jnp.int32), shown))
    del seen[:]
    for _ in range(3):
        training.put({"w": jnp.ones((4, 3))})
        training.step()
    np.testing.assert_array_equal(training.read()["w"], 1 - 1.75)
    assert seen


def case_sizes():
    """A mask, a label or a factor that goes by sizes which small arrays do not have: pieces have other ones than parameters, here "a" of (16, 32)."""
    by_sizes = {"a mask": lambda path, g: g.size > 300, "the last dimension": lambda path, g: bool(g.shape) and g.shape[-1] >= 300,
                "a factor": lambda path, g: max(g.size, 100) ** -0.5}
    for name, moves in by_sizes.items():
        refused(f"['a'] of shape (16, 32) goes another way|by sizes or shapes|{SAYS_WHOLE}", lambda moves=moves: ours(by_leaf(moves)))
        ours(by_leaf(moves), sharding="whole")
    named = by_leaf(lambda path, g: "a" in jax.tree_util.keystr(path) and g.size > 300)
    refused(f"['a'] of shape (16, 32) goes another way|{SAYS_AVERAGING}", lambda: ours(named))
    refused(f"['a'] of shape (16, 32) goes another way in the pytree than by itself|{SAYS_AVERAGING}", lambda: ours(named, sharding="whole"))
    ours(by_leaf(lambda path, g: g.size < 10**6))


def case_optax_sizes():
    import optax

    def large(params):
        return jax.tree.map(lambda leaf: leaf.size > 300, params)

    kinds = (optax.adamw(0.02, weight_decay=1.0, mask=large), optax.chain(optax.masked(optax.add_decayed_weights(0.1), large), optax.sgd(0.05)),
             optax.multi_transform({True: optax.sgd(0.1), False: optax.sgd(0.01)}, large),
             optax.multi_transform({True: optax.adam(0.1), False: optax.adam(0.1, b1=0.8)}, large))
    for kind in kinds:
        for sharding in ("default", "zero_2"):
            refused(f"['a'] of shape (16, 32) goes another way|by sizes or shapes|{SAYS_WHOLE}", lambda kind=kind: ours(kind, sharding=sharding))
        training = ours(kind, sharding="whole")
        compare("a mask by sizes, whole", train(training, range(STEPS)), alone(kind))
    loops = optax.chain(Transformation(lambda params: (), lambda grads, state, params=None: (jax.tree.map(
        lambda g: jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x), g), grads), state)), optax.scale_by_schedule(
            lambda count: -0.1 * jax.lax.cond(count < 5, lambda c: c + 1.0, lambda c: 5.0, count)))
    training = ours(optax.GradientTransformation(loops.init, loops.update))
    compare("loops and branches", train(training, range(STEPS)), alone(loops))


def case_optax_refused():
    import optax

    for text, transformation in (
            ("clip_by_global_norm|max_grad_norm", optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))),
            (f"scale_by_trust_ratio|norm of a whole parameter|{SAYS_WHOLE}", optax.lamb(1e-3)),
            (f"scale_by_trust_ratio|norm of a whole parameter|{SAYS_WHOLE}", optax.lars(1e-3)),
            (f"scale_by_muon|orthogonalizes whole matrices|{SAYS_WHOLE}", optax.contrib.muon(1e-3)),
            ("adaptive_grad_clip", optax.chain(optax.adaptive_grad_clip(0.1), optax.sgd(1e-3))),
            ("clip_by_block_rms", optax.adafactor(1e-3)),
            (f"cannot be taken on pieces|a random key|{SAYS_AVERAGING}", optax.noisy_sgd(1e-3)),
            (f"'value'|{SAYS_AVERAGING}", optax.polyak_sgd()),
            (f"it keeps .mini_step|{SAYS_AVERAGING}", optax.MultiSteps(optax.adam(1e-3), 2).gradient_transformation()),
            (f"learning_rate|{SAYS_WHOLE}", optax.inject_hyperparams(optax.adam)(optax.linear_schedule(0.1, 0.0, 9))),
            (f"at most 4 such arrays|{SAYS_WHOLE}", optax.contrib.cocob())):
        refused(text, lambda transformation=transformation: ours(transformation))


if __name__ == "__main__":
    globals()["case_" + sys.argv[1]]()
    sys.stdout.write(f"{sys.argv[1]}: ok\n")  # at once: the ranks share a pipe
    sys.stdout.flush()
