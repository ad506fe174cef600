# SPDX-License-Identifier: Apache-2.0
"""What test_torch_checkpoint.py runs on some ranks: one training, saved half-way or gone on with. Each rank prints a line of JSON.

usage: torch_checkpoint_cases.py CASE DIRECTORY [OPTION=VALUE...]
"""
import hashlib
import json
import os
import random
import sys
import warnings

import torch
from torch.nn.functional import mse_loss

import megadp
import megadp.torch

WIDTH, ROWS, STEPS = 6, 4, 3


class Net(torch.nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, 9)
        self.norm = torch.nn.BatchNorm1d(9)
        self.frozen = torch.nn.Linear(9, 9, bias=False)
        self.frozen.weight.requires_grad_(False)
        self.drop = torch.nn.Dropout(0.3)
        self.last = torch.nn.Linear(9, WIDTH)
        self.to(dtype)
        for name, values in (("mask", torch.zeros(3, dtype=torch.bool)), ("ids", torch.zeros(2, 2, dtype=torch.int32)),
                             ("one", torch.zeros((), dtype=torch.int16)), ("wave", torch.zeros(2, dtype=torch.complex64)),
                             ("none", torch.zeros(0, 3, dtype=torch.int32)), ("turned", torch.zeros(3, 2).t()),
                             ("turned_ids", torch.zeros(3, 2, dtype=torch.int32).t())):
            self.register_buffer(name, values)
        self.register_buffer("passing", torch.zeros(2), persistent=False)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.frozen(torch.tanh(self.norm(self.first(x)))))))


class Job:
    def __init__(self, comm, seed, sharding="zero_1", dtype="float32", lr=0.05, **options):
        torch.manual_seed(seed)
        self.comm = comm
        self.model = megadp.torch.DataParallel(Net(getattr(torch, dtype)), comm, sharding=sharding, **options)
        self.optimizer = megadp.torch.ShardedAdamW(self.model, lr=lr, max_grad_norm=1.0)
        rates = torch.optim.lr_scheduler
        self.scheduler = rates.SequentialLR(self.optimizer, [rates.StepLR(self.optimizer, STEPS, 0.5),
                                                             rates.MultiStepLR(self.optimizer, [1, 2], 0.5)], [4])
        torch.manual_seed(100 + comm.rank)  # of dropout: each rank's own
        random.seed(200 + comm.rank)

    def step(self):
        dtype = self.model.module.first.weight.dtype
        x = (torch.randn(ROWS, WIDTH) * random.random()).to(dtype)
        loss = mse_loss(self.model(x).float(), x.flip(-1).float())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        return loss.item().hex()

    def buffers(self):
        return {name: values for name, values in self.model.module.named_buffers() if name not in ("passing", "norm.num_batches_tracked")}

    def everything(self):
        """Bits of parameters, module buffers and the optimizer's state, and what else goes on."""
        self.model.wait()
        states = {**self.model.module.state_dict(), **{f"{name}.{number}": values for number, state in
                                                       self.optimizer.state_dict()["state"].items() for name, values in state.items()}}
        bits = {name: hashlib.sha256(bytes(values.contiguous().view(-1).view(torch.uint8).tolist())).hexdigest()[:12]
                for name, values in states.items()}
        groups = [{name: value for name, value in group.items() if name != "params"} for group in self.optimizer.param_groups]
        return {**bits, "groups": repr(groups), "scheduler": repr(self.scheduler.state_dict())}

    def save(self, directory, **options):
        return megadp.torch.save_checkpoint(directory, self.model, self.optimizer, scheduler=self.scheduler, **options)

    def load(self, directory, **options):
        return megadp.torch.load_checkpoint(directory, self.model, self.optimizer, scheduler=self.scheduler, **options)


