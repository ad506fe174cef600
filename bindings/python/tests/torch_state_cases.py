# SPDX-License-Identifier: Apache-2.0
"""As torch_cases.py: state_dict and load_state_dict of models and optimizers, as scripts use them, beside torch's own.

usage: torch_state_cases.py CASE...
"""
import io
import sys
import warnings

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import megadp
import megadp.torch
from torch_cases import Net, batches, compare, fresh, main, ours, refused, theirs, train


def saved(model, optimizer):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=True)


def case_resumed():
    """A new model goes on from what a script saves with the same bits, whatever its sharding; and from what DDP's script saved, as that one
    goes on. Schedulers too."""
    step = lambda _, loss: (loss.backward(), optimizer.step())
    for sharding, later in (("zero_0", "zero_2"), ("zero_1", "zero_1"), ("zero_2", "zero_0"), ("zero_1", "zero_2")):
        for dtype in (torch.float32, torch.bfloat16):
            data = batches(6, dtype=dtype)
            model, optimizer = ours(fresh(dtype=dtype), sharding=sharding)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
            train(model, optimizer, step, data[:3])
            scheduler.step()
            scheduler.step()
            middle, schedule = saved(model, optimizer), scheduler.state_dict()
            train(model, optimizer, step, data[3:])
            scheduler.step()
            wanted = saved(model, optimizer)
            dist.all_gather_object(everybodys := [None, None], middle["optimizer"])
            torch.testing.assert_close(everybodys[0]["state"], everybodys[1]["state"], rtol=0, atol=0)
            for order in (("model", "optimizer"), ("optimizer", "model")):
                model, optimizer = ours(Net(dtype=dtype), lr=1, sharding=later)
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
                for which in order:
                    dict(model=model, optimizer=optimizer)[which].load_state_dict(middle[which])
                scheduler.load_state_dict(schedule)
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    same(saved(model, optimizer), middle)
                train(model, optimizer, step, data[3:])
                scheduler.step()
                same(saved(model, optimizer), wanted)
    data = batches(6)
    model, optimizer = theirs()
    train(model, optimizer, step, data[:3])
    middle = saved(model, optimizer)
    expected = train(model, optimizer, step, data[3:])
    for sharding in ("zero_0", "zero_1", "zero_2"):
        model, optimizer = ours(Net(), sharding=sharding)
        model.load_state_dict(middle["model"])
        optimizer.load_state_dict(middle["optimizer"])
        same(saved(model, optimizer), middle)
        compare(f"going on from AdamW's state, {sharding}", train(model, optimizer, step, data[3:]), expected)
    small = middle["optimizer"]
    small["state"][2]["exp_avg"] = torch.zeros(3)
    refused("'exp_avg' of shape (3,) for 'side.weight'", lambda: optimizer.load_state_dict(small))
    del small["state"][2]["exp_avg"]
    refused("['exp_avg_sq', 'step'] of 'side.weight'", lambda: optimizer.load_state_dict(small))
    del small["param_groups"][0]["eps"]
    refused("group 0 of state_dict has no eps", lambda: optimizer.load_state_dict(small))
    small["param_groups"][0]["eps"] = 1e-8
    small["param_groups"][0]["params"].pop()
    refused("parameter groups of [5]", lambda: optimizer.load_state_dict(small))


def same_state(a, b):
    torch.testing.assert_close(a["state"], b["state"], rtol=0, atol=0)


def same(a, b):
    torch.testing.assert_close([a["model"], a["optimizer"]["state"]], [b["model"], b["optimizer"]["state"]], rtol=0, atol=0)
    assert a["optimizer"]["param_groups"] == b["optimizer"]["param_groups"], (a["optimizer"]["param_groups"], b["optimizer"]["param_groups"])


