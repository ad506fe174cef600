# SPDX-License-Identifier: Apache-2.0
"""Programs of test_torch_tp.py, one rank each.

usage: torch_tp_cases.py CASE [ARGUMENT ...]
"""
import copy
import io
import itertools
import json
import sys

import torch

import megadp
import megadp.torch as mt
from megadp.torch import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding, vocab_parallel_cross_entropy
from support import DEVICE, refused

FEATURES, HIDDEN, TOKENS, BATCH = 12, 32, 8, 4
torch.set_num_threads(1)


def draw(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=tolerance, atol=tolerance * max(1.0, expected.detach().abs().max().item()))


def part(whole, dim, comm):
    return whole.chunk(comm.size, dim)[comm.rank]


def own(whole, layer, dim):
    return torch.cat([whole.narrow(dim, at.start, at.stop - at.start) for at in layer.slices], dim)


def regions(comm):
    """Each against what torch makes of the whole, on all ranks; the sum over ranks of their losses is differentiated."""
    def gradient(made, *inputs):
        leaves = [values.clone().requires_grad_() for values in inputs]
        out = made(*leaves)
        weights = draw(9, *out.shape)
        (out * weights).sum().backward()
        return out, [leaf.grad for leaf in leaves], weights

    whole, mine = draw(1, 4, 6, 2), draw(2 + comm.rank, 4, 6, 2)
    total = sum(draw(2 + rank, 4, 6, 2) for rank in range(comm.size))
    out, (grad,), weights = gradient(lambda x: mt.copy_to_tensor_parallel(x, comm) * (comm.rank + 1), whole)
    close(grad, weights * sum(range(comm.size + 1)))
    out, (grad,), weights = gradient(lambda x: mt.reduce_from_tensor_parallel(x, comm), mine)
    close(out, total)
    close(grad, weights)
    for dim in (0, 1, -2):
        out, (grad,), weights = gradient(lambda x: mt.scatter_to_tensor_parallel(x, comm, dim), whole)
        close(out, part(whole, dim, comm))
        close(grad, torch.cat([weights] * comm.size, dim))
        out, (grad,), weights = gradient(lambda x: mt.gather_from_tensor_parallel(x, comm, dim, grad="replicated"), part(whole, dim, comm))
        close(out, whole)
        close(grad, part(weights, dim, comm))
        out, (grad,), weights = gradient(lambda x: mt.gather_from_tensor_parallel(x, comm, dim, grad="partial"), part(whole, dim, comm))
        close(grad, comm.size * part(weights, dim, comm))
        out, (grad,), weights = gradient(lambda x: mt.reduce_scatter_to_tensor_parallel(x, comm, dim), mine)
        close(out, part(total, dim, comm))
        close(grad, torch.cat([weights] * comm.size, dim))
    out, (grad,), weights = gradient(lambda x: mt.all_to_all_tensor_parallel(x, comm, 0, -1), part(whole, 0, comm))
    close(out, part(whole, 2, comm))
    close(grad, part(torch.cat([weights] * comm.size, 2), 0, comm))
    sizes = [1, 3]
    uneven = mt.scatter_to_tensor_parallel(whole, comm, 0, sizes)
    assert uneven.shape[0] == sizes[comm.rank]
    close(mt.gather_from_tensor_parallel(uneven, comm, 0, grad="replicated", parts=sizes), whole)
    close(mt.gather_from_tensor_parallel(part(whole, 1, comm).expand(4, -1, 2), comm, 1, grad="partial"), whole)
    refused(lambda: mt.scatter_to_tensor_parallel(whole, comm, 3), "the array has 3 dimensions")
    refused(lambda: mt.scatter_to_tensor_parallel(draw(1, 3), comm), "cannot share evenly")
    refused(lambda: mt.gather_from_tensor_parallel(whole, comm), "grad", TypeError)


def layer_of(comm, whole, column, **options):
    return (ColumnParallelLinear if column else RowParallelLinear).from_linear(whole, comm, **options)


