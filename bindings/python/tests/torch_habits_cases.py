# SPDX-License-Identifier: Apache-2.0
"""As torch_cases.py: what scripts of other libraries do, beside plain torch in one process on the batches of all ranks.

usage: torch_habits_cases.py CASE...
"""
import contextlib
import copy
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

import megadp
import megadp.torch
from torch_cases import WIDTH, compare, main, refused

own = megadp.torch


def batch(step, rank):
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def both(module, loss, ours, theirs, steps=6, **options):
    """Losses of ours, the mean of both ranks', and of plain torch's on all batches. loss: of a model and a batch."""
    alone, ranks, found = copy.deepcopy(module), dist.get_world_size(), ([], [])
    model = own.DataParallel(module, megadp.Comm(timeout=60), **options)
    mine, reference = ours(model), theirs(alone)
    for step in range(steps):
        value = loss(model, batch(step, dist.get_rank()))
        value.backward()
        mine.step()
        mine.zero_grad()
        mean = value.detach().double()
        dist.all_reduce(mean)
        found[0].append(mean.item() / ranks)
        value = sum(loss(alone, batch(step, rank)) for rank in range(ranks)) / ranks
        value.backward()
        reference.step()
        reference.zero_grad()
        found[1].append(value.item())
    return found


def sgd(model):
    return own.ShardedSGD(model, lr=0.1, momentum=0.9)


def plain_sgd(module):
    return torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1, momentum=0.9)


def take_step(*optimizers):
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def same(module, alone):
    for p, q in zip(module.parameters(), alone.parameters()):
        assert torch.allclose(p, q, rtol=1e-5, atol=1e-7), (p, q)


def of_output(model, x):
    return mse_loss(model(x), x.flip(-1))


class Blocks(torch.nn.Module):
    """Backward begins inside a checkpoint: nothing behind the blocks is trained, as with adapters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(3))
        self.last = torch.nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x):
        x = x.detach().requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return self.last(x)


def case_reentrant():
    for sharding in ("zero_0", "zero_1", "zero_2"):
        mine, reference = both(Blocks(), of_output, sgd, plain_sgd, sharding=sharding)
        compare(f"checkpoint(use_reentrant=True), {sharding}", mine, reference, of="torch")


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.one, self.other = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)


def case_two_losses():
    """Two backward() of losses that have no parameter in common are one pass."""
    module = Two()
    alone = copy.deepcopy(module)
    model = own.DataParallel(module, megadp.Comm(timeout=60))
    mine, reference = sgd(model), plain_sgd(alone)
    for step in range(4):
        of_output(module.one, batch(step, dist.get_rank())).backward()
        of_output(module.other, batch(step, dist.get_rank())).backward()
        for rank in range(dist.get_world_size()):
            for part in (alone.one, alone.other):
                (of_output(part, batch(step, rank)) / dist.get_world_size()).backward()
        take_step(mine, reference)
    same(module, alone)


def case_graph_from_before():
    """backward() through a graph that was made before the step is refused by torch, which counts writes."""
    for options in ({}, dict(sharding="zero_2"), dict(gather_in_forward=True)):
        model = own.DataParallel(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)),
                                 megadp.Comm(timeout=60), **options)
        optimizer, x = sgd(model), batch(0, 0).requires_grad_()
        old = model(x)
        of_output(model, x).backward()
        optimizer.step()
        try:
            torch.autograd.grad(old.sum(), x)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error), error
        else:
            raise AssertionError("nothing was said")


def case_shared_memory():
    make = lambda: torch.nn.ModuleDict({"one": torch.nn.Embedding(6, 4), "other": torch.nn.Linear(4, 6, bias=False)})  # noqa: E731
    by_data, by_parameter, buffer, tied = make(), make(), make(), make()
    by_data["other"].weight.data = by_data["one"].weight.data
    by_parameter["other"].weight = torch.nn.Parameter(by_parameter["one"].weight)
    buffer.register_buffer("copy", buffer["one"].weight.data)
    tied["other"].weight = tied["one"].weight
    comm = megadp.Comm(timeout=60)
    for module in (by_data, by_parameter, buffer):
        refused("one.weight|share memory", own.DataParallel, module, comm)
    own.DataParallel(tied, comm)
    own.DataParallel(torch.nn.LSTM(3, 4, 2), comm)


def case_wrapped_otherwise():
    """By DistributedDataParallel, or cut by torch's fully_shard and parallelize_module."""
    comm, linear = megadp.Comm(timeout=60), torch.nn.Linear(3, 2)
    theirs = torch.nn.parallel.DistributedDataParallel(linear)
    refused("module is a DistributedDataParallel|accelerate", own.DataParallel, theirs, comm)
    refused("0 is a DistributedDataParallel", own.DataParallel, torch.nn.Sequential(theirs), comm)
    cut = parallelize_module(torch.nn.Linear(3, 2), init_device_mesh("cpu", (comm.size,)), ColwiseParallel())
    refused("'weight' is a DTensor|fully_shard|ColumnParallelLinear", own.DataParallel, cut, comm)


