# SPDX-License-Identifier: Apache-2.0
"""As torch_cases.py: torch's own element-wise optimizers on shards, beside the same ones on the whole model.

usage: torch_elementwise_cases.py CASE...
"""
import copy
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import megadp
import megadp.torch
from torch_cases import Net, batches, compare, fresh, main, refused, train
from torch_rule_cases import close, groups_of, plain, saved, whole

own, optim = megadp.torch, torch.optim
# Options, then those of the second group.
KINDS = {"RMSprop": (dict(lr=0.003, momentum=0.5, centered=True, weight_decay=0.1), dict(momentum=0.0)),
         "Adagrad": (dict(lr=0.01, initial_accumulator_value=0.01, lr_decay=0.1), dict(weight_decay=0.1)),
         "Adadelta": (dict(lr=0.5, rho=0.8), dict(eps=1e-5)),
         "Adamax": (dict(lr=0.005, betas=(0.8, 0.95)), dict(weight_decay=0.1)),
         "RAdam": (dict(lr=0.01, betas=(0.8, 0.95)), dict(lr=0.02)),
         "Rprop": (dict(lr=0.001), dict(etas=(0.4, 1.3))),
         "AdamW": (dict(lr=0.01, amsgrad=True), dict(amsgrad=False)),
         "SGD": (dict(lr=0.01, momentum=0.9, dampening=0.1), dict(momentum=0.0))}