def check_layer(comm, column, dtype, tolerance, bias, sequence, whole_io, skip_bias_add, frozen):
    """From a torch.nn.Linear, whose gradients are expected."""
    torch.manual_seed(3)
    whole = torch.nn.Linear(FEATURES, HIDDEN, bias=bias, dtype=dtype)
    whole.weight.requires_grad_(not frozen)
    replicated = whole_io if column else not sequence
    layer = layer_of(comm, whole, column, sequence=sequence, skip_bias_add=skip_bias_add, grad="replicated" if replicated else None,
                     **({"gather_output": whole_io} if column else {"whole_input": whole_io}))
    x, dy = draw(1, TOKENS, BATCH, FEATURES, dtype=dtype).requires_grad_(), draw(2, TOKENS, BATCH, HIDDEN, dtype=dtype)
    y = whole(x)
    y.backward(dy)
    cut_tokens = (lambda values: part(values, 0, comm)) if sequence else (lambda values: values)
    into = cut_tokens(x) if column else x if whole_io else part(x, -1, comm)
    to = (lambda values: values if whole_io else part(values, -1, comm)) if column else cut_tokens
    given = into.detach().clone().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()  # of other strides
    out = layer(given)
    if skip_bias_add:
        out, apart = out
        assert apart is layer.bias
        out = out if apart is None else out + apart
    close(out, to(y), tolerance)
    out.backward(to(dy))
    close(given.grad, cut_tokens(x.grad) if column else x.grad if whole_io else part(x.grad, -1, comm), tolerance)
    assert (layer.weight.grad is None) == frozen
    if not frozen:
        close(layer.weight.grad, own(whole.weight.grad, layer, 0 if column else 1), tolerance)
    if bias:
        expected = own(whole.bias.grad, layer, 0) if column else cut_tokens(dy).sum((0, 1)) if sequence else whole.bias.grad
        close(layer.bias.grad, expected, tolerance)
    again = layer.to_linear()
    assert all(torch.equal(a, b) and a.requires_grad == b.requires_grad for a, b in zip(again.parameters(), whole.parameters()))
    assert list(layer.state_dict()) == list(whole.state_dict())


def layers(comm):
    count = 0
    for column, bias, sequence, whole_io, skip, frozen in itertools.product((True, False), *[(False, True)] * 5):
        if (whole_io and skip and column) or (whole_io and sequence and not column) or (frozen and skip):
            continue
        check_layer(comm, column, torch.float32, 1e-5, bias, sequence, whole_io, skip, frozen)
        count += 1
    for column, sequence in itertools.product((True, False), (False, True)):
        check_layer(comm, column, torch.bfloat16, 0.05, True, sequence, False, False, False)
    print(f"{count} layers", flush=True)


def alone_or_elsewhere(comm):
    """What one rank that has all of a layer is told, and what the script's default device has nothing to do with."""
    with megadp.Grid(comm, tp=1) as grid:  # the same words for one rank that has all of it
        for blocks in ((4, 2, 2), (5, 3)):
            uneven = ColumnParallelLinear.from_linear(torch.nn.Linear(8, 8), grid.comm("tp"), blocks=blocks)
            refused(lambda: mt.DataParallel(uneven, grid), f"blocks are {blocks}")
    device = torch.get_default_device()
    with megadp.Grid(comm, tp=comm.size) as grid:  # what ranks compare has nothing to do with the script's default device
        even = ColumnParallelLinear.from_linear(torch.nn.Linear(8, 8), grid.comm("tp"))
        torch.set_default_device("meta")
        try:
            mt.DataParallel(even, grid)
        finally:
            torch.set_default_device(device)