def case_torch_and_back():
    """torch.optim.AdamW's state, through ours, to torch's again: equal, and so is the training that goes on from it."""
    step = lambda _, loss: (loss.backward(), optimizer.step())
    data, found = batches(6), []

    def partly_frozen():
        module = fresh()
        module.side.bias.requires_grad_(False)
        return module

    def groups(module):  # not in the module's order
        return [{"params": [p for p in module.parameters() if p.requires_grad and p.dim() == 2], "weight_decay": 0.5},
                {"params": [module.last.bias, module.first.bias], "lr": 0.125, "weight_decay": 0.0}]

    for through in (False, True):
        module = partly_frozen()
        model = DistributedDataParallel(module)
        optimizer = torch.optim.AdamW(groups(module), lr=0.01, foreach=True)
        train(model, optimizer, step, data[:3])
        middle = saved(model, optimizer)
        if through:
            wrapped = partly_frozen()
            ours_model, ours_optimizer = ours(wrapped, lr=1, param_groups=groups(wrapped))
            ours_model.load_state_dict(middle["model"])
            ours_optimizer.load_state_dict(middle["optimizer"])
            back = saved(ours_model, ours_optimizer)
            same(back, middle)
            assert list(back["optimizer"]) == ["state", "param_groups"] and sorted(back["optimizer"]["state"]) == [0, 1, 2, 3, 4]
            model.load_state_dict(back["model"])
            optimizer = torch.optim.AdamW(groups(module), lr=1)
            optimizer.load_state_dict(back["optimizer"])
        train(model, optimizer, step, data[3:])
        found.append(saved(model, optimizer))
    same(*found)
    # torch.optim.AdamW(model.parameters()) has the frozen ones too, and none of their state.
    module = fresh()
    module.first.bias.requires_grad_(False)
    model = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, step, data[:3])
    middle = saved(model, optimizer)["optimizer"]
    wrapped = fresh()
    wrapped.first.bias.requires_grad_(False)
    model, ours_optimizer = ours(wrapped)
    ours_optimizer.load_state_dict(middle)
    assert len(middle["param_groups"][0]["params"]) == 6
    back = ours_optimizer.state_dict()["state"]
    torch.testing.assert_close([back[i] for i in range(5)], [middle["state"][i] for i in (0, 2, 3, 4, 5)], rtol=0, atol=0)


def case_consolidated():
    """As ZeroRedundancyOptimizer has it: one rank has all of it. Or all have, for trainers that do not say which, and save on each. And who
    calls state_dict on one rank is told what to do."""
    data, rank = batches(2), dist.get_rank()
    model, optimizer = ours()
    train(model, optimizer, lambda _, loss: (loss.backward(), optimizer.step()), data)
    whole = optimizer.state_dict()
    optimizer.consolidate_state_dict(to=1)
    if rank == 1:
        same_state(optimizer.state_dict(), whole)
    else:
        refused("STATE|rank 0|consolidate_state_dict(to=1)", optimizer.state_dict)
    optimizer.consolidate_state_dict()
    if rank == 0:  # and so each rank by itself
        same_state(optimizer.state_dict(), whole)
    dist.barrier()
    if rank == 1:
        same_state(optimizer.state_dict(), whole)
    optimizer.step()  # without a gradient: nothing but the end of what was collected
    optimizer.state_dict()
    for to in (2, -1, "all"):
        refused(f"to is {to!r}", optimizer.consolidate_state_dict, to)
    model, optimizer = ours(sharding="zero_0")
    train(model, optimizer, lambda _, loss: (loss.backward(), optimizer.step()), data)
    optimizer.consolidate_state_dict(to=1)
    if rank == 0:
        assert len(optimizer.state_dict()["state"]) == len(whole["state"])
    dist.barrier()
    model = megadp.torch.DataParallel(fresh(), megadp.Comm(timeout=3), sharding="zero_1")
    optimizer = megadp.torch.ShardedAdamW(model)
    mse_loss(model(data[0]), data[0]).backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.barrier()
    if rank == 0:
        refused("state_dict() of ShardedAdamW collects what all ranks keep: call it on all of them", optimizer.state_dict)
    else:
        def go_on():
            mse_loss(model(data[1]), data[1]).backward()
            optimizer.step()

        refused("rank", go_on)
    dist.barrier()


def case_saved_by_trainers():
    """Lightning's Trainer and Fabric collect without saying where, and each rank, which they take for the only one, saves: whole files, also where
    ranks save at one path. What goes on from one goes on with the same bits."""
    step, data = lambda _, loss: (loss.backward(), optimizer.step()), batches(6)
    for sharding in ("zero_0", "zero_1", "zero_2"):
        model, optimizer = ours(fresh(), sharding=sharding)
        train(model, optimizer, step, data[:3])
        optimizer.consolidate_state_dict()
        middle = saved(model, optimizer)
        dist.all_gather_object(everybodys := [None, None], middle)
        same(*everybodys)
        assert len(middle["optimizer"]["state"]) == 6, sorted(middle["optimizer"]["state"])
        train(model, optimizer, step, data[3:])
        wanted = saved(model, optimizer)
        model, optimizer = ours(Net(), lr=1, sharding=sharding)
        model.load_state_dict(everybodys[1]["model"])
        optimizer.load_state_dict(everybodys[1]["optimizer"])
        train(model, optimizer, step, data[3:])
        same(saved(model, optimizer), wanted)


def case_distributed_checkpoint():
    """torch's, which takes a step to make the state, is told what to use."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict  # which takes a second

    model, optimizer = ours()
    refused("torch.distributed.checkpoint|save_checkpoint", get_optimizer_state_dict, model, optimizer)


if __name__ == "__main__":
    main(sys.argv[1:], globals())
