# SPDX-License-Identifier: Apache-2.0
"""Programs of test_cp.py, one rank each.

usage: cp_cases.py CASE
"""
import sys

import numpy as np

import megadp
from megadp import cp

BATCH, SEQUENCE, HEADS, KV_HEADS, SIZE = 2, 16, 4, 2, 3


def draw(seed, *shape):
    """The same on all ranks."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def heads(array, count):
    return np.repeat(np.asarray(array, np.float64), count // array.shape[2], axis=2).transpose(0, 2, 1, 3)


def scores(block):
    found = heads(block.q, block.q.shape[2]) @ heads(block.k, block.q.shape[2]).swapaxes(2, 3) / np.sqrt(block.q.shape[3])
    if block.causal:
        assert block.q_begin == block.k_begin
        found = np.where(np.tri(*found.shape[2:], dtype=bool), found, -np.inf)
    return found


def grouped(array, kv_heads):
    """The sum over the query heads of each head of k, as [batch, positions, kv_heads, head_dim]."""
    batch, count, length, size = array.shape
    return array.reshape(batch, kv_heads, count // kv_heads, length, size).sum(2).transpose(0, 2, 1, 3)


def attend(block):
    count, s = block.q.shape[2], scores(block)
    if block.grad_out is None:
        most = s.max(-1, keepdims=True)
        p = np.exp(s - most)
        block.lse[...] = (most + np.log(p.sum(-1, keepdims=True)))[..., 0].transpose(0, 2, 1)
        block.out[...] = (p / p.sum(-1, keepdims=True) @ heads(block.v, count)).transpose(0, 2, 1, 3)
        return
    assert not block.out.flags.writeable
    p = np.exp(s - block.lse.transpose(0, 2, 1)[..., None])
    grad, kv = heads(block.grad_out, count), block.k.shape[2]
    delta = (grad * heads(block.out, count)).sum(-1, keepdims=True)
    grad_s = p * (grad @ heads(block.v, count).swapaxes(2, 3) - delta) / np.sqrt(block.q.shape[3])
    block.grad_q[...] = (grad_s @ heads(block.k, count)).transpose(0, 2, 1, 3)
    block.grad_k[...] = grouped(grad_s.swapaxes(2, 3) @ heads(block.q, count), kv)
    block.grad_v[...] = grouped(p.swapaxes(2, 3) @ grad, kv)


def whole(comm, causal, form):
    """All of the results on one rank, or this rank's part on several, and its positions."""
    positions = [at for each in cp.part(comm.size, comm.rank, SEQUENCE, causal) for at in each]
    q, grad_out = (draw(seed, BATCH, SEQUENCE, HEADS, SIZE)[:, positions] for seed in (1, 2))
    k, v = (draw(seed, BATCH, SEQUENCE, KV_HEADS, SIZE)[:, positions] for seed in (3, 4))
    out, lse = np.empty_like(q), np.empty(q.shape[:3], np.float32)
    cp.attention(comm, attend, q, k, v, out, lse, causal=causal, form=form)
    grads = np.empty_like(q), np.empty_like(k), np.empty_like(v)
    cp.attention_backward(comm, attend, q, k, v, out, lse, grad_out, *grads, causal=causal, form=form)
    return positions, (out, lse, *grads)


def equal(comm):
    with comm.split(comm.rank) as alone:
        for causal in (False, True):
            _, expected = whole(alone, causal, "auto")
            for form in ("auto", "ring", "all_to_all"):
                positions, found = whole(comm, causal, form)
                for ours, all_of_it in zip(found, expected):
                    np.testing.assert_allclose(ours, all_of_it[:, positions], rtol=1e-5, atol=1e-5)


def refused(comm):
    arrays = [np.zeros((1, 3, 2, 4), np.float32) for _ in range(4)] + [np.zeros((1, 3, 2), np.float32)]

    def fails(block):
        if comm.rank == 1:
            raise ZeroDivisionError("of the block")
        attend(block)

    for _ in range(2):  # the communicator stays
        try:
            cp.attention(comm, fails, *arrays, form="ring")
        except ZeroDivisionError as error:
            assert comm.rank == 1 and isinstance(error.__cause__, megadp.MegaDPError), error
        except megadp.MegaDPError as error:
            assert comm.rank == 0 and error.code == megadp.Status.ABORTED and "rank 1: the attention function" in error.text, error
        else:
            raise AssertionError("did not fail")
    try:
        cp.attention(comm, attend, *arrays, causal=True)
    except megadp.MegaDPError as error:
        assert error.code == megadp.Status.INVALID and "4 or 8 would do" in error.text, error
    else:
        raise AssertionError("was not refused")


if __name__ == "__main__":
    with megadp.Comm() as world:
        {"equal": equal, "refused": refused}[sys.argv[1]](world)
    print(f"{sys.argv[1]} done", flush=True)
