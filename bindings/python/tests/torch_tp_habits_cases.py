# SPDX-License-Identifier: Apache-2.0
"""Programs of test_torch_tp_habits.py, one rank of two (in parts_that_repeat of three) each: what scripts do that were
written for one process, or for torch's DDP.

usage: torch_tp_habits_cases.py CASE
"""
import copy
import itertools
import os
import sys
import tempfile
import warnings

import torch
from torch.utils.checkpoint import checkpoint

import megadp
import megadp.torch as mt
from megadp.torch import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from megadp._torch_linear import Part
from megadp._torch_placement import fingerprint
from support import refused

torch.set_num_threads(1)


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def linear(seed, *sizes, **options):
    torch.manual_seed(seed)
    return torch.nn.Linear(*sizes, **options)


def unlike_replicas(grid, tp):
    """Of other seeds: layers that are made from whole ones, what is beside them, and what is frozen."""
    refused(lambda: ColumnParallelLinear.from_linear(linear(tp.rank, 4, 8), tp), "different values of the same layer")
    torch.manual_seed(tp.rank)
    refused(lambda: VocabParallelEmbedding.from_embedding(torch.nn.Embedding(8, 4), tp), "different values of the same layer")
    for frozen in (False, True):
        model = torch.nn.Sequential(linear(tp.rank, 4, 4).requires_grad_(not frozen), ColumnParallelLinear.from_linear(linear(0, 4, 8), tp))
        mt.place(model, "replicated")
        refused(lambda model=model: mt.DataParallel(model, grid), "'0.weight'")