def case_methods_in_no_sync():
    """Forward by a method of the module's own: backward's place says whether it adds up, as no forward of the wrapper has."""
    ends = []
    for by_method in (True, False):
        for sharding in SHARDINGS:
            for last_by_method in (by_method, False):
                model, optimizer = layers(sharding)
                for step in range(3):
                    for number in range(2):
                        with model.no_sync():
                            of_output(model.module if by_method else model, batch(10 * step + number, dist.get_rank())).backward()
                    of_output(model.module if last_by_method else model, batch(10 * step + 2, dist.get_rank())).backward()
                    take_step(optimizer)
                ends.append([p.detach().clone() for p in model.parameters()])
    for each in ends[1:]:
        torch.testing.assert_close(each, ends[0], rtol=1e-6, atol=1e-7)


def case_groups_without_some():
    module = Two()
    comm = megadp.Comm(timeout=60)
    refused("names 2 of 4|freeze them", lambda: own.DataParallel(module, comm, param_groups=[{"params": module.one.parameters()}]))
    module.other.requires_grad_(False)
    own.DataParallel(module, comm, param_groups=[{"params": module.one.parameters()}])


def case_groups_with_more():
    module = torch.nn.Sequential(Two().one, Two().other)
    module[1].requires_grad_(False)

    def groups(of):
        return [{"params": list(of[0].parameters()), "name": "body", "lr_scale": 0.5}, {"params": list(of[1].parameters()), "lr": 1.0}]

    mine, reference = both(module, of_output, lambda model: own.ShardedSGD(model, lr=0.1), lambda alone: torch.optim.SGD(groups(alone), lr=0.1),
                           param_groups=groups(module))
    compare("frozen parameters and a script's own entries in groups", mine, reference, of="torch")
    for listed in (lambda of: of.parameters(), lambda of: list(of.named_parameters()), lambda of: [{"params": of.named_parameters()}]):
        model = Two()
        assert len(own.ShardedSGD(own.DataParallel(model, megadp.Comm(timeout=60), param_groups=listed(model)), lr=0.1).param_groups[0]["params"]) == 4
    for wrong, said in (([{"lr": 1.0}], "[0] is a dict without params"), ([{"params": Two().parameters()}, 3], "[1] is int"),
                        ([{"params": ["one.weight"]}], "[0] has a str among")):
        refused(f"param_groups{said}", lambda: own.DataParallel(Two(), megadp.Comm(timeout=60), param_groups=wrong))
    for wrong in ("weight_decays", "momentun", "betas"):
        model = own.DataParallel(Two(), megadp.Comm(timeout=60))
        model.group_options[0][wrong] = 1
        refused(f"sets {wrong}", lambda: own.ShardedSGD(model, lr=0.1))


