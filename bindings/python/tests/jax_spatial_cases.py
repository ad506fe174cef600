# SPDX-License-Identifier: Apache-2.0
"""Program of test_jax_tp.py: a convolution of images that are cut over ranks, against the whole."""
import jax
import numpy

import megadp
from megadp.jax import HaloPad

ROWS, WIDTH = 5, 6


def convolve(padded, weight):
    return jax.lax.conv_general_dilated(padded, weight, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


with megadp.Comm() as comm:
    random = numpy.random.default_rng(1)
    whole = random.standard_normal((2, ROWS * comm.size, WIDTH, 3), numpy.float32)
    weight = random.standard_normal((3, 3, 3, 4), numpy.float32)
    scale = random.standard_normal((2, ROWS * comm.size, WIDTH, 4), numpy.float32)
    pad = HaloPad(comm, (1, comm.size, 1, 1), (0, 1, 1, 0), (0, 1, 1, 0))
    own = slice(ROWS * comm.rank, ROWS * (comm.rank + 1))

    def loss(x, w):
        return (convolve(pad(x), w) * scale[:, own]).sum()

    def whole_loss(x, w):
        return (convolve(jax.numpy.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), w) * scale).sum()

    for gradient in (jax.grad(loss, (0, 1)), jax.jit(jax.grad(loss, (0, 1)))):
        of_x, of_weight = gradient(whole[:, own], weight)
        jax.effects_barrier()
        wanted = jax.grad(whole_loss, (0, 1))(whole, weight)
        numpy.testing.assert_allclose(of_x, wanted[0][:, own], rtol=1e-4, atol=1e-4)
        of_weight = numpy.array(of_weight)
        comm.all_reduce(of_weight)
        numpy.testing.assert_allclose(of_weight, wanted[1], rtol=1e-4, atol=1e-3)
    print("spatial done")
