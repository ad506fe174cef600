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