def values(comm):
    """How layers begin, blocks, copies, files, refusals, autocast."""
    for kind, dim in ((ColumnParallelLinear, 0), (RowParallelLinear, 1)):
        torch.manual_seed(5)
        whole = torch.nn.Linear(8, 8)
        torch.manual_seed(5)
        layer = kind(8, 8, comm, grad="replicated")
        again = layer.to_linear()
        assert torch.equal(again.weight, whole.weight) and torch.equal(again.bias, whole.bias)
        torch.manual_seed(5)
        torch.nn.init.zeros_(layer.weight)
        layer.reset_parameters()
        assert torch.equal(layer.weight, whole.weight.chunk(comm.size, dim)[comm.rank])
        fused = kind.from_linear(whole, comm, blocks=(4, 4), grad="replicated")
        expected = torch.cat([block.chunk(comm.size, dim)[comm.rank] for block in whole.weight.split(4, dim)], dim)
        assert torch.equal(fused.weight, expected)
        assert torch.equal(fused.to_linear().weight, whole.weight)
        fused._tell_placements()
        assert tuple(fused.weight._megadp_placement) == ("sharded", dim, 2)
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        other = kind(8, 8, comm, grad="replicated")
        assert not torch.equal(other.weight, layer.weight)
        other.load_state_dict(torch.load(file))
        assert torch.equal(other.weight, layer.weight) and torch.equal(other.bias, layer.bias)
        refused(lambda: torch.save(layer, io.BytesIO()), "cannot be pickled")
        twin, x = copy.deepcopy(layer), draw(comm.rank, 3, 8 // (comm.size if dim else 1))
        torch.nn.init.zeros_(twin.weight)
        assert layer.weight.abs().sum() > 0
        close(twin(x), layer.bias.expand(3, -1))
    x = draw(7, 3, 8)
    with torch.autocast(DEVICE, torch.bfloat16):
        out = kind.from_linear(whole, comm, whole_input=True, grad="replicated")(x)
        assert out.dtype == torch.bfloat16
        close(out.float(), whole(x).float(), 0.05)
    torch.manual_seed(comm.rank)
    refused(lambda: ColumnParallelLinear(8, 8, comm), "torch.manual_seed")
    refused(lambda: ColumnParallelLinear.from_linear(whole, comm, gather_output=True, skip_bias_add=True), "skip_bias_add")
    refused(lambda: RowParallelLinear.from_linear(whole, comm), "MDP_TP_GRAD")
    refused(lambda: layer(x), "last dimension must be")
    refused(lambda: layer.to(torch.float16)(x[:, :4].half()), "config.dtype is 4")
    model = torch.nn.Sequential(ColumnParallelLinear.from_linear(whole, comm))
    refused(lambda: mt.DataParallel(model, comm), "comm('tp')")
    with megadp.Grid(comm, tp=comm.size) as grid:
        over = grid.comm("tp")
        mixed = torch.nn.Sequential(ColumnParallelLinear.from_linear(whole, over), torch.nn.LayerNorm(4))
        refused(lambda: mt.DataParallel(mixed, grid), "parameter '1.weight' has no placement")
        refused(lambda: mt.place(mixed, "cut"), "placement is 'cut'")
        torch.manual_seed(6)
        uneven = ColumnParallelLinear.from_linear(torch.nn.Linear(8, 8), over, blocks=(4, 2, 2))
        refused(lambda: mt.DataParallel(uneven, grid), "blocks are (4, 2, 2)")
    alone_or_elsewhere(comm)


ROWS, CLASSES, DIM = 12, 11, 6  # one row is padding


def vocabulary(comm):
    """Against torch.nn.Embedding and torch.nn.functional.cross_entropy."""
    count = 0
    for sequence, grad, dtype in itertools.product((False, True), ("replicated", "partial"), (torch.float32, torch.bfloat16)):
        check_embedding(comm, sequence, grad, dtype)
        count += 1
    for classes, ignored, smoothing, reduction in itertools.product((0, CLASSES), (-100, 3), (0.0, 0.1, 1.0), ("none", "mean", "sum")):
        check_cross_entropy(comm, classes, ignored, smoothing, reduction, torch.float32, 1e-5)
        count += 1
    check_cross_entropy(comm, CLASSES, -100, 0.1, "mean", torch.bfloat16, 0.02)
    check_tied(comm)
    print(f"{count} of a vocabulary", flush=True)


def check_embedding(comm, sequence, grad, dtype):
    torch.manual_seed(3)
    whole = torch.nn.Embedding(ROWS, DIM, dtype=dtype)
    torch.manual_seed(3)
    layer = VocabParallelEmbedding(ROWS, DIM, comm, grad=grad, sequence=sequence, dtype=dtype)
    assert torch.equal(layer.weight, part(whole.weight, 0, comm)) and torch.equal(layer.to_embedding().weight, whole.weight)
    layer = VocabParallelEmbedding.from_embedding(whole, comm, grad=grad, sequence=sequence)
    ids = torch.randint(ROWS, (ROWS, BATCH), generator=torch.Generator().manual_seed(4))
    dy = draw(5, ROWS, BATCH, DIM, dtype=dtype)
    y = whole(ids)
    y.backward(dy)
    tokens = (lambda values: part(values, 0, comm)) if sequence else (lambda values: values)
    given = tokens(dy)
    if grad == "partial" and not sequence:  # one rank has all of it
        given = given * (comm.rank == 0)
    for kind in (torch.int64, torch.int32):
        layer.weight.grad = None
        out = layer(ids.to(kind).transpose(0, 1).contiguous().transpose(0, 1))  # of other strides
        assert torch.equal(out, tokens(y)) and out.dtype == dtype
        out.backward(given)
        close(layer.weight.grad, part(whole.weight.grad, 0, comm), 1e-6 if dtype == torch.float32 else 0.02)


def check_cross_entropy(comm, classes, ignored, smoothing, reduction, dtype, tolerance):
    count = classes or ROWS
    whole = draw(6, TOKENS, BATCH, ROWS, dtype=dtype).requires_grad_()
    targets = torch.randint(count, (TOKENS, BATCH), generator=torch.Generator().manual_seed(7))
    targets[2] = ignored
    expected = torch.nn.functional.cross_entropy(whole[..., :count].float().flatten(0, 1), targets.flatten(), ignore_index=ignored,
                                                 label_smoothing=smoothing, reduction=reduction)
    mine = part(whole, -1, comm).detach().clone().requires_grad_()
    found = vocab_parallel_cross_entropy(mine, targets.to(torch.int16), comm, ignore_index=ignored, label_smoothing=smoothing,
                                         classes=classes, reduction=reduction)
    if reduction == "none":
        assert found.shape == targets.shape
        expected = expected.view(targets.shape)
    assert found.dtype == torch.float32
    close(found, expected)
    weights = draw(8, *found.shape)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    close(mine.grad, part(whole.grad, -1, comm), tolerance)
    z = vocab_parallel_cross_entropy(mine, targets, comm, ignore_index=ignored, z_loss=0.1, classes=classes, reduction="sum")
    z = z - vocab_parallel_cross_entropy(mine, targets, comm, ignore_index=ignored, classes=classes, reduction="sum")
    close(z, 0.1 * (whole[..., :count].float().logsumexp(-1).square() * (targets != ignored)).sum(), 1e-4)


class Tied(torch.nn.Module):
    """A word model whose embedding and last layer have one weight; tokens are [sequence, batch]. comm None: whole."""

    def __init__(self, comm, sequence=False, tie=True):
        super().__init__()
        self.comm, self.sequence = comm, sequence
        if comm is None:
            self.embedding, self.middle, self.head = torch.nn.Embedding(ROWS, DIM), torch.nn.Linear(DIM, DIM), torch.nn.Linear(DIM, ROWS, False)
        else:
            self.embedding = VocabParallelEmbedding(ROWS, DIM, comm, sequence=sequence)
            self.middle = torch.nn.Linear(DIM, DIM)
            self.head = ColumnParallelLinear(DIM, ROWS, comm, False, sequence=sequence)
            mt.place(self.middle, "partial_sum" if sequence else "replicated")
        if tie:
            self.head.weight = self.embedding.weight

    def forward(self, ids, targets):
        logits = self.head(torch.tanh(self.middle(self.embedding(ids))))
        if self.comm is not None:
            return vocab_parallel_cross_entropy(logits, targets, self.comm, label_smoothing=0.1, classes=CLASSES)
        return torch.nn.functional.cross_entropy(logits[..., :CLASSES].flatten(0, 1), targets.flatten(), label_smoothing=0.1)


def words(step, over):
    """This data-parallel rank's tokens and targets."""
    found = torch.randint(CLASSES, (2, ROWS, BATCH), generator=torch.Generator().manual_seed(20 + step % 4))
    rows = slice(over.rank * BATCH // over.size, (over.rank + 1) * BATCH // over.size) if over is not None else slice(None)
    return found[0, :, rows], (found[0, :, rows] * 3 + 1) % CLASSES


def tied_pair(comm, sequence):
    models = []
    for over in (None, comm):
        torch.manual_seed(11)
        models.append(Tied(over, sequence))
    return models


def check_tied(comm):
    for sequence in (False, True):
        whole, model = tied_pair(comm, sequence)
        assert [name for name, _ in model.named_parameters()] == [name for name, _ in whole.named_parameters()]
        expected, found = (each(*words(0, None)) for each in (whole, model))
        close(found, expected)
        expected.backward()
        found.backward()
        close(model.embedding.weight.grad, part(whole.embedding.weight.grad, 0, comm))
        for a, b in zip(model.middle.parameters(), whole.middle.parameters()):
            grad = a.grad.clone()
            if sequence:
                comm.all_reduce(grad)
            close(grad, b.grad)


def words_reference(tie):
    """Of the model without this library: it, and losses and norms of gradients."""
    torch.manual_seed(11)
    model = Tied(None, tie=tie)
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for step in range(20):
        optimizer.zero_grad()
        loss = model(*words(step, None))
        loss.backward()
        found += [loss.item(), float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3))]
        optimizer.step()
    assert found[-2] < 0.9 * found[0], found
    return model, found


