# SPDX-License-Identifier: Apache-2.0
"""As torch_cases.py: torch optimizers that need all of a parameter, on whole parameters, beside the same ones in one process without shards.

usage: torch_whole_cases.py CASE...
"""
import copy
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

import megadp
import megadp.torch
from torch_cases import ROWS, WIDTH, Net, compare, fresh, main, refused, train
from torch_elementwise_cases import ByNorm, Counts, shared
from torch_rule_cases import close, groups_of, plain, saved, whole

own, optim = megadp.torch, torch.optim
STEPS = 24


class LAMB(optim.Optimizer):
    """You et al., Large Batch Optimization for Deep Learning (2020), algorithm 2."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p), trust_ratio=1.0)
                state["step"] += 1
                for name, values, beta in (("exp_avg", p.grad, group["betas"][0]), ("exp_avg_sq", p.grad**2, group["betas"][1])):
                    state[name].lerp_(values, 1 - beta)
                first, second = (state[name] / (1 - beta**state["step"]) for name, beta in zip(("exp_avg", "exp_avg_sq"), group["betas"]))
                update = first / (second.sqrt() + group["eps"]) + group["weight_decay"] * p
                weight, moves = float(p.norm()), float(update.norm())
                state["trust_ratio"] = weight / moves if weight and moves else 1.0
                p -= group["lr"] * state["trust_ratio"] * update


class LARS(optim.SGD):
    """You et al., Large Batch Training of Convolutional Networks (2017): the gradient's norm is a part of the parameter's."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.norm() > 0:
                    p.grad.mul_(0.1 * p.norm() / p.grad.norm())
        return super().step(closure)


KINDS = {"LAMB": (LAMB, dict(lr=0.05)), "LARS": (LARS, dict(lr=0.2, momentum=0.9)), "NAdam": (optim.NAdam, dict(lr=0.01)),
         "ASGD": (optim.ASGD, dict(lr=0.05)), "Adafactor": (getattr(optim, "Adafactor", None), dict(lr=0.02)),
         "Muon": (getattr(optim, "Muon", None), dict(lr=0.01))}
OF_GROUP = {"LAMB": dict(weight_decay=0.0), "LARS": dict(momentum=0.0)}
KINDS = {name: kind for name, kind in KINDS.items() if kind[0] is not None}


def both_batches(steps):
    """Of each rank's share of a batch, as torch_cases.batches has this rank's."""
    return 3 * torch.randn(steps, dist.get_world_size(), ROWS, WIDTH, generator=torch.Generator().manual_seed(0))


def ours(name, module=None, sharding="whole", exact=False, **options):
    """Muon takes matrices only: AdamW has the rest, and both step together. exact: torch's AdamW, which has the same bits in one process."""
    module = module if module is not None else fresh()
    kind, values = KINDS[name]
    clip = options.pop("max_grad_norm", 0.0)
    model = own.DataParallel(module, megadp.Comm(timeout=60), param_groups=groups_of(module, OF_GROUP.get(name, {})), sharding=sharding)
    if name != "Muon":
        return model, [own.ShardedElementwise(model, kind, max_grad_norm=clip, **{**values, **options})]
    return model, [own.ShardedElementwise(model, kind, groups=[0], max_grad_norm=clip, **{**values, **options}),
                   own.ShardedElementwise(model, optim.AdamW, lr=0.01, groups=[1], max_grad_norm=clip) if exact else
                   own.ShardedAdamW(model, lr=0.01, groups=[1], max_grad_norm=clip)]


def alone(name, module=None):
    module = module if module is not None else fresh()
    kind, values = KINDS[name]
    groups = groups_of(module, OF_GROUP.get(name, {}))
    return module, [kind(groups, **values)] if name != "Muon" else [kind(groups[0]["params"], **values), optim.AdamW(groups[1]["params"], lr=0.01)]


def train_ours(model, optimizers, data):
    def step(_, loss):
        loss.backward()
        own.step_many(optimizers)

    return train(model, optimizers[0], step, list(data[:, dist.get_rank()]))


def clip_in_f64(parameters, clip):
    """clip_grad_norm_ with the norm in float64, as the library has it: Muon rounds to bfloat16, which makes much of the last bit of a factor."""
    parameters = list(parameters)
    norm = sum(float(p.grad.double().square().sum()) for p in parameters) ** 0.5
    for p in parameters:
        p.grad.mul_(min(1.0, clip / (norm + 1e-6)))