class Listed(torch.optim.SGD):
    """Keeps a list in its groups, as RAdam of torch_optimizer does: of the learning rate that it met first."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, lr)
        for group in self.param_groups:
            group.setdefault("rates", [])
        self.defaults["rates"] = []

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if not group["rates"]:
                group["rates"].append(group["lr"])
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["rates"][0])


class AdamP(torch.optim.SGD):
    """Does something to matrices that are orthogonal to their gradients alone, as that of timm does."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                orthogonal = p.dim() > 1 and torch.cosine_similarity(p.view(-1), p.grad.view(-1), 0).abs() < 1e-6
                p.sub_(p.grad, alpha=group["lr"] * (2 if orthogonal else 1))


class Invariant(torch.nn.Module):
    """Of a loss that does not change with the size of the weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x):
        return x @ (self.weight / self.weight.norm())


def case_trials():
    """What is tried of a class leaves no trace in it, and where parameters are whole it sees them as they are."""
    mine, reference = both(Two().one, of_output, lambda model: own.ShardedElementwise(model, Listed, lr=0.005),
                           lambda module: Listed(module.parameters(), lr=0.005))
    compare("a list in its groups", mine, reference, of="torch")
    for sharding in ("whole", "zero_0"):
        mine, reference = both(Invariant(), of_output, lambda model: own.ShardedElementwise(model, AdamP, lr=0.2),
                               lambda module: AdamP(module.parameters(), lr=0.2), sharding=sharding)
        compare(f"AdamP, {sharding}", mine, reference, of="torch")
    refused("kind is AdamP|angle", lambda: own.ShardedElementwise(own.DataParallel(Invariant(), megadp.Comm(timeout=60)), AdamP, lr=0.2))


class NoRate(torch.optim.SGD):
    """Has a rate of its own where lr is None, as Adafactor of transformers."""

    def __init__(self, params, lr=None):
        torch.optim.Optimizer.__init__(self, params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=0.1 if group["lr"] is None else group["lr"])


def case_no_rate():
    mine, reference = both(Two().one, of_output, lambda model: own.ShardedElementwise(model, NoRate), lambda module: NoRate(module.parameters()))
    compare("lr=None", mine, reference, of="torch")


def case_autograd_grad():
    """torch.autograd.grad of parameters, before backward or after it, takes nothing away."""
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
    ends = []
    for asks in (False, True):
        model = own.DataParallel(copy.deepcopy(module), megadp.Comm(timeout=60), sharding="zero_2")
        optimizer = sgd(model)
        for step in range(4):
            value = of_output(model, batch(step, dist.get_rank()))
            if asks:  # .grad is what the last step has used up
                torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
            optimizer.zero_grad()
            value.backward(retain_graph=True)
            if asks:
                torch.autograd.grad(value, list(model.parameters()))
            optimizer.step()
        ends.append(list(model.parameters()))
    assert all(map(torch.equal, *ends))


def case_assigned_gradients():
    """Of torch.autograd.grad, as scripts do that project or weigh the gradients of several losses."""
    module = Two().one
    alone = copy.deepcopy(module)
    model = own.DataParallel(module, megadp.Comm(timeout=60))
    mine, reference = sgd(model), plain_sgd(alone)
    for step in range(4):
        grads = torch.autograd.grad(of_output(model, batch(step, dist.get_rank())), list(model.parameters()))
        if step == 0:
            for p, grad in zip(model.parameters(), grads):
                p.grad = grad
            refused(".grad of 'weight' was assigned|backward has brought none", mine.step)
            mine.zero_grad()
        sum((p * grad).sum() for p, grad in zip(model.parameters(), grads)).backward()  # as the sentence says
        sum(of_output(alone, batch(step, rank)) for rank in range(dist.get_world_size())).div(dist.get_world_size()).backward()
        take_step(mine, reference)
    same(module, alone)


def case_compiled_with_buffers():
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH, bias=False), torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, WIDTH))
    model = own.DataParallel(module, megadp.Comm(timeout=60))
    compiled, optimizer = torch.compile(model, backend="eager"), sgd(model)
    for step in range(3):
        of_output(compiled, batch(step, dist.get_rank())).backward()
        optimizer.step()
        optimizer.zero_grad()


SHARDINGS = ("zero_0", "zero_1", "zero_2")


def layers(sharding, compiled=False, **options):
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
    model = own.DataParallel(torch.compile(module, backend="eager") if compiled else module, megadp.Comm(timeout=60), sharding=sharding, **options)
    return model, sgd(model)


def case_compiled_while_gradients():
    """Dynamo describes the .grad of parameters. That reads no values and is not collective: the ranks compile anew at other times."""
    rank = dist.get_rank()
    for sharding in SHARDINGS:
        ends = []
        for compiled in ("", "module", "wrapper"):
            torch._dynamo.reset()
            model, optimizer = layers(sharding, compiled == "module")
            call = torch.compile(model, backend="eager") if compiled == "wrapper" else model
            for step in range(2):
                with model.no_sync():
                    of_output(call, batch(10 * step, rank)[:7 - step]).backward()
                of_output(call, batch(10 * step + 1, rank)[:5 + 2 * step + rank]).backward()
                for evaluates in ((rank,), (1 - rank,))[step]:  # between backward and step, and after it
                    with torch.no_grad():
                        call(batch(0, evaluates)[:2 + evaluates])
                optimizer.step()
                if rank == step:
                    with torch.no_grad():
                        call(batch(0, 0)[:4 + step])
                optimizer.zero_grad()
            ends.append(list(model.parameters()))
        for each in ends[1:]:
            assert all(map(torch.equal, each, ends[0])), sharding


def case_compiled_uses_of_gradients():
    """Compiled code that uses .grad does what eager code does, or is refused like it: never what lies in the memory then."""
    for sharding in SHARDINGS:
        found = []
        for wrap in (lambda use: use, lambda use: torch.compile(use, backend="eager")):
            torch._dynamo.reset()
            model, _ = layers(sharding)
            of_output(model, batch(0, dist.get_rank())).backward()
            p = model.module[0].weight
            if sharding == "zero_0":
                found.append(wrap(lambda p: (p.grad * 2).sum() + p.grad.to("cpu").float().sum())(p).item())
            else:
                refused("values of the gradient of '0.weight'", wrap(lambda p: (p.grad * 2).sum()), p)
            found.append(wrap(lambda p: p.grad.norm() * 2)(p).item())
            wrap(lambda p: p.grad.mul_(0.5))(p)
            found.append(p.grad.norm().item() + wrap(lambda p: torch._foreach_norm([p.grad])[0] * 3)(p).item())
        half = len(found) // 2
        compare(f"compiled uses of gradients, {sharding}", found[:half], found[half:], of="eager code")


def case_conversions_of_nothing():
    """model.cpu(), .float(), .to(device) do nothing at any time, as in torch, where model is there already; other conversions are told what to do."""
    for sharding in SHARDINGS:
        for dtype in (torch.float32, torch.bfloat16):
            for when in ("raised", "between", "used"):
                model = own.DataParallel(torch.nn.Linear(WIDTH, WIDTH, dtype=dtype), megadp.Comm(timeout=60), sharding=sharding)
                optimizer, x = sgd(model), batch(0, dist.get_rank()).to(dtype)
                of_output(model, x).backward()
                if when == "raised":
                    refused("no_sync", lambda: of_output(model, x).backward())
                if when == "used":
                    optimizer.step()
                grad = model.module.weight.grad
                for convert in (model.cpu, lambda: model.to("cpu"), lambda: model.to(dtype), lambda: model.to(model.module.weight),
                                lambda: model.module.to("cpu", dtype, non_blocking=True), lambda: model.type(dtype), model.module.type(dtype).cpu):
                    convert()
                    assert model.module.weight.grad is grad
                assert grad.contiguous() is grad and grad.type_as(grad) is grad and grad.type() == model.module.weight.type()
                if when == "between":
                    optimizer.step()
                elif sharding != "zero_0":
                    refused("zero_grad() first|before it is wrapped", model.double)
                    if when == "used":
                        optimizer.zero_grad()
                    refused("has left the library's memory", optimizer.zero_grad if when == "raised" else optimizer.step)


def case_given_up_batches():
    """What is said of a second backward, by what came between."""
    model, optimizer = layers("zero_1")
    loss = lambda: of_output(model, batch(0, dist.get_rank())).backward()  # noqa: E731
    for drop, said in ((lambda: None, "STATE: take the step|no_sync"),
                       (model.module.zero_grad, "to give up a batch, call zero_grad() of the optimizer"),
                       (lambda: [setattr(p, "grad", None) for p in model.parameters()], "to give up a batch")):
        loss()
        drop()
        refused(said, loss)
        optimizer.zero_grad()
    loss()
    optimizer.step()
    refused("zero_grad() between step() and the next backward()|another model's loss", loss)
    optimizer.zero_grad()
    loss()


def case_adversarial():
    """The generator's loss goes through the discriminator, whose gradients of it are thrown away, or never made."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for frozen in (False, True):
        plain = [Two().one, Two().other]
        models = [own.DataParallel(copy.deepcopy(module), megadp.Comm(timeout=60)) for module in plain]
        mine, reference = list(map(sgd, models)), list(map(plain_sgd, plain))
        for step in range(3):
            own_x, every = batch(step, rank), torch.cat([batch(step, each) for each in range(ranks)])
            for (generator, judge), (of_generator, of_judge), x in ((models, mine, own_x), (plain, reference, every)):
                of_judge.zero_grad()
                of_output(judge, generator(x).detach()).backward()
                of_judge.step()
                of_judge.zero_grad()  # as docs/from-ddp.md says
                of_generator.zero_grad()
                judge.requires_grad_(not frozen)
                judge(generator(x)).square().mean().backward()
                judge.requires_grad_(True)
                of_generator.step()
        for model, module in zip(models, plain):
            same(model.module, module)


