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
from megadp.torch import ColumnParallelLinear, RowParallelLinear

FEATURES, HIDDEN, TOKENS, BATCH = 12, 32, 8, 4
torch.set_num_threads(1)


def draw(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=tolerance, atol=tolerance * max(1.0, expected.detach().abs().max().item()))


def refused(call, text, kind=megadp.MegaDPError):
    try:
        call()
    except kind as error:
        assert text in str(error), str(error)
        return
    raise AssertionError(f"not refused: {text}")


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
    with torch.autocast("cpu", torch.bfloat16):
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
        uneven = ColumnParallelLinear.from_linear(torch.nn.Linear(8, 8), over, blocks=(4, 2, 2))
        refused(lambda: mt.DataParallel(uneven, grid), "blocks are (4, 2, 2)")


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
    with megadp.Comm(backend="host") as world:
        globals()[name](world, *more)
    print(f"{name} done", flush=True)