def vocabulary_training(comm, folder, *runs):
    """Each against the reference, with its values at the end, also from a checkpoint. Of a run are told sequence or whole, untied, and options of
    DataParallel."""
    references = {tie: words_reference(tie) for tie in (True, False)}
    with megadp.Grid(comm, tp=2) as grid, grid.comm("tp") as over, grid.comm("dp") as data_parallel:
        for run in runs:
            options = run.split("-")
            found = trained_on_words(comm, f"{folder}/{run}", options, grid, over, data_parallel, *references["untied" not in options])
            if comm.rank == 0:
                print(run, json.dumps(found), flush=True)


def trained_on_words(comm, folder, options, grid, over, data_parallel, whole, expected):
    tie = "untied" not in options
    torch.manual_seed(11)
    module = Tied(over, "sequence" in options, tie)
    model = mt.DataParallel(module, grid, gather_in_forward="gather" in options,
                            sharding=next((name for name in options if name.startswith("zero")), "zero_1"))
    optimizer, found = mt.ShardedAdamW(model, lr=1e-2), []
    for step in range(20):
        loss = model(*words(step, data_parallel))
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3))
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().reshape(1).clone()
        data_parallel.all_reduce(total, op="avg")
        found += [total.item(), norm]
    model.wait()
    apart = max(abs(a - b) / abs(b) for a, b in zip(found, expected))
    assert apart < 1e-5, (options, apart, found, expected)
    ends = module.embedding.to_embedding().weight, module.head.to_linear().weight
    close(ends[0], whole.embedding.weight, 1e-4)
    close(ends[1], whole.head.weight, 1e-4)
    assert torch.equal(*ends) == tie
    megadp.save_checkpoint(folder, model.storage)
    again = mt.DataParallel(Tied(None, tie=tie), comm)
    megadp.load_checkpoint(folder, again.storage, params_only=True)
    again.wait()
    assert torch.equal(again.module.embedding.weight, ends[0]) and torch.equal(again.module.head.weight, ends[1])
    return found[0], found[-2], apart