ARRAYS = {"RMSprop": ["grad_avg", "momentum_buffer", "square_avg"], "Adagrad": ["sum"], "Adadelta": ["acc_delta", "square_avg"],
          "Adamax": ["exp_avg", "exp_inf"], "RAdam": ["exp_avg", "exp_avg_sq"], "Rprop": ["prev", "step_size"],
          "AdamW": ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"], "SGD": ["momentum_buffer"]}


def ours(name, module=None, sharding="zero_1", **options):
    module = module if module is not None else fresh()
    model = own.DataParallel(module, megadp.Comm(timeout=60), param_groups=groups_of(module, KINDS[name][1]), sharding=sharding)
    return model, own.ShardedElementwise(model, getattr(optim, name), **{**KINDS[name][0], **options})


def theirs(name, module=None, **options):
    model = DistributedDataParallel(module if module is not None else fresh())
    return model, getattr(optim, name)(groups_of(model.module, KINDS[name][1]), **{**KINDS[name][0], **options})


def case_elementwise():
    """20 steps of each, with values of groups that change on the way; its state is torch's, and goes on in torch's."""
    for name in KINDS:
        data, found = batches(24), []
        for make, options in ((theirs, {}), *((ours, dict(sharding=each)) for each in ("zero_0", "zero_1", "zero_2"))):
            model, optimizer = make(name, **options)
            losses = train(model, optimizer, plain(model, optimizer), data[:10])
            for group in optimizer.param_groups:
                group["lr"] *= 0.7
            losses += train(model, optimizer, plain(model, optimizer), data[10:20])
            found.append((losses, whole(model), optimizer.state_dict()))
        for losses, params, state in found[1:]:
            compare(f"losses of {name}", losses, found[0][0])
            close(params, found[0][1])
            close(state["state"], found[0][2]["state"])
            assert state["param_groups"] == found[0][2]["param_groups"], (state["param_groups"], found[0][2]["param_groups"])
        arrays = sorted(each["name"] for each in optimizer._native.info()["state"] if each["name"] != "master")
        assert arrays == ARRAYS[name], (name, arrays)
        middle, ends = saved(model, optimizer), []
        for make in (theirs, ours):
            model, optimizer = make(name, Net(), lr=1)
            model.load_state_dict(middle[0])
            optimizer.load_state_dict(copy.deepcopy(middle[1]))  # torch's goes on in the tensors that it is given
            ends.append(train(model, optimizer, plain(model, optimizer), data[20:]))
        compare(f"going on, {name}", ends[1], ends[0])


def shared(folder):
    found = [folder]
    dist.broadcast_object_list(found)
    return found[0]


def case_elementwise_saved():
    """A checkpoint in the middle, of bf16 parameters with masters, loaded into fresh ones: bit for bit."""
    for name in ("RMSprop", "Rprop", "Adamax"):
        data, ends = batches(8, dtype=torch.bfloat16), []
        with tempfile.TemporaryDirectory() as mine:
            model, optimizer = ours(name, fresh(dtype=torch.bfloat16))
            folder = shared(mine)
            train(model, optimizer, plain(model, optimizer), data[:4])
            own.save_checkpoint(folder, model, optimizer)
            ends.append(train(model, optimizer, plain(model, optimizer), data[4:]))
            model, optimizer = ours(name, Net(dtype=torch.bfloat16))
            own.load_checkpoint(folder, model, optimizer)
            ends.append(train(model, optimizer, plain(model, optimizer), data[4:]))
            dist.barrier()
        assert ends[0] == ends[1], ends


def case_elementwise_beside_others():
    """One step with AdamW of the library's, clipped by one norm, under a loss scaler; hooks and schedulers as ever."""
    data, found = batches(12), []
    for make in ("ours", "theirs"):
        module = fresh()
        groups = [dict(params=[p for p in module.parameters() if p.dim() == dim]) for dim in (2, 1)]
        if make == "ours":
            model = own.DataParallel(module, megadp.Comm(timeout=60), param_groups=groups)
            both = [own.ShardedElementwise(model, optim.Adamax, lr=0.01, max_grad_norm=0.3, groups=[0]),
                    own.ShardedAdamW(model, lr=0.01, max_grad_norm=0.3, groups=[1])]
            scaler = own.GradScaler(init_scale=8.0, growth_interval=3)
        else:
            model = DistributedDataParallel(module)
            both = [optim.Adamax(groups[0]["params"], lr=0.01), optim.AdamW(groups[1]["params"], lr=0.01)]
        schedules = [optim.lr_scheduler.CosineAnnealingLR(each, 12) for each in both]

        def step(_, loss):
            if make == "ours":
                scaler.scale(loss).backward()
                scaler.step(both)
                scaler.update()
                model.zero_grad()
            else:
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                for each in both:
                    each.step()
            for each in schedules:
                each.step()

        found.append(train(model, both[0] if make == "ours" else model, step, data))
    compare("losses beside AdamW", *found)


class Fails(optim.RMSprop):
    """On the last rank, at one step."""

    at = None

    def step(self, closure=None):
        super().step(closure)
        if Fails.at is not None and dist.get_rank() == dist.get_world_size() - 1:
            raise ArithmeticError("no further")


def case_elementwise_fails():
    """On one rank: none has changed parameters, and what was loaded makes it good."""
    half = dict(dtype=torch.bfloat16)
    model = own.DataParallel(fresh(**half), megadp.Comm(timeout=60))
    optimizer = own.ShardedElementwise(model, Fails, lr=0.01)
    data = batches(4, **half)
    train(model, optimizer, plain(model, optimizer), data[:2])
    state, before = saved(model, optimizer), whole(model)
    Fails.at = True
    optimizer.zero_grad()
    mse_loss(model(data[2]), data[2]).backward()
    try:
        optimizer.step()
        raise AssertionError("the step was taken")
    except ArithmeticError as error:
        assert dist.get_rank() == 1 and error.__cause__.code == megadp.Status.ABORTED, error
    except megadp.MegaDPError as error:
        assert dist.get_rank() == 0 and (error.code, error.rank) == (megadp.Status.ABORTED, 1), error
        assert error.param is not None, error
    Fails.at = None
    assert all(torch.equal(a, b) for a, b in zip(whole(model), before)), "parameters were gathered"
    optimizer.zero_grad()
    mse_loss(model(data[2]), data[2]).backward()
    refused("are not whole", optimizer.step)
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    after = train(model, optimizer, plain(model, optimizer), data[2:])
    other = own.DataParallel(Net(**half), megadp.Comm(timeout=60))
    again = own.ShardedElementwise(other, optim.RMSprop, lr=0.01)
    other.load_state_dict(state[0])
    again.load_state_dict(state[1])
    assert train(other, again, plain(other, again), data[2:]) == after


class ByNorm(optim.SGD):
    """What is not element-wise, under a name that nobody knows."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.div_(p.grad.norm())
        return super().step(closure)


class Counts(optim.SGD):
    """That keeps a number of each parameter."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["largest"] = float(p.grad.abs().max())
        return super().step(closure)


class CountsForItself(optim.SGD):
    """Steps in its groups and in itself, which nothing goes by."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr=lr)
        self.taken = 0

    def step(self, closure=None):
        self.taken += 1
        for group in self.param_groups:
            group["taken"] = group.get("taken", 0) + 1
        return super().step(closure)


class Warms(CountsForItself):
    """The first steps change nothing, by a count in its groups: no trial of so few steps sees a parameter move."""

    def step(self, closure=None):
        if self.param_groups[0].get("taken", 0) < 4:
            self.param_groups[0]["taken"] = self.param_groups[0].get("taken", 0) + 1
            return None
        return optim.SGD.step(self, closure)


class Grows(CountsForItself):
    """Its rate grows from next to nothing, in itself."""

    def step(self, closure=None):
        self.taken = self.taken * 2 or 1e-12
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-self.taken)


class Decays(optim.SGD):
    """In its groups, from the 6th step of a parameter on."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["step"] = self.state[p].get("step", 0) + 1
                if self.state[p]["step"] == 6:
                    group["lr"] *= 0.5
        return super().step(closure)


class BeginsLate(optim.SGD):
    """Keeps something from the 5th step of a parameter on."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["step"] = self.state[p].get("step", 0) + 1
                if self.state[p]["step"] == 5:
                    self.state[p]["slow"] = p.detach().clone()


def case_elementwise_beside_parameters():
    """What a class keeps in its groups or in itself is refused, unless it only counts there."""
    counted, plain_sgd = [], []
    for kind, found in ((CountsForItself, counted), (optim.SGD, plain_sgd)):
        model = own.DataParallel(fresh(), megadp.Comm(timeout=60))
        optimizer = own.ShardedElementwise(model, kind, lr=0.1)
        found.extend(train(model, optimizer, plain(model, optimizer), batches(6)))
    assert counted == plain_sgd, (counted, plain_sgd)
    for sharding in ("zero_1", "whole"):
        model = own.DataParallel(fresh(), megadp.Comm(timeout=60), sharding=sharding)
        refused("kind is Warms|keeps 'taken' in its groups|zero_0|model.stepped()", own.ShardedElementwise, model, Warms)
        refused("kind is Grows|keeps 'taken' in itself|zero_0|model.stepped()", own.ShardedElementwise, model, Grows)
    refused("kind is Warms|keeps 'taken' in its groups", own.check_elementwise, Warms)


def case_elementwise_later():
    """What the trial could not see is an error in the step in which it would be lost, on all ranks."""
    for kind, said in ((BeginsLate, "BeginsLate keeps 'slow' of a parameter after its step 5|in the first step"),
                       (Decays, "Decays has changed 'lr' in its groups in step 6")):
        for sharding in ("zero_1", "whole"):
            model = own.DataParallel(fresh(), megadp.Comm(timeout=60), sharding=sharding)
            optimizer = own.ShardedElementwise(model, kind, lr=0.01)
            step, data = plain(model, optimizer), batches(6)
            train(model, optimizer, step, data[:4 if kind is BeginsLate else 5])
            optimizer.zero_grad()
            mse_loss(model(data[5]), data[5]).backward()
            try:
                optimizer.step()
                raise AssertionError("the step was taken")
            except megadp.MegaDPError as error:  # of this rank, or that of the other one, whichever came first
                assert error.code == megadp.Status.ABORTED or all(part in str(error) for part in said.split("|")), error
            refused("are not whole", optimizer.step)


class OfConvolutions(optim.SGD):
    """Takes the mean away from gradients of more than 3 dimensions."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad.dim() > 3:
                    p.grad.sub_(p.grad.mean(dim=(1, 2, 3), keepdim=True))
        return super().step(closure)


class OfWide(optim.Optimizer):
    """Keeps what it adds up by rows, where there are many columns. most: how many are not many."""

    def __init__(self, params, lr=0.01, most=50):
        super().__init__(params, dict(lr=lr, most=most))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                by_rows = p.dim() == 2 and p.shape[1] > group["most"]
                name, square = ("rows", p.grad.square().mean(1, keepdim=True)) if by_rows else ("all", p.grad.square())
                if name not in self.state[p]:
                    self.state[p][name] = torch.zeros_like(square)
                p.addcdiv_(p.grad, self.state[p][name].add_(square).sqrt() + 1e-6, value=-group["lr"])


def case_elementwise_by_shape():
    """What goes by a parameter's sizes, or by how many they are, is tried out at those of the model's; on whole parameters it is right."""
    make = lambda: torch.nn.Sequential(torch.nn.Conv2d(2, 3, 2), torch.nn.Flatten(), torch.nn.Linear(12, 60), torch.nn.Linear(60, 4))  # noqa: E731
    generator = torch.Generator().manual_seed(2)
    data = [torch.randn(5, 2, 3, 3, generator=generator) for _ in range(4)]  # the same on both ranks

    def losses(forward, step):
        found = []
        for x in data:
            loss = forward(x).square().mean()
            loss.backward()
            step()
            found.append(loss.item())
        return found

    for kind in (OfConvolutions, OfWide):
        torch.manual_seed(4)
        module = make()
        model = own.DataParallel(copy.deepcopy(module), megadp.Comm(timeout=60))
        refused(f"kind is {kind.__name__}|" + ("(3, 2, 2, 2) is cut in two" if kind is OfConvolutions else "'rows'"), own.ShardedElementwise, model, kind)
        model = own.DataParallel(copy.deepcopy(module), megadp.Comm(timeout=60), sharding="whole")
        ours_, theirs_ = own.ShardedElementwise(model, kind, lr=0.01), kind(module.parameters(), lr=0.01)

        def step(each):
            each.step()
            each.zero_grad()

        compare(f"losses of {kind.__name__}", losses(model, lambda: step(ours_)), losses(module, lambda: step(theirs_)), of="one process")
    wide = torch.nn.Linear(70000, 3)  # more than are tried out
    refused("kind is OfWide|'rows'|(3, 70000)", lambda: own.ShardedElementwise(own.DataParallel(wide, megadp.Comm(timeout=60)), OfWide, most=60000))
    own.ShardedElementwise(own.DataParallel(wide, megadp.Comm(timeout=60)), OfWide, most=70000)


class KeepsMuch(optim.SGD):
    """More arrays than an optimizer has."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                for name in "abcde":
                    self.state[p].setdefault(name, torch.zeros_like(p)).add_(p.grad)
        return super().step(closure)


class OfKinds(optim.Optimizer):
    """That wants to know of each group whether it is one of matrices."""

    def __init__(self, params):
        assert all("matrices" in each for each in params if isinstance(each, dict)), "no matrices"
        raise KeyError("matrices")


def case_elementwise_refused():
    model = own.DataParallel(fresh(), megadp.Comm(timeout=60))
    make = lambda kind, **values: own.ShardedElementwise(model, kind, **values)
    for name, why in (("LBFGS", "line through all"), ("Adafactor", "rows and columns"), ("NAdam", "mu_product"), ("ASGD", "eta"),
                      ("SparseAdam", "sparse"), ("Muon", "whole matrices")):
        if hasattr(optim, name):
            refused(f"kind is {name}|{why}", make, getattr(optim, name))
    lamb = type("LAMB", (optim.SGD,), {})
    refused("kind is LAMB|trust ratio", make, lamb)
    refused("kind is ByNorm|is not the same where it is cut", make, ByNorm)
    refused("kind is Counts|keeps 'largest'", make, Counts)
    for name in ("NAdam", "ASGD", "Adafactor", "LBFGS", "SparseAdam"):  # what they are found out by under another name
        refused("kind is Other, whose step cannot be taken on", own.check_elementwise, type("Other", (getattr(optim, name),), {}))
    refused("capturable=True|capturable=False only", lambda: make(optim.RMSprop, capturable=True))
    refused("cannot be made with", lambda: make(optim.RMSprop, lr=-1))
    refused("cannot be made with", lambda: make(optim.RMSprop, speed=1))
    refused("KeepsMuch keeps a, b, c, d, e of each element|at most 4|zero_0", make, KeepsMuch)
    refused("OfKinds cannot be made|KeyError|groups=[0]|step_many", make, OfKinds)
    refused("it must be a class", make, "RMSprop")
    assert own.check_elementwise(optim.RMSprop) == ("square_avg",)
    optimizer = make(optim.RMSprop, lr=0.01)
    mse_loss(model(batches(1)[0]), batches(1)[0]).backward()
    optimizer.param_groups[0]["momentum"] = 0.9
    refused("keeps momentum_buffer|make it with values", optimizer.step)
    optimizer.param_groups[0]["momentum"] = 0
    optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1:], globals())
