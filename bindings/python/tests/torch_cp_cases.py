# SPDX-License-Identifier: Apache-2.0
"""Programs of test_torch_cp.py, one rank each.

usage: torch_cp_cases.py CASE [ARGUMENT ...]
"""
import copy
import itertools
import json
import sys
import threading

import torch

import megadp
import megadp.torch as mt
from megadp import _cp_blocks
from megadp.torch import context_parallel_attention, context_parallel_part, context_parallel_positions
from support import DEVICE, refused
from torch_tp_cases import close, draw

BATCH, SEQUENCE, SIZE = 2, 24, 5  # the sequence divides into 1, 2, 3 and 4 parts, and each of these into 2
BOUNDS = (0, 5, 5, 14, 24)  # one sequence is empty
functional = torch.nn.functional
torch.set_num_threads(1)


def visible(causal, bounds):
    """Which keys each query of the whole sees."""
    found = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool)
    if bounds is not None:
        number = torch.bucketize(torch.arange(SEQUENCE), torch.tensor(bounds), right=True)
        found = number[:, None] == number[None, :]
    return found.tril() if causal else found


def whole_attention(q, k, v, causal, bounds=None, scale=None):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return functional.scaled_dot_product_attention(q, k, v, visible(causal, bounds), scale=scale)


def with_gradients(attend, inputs, weights):
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = attend(*leaves)
    return out, torch.autograd.grad((out * weights).sum(), leaves)


def check(comm, heads, kv_heads, causal, strided=False, dtype=torch.float32, tolerance=1e-5, attention=None, bounds=None, scale=None, form="auto"):
    """Outputs and gradients of the parts against torch's of the whole."""
    counts = (heads, kv_heads, kv_heads, heads)
    q, k, v, weights = (draw(seed, BATCH, count, SEQUENCE, SIZE, dtype=dtype) for seed, count in enumerate(counts))
    expected, grads = with_gradients(lambda *given: whole_attention(*given, causal, bounds, scale), (q, k, v), weights)

    def part(x):
        own = context_parallel_part(x, comm, 2, causal=causal)
        return own.transpose(1, 2).contiguous().transpose(1, 2) if strided else own

    out, found = with_gradients(
        lambda *given: context_parallel_attention(*given, comm, causal=causal, form=form, bounds=bounds, scale=scale, attention=attention),
        [part(x) for x in (q, k, v)], part(weights))
    assert out.dtype == dtype and out.transpose(1, 2).is_contiguous()
    close(out, part(expected), tolerance)
    for ours, all_of_it in zip(found, grads):
        close(ours, part(all_of_it), tolerance)


def equal(comm):
    count = 0
    for most in (_cp_blocks.MOST, 100):  # in one piece, and a few queries at a time
        _cp_blocks.MOST = most
        for causal, form, grouped, bounds in itertools.product((False, True), ("ring", "all_to_all", "auto"), (False, True), (None, BOUNDS)):
            kv_heads = comm.size
            check(comm, 2 * kv_heads if grouped else kv_heads, kv_heads, causal, strided=grouped, bounds=bounds, form=form)
            count += 1
    check(comm, 3, 1, True, form="ring", scale=0.3)
    check(comm, 5, 5, False, scale=0.0)  # more heads than ranks can share: a ring
    print(f"{count + 2} attentions", flush=True)


def types(comm):
    check(comm, 4, 2, True, dtype=torch.bfloat16, tolerance=0.05)
    check(comm, 4, 2, False, dtype=torch.float16, tolerance=5e-3, form="ring")
    q, k, v = (context_parallel_part(draw(seed, 1, 2, SEQUENCE, SIZE), comm, 2) for seed in range(3))
    plain = context_parallel_attention(q, k, v, comm)
    with torch.autocast(DEVICE, torch.bfloat16):
        out = context_parallel_attention(q, k, v.bfloat16(), comm)  # as where q and k were turned in float32
    assert out.dtype == torch.bfloat16
    close(out.float(), plain, 0.05)
    found = []

    def on_a_thread():  # where no other is made for the blocks
        with torch.autocast(DEVICE, torch.bfloat16):
            found.append(context_parallel_attention(q, k, v, comm, attention=kernel if DEVICE == "cpu" else None))

    thread = threading.Thread(target=on_a_thread)
    thread.start()
    thread.join()
    close(found[0].float(), plain, 0.05)
    with torch.no_grad():
        assert torch.equal(context_parallel_attention(q.requires_grad_(), k, v, comm), plain)


def kernel(block):
    """Of torch's own, which does not add up heads."""
    assert not torch.is_grad_enabled() and not torch.is_autocast_enabled(DEVICE)
    ops, expand = torch.ops.aten, lambda x: x.repeat_interleave(block.q.shape[1] // x.shape[1], 1)
    q, k, v = block.q, expand(block.k), expand(block.v)
    if block.grad_out is None:
        out, lse = ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, block.causal)
        block.out.copy_(out)
        block.lse.copy_(lse)
        return
    grads = ops._scaled_dot_product_flash_attention_for_cpu_backward(block.grad_out, q, k, v, block.out, block.lse, 0.0, block.causal)
    for to, grad in zip((block.grad_q, block.grad_k, block.grad_v), grads):
        to.copy_(grad.unflatten(1, (to.shape[1], -1)).sum(2))