def vocabulary_values(comm):
    """How an embedding begins, copies, files, refusals; seeds."""
    torch.manual_seed(5)
    whole = torch.nn.Embedding(8, DIM)
    torch.manual_seed(5)
    layer = VocabParallelEmbedding(8, DIM, comm)
    assert torch.equal(layer.to_embedding().weight, whole.weight)
    torch.manual_seed(5)
    torch.nn.init.zeros_(layer.weight)
    layer.reset_parameters()
    assert torch.equal(layer.weight, part(whole.weight, 0, comm))
    assert list(layer.state_dict()) == list(whole.state_dict())
    layer._tell_placements()
    assert tuple(layer.weight._megadp_placement) == ("sharded", 0, 1)
    ids, twin = torch.tensor([0, 7, 3]), copy.deepcopy(layer)
    torch.nn.init.zeros_(twin.weight)
    assert torch.equal(layer(ids), whole(ids)) and not twin(ids).any()
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(ids), whole(ids))
    layer.weight.requires_grad_(False)
    assert not layer(ids).requires_grad and not layer.to_embedding().weight.requires_grad
    refused(lambda: torch.save(layer, io.BytesIO()), "to_embedding()")
    refused(lambda: VocabParallelEmbedding(7, DIM, comm), "num_embeddings is 7, which 2 ranks cannot share evenly; 8 would do")
    refused(lambda: VocabParallelEmbedding.from_embedding(torch.nn.Embedding(8, DIM, padding_idx=1), comm), "padding_idx=1")
    refused(lambda: VocabParallelEmbedding.from_embedding(torch.nn.Embedding(8, DIM, max_norm=1.0), comm), "max_norm=1.0")
    refused(lambda: VocabParallelEmbedding(8, DIM, comm, grad="same"), "grad is 'same'")
    refused(lambda: layer(ids.float()), "ids has dtype torch.float32")
    refused(lambda: layer(ids + 8), "between 0 and 7")
    refused(lambda: mt.DataParallel(torch.nn.Sequential(VocabParallelEmbedding.from_embedding(whole, comm)), comm), "comm('tp')")
    torch.manual_seed(comm.rank)
    refused(lambda: VocabParallelEmbedding(8, DIM, comm), "from_embedding")
    logits, targets = draw(1, 3, 4), torch.tensor([0, 7, 3])
    refused(lambda: vocab_parallel_cross_entropy(logits, targets > 0, comm), "targets has dtype torch.bool")
    refused(lambda: vocab_parallel_cross_entropy(logits, targets, comm, reduction="avg"), "reduction is 'avg'")
    refused(lambda: vocab_parallel_cross_entropy(logits, targets, comm, label_smoothing=1.1), "label_smoothing is 1.1")
    refused(lambda: vocab_parallel_cross_entropy(logits, targets, comm, classes=7), "targets")
    refused(lambda: vocab_parallel_cross_entropy(logits, targets[:2], comm), "it goes with targets")
    refused(lambda: vocab_parallel_cross_entropy(logits.double(), targets, comm), "logits.dtype is f64")
    assert vocab_parallel_cross_entropy(logits, targets * 0 - 100, comm).isnan()  # as torch: none is left


