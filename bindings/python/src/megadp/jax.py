# SPDX-License-Identifier: Apache-2.0
"""JAX: parameters as a pytree, gradients that leave during backward, also inside jit.

JAX makes its own gradient arrays, so each is copied once into the library's memory (and parameters once out of it). track() is an identity
whose derivative hands the gradient over by an io_callback; XLA runs it as soon as the gradient is known, while backward goes on.
"""
import threading
from typing import Any, Callable, List, Optional

import jax
import numpy
from jax.experimental import io_callback

from ._buffer import Buffer
from ._comm import Comm
from ._optimizer import Optimizer, StepReport


def _reporting(report: Callable[[Any], None]) -> Callable[[Any], Any]:
    """The identity; its gradient goes to report() on its way."""
    @jax.custom_vjp
    def identity(value: Any) -> Any:
        return value

    def forward(value: Any) -> Any:
        return value, None

    def backward(_: None, grad: Any) -> Any:
        io_callback(report, None, grad, ordered=False)
        return (grad,)

    identity.defvjp(forward, backward)
    return identity


class DataParallel:
    """Trains one pytree of parameters on all ranks of a communicator.

    params: a pytree of arrays, float32, bfloat16 or float16; rank 0's values go to all ranks. Register in the order of the forward pass
    where there is a choice: buckets then fill one after another. optimizer options (lr, betas, eps, weight_decay, max_grad_norm) and
    options of Buffer may be given. buffer and optimizer are there to be used directly. Collective; blocking.
    Raises MegaDPError, as Buffer and Optimizer.
    """

    def __init__(self, comm: Comm, params: Any, *, lr: Optional[float] = None, betas: Any = None, eps: Optional[float] = None,
                 weight_decay: float = 0.0, max_grad_norm: float = 0.0, **options: Any) -> None:
        self._tree: Any
        named, self._tree = jax.tree_util.tree_flatten_with_path(params)
        names = [jax.tree_util.keystr(path) or "params" for path, _ in named]
        self.buffer = Buffer(comm, [(name, value) for name, (_, value) in zip(names, named)], **options)
        for name, (_, value) in zip(names, named):
            self.buffer.write(name, numpy.asarray(value))
        self.buffer.broadcast()
        self.optimizer = Optimizer(self.buffer, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, max_grad_norm=max_grad_norm)
        self._dtypes = [value.dtype for _, value in named]
        self._failure: Optional[BaseException] = None
        self._lock = threading.Lock()
        self._identities = [_reporting(self._putting(i)) for i in range(len(names))]

    def _putting(self, number: int) -> Callable[[Any], None]:
        def put(grad: Any) -> None:  # on a thread of XLA's, which would make its own kind of error of an exception
            try:
                self.buffer.put(number, numpy.asarray(grad))
            except BaseException as error:
                with self._lock:
                    self._failure = self._failure or error

        return put

    def track(self, params: Any) -> Any:
        """The same pytree; in the backward pass each gradient goes to its bucket as soon as it is known. To be called once in the function
        that is differentiated, inside or outside of jit, on what the rest of it uses. A parameter that is used several times is summed up
        by JAX and leaves once; one that is not used has no gradient (missing="zero" or "skip" allow that)."""
        leaves = self._tree.flatten_up_to(params)
        return self._tree.unflatten([identity(leaf) for identity, leaf in zip(self._identities, leaves)])

    def put(self, grads: Any) -> None:
        """The plain path: puts a whole pytree of gradients, the last first. Instead of track. Local."""
        leaves: List[Any] = self._tree.flatten_up_to(grads)
        for number in reversed(range(len(leaves))):
            self.buffer.put(number, numpy.asarray(leaves[number]))

    def read(self) -> Any:
        """The parameters after the last step, as JAX arrays of their own. Waits for each while the next are still gathered. Local."""
        leaves = []
        for number, dtype in enumerate(self._dtypes):
            values = numpy.empty(self.buffer.params[number].shape, dtype)
            leaves.append(jax.numpy.asarray(self.buffer.read(number, values)))
        return self._tree.unflatten(leaves)

    def begin_microbatch(self, last: bool) -> None:
        """Says whether the microbatch that begins is the last one of the step; waits for the gradients of the one before. Local."""
        self._arrived()
        self.buffer.begin_microbatch(last)

    def sync(self) -> None:
        """Ends backward: waits for gradients that are still to be computed, then as Buffer.sync. Collective; blocking.
        Raises what a put in the backward pass raised, and MegaDPError."""
        self._arrived()
        self.buffer.sync()

    def _arrived(self) -> None:
        jax.effects_barrier()
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def step(self, lr: Optional[float] = None, loss_scale: Optional[float] = None) -> Optional[StepReport]:
        """sync, then a step of the optimizer. Returns when its report is known; parameters are still gathered, and read waits for them.
        Collective; blocking. Raises as sync and Optimizer.step."""
        self.sync()
        return self.optimizer.step(lr, loss_scale, wait=False)
