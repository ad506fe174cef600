# SPDX-License-Identifier: Apache-2.0
"""As torch_cases.py: norms of .grad of every kind, and values assigned to it, beside what torch makes of DDP's gradients.

usage: torch_grads_cases.py CASE...
"""
import copy
import sys

import torch
from torch.nn.functional import mse_loss

import megadp
import megadp.torch
from torch_cases import after_backward, batches, compare, fresh, main, ours, refused, theirs, train


def norms_of_every_kind(mine, reference, sharded):
    """Along dimensions, of matrices, of degrees that no norm has: from the values, where they are there, never the norm of all elements."""
    norm, linalg, infinity = torch.norm, torch.linalg, float("inf")
    of_all = [lambda g: g.norm(), lambda g: g.norm(p="fro"), lambda g: norm(g, 1, dim=None, keepdim=False),
              lambda g: norm(g, p=infinity, dim=None), lambda g: linalg.norm(g), lambda g: linalg.vector_norm(g, 3),
              lambda g: linalg.vector_norm(g, ord=infinity, dtype=torch.float64), lambda g: torch._foreach_norm([g], 1)[0]]
    of_values = [lambda g: g.norm(dim=0), lambda g: norm(g, dim=0), lambda g: norm(g, 2, 0), lambda g: linalg.vector_norm(g, dim=0),
                 lambda g: linalg.vector_norm(g, 1, -1, keepdim=True), lambda g: g.norm(p=1, dim=0, dtype=torch.float64),
                 lambda g: g.norm(keepdim=True), lambda g: g.abs().max(), lambda g: g.as_subclass(torch.Tensor)]
    of_degrees = [lambda g: linalg.vector_norm(g, 0), lambda g: linalg.vector_norm(g, -infinity)]
    of_matrices = [lambda g, order=order: linalg.norm(g, order) for order in (1, -1, 2, -2, infinity, -infinity, "nuc")]
    of_matrices += [lambda g: norm(g, p="nuc"), lambda g: norm(g, p="nuc", dim=(0, 1)), lambda g: g.norm(dim=(0, 1)), linalg.matrix_norm,
                    lambda g: linalg.matrix_norm(g, 2)]
    if reference.dim() == 2:
        of_all.append(lambda g: linalg.norm(g, "fro"))
        of_values += of_matrices
    else:
        of_all += [lambda g: linalg.norm(g, 1), lambda g: linalg.norm(g, ord=infinity)]
    for way in of_all:
        torch.testing.assert_close(way(mine), way(reference), rtol=1e-5, atol=0)
    for way in of_values + of_degrees:
        if sharded:
            refused("zero_0" if way in of_values else "above 0", way, mine)
        else:
            torch.testing.assert_close(way(mine), way(reference), rtol=1e-5, atol=1e-7)


def case_norms_of_other_kinds():
    for options, model, reference in after_backward():
        for p, q in zip(model.parameters(), reference.parameters()):
            norms_of_every_kind(p.grad, q.grad, sharded=not options)


def case_norms_beside_other_tensors():
    """Among gradients in a list, another tensor's norm is its own, in its place, and it is clipped too."""
    x = batches(1)[0]
    other = torch.nn.Parameter(torch.zeros(5))
    found = []
    for make in (ours, theirs):
        model, _ = make()
        mse_loss(model(x), x).backward()
        other.grad = torch.arange(5.0)
        params = [model.module.first.weight, other, model.module.last.bias]
        norms = torch._foreach_norm([p.grad for p in params])
        total = torch.nn.utils.clip_grad_norm_(params, 0.3, foreach=True)
        found.append([*map(float, norms), *map(float, (total, other.grad.norm(), torch.nn.utils.get_total_norm([p.grad for p in params], 1.0)))])
    compare("norms beside other tensors", *found)


def case_two_models():
    """In one call on gradients of several models each is its own model's."""
    data = batches(2)
    for options in ({}, dict(sharding="zero_0"), dict(sharding="zero_2")):
        found = []
        for make in (lambda: ours(**options), theirs):
            models = [make()[0] for _ in data]
            for model, x in zip(models, data):
                mse_loss(model(x), x).backward()
            params = [p for pair in zip(*([m.module.first.weight, m.module.last.bias] for m in models)) for p in pair]
            norms = torch._foreach_norm([p.grad for p in params])
            total = torch.nn.utils.clip_grad_norm_(params, 0.3, foreach=True)
            clipped = torch._foreach_norm([p.grad for p in params], 1)
            torch.nn.utils.clip_grad_value_(params, 0.01, foreach=True)
            found.append([*map(float, (*norms, total, *clipped)), *(float(p.grad.norm()) for p in params)])
            if options.get("sharding") == "zero_0":
                first, second = params[0].grad, params[1].grad
                found[-1] += [float((first * second).sum()), float(first.add_(second).norm()), float(second.norm())]
        compare(f"norms of two models, {options}", *found)