class Whole(torch.nn.Module):
    """What Cut is without tensor parallelism; x is [tokens, batch, features]."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(FEATURES)
        self.up = torch.nn.Linear(FEATURES, HIDDEN)
        self.down = torch.nn.Linear(HIDDEN, FEATURES)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Cut(torch.nn.Module):
    def __init__(self, comm, sequence):
        super().__init__()
        self.norm = torch.nn.LayerNorm(FEATURES)
        self.up = ColumnParallelLinear(FEATURES, HIDDEN, comm, sequence=sequence)
        self.down = RowParallelLinear(HIDDEN, FEATURES, comm, sequence=sequence, grad=None if sequence else "replicated")
        mt.place(self.norm, "partial_sum" if sequence else "replicated")
        self.comm, self.sequence = comm, sequence

    def forward(self, x):
        if self.sequence:
            x = mt.scatter_to_tensor_parallel(x, self.comm, 0)
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        return mt.gather_from_tensor_parallel(x, self.comm, 0, grad="replicated") if self.sequence else x


def batch_of(step, comm):
    """This data-parallel rank's."""
    x, target = (draw(100 + 2 * (step % 4) + i, TOKENS, BATCH, FEATURES) for i in (0, 1))
    rows = slice(comm.rank * BATCH // comm.size, (comm.rank + 1) * BATCH // comm.size) if comm is not None else slice(None)
    return x[:, rows], torch.tanh(target[:, rows])


def reference():
    """Of the model without this library: losses, norms of gradients, the parameters at the end."""
    torch.manual_seed(11)
    model = Whole()
    optimizer, losses, norms = torch.optim.AdamW(model.parameters(), lr=1e-2), [], []
    for step in range(20):
        x, target = batch_of(step, None)
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)))
        optimizer.step()
        losses.append(loss.item())
    return model, losses, norms