def case_second_derivative():
    """SyncBatchNorm sums over ranks outside of autograd: a second derivative would lack that, and is refused."""
    for affine in (True, False):
        module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.SyncBatchNorm(WIDTH, affine=affine))
        model = own.DataParallel(module, megadp.Comm(timeout=60))
        x = batch(0, dist.get_rank()).requires_grad_()
        for loss in (lambda: model(x).square().sum(), lambda: model(x).sum()):
            grad, = torch.autograd.grad(loss(), x, create_graph=True)
            try:
                grad.square().sum().backward()
            except RuntimeError as error:
                assert "SyncBatchNorm" in str(error) and "LayerNorm" in str(error), error
            else:
                raise AssertionError("nothing was said")


def case_words_of_other_calls():
    module = torch.nn.Linear(WIDTH, WIDTH)
    module.weight.register_post_accumulate_grad_hook(lambda p: p.grad)
    model = own.DataParallel(module, megadp.Comm(timeout=60))
    refused("'weight'|such hooks return None", lambda: of_output(model, batch(0, 0)).backward())
    module = Two().one
    model = own.DataParallel(module, megadp.Comm(timeout=60), param_groups=[{"params": [module.weight]}, {"params": [module.bias]}])
    one = own.ShardedSGD(model, lr=0.1, groups=[0])
    of_output(model, batch(0, 0)).backward()
    refused("'bias' is in parameter group 1|megadp.torch.step_many([", one.step)


