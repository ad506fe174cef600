# SPDX-License-Identifier: Apache-2.0
"""As jax_elementwise_cases.py: gradient transformations that need all of a parameter, on whole parameters, beside the same ones in one process
without shards.

usage: jax_whole_cases.py CASE [FOLDER]
"""
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import megadp
import megadp.jax
from jax_elementwise_cases import STEPS, Transformation, comm, data, grad_of, loss_of, ours, refused, start, train, unlike, whole_norm

CLOSE = 1e-6


class Factors(NamedTuple):
    count: Any
    mean: Any
    rows: Any


def by_hand(rate=0.02):
    """A mean of gradients over the root of what rows have had, by the norm of the parameter: what it keeps of a matrix has two shapes."""
    def init(params):
        return Factors(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), jax.tree.map(lambda p: jnp.zeros(p.shape[:1]), params))

    def update(grads, state, params):
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mean, grads)
        squares = jax.tree.map(lambda g: g**2 if g.ndim < 2 else (g**2).mean(1), grads)
        rows = jax.tree.map(lambda r, s: 0.9 * r + 0.1 * s, state.rows, squares)

        def move(p, m, r):
            change = m / (1 - 0.9 ** (state.count + 1)) / (jnp.sqrt(r.reshape(*r.shape, *(p.ndim - r.ndim) * [1])) + 1e-3)
            return -rate * change * jnp.maximum(jnp.linalg.norm(p), 0.1) / (jnp.linalg.norm(change) + 1e-8)

        return jax.tree.map(move, params, mean, rows), Factors(state.count + 1, mean, rows)

    return Transformation(init, update)


def alone(transformation, clip=None):
    """The mean of the shares' gradients, as ranks have them."""
    params, losses = start(), []
    state, update = transformation.init(params), jax.jit(transformation.update)  # compiled as ours is, or bfloat16 is rounded elsewhere
    for x in data:
        losses.append(float(loss_of(params, x)))
        shares = [grad_of(params, part) for part in np.split(x, comm.size)]
        grads = jax.tree.map(lambda *parts: sum(parts[1:], parts[0]) / comm.size, *shares)
        if clip is not None:
            norm = np.sqrt(sum(float(jnp.sum(jnp.square(g))) for g in jax.tree.leaves(grads)))
            grads = jax.tree.map(lambda g: g * min(1.0, clip / (norm + 1e-6)), grads)
        updates, state = update(grads, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return losses


def compare(name, mine, theirs):
    apart = max(abs(a - b) / abs(b) for a, b in zip(mine, theirs))
    sys.stdout.write(f"# losses of {name}: {apart:.1e} from one process's\n")
    sys.stdout.flush()
    assert len(mine) == len(theirs) == STEPS and apart <= CLOSE, (name, apart, mine, theirs)
    assert sum(mine[-5:]) < 0.9 * sum(mine[:5]), mine


def kept_of(training):
    info = training.optimizer.info()
    return [each["name"] for each in info["state"]][1:], info.get("param_states", [])


def case_by_hand():
    for sharding, clip in (("whole", None), ("whole", 0.5), ("zero_0", None)):
        training = ours(by_hand(), sharding=sharding, max_grad_norm=clip or 0.0)
        compare(f"a rule by hand, {sharding}", train(training, range(STEPS)), alone(by_hand(), clip))
        assert kept_of(training) == (["mean"], ["rows"]), kept_of(training)
    owned = {piece.param for piece in training.buffer.owned()}
    assert len(owned) == 4, owned
    training = ours(by_hand(), sharding="whole")
    owned = {piece.param for piece in training.buffer.owned()}
    sizes = [training.optimizer.state(i, "rows").size for i in range(4)]
    assert sizes == [size * (i in owned) for i, size in enumerate((16, 32, 32, 1))], sizes
    assert comm.size == 1 or 0 < len(owned) < 4, owned


def case_optax():
    import optax

    rates = optax.schedules.cosine_decay_schedule(0.03, STEPS)
    kinds = {"lamb": (optax.lamb(rates, weight_decay=0.1), (["mu", "nu"], [])),
             "lars": (optax.lars(20.0, momentum=0.5), (["trace"], [])),
             "adafactor": (optax.adafactor(0.02, min_dim_size_to_factor=16), ([], ["v_row", "v_col", "v"])),
             "muon": (optax.contrib.muon(0.02), (["mu"], ["ns_coeffs", "nu"])),
             "muon, bfloat16": (optax.contrib.muon(0.02, mu_dtype=jnp.bfloat16), ([], ["mu", "ns_coeffs", "nu"])),
             "centralized": (optax.chain(optax.centralize(), optax.adam(0.02)), (["mu", "nu"], []))}
    for name, (transformation, kept) in kinds.items():
        training = ours(transformation, sharding="whole")
        compare(name, train(training, range(STEPS)), alone(transformation))
        assert sorted(kept_of(training)[1]) == sorted(kept[1]) and kept_of(training)[0] == kept[0], (name, kept_of(training))


def case_saved():
    """In the middle, of bfloat16 parameters with masters; goes on with the same bits."""
    folder = sys.argv[2]
    training = ours(by_hand(), half=True, sharding="whole")
    train(training, range(7))
    megadp.jax.save_checkpoint(folder, training)
    losses = train(training, range(7, STEPS))
    again = ours(by_hand(), half=True, sharding="whole")
    megadp.jax.load_checkpoint(folder, again)
    assert train(again, range(7, STEPS)) == losses


def norm_of_all():
    def update(grads, state, params=None):
        norm = sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)) ** 0.5
        return jax.tree.map(lambda g: -0.1 * g / norm, grads), state

    return Transformation(lambda params: (), update)


