# SPDX-License-Identifier: Apache-2.0
"""Programs of test_jax_tp.py, one rank each: what JAX would call once on each of several devices, or a second time.

usage: jax_once_cases.py CASE
"""
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"  # read when the first array is made

import jax
import jax.numpy as jnp
import numpy as np

import megadp
import megadp.jax as mj
from jax_tp_cases import close, draw, operators
from support import refused

shard_map = getattr(jax, "shard_map", None)
OVER_DEVICES = "is called in shard_map or pmap over 2 devices of this rank"


def over(devices, function):
    """On so many devices, each with all of the arguments."""
    mesh, all_of_it = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ("d",)), jax.sharding.PartitionSpec()
    return shard_map(function, mesh=mesh, in_specs=all_of_it, out_specs=all_of_it, check_vma=False)


def mapped(comm):
    """A rank's devices met another one's devices, whichever came first, and sums were mixed without a word."""
    w = draw(1, 4, 3)
    for name, function in operators(comm).items():
        gradient = jax.grad(lambda w: function(w).sum())
        expected = gradient(w)  # what is made of an operator here is taken there
        for run in (jax.jit, lambda function: function):
            refused(lambda: run(over(2, gradient))(w), OVER_DEVICES)
            refused(lambda: run(over(2, jax.jit(gradient)))(w), OVER_DEVICES)
            refused(lambda: run(jax.grad(lambda w: over(2, function)(w).sum()))(w), OVER_DEVICES)
            close(run(over(1, gradient))(w), expected)
        refused(lambda: jax.pmap(gradient)(jnp.stack([w, w])), OVER_DEVICES)
        close(jax.pmap(gradient)(w[None])[0], expected)
    whole = jax.device_put(w, jax.sharding.NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), ("d",)), jax.sharding.PartitionSpec("d")))
    close(jax.jit(lambda w: mj.reduce_from_tensor_parallel(w, comm))(whole), comm.size * w)
    tracked(comm, w)


def tracked(comm, w):
    training = mj.DataParallel(comm, w, rule="sgd", lr=1.0)
    for run in (jax.jit, lambda function: function):
        refused(lambda: run(over(2, jax.grad(lambda w: training.track(w).sum())))(w), f"track() {OVER_DEVICES}")
        for gradient in (over(1, jax.grad(lambda w: training.track(w).sum())), jax.grad(lambda w: over(2, jnp.square)(training.track(w)).sum())):
            before = training.read()
            close(run(gradient)(before), before - (training.step(), training.read())[1])
    refused(lambda: (jax.vmap(jax.grad(lambda w, x: (x * training.track(w)).sum()), (None, 0))(w, jnp.ones(2)), training.step()), "jax.vmap")


def again(comm):
    """Where jax_debug_nans is set the one rank that had a NaN called its collectives again, and each met the other ranks' next one."""
    w = draw(1, 4, 3)
    for name, function in operators(comm).items():
        def gradient(w):
            return jax.grad(lambda w: function(w).sum())(w)

        expected = jax.jit(gradient)(w)
        for option in ("jax_debug_nans", "jax_debug_infs"):
            jax.effects_barrier()
            jax.config.update(option, True)
            close(gradient(w), expected)
            with jax.disable_jit():
                close(jax.jit(gradient)(w), expected)
            if comm.size == 1:
                close(jax.jit(gradient)(w), expected)
            else:
                refused(lambda: jax.jit(lambda w: gradient(w))(w), f"UNSUPPORTED: {option} is on")
            jax.config.update(option, False)
            close(jax.jit(gradient)(w), expected)
    jax.effects_barrier()


if __name__ == "__main__":
    with megadp.Comm(backend="host", timeout=60) as world:
        globals()[sys.argv[1]](world)
    print(f"{sys.argv[1]} done", flush=True)