def own_function(comm):
    for causal, form in itertools.product((False, True), ("ring", "all_to_all")):
        check(comm, 4, 2, causal, attention=kernel, form=form)
    q = draw(1, 1, 2, SEQUENCE, SIZE, dtype=torch.bfloat16)
    own = [context_parallel_part(q, comm, 2) for _ in range(3)]
    kept = []

    def remembers(block):
        assert block.stream == 0 and block.lse.shape == block.q.shape[:3] and block.out.dtype == torch.float32
        assert torch.equal(block.q, own[0][:, block.head_begin:block.head_begin + block.q.shape[1]])
        block.out.zero_()
        block.lse.zero_()
        kept.append(block)

    context_parallel_attention(*own, comm, form="ring", attention=remembers)
    assert len(kept) == comm.size and kept[-1].q_begin == comm.rank * SEQUENCE // comm.size
    kept.clear()  # what torch has made of the block's memory is given back now

    def fails(block):
        if comm.rank == 1:
            raise ZeroDivisionError("of the block")

    for _ in range(2):  # the communicator stays
        if comm.rank == 1:
            refused(lambda: context_parallel_attention(*own, comm, attention=fails), "of the block", ZeroDivisionError)
        else:
            refused(lambda: context_parallel_attention(*own, comm, attention=fails), "rank 1: the attention function")
    check(comm, 4, 2, True)


def parts(comm):
    for causal in (False, True):
        positions = context_parallel_positions(SEQUENCE, comm, causal=causal)
        assert positions.dtype == torch.int64 and len(positions) == SEQUENCE // comm.size
        whole = draw(1, 3, SEQUENCE, 2)
        assert torch.equal(context_parallel_part(whole, comm, causal=causal), whole[:, positions])
        assert torch.equal(context_parallel_part(whole.transpose(1, 2), comm, -1, causal=causal), whole[:, positions].transpose(1, 2))
        every = torch.empty(SEQUENCE, dtype=torch.int64)
        comm.all_gather(positions, every)
        assert torch.equal(every.sort().values, torch.arange(SEQUENCE))
    assert positions[0] == comm.rank * SEQUENCE // (2 * comm.size) and positions[-1] == SEQUENCE - 1 - positions[0]
    refused(lambda: context_parallel_positions(2 * comm.size + 1, comm, causal=True), "would do")
    refused(lambda: context_parallel_part(whole, comm, 3), "dim is 3; it must be one of whole's 3 dimensions, from -3 to 2")
    refused(lambda: context_parallel_part(whole[:, 1:], comm), "would do")


def refusals(comm):
    def fails(text, q, k, v, **options):
        refused(lambda: context_parallel_attention(q, k, v, comm, **options), text)

    x = draw(1, 1, 4, 6, 3)
    fails("q is a list; it must be a torch.Tensor", [1.0], x, x)
    fails("q has shape (4, 6, 3); it must be [batch, heads, positions, head_dim]", x[0], x[0], x[0])
    fails("q has shape (0, 4, 6, 3); it must be [batch, heads, positions, head_dim], all of them at least 1", x[:0], x[:0], x[:0])
    fails("k has shape (1, 4, 5, 3) and q (1, 4, 6, 3); only the number of heads, dimension 1, may differ", x, x[:, :, :5], x)
    fails("v has shape (1, 4, 6, 2); it must be that of k, (1, 4, 6, 3)", x, x, x[..., :2])
    fails("q has dtype torch.float64; it must be float32, bfloat16 or float16", x.double(), x.double(), x.double())
    fails("q has dtype torch.int32; it must be float32, bfloat16 or float16", x.int(), x.int(), x.int())
    fails("v has dtype torch.bfloat16 and q torch.float32; they must be equal", x, x, x.bfloat16())
    fails("k has 3 heads and q 4; each head of k serves equally many of q, so its number must divide 4", x, x[:, :3], x[:, :3])
    fails("q has 3 heads, which 2 ranks cannot share evenly", x[:, :3], x[:, :3], x[:, :3], form="all_to_all")
    fails("4 or 8 would do", x[:, :, :3], x[:, :, :3], x[:, :, :3], causal=True)
    fails("form is 'rings'; it must be one of 'auto', 'ring', 'all_to_all'", x, x, x, form="rings")
    fails("bounds[1] is 11; the last one must be the length of the whole sequence, 12", x, x, x, bounds=(0, 11))
    fails("bounds is 1.5; it must be an integer", x, x, x, bounds=(0, 1.5))
    fails("scale is nan; it must be a finite number, or None for 1 / sqrt(head_dim)", x, x, x, scale=float("nan"))
    fails("scale is '1'", x, x, x, scale="1")
    fails("scale is 0.5 beside an attention", x, x, x, scale=0.5, attention=kernel)
    fails("attention is 3; it must be a function", x, x, x, attention=3)
    # Of one rank's mistake all are told.
    if comm.rank == 1:
        fails("k has 3 heads and q 4; each", x, x[:, :3], x[:, :3])
    else:
        fails("rank 1: k has 3 heads and q 4", x, x, x)
    refused(lambda: context_parallel_attention(x, x, x, comm, causal=comm.rank == 1), "call different attentions")
    leaf = x.clone().requires_grad_()
    out = context_parallel_attention(leaf, x, x, comm)
    grad, = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
    refused(lambda: grad.sum().backward(), "context_parallel_attention was differentiated again", RuntimeError)
    other = comm.split(0)
    late = context_parallel_attention(leaf, x, x, other)
    other.close()
    refused(lambda: context_parallel_attention(x, x, x, other), "STATE: this Comm is closed")
    refused(lambda: late.sum().backward(), "STATE: this Comm is closed")