def warned_of(call):
    """What call() warns of tensor-parallel ranks."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in told if "tensor-parallel" in str(each.message)]


def alike_parts(grid, tp):
    """model.apply(init) draws the same part on every rank."""
    def init(module):
        if isinstance(module, ColumnParallelLinear):
            torch.nn.init.normal_(module.weight)

    for again in (True, False):
        torch.manual_seed(3)
        model = ColumnParallelLinear(4, 8, tp)
        if again:
            model.apply(init)
        said = warned_of(lambda model=model: mt.DataParallel(model, grid))
        assert len(said) == again and all("'weight' are alike" in each for each in said), said


def bias_of_parts(grid, tp):
    """RowParallelLinear(grad="partial", skip_bias_add=True): the caller adds the bias to what each rank goes on with."""
    whole, x = linear(0, 8, 8), draw(1, 4, 8)
    reference = copy.deepcopy(whole)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.row = RowParallelLinear.from_linear(whole, tp, whole_input=True, grad="partial", skip_bias_add=True)

        def forward(self, x):
            y, bias = self.row(x)
            mine = (y + bias).chunk(tp.size, -1)[tp.rank]
            return mt.reduce_from_tensor_parallel(mine.pow(2).sum(), tp)

    model = mt.DataParallel(Net(), grid)
    step(model, mt.ShardedSGD(model, lr=0.1), lambda: model(x), reference, lambda: reference(x).pow(2).sum())
    torch.testing.assert_close(model.module.row.bias.detach(), reference.bias.detach())
    model.storage.verify()


def step(model, optimizer, loss, reference, reference_loss):
    loss().backward()
    optimizer.step()
    model.wait()
    torch_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    reference_loss().backward()
    torch_optimizer.step()


def places_in_any_order(grid, tp):
    first, last, x = linear(0, 8, 16), linear(1, 16, 8), draw(2, 4, 8)
    for exceptions_first in (False, True):
        model = torch.nn.Sequential(torch.nn.LayerNorm(8), ColumnParallelLinear.from_linear(first, tp, sequence=True), torch.nn.Tanh(),
                                    RowParallelLinear.from_linear(last, tp, sequence=True))
        calls = [lambda model=model: mt.place(model, "replicated"), lambda model=model: mt.place(model[0], "partial_sum")]
        for call in reversed(calls) if exceptions_first else calls:
            call()
        reference = torch.nn.Sequential(torch.nn.LayerNorm(8), copy.deepcopy(first), torch.nn.Tanh(), copy.deepcopy(last))
        wrapped = mt.DataParallel(model, grid)
        step(wrapped, mt.ShardedSGD(wrapped, lr=0.1), lambda wrapped=wrapped: wrapped(x.chunk(tp.size)[tp.rank]).pow(2).sum(), reference,
             lambda reference=reference: reference(x).pow(2).sum())
        torch.testing.assert_close(model[0].weight.detach(), reference[0].weight.detach())


def layers_of_their_own(grid, tp):
    class Adapted(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + x

    class Gated(torch.nn.Linear):
        def __init__(self):
            super().__init__(8, 8)
            self.gate = torch.nn.Parameter(torch.ones(1))

    for made, word in ((Adapted(8, 8), "a Adapted:"), (Gated(), "a Gated with gate:")):
        refused(lambda made=made: ColumnParallelLinear.from_linear(made, tp), word)
    layer = torch.nn.utils.parametrizations.weight_norm(ColumnParallelLinear.from_linear(linear(0, 8, 8), tp))
    mt.place(layer, "replicated")
    refused(lambda: mt.DataParallel(layer, grid), "parametrization")


def parts_of_another(grid, tp):
    """if rank == 0: torch.save(model.state_dict()); all load it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(VocabParallelEmbedding(8, 4, tp), ColumnParallelLinear(4, 8, tp))
    own = copy.deepcopy(model.state_dict())
    model.load_state_dict(own)
    other = torch.nn.Sequential(VocabParallelEmbedding(8, 4, tp), ColumnParallelLinear(4, 8, tp)).state_dict()
    for notes in other._metadata.values():
        if "tensor_parallel" in notes:
            notes["tensor_parallel"] = (0, tp.size)
    if tp.rank == 0:
        model.load_state_dict(other)
    else:
        try:
            model.load_state_dict(other)
        except RuntimeError as error:
            assert "0.weight is the part of rank 0 of 2 tensor-parallel ranks, and this is rank 1 of 2" in str(error), error
            assert "1.weight is the part" in str(error) and torch.equal(model[1].weight, own["1.weight"]), error
        else:
            raise AssertionError("it was loaded")
    mt.place(model, "replicated")
    mt.DataParallel(model, grid)


def normalized_over_all(grid, tp):
    """An image that is cut over tensor-parallel ranks: the statistics are of all of it."""
    torch.manual_seed(0)
    conv, x = torch.nn.Conv2d(1, 2, 3, padding=1), draw(1, 2, 1, 8, 8) + torch.arange(8.0)[:, None]
    reference = torch.nn.Sequential(copy.deepcopy(conv), torch.nn.BatchNorm2d(2))
    parts = mt.spatial_parts((8, 8), (tp.size, 1))
    model = torch.nn.Sequential(mt.Spatial(conv, tp, (tp.size, 1), parts), torch.nn.SyncBatchNorm(2))
    mt.place(model, "partial_sum")
    wrapped = mt.DataParallel(model, grid)
    own = (..., *mt.spatial_slices(parts, tp.rank))
    weights = draw(2, 2, 2, 8, 8)
    step(wrapped, mt.ShardedSGD(wrapped, lr=0.1), lambda: (wrapped(x[own]) * weights[own]).sum(), reference, lambda: (reference(x) * weights).sum())
    for found, wanted in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(found.detach(), wanted.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model[1].running_mean, reference[1].running_mean)


def buffers_of_their_own(grid, tp):
    for options, kept in (({}, False), ({"broadcast_buffers": False}, True), ({"forward_sync_buffers": False}, False)):
        model = linear(0, 2, 2)
        model.register_buffer("positions", torch.arange(3.0) + 3 * tp.rank)
        mt.DataParallel(model, grid.world, **options)
        assert torch.equal(model.positions, torch.arange(3.0) + (3 * tp.rank if kept else 0)), (options, model.positions)


