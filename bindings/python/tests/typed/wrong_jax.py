# SPDX-License-Identifier: Apache-2.0
"""As wrong.py, for megadp.jax."""
from typing import Any

import megadp
import megadp.jax


def train(comm: megadp.Comm, params: Any) -> None:
    megadp.jax.DataParallel(comm, params, lr=0.1, betas=(0.9, 0.95), bucket_elements=3)
    megadp.jax.DataParallel(comm, params, bucket_elemnts=3)  # wrong
    megadp.jax.DataParallel(comm, params, betas=0.9)  # wrong
    megadp.jax.DataParallel(comm, params, use_order=megadp.jax.Averaging(comm, params, use_order=[0]).use_order(), wire_dtype="bf16")
    megadp.jax.DataParallel(comm, params, use_order=0)  # wrong
    megadp.jax.Averaging(comm, params, missing="skip")
    megadp.jax.Averaging(comm, params, missing="skipped")  # wrong
    megadp.jax.Averaging(comm, params, lr=0.1)  # wrong
    training = megadp.jax.DataParallel(comm, params)
    megadp.jax.save_checkpoint("checkpoints", training, state={"x": 1}, extra=(1, "x"), keep=3, wait=False)
    megadp.jax.save_checkpoint("checkpoints", megadp.jax.Averaging(comm, params))  # wrong
    state, extra = megadp.jax.load_checkpoint("checkpoints", training, state={"x": 1}, params_only=True, optional="x")
    megadp.jax.load_checkpoint("checkpoints", training, scheduler=None)  # wrong
    layer = megadp.jax.ParallelLinear(comm, "column", 4, 4, sequence=True, gather_output=True, grad="replicated")
    megadp.jax.DataParallel(comm, params, placements=layer.placements)
    megadp.jax.ParallelLinear(comm, "colum", 4, 4)  # wrong
    megadp.jax.gather_from_tensor_parallel(params, comm)  # wrong
    megadp.jax.gather_from_tensor_parallel(params, comm, dim=0, grad="same")  # wrong
    megadp.jax.vocab_parallel_cross_entropy(params, megadp.jax.vocab_parallel_embedding(params, params, comm, grad="partial"), comm, classes=3)
    megadp.jax.vocab_parallel_embedding(params, params, comm, grad="sum")  # wrong
    megadp.jax.vocab_parallel_cross_entropy(params, params, comm, reduction="mean")  # wrong
    part = megadp.jax.context_parallel_part(params, comm, dim=1, causal=True)
    megadp.jax.context_parallel_attention(part, part, part, comm, causal=True, form="ring", bounds=[0, 4, 8], scale=0.5, attention=None)
    megadp.jax.context_parallel_attention(part, part, part, comm, form="rings")  # wrong
    megadp.jax.context_parallel_attention(part, part, part, comm, is_causal=True)  # wrong
    megadp.jax.context_parallel_attention(part, part, part, comm, attention=lambda block: block.query)  # wrong
    megadp.jax.context_parallel_positions(part.shape[1], comm, causal=True)
    megadp.jax.context_parallel_positions(comm, 8)  # wrong
