# SPDX-License-Identifier: Apache-2.0
"""megadp.jax: the digits with 1 and 2 ranks on both paths, gradients that leave in backward order, overlap."""
import os
import unittest

import support

EXAMPLE = os.path.join(support.PACKAGE, "examples", "digits_jax.py")

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
    assert error.code == megadp.Status.STATE, error
    print("too often")
training.sync()

# Microbatches.
one = jax.jit(jax.grad(loss))
training.begin_microbatch(last=False)
grads = one(training.read())
training.begin_microbatch(last=True)
one(training.read())
training.sync()
np.testing.assert_allclose(training.buffer.grad("['shared']").numpy(), 2 * np.asarray(grads["shared"]), rtol=1e-6)
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

    def test_details(self):
        self.assertEqual(support.check_ended(self, support.run_ranks(1, ["-c", DETAILS])).split("\n")[:2], ["missing", "too often"])


if __name__ == "__main__":
    unittest.main()