def case_assigned_data():
    """`p.grad.data =` and what is like it: the values are taken, and the steps after that are right too."""
    def masked(p):
        p.grad.data = p.grad.data * torch.arange(p.shape[-1]).gt(3)

    def turned(p):
        p.grad.data = p.grad.data.t()

    data = batches(3)
    for change in (masked, turned, lambda p: p.grad.t_()):
        found = []
        for make in (lambda: ours(sharding="zero_0"), theirs):
            model, optimizer = make()
            norms = []

            def step(number, loss):
                loss.backward()
                if number == 0:
                    change(model.module.side.weight)
                norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
                optimizer.step()

            found.append(train(model, optimizer, step, data) + norms)
        compare("losses and norms, assigned data", *found)
    model, _ = ours()
    mse_loss(model(data[0]), data[0]).backward()
    refused("assignment to .data|'side.weight'|shards", setattr, model.module.side.weight.grad, "data", torch.zeros(24, 24))
    model, _ = ours(sharding="zero_0")
    mse_loss(model(data[0]), data[0]).backward()
    grad = model.module.first.weight.grad
    before = grad.clone()
    refused("'first.weight'|(2,)|(24, 12)", setattr, grad, "data", torch.zeros(2))
    refused("'first.weight'|(12, 24)|(24, 12)", grad.t_)
    assert torch.equal(grad, before) and torch.equal(grad.norm(), before.norm())


def of_optimizers(module, x, kinds):
    """What comes of norms, of a loss scale, and of states that are taken and loaded."""
    found = []
    for kind, sharding in kinds:
        model = megadp.torch.DataParallel(copy.deepcopy(module), megadp.Comm(timeout=60), sharding=sharding)
        optimizer = megadp.torch.ShardedElementwise(model, kind, lr=0.01) if kind else megadp.torch.ShardedAdamW(model, lr=0.01)
        scaler = megadp.torch.GradScaler(init_scale=4.0)
        for step in range(3):
            scaler.scale(mse_loss(model(x), x)).backward()
            scaler.unscale_(optimizer)
            for degree in (float("inf"), 1.0, 2.0, 3.0):
                found += [torch.linalg.vector_norm(p.grad, degree) for p in model.parameters()]
            found.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, float("inf")))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if step == 1:
                state = optimizer.state_dict()
                for entry in state["state"].values():
                    entry["step"] = entry["step"] * 0 + 301.0
                    found += [value for value in entry.values() if isinstance(value, torch.Tensor)]
                optimizer.load_state_dict(state)
                found += [entry["step"] for entry in optimizer.state_dict()["state"].values()]
        found += list(model.parameters())
    return found


def case_default_types():
    """torch.set_default_dtype and torch.set_default_device say what tensors the script makes, and nothing of ours."""
    x, ends = batches(1)[0], []
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    kinds = (None, "zero_1"), (torch.optim.RMSprop, "zero_1"), (torch.optim.NAdam, "whole"), (torch.optim.Adafactor, "whole")
    for said in ((dtype, device), (torch.bfloat16, device), (torch.float16, device), (torch.float64, device), (dtype, "meta")):
        module = fresh()
        torch.set_default_dtype(said[0])
        torch.set_default_device(said[1])
        try:
            ends.append([value.detach().clone() for value in of_optimizers(module, x, kinds if said[1] == device else kinds[:1])])
        finally:
            torch.set_default_dtype(dtype)
            torch.set_default_device(device)
        for found, expected in zip(ends[-1], ends[0]):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, check_dtype=False, msg=lambda text: f"{said}: {text}")


def case_values_beside_the_step():
    """How much weights matter (AdaLoRA's |weight * gradient|), before the step and after it: as torch has it with zero_0, refused otherwise."""
    x, found = batches(1)[0], []
    for make, options in ((theirs, {}), (ours, dict(sharding="zero_0")), (ours, {})):
        model, optimizer = make(**options)
        p = model.module.side.weight
        matter = lambda p=p: (p * p.grad).abs().detach()
        mse_loss(model(x), x).backward()
        if make is ours and not options:
            refused("STATE|'side.weight'|values need sharding='zero_0'", matter)
            optimizer.step()
            refused("STATE|'side.weight'|after the step|norms between backward and step|values|need sharding='zero_0'", matter)
            continue
        before = matter()
        optimizer.step()
        found.append((before, matter()))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-7)


if __name__ == "__main__":
    main(sys.argv[1:], globals())