def keeps(what):
    return Transformation(lambda params: {"kept": what}, lambda grads, state, params=None: (
        jax.tree.map(lambda g: g / jnp.linalg.norm(g), grads), jax.tree.map(lambda s: s * 2 + 1, state)))


def case_refused():
    """What goes by several parameters, and what cannot be kept."""
    whole = dict(sharding="whole")
    unlike(**whole)
    refused("the same gradient moves an element", lambda: ours(by_hand(0.02 + 0.01 * comm.rank), **whole))
    refused("they are not what they are where each is updated by itself|max_grad_norm", lambda: ours(norm_of_all(), **whole))
    refused("it keeps ['kept'] ((3,), int32)|float32, bfloat16", lambda: ours(keeps(jnp.zeros(3, jnp.int32)), **whole))
    ours(keeps(jnp.zeros(3)), **whole)
    ours(whole_norm(), **whole)
    if comm.size == 2:
        placed = {"a": megadp.tp.Placed("sharded"), "b": "replicated", "c": ["replicated", "replicated"]}
        refused("is cut over the tensor-parallel ranks", lambda: megadp.jax.DataParallel(
            megadp.Grid(megadp.Comm(timeout=60), tp=2), start(), transformation=whole_norm(), placements=placed, **whole))


def case_optax_refused():
    import optax

    for text, transformation in (
            ("clip_by_global_norm|max_grad_norm", optax.chain(optax.clip_by_global_norm(1.0), optax.lamb(1e-3))),
            ("normalize_by_update_norm|max_grad_norm", optax.chain(optax.normalize_by_update_norm(), optax.sgd(1e-3))),
            ("it keeps|rng_key, a random key", optax.noisy_sgd(1e-3)),
            ("it keeps .step_count|a count that begins at 1", optax.contrib.schedule_free_sgd(1e-3)),
            ("apply_if_finite|loss_scale", optax.apply_if_finite(optax.lamb(1e-3), 3))):
        refused(text, lambda transformation=transformation: ours(transformation, sharding="whole"))


if __name__ == "__main__":
    globals()["case_" + sys.argv[1]]()
    sys.stdout.write(f"{sys.argv[1]}: ok\n")  # at once: the ranks share a pipe
    sys.stdout.flush()