def tied_too_late(grid, tp):
    model = torch.nn.ModuleDict({"words": torch.nn.Embedding(8, 4), "head": torch.nn.Linear(4, 8, bias=False)})
    wrapped = mt.DataParallel(model, grid.world)
    model["head"].weight = model["words"].weight
    optimizer = mt.ShardedSGD(wrapped, lr=0.1)
    refused(lambda: (model["head"](model["words"](torch.tensor([1]))).sum().backward(), optimizer.step()),
            "'head.weight' is another one of the module's now")


class Words(torch.nn.Module):
    """Every layer and operator of a language model that is cut over ranks, with what torch compiles between them."""

    def __init__(self, tp):
        super().__init__()
        torch.manual_seed(0)
        self.tp = tp
        self.embedding = VocabParallelEmbedding(16, 8, tp)
        self.heads, self.out = ColumnParallelLinear(8, 24, tp, blocks=(8, 8, 8)), RowParallelLinear(8, 8, tp, grad="replicated")
        self.head = ColumnParallelLinear(8, 16, tp, bias=False)

    def forward(self, ids, targets):
        x = torch.sin(self.embedding(ids))
        q, k, v = self.heads(x).unflatten(-1, (3, -1)).unbind(-2)
        x = x + self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v))
        own = mt.scatter_to_tensor_parallel(x, self.tp, dim=1)
        x = mt.gather_from_tensor_parallel(torch.tanh(own) * 2, self.tp, dim=1, grad="replicated")
        return mt.vocab_parallel_cross_entropy(self.head(torch.relu(x)), targets, self.tp)


class Pictures(torch.nn.Module):
    def __init__(self, tp):
        super().__init__()
        torch.manual_seed(1)
        self.tp = tp
        parts = mt.spatial_parts((8, 8), (tp.size, 1))
        self.conv = mt.Spatial(torch.nn.Conv2d(1, 4, 3, padding=1), tp, (tp.size, 1), parts)
        self.norm = torch.nn.SyncBatchNorm(4)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x) + 1)).flatten(2).transpose(1, 2)[:, None]  # [batch, 1 head, this rank's positions, channels]
        attended = mt.context_parallel_attention(x, torch.sin(x), x * 2, self.tp)
        return (attended - x).pow(3).mean() + mt.reduce_from_tensor_parallel(x.mean() * 2, self.tp)


