# SPDX-License-Identifier: Apache-2.0
"""The buffer and the optimizer of a training of JAX's, whose calls are refused inside of jit as the training's own are."""
from . import _buffer, _optimizer
from ._jax_failures import knows_traces, outside_of_jit


class Buffer(_buffer.Buffer):
    begin_microbatch = outside_of_jit(_buffer.Buffer.begin_microbatch)
    read = outside_of_jit(_buffer.Buffer.read)
    sync = outside_of_jit(_buffer.Buffer.sync)
    wait = outside_of_jit(_buffer.Buffer.wait)
    zero_grad = outside_of_jit(_buffer.Buffer.zero_grad)
    # track()'s callbacks call it too, in which no array of JAX's may be made, as an older JAX is asked.
    put = outside_of_jit(_buffer.Buffer.put) if knows_traces else _buffer.Buffer.put


class Optimizer(_optimizer.Optimizer):
    step = outside_of_jit(_optimizer.Optimizer.step)
    pieces = outside_of_jit(_optimizer.Optimizer.pieces)
    swap_average = outside_of_jit(_optimizer.Optimizer.swap_average)