def refused(text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except megadp.MegaDPError as error:
        for part in text.split("|"):
            assert part in str(error), f"{part!r} is not in: {error}"
        return
    raise AssertionError(f"nothing was said; expected {text!r}")


def case_save(comm, directory, wait="1", **options):
    """Saves after three steps, goes on for three more; tells what was saved, and where it came to."""
    job = Job(comm, 1, **options)
    with torch.no_grad():
        for name, values in job.buffers().items():
            if name.partition(".")[0] != "norm":
                values.copy_(torch.arange(1, 1 + values.numel()).view(values.shape) % 5)
    for _ in range(STEPS):
        job.step()
    extra = {"epoch": (1, 2.5), 3: None, "inf": float("inf")}
    request = job.save(directory, extra=extra, wait=wait == "1")
    assert (request is None) == (wait == "1")
    losses = [job.step()]
    if request is not None:
        assert request.wait() and request.done()
    losses += [job.step() for _ in range(STEPS - 1)]
    return {"losses": losses, "after": job.everything()}


def case_go_on(comm, directory, **options):
    job = Job(comm, 7, lr=0.9, **options)
    job.model.module.passing.fill_(4)
    extra = job.load(directory)
    assert extra == {"epoch": (1, 2.5), 3: None, "inf": float("inf")}, extra
    assert type(extra["epoch"]) is tuple and job.model.module.passing.tolist() == [4, 4]
    saved = job.everything()
    return {"saved": saved, "losses": [job.step() for _ in range(STEPS)], "after": job.everything()}


def case_again(comm, directory, **options):
    """Where a training goes back to what it has saved, in mid-course and in one process."""
    job = Job(comm, 1, **options)
    for _ in range(STEPS):
        job.step()
    request = job.save(directory, wait=False)
    losses = [job.step() for _ in range(STEPS)]
    after = job.everything()
    del request
    with torch.no_grad():
        job.model.module.first.weight.fill_(3)  # of bf16 its master would follow
    job.load(directory)
    assert losses == [job.step() for _ in range(STEPS)] and after == job.everything()
    return "ok"


def case_other_buffers(comm, directory):
    """A module buffer that one side lacks, or has with another type."""
    job = Job(comm, 1)
    job.step()
    job.save(directory)
    job.load(directory)  # rank 0's statistics of the batch norm, which the next forward would bring
    before = job.everything()
    module = job.model.module
    module.register_buffer("scale", torch.full((2,), 7.0))
    refused("another model|'scale' is here", job.load, directory)
    job.load(directory, optional="sc*")
    assert module.scale.tolist() == [7, 7]
    del module.scale
    mask = module.mask
    module.register_buffer("mask", torch.zeros(3, dtype=torch.int8))
    refused("'mask' is torch.int8 here and torch.bool", job.load, directory)
    module.register_buffer("mask", torch.zeros(3))
    refused("'mask' is torch.float32 here and torch.bool", job.load, directory)
    del module.mask
    refused("'mask' is in|and not here", job.load, directory)
    module.register_buffer("mask", torch.zeros(4, dtype=torch.bool))
    refused("'mask' is", job.load, directory)
    module.register_buffer("mask", mask)
    assert job.everything() == before
    module.register_buffer("many", torch.ones(2, dtype=torch.int32))
    job.load(directory, optional=["many"])
    assert module.many.tolist() == [1, 1]
    return "ok"


def case_refused(comm, directory):
    job = Job(comm, 1)
    save, load, model, optimizer = megadp.torch.save_checkpoint, megadp.torch.load_checkpoint, job.model, job.optimizer
    refused("SYSTEM", job.load, directory)
    refused("model is a Linear", save, directory, torch.nn.Linear(2, 2), optimizer)
    refused("optimizer is a SGD", load, directory, model, torch.optim.SGD(model.parameters(), 0.1))
    refused("another model", save, directory, Job(comm, 1).model, optimizer)
    refused("extra['x'][1] is a Tensor", save, directory, model, optimizer, extra={"x": [1, torch.ones(1)]})
    job.scheduler.best = torch.ones(1)
    refused("state_dict()['best'] is a Tensor", job.save, directory)
    del job.scheduler.best
    loss = model(torch.ones(ROWS, WIDTH)).sum()
    loss.backward()
    refused("STATE|optimizer.step()", job.save, directory)
    refused("STATE|optimizer.zero_grad()", job.load, directory)
    optimizer.zero_grad()
    assert not os.listdir(directory)
    save(directory, model, None)
    refused("no scheduler's state", job.load, directory)
    refused("params_only=True", load, directory, model, optimizer)
    load(directory, model, None)
    refused("beside params_only", job.load, directory, params_only=True)
    job.step()
    job.save(directory, keep=1, extra=4)
    refused("decoupled_weight_decay=True", load, directory, model, megadp.torch.ShardedAdam(model), scheduler=job.scheduler)
    refused("has no momentum", load, directory, model, megadp.torch.ShardedSGD(model), scheduler=job.scheduler)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        load(directory, model, optimizer)
    assert "no scheduler" in str(said[0].message), said
    comm.barrier()
    megadp.save_checkpoint(directory, optimizer._native)
    refused("was not saved by megadp.torch.save_checkpoint", load, directory, model, optimizer)
    grid = megadp.Grid(comm, pp=comm.size)
    staged = megadp.torch.DataParallel(torch.nn.Linear(2, 2), grid)
    refused("UNSUPPORTED|1 of 2", save, directory, staged, megadp.torch.ShardedAdamW(staged))
    # The failure of a save that nobody has waited for comes with the next one, once.
    job.save("/dev/null", wait=False)
    refused("SYSTEM|Not a directory", job.save, directory)
    request = job.save("/dev/null", wait=False)
    refused("SYSTEM|Not a directory", request.wait)
    job.save(directory)
    return "ok"


def case_params_only(comm, directory):
    job = Job(comm, 1)
    for _ in range(STEPS):
        job.step()
    job.save(directory, extra="x")
    job.load(directory)
    before, other = job.everything(), Job(comm, 9, lr=0.25)
    state = torch.get_rng_state()
    extra = megadp.torch.load_checkpoint(directory, other.model, other.optimizer, params_only=True)
    after = other.everything()
    assert extra == "x" and torch.equal(state, torch.get_rng_state()) and other.optimizer.param_groups[0]["lr"] == 0.25
    assert other.optimizer.state_dict()["state"] == {}
    names = set(other.model.module.state_dict())
    assert {name: after[name] for name in names} == {name: before[name] for name in names}
    return "ok"


class Counting(torch.nn.Linear):
    """With a state that is no tensor."""

    count = 0

    def get_extra_state(self):
        return self.count

    def set_extra_state(self, state):
        self.count = state


def case_extra_state(comm, directory):
    model = megadp.torch.DataParallel(torch.nn.Sequential(Counting(2, 2)), comm)
    model.module[0].count = {"seen": (3, 4)}
    megadp.torch.save_checkpoint(directory, model, None)
    model.module[0].count = 0
    assert megadp.torch.load_checkpoint(directory, model, None) is None
    assert model.module[0].count == {"seen": (3, 4)}
    model.module[0].count = torch.ones(2)
    refused("get_extra_state() of module '0' is a Tensor", megadp.torch.save_checkpoint, directory, model, None)
    return "ok"


def main(case, directory, *options):
    torch.set_num_threads(1)
    with megadp.Comm(timeout=60) as comm:
        found = globals()["case_" + case](comm, directory, **dict(option.split("=") for option in options))
        sys.stdout.write(json.dumps(found) + "\n")  # at once: the ranks share a pipe
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