def compiled(grid, tp):
    """torch.compile, of the module that is wrapped and of the wrapper: the values, gradients and steps of what is not compiled."""
    ids = torch.randint(16, (2, 6), generator=torch.Generator().manual_seed(2))
    for make, given, place in ((Words, (ids, ids.roll(-1, 1)), "replicated"), (Pictures, (draw(3, 2, 1, 8 // tp.size, 8),), "partial_sum")):
        trained = {}
        for how in ("eager", "inside", "outside"):
            torch._dynamo.reset()
            model = make(tp)
            mt.place(model, place)
            called = mt.DataParallel(torch.compile(model, backend="aot_eager") if how == "inside" else model, grid)
            optimizer = mt.ShardedSGD(called, lr=0.1)
            if how == "outside":
                called = torch.compile(called, backend="aot_eager")
            losses = []
            for _ in range(3):
                optimizer.zero_grad()
                loss = called(*given)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            model(*given)
            trained[how] = losses + [p.detach().clone() for p in model.parameters()]
        assert not torch.equal(trained["eager"][0], trained["eager"][2])
        for how in ("inside", "outside"):
            for found, wanted in zip(trained[how], trained["eager"]):
                torch.testing.assert_close(found, wanted, msg=lambda text, how=how, make=make: f"{make.__name__} {how}: {text}")


def optimizer_of_another(grid, tp):
    """A state_dict of an optimizer has the moments of this rank's parts, which another rank's fit in shape."""
    def made():
        model = torch.nn.Sequential(ColumnParallelLinear.from_linear(linear(0, 4, 8), tp), RowParallelLinear.from_linear(linear(1, 8, 4), tp, grad="replicated"))
        wrapped = mt.DataParallel(model, grid)
        return wrapped, mt.ShardedAdamW(wrapped)

    model, optimizer = made()
    model(draw(2, 3, 4)).pow(2).sum().backward()
    optimizer.step()
    own = optimizer.state_dict()
    other = {**own, "tensor_parallel": (1 - tp.rank, 2)}
    _, fresh = made()
    refused(lambda: fresh.load_state_dict(other), f"that of rank {1 - tp.rank} of 2 tensor-parallel ranks, and here this is rank {tp.rank} of 2")
    fresh.load_state_dict(own)
    torch.testing.assert_close(fresh.state_dict()["state"], own["state"], rtol=0, atol=0)
    torch.optim.AdamW(model.parameters()).load_state_dict(own)
    whole = mt.DataParallel(torch.nn.Linear(4, 4), tp)
    refused(lambda: mt.ShardedAdamW(whole).load_state_dict({**own, "param_groups": [{**own["param_groups"][0], "params": [0, 1]}]}), "there are no parts")


def reentrant(grid, tp):
    """Each layer in a checkpoint that makes a backward of its own: what comes later of the same backward() is no step's that has been."""
    sizes = (4, 8), (8, 4)
    layers = [linear(i, *size) for i, size in enumerate(sizes)]
    for sharding in ("zero_0", "zero_1", "zero_2"):
        reference = copy.deepcopy(torch.nn.Sequential(*layers))
        model = torch.nn.Sequential(ColumnParallelLinear.from_linear(layers[0], tp), RowParallelLinear.from_linear(layers[1], tp, grad="replicated"))
        wrapped = mt.DataParallel(model, grid, sharding=sharding)
        optimizer, expected = mt.ShardedAdamW(wrapped, lr=1e-2), torch.optim.AdamW(reference.parameters(), lr=1e-2)
        wrapped.module.forward = lambda x, model=model: checkpoint(model[1], checkpoint(model[0], x, use_reentrant=True), use_reentrant=True)
        for number in range(4):
            x = draw(number, 3, 4)
            wrapped(x.clone().requires_grad_()).pow(2).sum().backward()
            reference(x).pow(2).sum().backward()
            norms = [torch.nn.utils.clip_grad_norm_(each.parameters(), 0.5) for each in (wrapped, reference)]
            torch.testing.assert_close(*norms)
            for each in (optimizer, expected):
                each.step()
                each.zero_grad()
        wrapped.wait()
        for mine, whole in zip(model, reference):
            torch.testing.assert_close(mine.to_linear().weight, whole.weight)
    twice = mt.DataParallel(torch.nn.Linear(4, 4), tp)
    twice.module.forward = lambda x, of=torch.nn.Linear.forward: checkpoint(of, twice.module, checkpoint(of, twice.module, x, use_reentrant=True), use_reentrant=True)
    refused(twice(draw(0, 3, 4).requires_grad_()).sum().backward, "use_reentrant=False")


def model_of_whole_arrays(grid, tp):
    """An ordinary safetensors model, of which frozen parameters are taken too, each rank its part; but no training goes on from it."""
    with tempfile.TemporaryDirectory() as folder:
        source = mt.DataParallel(torch.nn.Sequential(linear(3, 4, 8), linear(4, 8, 4)), grid.world)
        if grid.world.rank == 0:
            os.mkdir(f"{folder}/saved")
        shared = bytearray(folder.encode())
        grid.world.broadcast(shared)
        folder = shared.decode()
        mt.save_checkpoint(f"{folder}/saved", source, None)
        path = f"{folder}/model.safetensors"
        if grid.world.rank == 0:
            megadp.export_checkpoint(f"{folder}/saved", path)
        grid.world.barrier()
        model = torch.nn.Sequential(ColumnParallelLinear.from_linear(linear(0, 4, 8), tp), RowParallelLinear.from_linear(linear(1, 8, 4), tp, grad="replicated"))
        model[0].requires_grad_(False)
        wrapped = mt.DataParallel(model, grid)
        optimizer = mt.ShardedAdamW(wrapped)
        refused(lambda: mt.load_checkpoint(path, wrapped, optimizer), "without the state of a training: load it with params_only=True")
        assert mt.load_checkpoint(path, wrapped, optimizer, params_only=True) is None
        for mine, whole in zip(model, source.module):
            torch.testing.assert_close(mine.to_linear().weight, whole.weight, rtol=0, atol=0)
            torch.testing.assert_close(mine.to_linear().bias, whole.bias, rtol=0, atol=0)
        grid.world.barrier()


def wrong_words(grid, tp):
    """grad="replicated" where each rank goes on with a part of its own, and "copy" of what is not the same."""
    megadp.tp.set_check_replicated(True)
    x = draw(0, 2, 8)
    mine = torch.arange(1.0, 9) * (1 + tp.rank)
    row = RowParallelLinear.from_linear(linear(0, 8, 8), tp, whole_input=True, grad="replicated")
    for loss, word in ((lambda: (row(x) * mine).sum(), "grad_output"),
                       (lambda: (mt.reduce_from_tensor_parallel(x.clone().requires_grad_(), tp) * mine).sum(), "from"),
                       (lambda: (mt.gather_from_tensor_parallel(x.clone().requires_grad_(), tp, grad="replicated") * draw(tp.rank, 2, 16)).sum(),
                        "from"),
                       (lambda: (mt.copy_to_tensor_parallel(x.clone().requires_grad_(), tp, grad="replicated") * mine).sum(), "from")):
        made = loss()
        refused(made.backward, f"{word} is not the same on ranks 0 and 1")
    refused(lambda: mt.copy_to_tensor_parallel(x + tp.rank, tp), "from is not the same on ranks 0 and 1")
    refused(lambda: VocabParallelEmbedding(8, 4, tp)(torch.tensor([tp.rank])), "ids is not the same on ranks 0 and 1")
    right = RowParallelLinear.from_linear(linear(0, 8, 8), tp, whole_input=True, grad="partial")
    (right(x) * mine).sum().backward()
    megadp.tp.set_check_replicated(False)
    refused((row(x) * mine).sum().backward, "grad_output is not the same")  # that layer was made to compare
    mt.copy_to_tensor_parallel(x + tp.rank, tp)


def second_derivatives(grid, tp):
    """Refused, also where what comes back is the same for all values, as of a sum: the weight would get no part of the penalty."""
    column = ColumnParallelLinear.from_linear(linear(0, 4, 8), tp)
    head = ColumnParallelLinear.from_linear(linear(1, 4, 8, bias=False), tp)
    targets = torch.tensor([0, 3, 5])
    for loss, what in ((lambda x: column(x).sum(), "tensor-parallel linear layer"), (lambda x: column(x).square().sum(), "tensor-parallel linear"),
                       (lambda x: mt.vocab_parallel_cross_entropy(head(x), targets, tp), "differentiated again")):
        x = draw(2, 3, 4).requires_grad_()
        grad, = torch.autograd.grad(loss(x), x, create_graph=True)
        refused(lambda: grad.square().sum().backward(), what, RuntimeError)
    logits = draw(3, 3, 4).requires_grad_()
    grad, = torch.autograd.grad(mt.vocab_parallel_cross_entropy(logits, targets, tp), logits, create_graph=True)
    refused(lambda: grad.square().sum().backward(), "vocab_parallel_cross_entropy was differentiated again", RuntimeError)


def experts(grid, tp):
    """Grid(ep=2): each rank has an expert of its own, which DataParallel would overwrite and average; as it says, Buffer keeps it."""
    with megadp.Grid(grid.world, ep=2) as cut:
        own = [torch.nn.Linear(4, 2), linear(tp.rank, 4, 4)]
        model = torch.nn.Sequential(*own)
        before = copy.deepcopy(model.state_dict())
        for place in ((), (own,), own):
            for each in place:
                mt.place(model if each is own else each, "replicated")
            refused(lambda: mt.DataParallel(model, cut), "the Grid has ep=2, and DataParallel has no experts")
        torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
        mt.DataParallel(own[0], megadp.Grid(grid.world))
        values = own[1].weight.detach()
        with megadp.Buffer(cut, [megadp.Param("expert", (4, 4), expert=True, placement="replicated")]) as buffer:
            mt.as_tensor(buffer.param("expert")).copy_(values)
            buffer.changed()
            buffer.broadcast()
            assert torch.equal(mt.as_tensor(buffer.param("expert")), values)


def part_of_a_plain_dict(grid, tp):
    """if rank == 0: torch.save({name: values.clone() ...}); all load it: the dict has no notes whose parts they are."""
    def made(seed, gathers=False):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(VocabParallelEmbedding(8, 4, tp), ColumnParallelLinear(4, 8, tp), RowParallelLinear(8, 4, tp, grad="replicated"))
        mt.place(model, "replicated")
        return mt.DataParallel(model, grid, gather_in_forward=gathers)

    def plain(state):
        return {name: values.clone() for name, values in state.items()}

    def of_rank_0(state):
        found = plain(state)
        for name in sorted(found):
            grid.world.broadcast(found[name])
        return found

    ids = torch.arange(8)
    for gathers in (False, True):
        source, model = made(0), made(1, gathers)
        optimizer = mt.ShardedSGD(model, lr=0.1)
        model(ids).sum().backward()
        optimizer.step()
        first = of_rank_0(source.state_dict())
        for _ in range(2):  # also when it is loaded again
            model.load_state_dict(source.state_dict() if tp.rank == 0 else first)  # the rank that has made them may have the notes
            for _ in range(2):
                refused(lambda model=model: model(ids), "the parts of 'module.0.weight' are alike on tensor-parallel ranks since load_state_dict")
        model.module[0].load_state_dict(plain(source.module[0].state_dict()))
        refused(lambda model=model: model(ids), "the parts of 'module.1.weight' are alike")
        model.module.load_state_dict(plain(source.module.state_dict()))  # each its own: right
        torch.testing.assert_close(model(ids), source(ids))
    # The ranks' communicator is closed, with which a layer goes on.
    with grid.comm("tp") as closed:
        torch.manual_seed(0)
        layer = ColumnParallelLinear(4, 8, closed)
        layer.load_state_dict(plain(layer.state_dict()))
    layer(draw(1, 3, 4))
    # What all have rightly: parts that are one number, and those that were alike before.
    for fill in (torch.nn.init.zeros_, lambda weight: weight.copy_(draw(5, *weight.shape))):
        model = made(0)
        with torch.no_grad():
            for part in model.module:
                fill(part.weight)
        model.load_state_dict(plain(model.state_dict()))
        model(ids)
    # Zeros before say nothing of what comes.
    model = made(0)
    with torch.no_grad():
        model.module[0].weight.zero_()
    model.load_state_dict(first)
    refused(lambda: model(ids), "the parts of 'module.0.weight' are alike")


def part_of_each_kind(grid, tp):
    """Each kind of layer looks at what it has loaded; a new one is to do so too."""
    torch.manual_seed(0)
    layers = {type(layer): layer for layer in (VocabParallelEmbedding(8, 4, tp), ColumnParallelLinear(4, 8, tp), RowParallelLinear(8, 4, tp, grad="replicated"))}
    kinds = {kind for base in (Part, *Part.__subclasses__()) for kind in base.__subclasses__() if not kind.__subclasses__()}
    assert kinds == set(layers), kinds
    for layer in layers.values():
        part = layer.weight.detach().clone()
        tp.broadcast(part)
        layer.load_state_dict({"weight": part}, strict=False)
        refused(lambda layer=layer: layer(None), "the parts of 'weight' are alike")


def parts_that_repeat(grid, tp):
    """Key and value heads that are fewer than ranks: a converter writes each rank's file, without notes, and some or all files are alike."""
    for wrap in (False, True):
        torch.manual_seed(0)
        layer = ColumnParallelLinear(4, 6, tp, bias=False)
        model = mt.DataParallel(layer, grid) if wrap else layer
        name, x = next(iter(model.state_dict())), draw(1, 3, 4)

        def forward(model=model, x=x):
            return warned_of(lambda: model(x))

        of_head = {name: draw(10 + tp.rank // 2, 2, 4)}
        model.load_state_dict(of_head)
        said = forward()
        assert len(said) == 1 and f"the parts of {name!r} are alike on some tensor-parallel ranks since load_state_dict" in said[0], said
        assert torch.equal(layer.weight.detach(), of_head[name]) and forward() == []
        model.load_state_dict(of_head)  # as they were before
        assert forward() == []
        of_one_head = {name: draw(20, 2, 4)}
        model.load_state_dict(of_one_head)
        refused(lambda model=model, x=x: model(x), "Where parts are rightly alike, as those of fewer key and value heads than ranks: "
                "own = layer.state_dict(); own.update(parts); layer.load_state_dict(own)")
        own = model.state_dict()
        own.update(of_one_head)
        model.load_state_dict(own)
        assert forward() == [] and torch.equal(layer.weight.detach(), of_one_head[name])


def parts_of_permutations(grid, tp):
    """Parts of the same numbers in another order are others: no warning, and each rank loads its own."""
    for whole in (torch.eye(4), torch.eye(4).flip(0), torch.eye(4)[[0, 3, 2, 1]], torch.arange(16.0).view(2, 8).T.reshape(4, 4)):
        for cut, dim, options in ((ColumnParallelLinear, 0, {}), (RowParallelLinear, 1, {"grad": "replicated"})):
            torch.manual_seed(0)
            layer = cut(4, 4, tp, bias=False, **options)
            layer.load_state_dict({"weight": whole.chunk(tp.size, dim)[tp.rank].clone()})
            layer(draw(1, 3, 4).chunk(tp.size, 1)[tp.rank] if dim else draw(1, 3, 4))
            assert warned_of(lambda layer=layer: mt.DataParallel(layer, grid)) == []
    frozen = torch.nn.Sequential(ColumnParallelLinear(4, 4, tp), torch.nn.Linear(4, 4, bias=False).requires_grad_(False))
    frozen[1].weight.copy_(torch.eye(4).roll(tp.rank, 0))
    mt.place(frozen, "replicated")
    refused(lambda: mt.DataParallel(frozen, grid), "parameter '1.weight', which is frozen, is not the same on all tensor-parallel ranks")


def sums_of_bits(grid, tp):
    """What the comparisons of parts count on."""
    orders = [torch.eye(5)[list(order)] for order in itertools.permutations(range(5))]
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.uint8, torch.bool):
        prints = [fingerprint(each.to(dtype)) for each in orders]
        assert len(set(prints)) == len(orders) and all(varies for _, varies in prints), dtype
        assert prints[:5] == [fingerprint(each.to(dtype).T.contiguous().T) for each in orders[:5]], "it is not in memory's order"
    large = torch.zeros((1 << 21) + 3, dtype=torch.uint8)
    assert fingerprint(large)[1] == 0
    found = set()
    for place in (0, 1, 1 << 20, (1 << 20) + 1, 1 << 21, (1 << 21) + 2):
        large.zero_()[place] = 1
        assert fingerprint(large)[1] == 1
        found.add(fingerprint(large)[0])
    assert len(found) == 6
    for nothing in (torch.zeros(0), torch.zeros(4, device="meta"), torch.zeros(4, dtype=torch.complex128)):
        assert fingerprint(nothing) == (0, 0)


def loaded_on_one(grid, tp):
    """if rank == 0: model.load_state_dict(...), as before DDP, which gives all ranks rank 0's."""
    layer = RowParallelLinear.from_linear(linear(0, 4, 8), tp, whole_input=True, grad="replicated")
    if tp.rank == 0:
        layer.load_state_dict(layer.state_dict())
    refused(lambda: layer(draw(1, 3, 4)), "call load_state_dict on all tensor-parallel ranks" if tp.rank == 0 else "different operations")


def buffers_that_take_no_copy(grid, tp):
    """Refused on all ranks, by name, before one of them has sent anything; and where only one rank has such a buffer."""
    dense = torch.eye(4)
    quantized = torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)
    for values, kind in ((dense.to_sparse(), "float32 of shape (4, 4), sparse_coo"), (dense.to_sparse_csr(), "float32 of shape (4, 4), sparse_csr"),
                         (torch.ones(4).expand(3, 4), "float32 of shape (3, 4), expanded"), (quantized, "qint8 of shape (4, 4), quantized")):
        def made(values=values):
            model = linear(0, 2, 2)
            model.register_buffer("first", torch.arange(3.0) + tp.rank)
            model.register_buffer("adjacency", values)
            return model

        for options in ({}, {"forward_sync_buffers": False}):
            refused(lambda made=made, options=options: mt.DataParallel(made(), grid.world, **options),
                    f"module buffer 'adjacency' is {kind}: all ranks get rank 0's values, and torch copies nothing into such a tensor")
        mt.DataParallel(made(), grid.world, broadcast_buffers=False)(draw(1, 3, 2)).sum().backward()
        refused(lambda made=made, values=values: mt.DataParallel(made(values if tp.rank else torch.zeros(values.shape)), grid.world),
                f"{kind} on rank 1")
    model = linear(0, 2, 2)
    model.register_buffer("columns", torch.eye(3).T + tp.rank)
    model.register_buffer("none", torch.zeros(0, 1).expand(0, 3))
    wrapped = mt.DataParallel(model, grid.world)
    optimizer = mt.ShardedSGD(wrapped, lr=0.1)

    def step():
        wrapped(draw(1, 3, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert torch.equal(model.columns, torch.eye(3))
    # One that takes another's place later, of the same type and shape.
    for values, kind in ((torch.eye(3).to_sparse(), "sparse_coo"), (torch.ones(3).expand(3, 3), "expanded")):
        step()
        model.columns = values
        for _ in range(2):
            refused(lambda: wrapped(draw(1, 3, 2)), f"module buffer 'columns' is float32 of shape (3, 3), {kind}: all ranks get rank 0's values")
        model.columns = torch.eye(3) + tp.rank
        step()
        assert torch.equal(model.columns, torch.eye(3))


def unequal_blocks(grid, tp):
    """Queries, keys and values of grouped-query attention: the layer works, and what has no placement for it says which layer it is."""
    heads = ColumnParallelLinear.from_linear(linear(0, 4, 16), tp, blocks=(8, 4, 4))
    heads(draw(1, 3, 4))
    model = torch.nn.ModuleDict({"attention": torch.nn.Sequential(heads)})
    for made in (lambda: mt.place(model, "replicated"), lambda: mt.DataParallel(model, grid)):
        refused(made, "attention.0: blocks are (8, 4, 4); a placement describes blocks of equal sizes")


if __name__ == "__main__":
    world = megadp.Comm()
    with megadp.Grid(world, tp=world.size) as cut:
        cut.world = world
        with cut.comm("tp") as ranks:
            globals()[sys.argv[1]](cut, ranks)
    print(sys.argv[1], "done", flush=True)