def train_alone(module, optimizers, data, clip=None, clipping=torch.nn.utils.clip_grad_norm_):
    """The mean of the shares' gradients, one after another in this process."""
    losses = []
    for shares in data:
        for each in optimizers:
            each.zero_grad()
        of_shares = [mse_loss(module(x), x.flip(-1)) for x in shares]
        for loss in of_shares:
            (loss / len(shares)).backward()
        if clip is not None:
            clipping(module.parameters(), clip)
        for each in optimizers:
            each.step()
        losses.append(sum(loss.item() for loss in of_shares) / len(shares))
    return losses


def case_whole():
    """With values of groups that change on the way, clipped too; what is kept is torch's, and goes on in torch's and from there."""
    for name in KINDS:
        for sharding, clip in (("whole", None), ("whole", 0.3), ("zero_0", None)):
            clipping = clip_in_f64 if name == "Muon" else torch.nn.utils.clip_grad_norm_
            data = both_batches(4).repeat(STEPS // 4, 1, 1, 1)
            runs = [alone(name), ours(name, sharding=sharding, exact=True, max_grad_norm=clip or 0.0)]
            losses = [train_alone(*runs[0], data[:12], clip, clipping), train_ours(*runs[1], data[:12])]
            for _, optimizers in runs:
                for group in optimizers[0].param_groups:
                    group["lr"] *= 0.7
            for found, of_run in zip(losses, (train_alone(*runs[0], data[12:], clip, clipping), train_ours(*runs[1], data[12:]))):
                found.extend(of_run)
            compare(f"losses of {name}, {sharding}{', clipped' if clip else ''}", losses[1], losses[0], of="one process")
            assert sum(losses[1][-4:]) < (0.99 if clip else 0.9) * sum(losses[1][:4]), losses[1]
            close(whole(runs[1][0]), [p.detach() for p in runs[0][0].parameters()])
            mine, theirs = (optimizers[0].state_dict()["state"] for _, optimizers in runs)
            close(mine, theirs)
            kept = [{key: type(value) for key, value in of.items()} for of in (mine[0], theirs[0])]
            assert kept[0] == kept[1], kept


def case_whole_owned_once():
    """A rank has what is kept of its own parameters only; factors take the memory of factors."""
    model, (optimizer,) = ours("NAdam")
    sizes = lambda name: {i: optimizer._native.state(i, name).size for i in model.trained}
    owned = {piece.param for piece in model.storage.owned()}
    assert 0 < len(owned) < len(model.trained), owned
    assert sizes("mu_product") == {i: int(i in owned) for i in model.trained}, sizes("mu_product")
    assert sizes("exp_avg") == {i: p.numel() * (i in owned) for i, p in model.trained.items()}, sizes("exp_avg")
    if "Adafactor" in KINDS:
        model, (optimizer,) = ours("Adafactor")
        rows = {i: p.shape[0] * (i in owned and p.dim() == 2) for i, p in model.trained.items()}
        assert sizes("row_var") == rows, sizes("row_var")
        assert [each["name"] for each in optimizer._native.info()["state"]] == ["master"], optimizer._native.info()


def case_whole_saved():
    """In the middle, and loaded into fresh ones: bit for bit, from a checkpoint and from torch's state_dict."""
    for name in KINDS:
        data, ends = both_batches(8), []
        with tempfile.TemporaryDirectory() as mine:
            model, optimizers = ours(name)
            folder = shared(mine)
            train_ours(model, optimizers, data[:4])
            own.save_checkpoint(folder, model, optimizers)
            states = saved(model, *optimizers)
            ends.append(train_ours(model, optimizers, data[4:]))
            model, optimizers = ours(name, Net())
            own.load_checkpoint(folder, model, optimizers)
            ends.append(train_ours(model, optimizers, data[4:]))
            dist.barrier()
        model, optimizers = ours(name, Net())
        model.load_state_dict(states[0])
        for each, state in zip(optimizers, states[1:]):
            each.load_state_dict(copy.deepcopy(state))
        ends.append(train_ours(model, optimizers, data[4:]))
        assert ends[0] == ends[1] == ends[2], (name, ends)
        module, others = alone(name, Net())
        module.load_state_dict({key.removeprefix("module."): values for key, values in states[0].items()})
        for each, state in zip(others, states[1:]):
            each.load_state_dict(copy.deepcopy(state))
        compare(f"going on in torch's {name}", ends[0], train_alone(module, others, data[4:]), of="one process")


def case_whole_half_width():
    """bf16 parameters, which are gathered as they are used; their masters are what is updated, and are saved."""
    data, ends = [x.bfloat16() for x in both_batches(8)[:, dist.get_rank()]], []

    def make(module):
        model = own.DataParallel(module, megadp.Comm(timeout=60), sharding="whole", gather_in_forward=True)
        return model, own.ShardedElementwise(model, LAMB, lr=0.02)

    model, optimizer = make(fresh(dtype=torch.bfloat16))
    train(model, optimizer, plain(model, optimizer), data[:4])
    state = saved(model, optimizer)
    assert state[1]["state"][0]["master"].dtype == torch.float32 and type(state[1]["state"][0]["trust_ratio"]) is float, state[1]
    ends.append(train(model, optimizer, plain(model, optimizer), data[4:]))
    model, optimizer = make(Net(dtype=torch.bfloat16))
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    ends.append(train(model, optimizer, plain(model, optimizer), data[4:]))
    assert ends[0] == ends[1], ends


class OfAll(optim.SGD):
    """That goes by the norm of all gradients."""

    def step(self, closure=None):
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        norm = sum(float(grad.norm()) for grad in grads)
        for grad in grads:
            grad.div_(norm)
        return super().step(closure)


class InGroups(optim.SGD):
    """That counts steps in its groups."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["taken"] = group.get("taken", 0) + 1
            for p in group["params"]:
                p.grad.div_(group["taken"] * p.grad.norm())
        return super().step(closure)


def case_whole_refused():
    """Cut, each with its reason and what to do; whole, what goes by several parameters."""
    make = lambda model, kind, **values: own.ShardedElementwise(model, kind, **values)
    says_whole = 'With DataParallel(..., sharding="whole") each parameter has one owner'
    model = own.DataParallel(fresh(), megadp.Comm(timeout=60))
    for name, why in (("LAMB", "trust ratio"), ("LARS", "trust ratio"), ("Muon", "orthogonalizes whole matrices"), ("NAdam", "mu_product"),
                      ("Adafactor", "rows and columns"), ("ASGD", "eta")):
        if name in KINDS:
            refused(f"kind is {name}, whose step cannot be taken on pieces|{why}|{says_whole}", make, model, KINDS[name][0])
    refused(f"kind is ByNorm|is not the same where it is cut in two|{says_whole}", make, model, ByNorm)
    model = own.DataParallel(fresh(), megadp.Comm(timeout=60), sharding="whole")
    for kind in (optim.LBFGS, type("Other", (optim.LBFGS,), {})):
        refused(f"kind is {kind.__name__}|a line through all parameters|zero_0|model.stepped()", make, model, kind)
    refused("kind is SparseAdam|sparse gradients", make, model, optim.SparseAdam)
    refused("kind is OfAll|more than one parameter", make, model, OfAll)
    refused("kind is InGroups|keeps 'taken' in its groups", make, model, InGroups)
    if "Muon" in KINDS:
        refused("Muon cannot be made|only supports 2D|groups=[0]|step_many", make, model, optim.Muon)
    make(model, ByNorm)
    make(model, Counts)
    optimizer = make(model, LARS, lr=0.01)
    mse_loss(model(both_batches(1)[0, 0]), both_batches(1)[0, 0]).backward()
    optimizer.param_groups[0]["momentum"] = 0.9
    refused("keeps momentum_buffer|make it with values", optimizer.step)
    grid, module = megadp.Grid(megadp.Comm(timeout=60), tp=2), torch.nn.Linear(3, 2)
    own.place(module, "sharded", 0)
    refused("parameter 'weight' is cut over the tensor-parallel ranks, and LAMB needs all of it", make,
            own.DataParallel(module, grid, sharding="whole"), LAMB)


def case_whole_lbfgs():
    """What the refusal of LBFGS says is there in its place."""
    comm, data = megadp.Comm(timeout=60), both_batches(1)[0]
    model, module = own.DataParallel(fresh(), comm, sharding="zero_0"), fresh()
    ours_, theirs = (optim.LBFGS(each.parameters(), lr=0.5, max_iter=4) for each in (model, module))

    def of_all():
        model.zero_grad()
        loss = mse_loss(model(data[comm.rank]), data[comm.rank].flip(-1))
        loss.backward()
        model.sync()
        mean = loss.detach().clone()
        comm.all_reduce(mean)
        model.stepped()
        return mean / comm.size

    def alone_():
        theirs.zero_grad()
        losses = [mse_loss(module(x), x.flip(-1)) / len(data) for x in data]
        for loss in losses:
            loss.backward()
        return sum(loss.detach() for loss in losses)

    found = [[float(optimizer.step(closure)) for _ in range(5)] for optimizer, closure in ((ours_, of_all), (theirs, alone_))]
    compare("losses of LBFGS, zero_0", *found, of="one process")
    assert found[0][-1] < 0.5 * found[0][0], found[0]


if __name__ == "__main__":
    main(sys.argv[1:], globals())