class Decoder(torch.nn.Module):
    """One block of a transformer, between an embedding and a head. attend(q, k, v) is causal."""

    HEADS, KV_HEADS, WIDTH, TOKENS = 4, 2, 16, 11

    def __init__(self):
        super().__init__()
        nn, of_kv = torch.nn, self.KV_HEADS * (self.WIDTH // self.HEADS)
        self.embedding, self.places = nn.Embedding(self.TOKENS, self.WIDTH), nn.Embedding(SEQUENCE, self.WIDTH)
        self.norm, self.last_norm = nn.LayerNorm(self.WIDTH), nn.LayerNorm(self.WIDTH)
        # A bias of k moves all scores alike: its gradient is what rounding leaves, of which AdamW would make whole steps.
        self.q, self.kv, self.out = nn.Linear(self.WIDTH, self.WIDTH), nn.Linear(self.WIDTH, 2 * of_kv, bias=False), nn.Linear(self.WIDTH, self.WIDTH)
        self.up, self.down = nn.Linear(self.WIDTH, 32), nn.Linear(32, self.WIDTH)
        self.head = nn.Linear(self.WIDTH, self.TOKENS)

    def forward(self, tokens, positions, attend):
        x = self.embedding(tokens) + self.places(positions)
        normed = self.norm(x)
        q, (k, v) = self.q(normed), self.kv(normed).chunk(2, -1)
        q, k, v = (y.unflatten(-1, (-1, self.WIDTH // self.HEADS)).transpose(1, 2) for y in (q, k, v))
        x = x + self.out(attend(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.down(functional.gelu(self.up(self.last_norm(x))))
        return self.head(x)


def mean_loss(model, tokens, labels, positions, attend):
    return functional.cross_entropy(model(tokens, positions, attend).flatten(0, 1), labels.flatten())


def training(comm, form):
    """On a grid of cp 2 and the rest dp, against torch's optimizer on all of the batch and all of the sequence."""
    torch.manual_seed(1)
    whole = Decoder()
    rule = torch.optim.AdamW(whole.parameters(), lr=1e-2)
    with megadp.Grid(comm, cp=2) as grid:
        cp = grid.comm("cp")
        at, copies = grid.coords("dp")
        model = mt.DataParallel(copy.deepcopy(whole), grid)
        optimizer = mt.ShardedAdamW(model, lr=1e-2)
        losses, apart = [], 0.0
        for step in range(10):
            tokens = torch.randint(Decoder.TOKENS, (2 * copies, SEQUENCE), generator=torch.Generator().manual_seed(step % 3))
            labels = (3 * tokens + tokens.roll(1, 1)) % Decoder.TOKENS  # of this token and the one before
            loss = mean_loss(whole, tokens, labels, torch.arange(SEQUENCE), lambda q, k, v: whole_attention(q, k, v, True))
            rule.zero_grad()
            loss.backward()
            rule.step()
            mine = [context_parallel_part(x[2 * at:2 * at + 2], cp, causal=True) for x in (tokens, labels)]
            own = mean_loss(model, *mine, context_parallel_positions(SEQUENCE, cp, causal=True),
                            lambda q, k, v: context_parallel_attention(q, k, v, cp, causal=True, form=form))
            own.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean = own.detach().clone().reshape(1)
            comm.all_reduce(mean, op="avg")
            losses.append(loss.item())
            apart = max(apart, abs(mean.item() - loss.item()) / loss.item())
        values = max((a - b).abs().max().item() for a, b in zip(model.module.parameters(), whole.parameters()))
        cp.close()
    print("found", json.dumps({"first": losses[0], "last": losses[-1], "losses": apart, "parameters": values}), flush=True)


if __name__ == "__main__":
    with megadp.Comm() as world:
        globals()[sys.argv[1]](world, *sys.argv[2:])
    print(f"{sys.argv[1]} done", flush=True)