def case_zero_grad_on_one_rank():
    model, optimizer = layers("zero_1")
    rank = dist.get_rank()

    def one_alone():
        of_output(model, batch(0, rank)).backward()
        if rank == 0:
            optimizer.zero_grad()
            of_output(model, batch(0, rank)).backward()
        optimizer.step()

    refused("on all ranks or on none: zero_grad()", one_alone)


class Rounded(torch.autograd.Function):
    """Straight-through, as quantizers have it: no gradient for the scale, though it is a parameter."""

    @staticmethod
    def forward(ctx, x, scale):
        return (x / scale).round() * scale

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Quantized(torch.nn.Module):
    """given: the scale itself is an argument of Rounded, whose backward has None for it; otherwise it takes no part there."""

    def __init__(self, given, frozen=False):
        super().__init__()
        torch.manual_seed(3)
        self.given, self.one, self.scale = given, torch.nn.Linear(WIDTH, WIDTH), torch.nn.Parameter(torch.tensor(0.5))
        self.last = torch.nn.Linear(WIDTH, WIDTH)
        for layer in (self.one, self.last):
            layer.requires_grad_(not frozen)

    def forward(self, x, used):
        """used: the scale is used in another place, too, where it has a gradient."""
        y = Rounded.apply(self.one(x), self.scale if self.given else self.scale.detach())
        return self.last(y + self.scale * x if used else y)