def training(comm, folder, *runs):
    """Each against the reference; the norm that clipping takes is of the whole model, each element counted once. Of a run are told
    sequence or whole, and options of DataParallel."""
    expected = reference()
    with megadp.Grid(comm, tp=2) as grid, grid.comm("tp") as over, grid.comm("dp") as data_parallel:
        for run in runs:
            found, model = trained(run.split("-"), grid, over, data_parallel, *expected)
            check_checkpoint(comm, f"{folder}/{run}", model)
            if comm.rank == 0:
                print(run, json.dumps(found), flush=True)


def trained(options, grid, over, data_parallel, whole, expected, expected_norms):
    torch.manual_seed(11)
    module = Cut(over, "sequence" in options)
    model = mt.DataParallel(module, grid, gather_in_forward="gather" in options,
                            sharding=next((name for name in options if name.startswith("zero")), "zero_1"))
    optimizer, losses, norms = mt.ShardedAdamW(model, lr=1e-2), [], []
    for step in range(20):
        x, target = batch_of(step, data_parallel)
        loss = (model(x) - target).square().mean()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)))
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().reshape(1).clone()
        data_parallel.all_reduce(total, op="avg")
        losses.append(total.item())
    model.wait()
    model.storage.verify()
    apart = max(abs(a - b) / abs(b) for a, b in zip(losses + norms, expected + expected_norms))
    assert losses[-1] < 0.9 * losses[0] and apart < 1e-5, (apart, losses, expected, norms, expected_norms)
    for name in ("up", "down"):
        for a, b in zip(getattr(module, name).to_linear().parameters(), getattr(whole, name).parameters()):
            close(a, b, 1e-4)
    check_state(model, x, whole)
    return (losses[0], losses[-1], apart), model


def check_checkpoint(comm, folder, model):
    """The parts, as a checkpoint has them by their placements, make the whole model again."""
    megadp.save_checkpoint(folder, model.storage)
    again = mt.DataParallel(Whole(), comm)
    megadp.load_checkpoint(folder, again.storage, params_only=True)
    again.wait()
    for name in ("up", "down"):
        for a, b in zip(getattr(again.module, name).parameters(), getattr(model.module, name).to_linear().parameters()):
            assert torch.equal(a, b)


def check_state(model, x, whole):
    """The state goes out and in again."""
    state = {name: values.clone() for name, values in model.state_dict().items()}
    assert list(state) == [f"module.{name}" for name in whole.state_dict()]
    with torch.no_grad():
        before = model(x)
        for p in model.parameters():
            p.zero_()
        assert not torch.equal(model(x), before)
        model.load_state_dict(state)
        assert torch.equal(model(x), before)


def frozen(comm):
    """A weight that is not trained, before wrapping and after; a copy of the wrapped model goes on with the same ranks."""
    with megadp.Grid(comm, tp=2) as grid, grid.comm("tp") as over:
        torch.manual_seed(11)
        module = Cut(over, False)
        module.up.weight.requires_grad_(False)
        model = mt.DataParallel(module, grid)
        module.down.bias.requires_grad_(False)
        optimizer = mt.ShardedAdamW(model, lr=1e-2)
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        x, target = batch_of(0, grid.comm("dp"))
        (model(x) - target).square().mean().backward()
        optimizer.step()
        same = {name for name, p in module.named_parameters() if torch.equal(p, before[name])}
        assert same == {"up.weight", "down.bias"}, same
        model.storage.verify()
        with torch.no_grad():
            assert torch.equal(copy.deepcopy(model)(x), model(x))


if __name__ == "__main__":
    name, *more = sys.argv[1:]
    with megadp.Comm() as world:
        globals()[name](world, *more)
    print(f"{name} done", flush=True)