USES = ("0000", "1100", "0010", "0100", "1111", "0000")  # of each step, in the pass inside no_sync and in the last: on which rank


def quantized_losses(model, step, passes, rank, dtype):
    """Those of a step's passes on a rank."""
    for number in range(2 - passes, 2):
        with model.no_sync() if number == 0 else contextlib.nullcontext():
            x = batch(10 * step + number, rank).to(dtype)
            yield mse_loss(model(x, USES[step][2 * number + rank] == "1"), x.flip(-1))


def quantized(module, dtype, passes, set_to_none, **options):
    """Parameters and norms of six steps."""
    model = own.DataParallel(module.to(dtype), megadp.Comm(timeout=60), **options)
    optimizer, norms = own.ShardedAdamW(model, lr=0.1, weight_decay=0.1), []
    for step in range(len(USES)):
        for loss in quantized_losses(model, step, passes, dist.get_rank(), dtype):
            loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad(set_to_none)
    model.wait()
    return [*model.module.parameters(), *norms]


def case_gradients_of_none():
    """A function's backward that returns None for a parameter is a parameter without a gradient in this pass."""
    for options in (*({"sharding": sharding} for sharding in SHARDINGS), {"gather_in_forward": True}):
        for dtype in (torch.float32, torch.bfloat16):
            for passes, set_to_none in ((1, True), (2, True), (2, False)):
                ends = [quantized(Quantized(given), dtype, passes, set_to_none, **options) for given in (True, False)]
                assert all(map(torch.equal, *ends)), (options, dtype, passes, set_to_none)


def quantized_alone(alone):
    """Parameters of plain torch's."""
    ranks, alone.no_sync = range(dist.get_world_size()), contextlib.nullcontext
    reference = torch.optim.AdamW(alone.parameters(), lr=0.1, weight_decay=0.1)
    for step in range(len(USES)):
        for rank in ranks:
            for loss in quantized_losses(alone, step, 2, rank, torch.float32):
                (loss / len(ranks)).backward()
        torch.nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
        take_step(reference)
    return list(alone.parameters())


def case_gradients_of_none_beside_torch():
    """Also where a rank has no other gradient in a pass: it has made the pass all the same."""
    for frozen in (False, True):
        theirs = quantized_alone(Quantized(True, frozen))
        for sharding in SHARDINGS:
            mine = quantized(Quantized(True, frozen), torch.float32, 2, True, sharding=sharding)
            torch.testing.assert_close(mine[:len(theirs)], theirs, rtol=1e-4, atol=1e-6)


def case_evaluation_on_one_rank():
    """The forward after one with gradients makes module buffers alike: on one rank it waits in vain, and says what to do."""
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH))
    model, rank = own.DataParallel(module, megadp.Comm(timeout=3)), dist.get_rank()
    optimizer = sgd(model)
    of_output(model, batch(0, rank)).backward()
    take_step(optimizer)
    model.eval()
    with torch.no_grad():
        if rank == 0:
            model.module(batch(0, rank))  # as the sentence says
            refused("TIMEOUT|makes them those of rank 0|on one rank alone call model.module there", model, batch(0, rank))
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1:], globals())
