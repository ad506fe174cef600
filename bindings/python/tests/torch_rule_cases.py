# SPDX-License-Identifier: Apache-2.0
"""As torch_cases.py: all sharded optimizers, several that step together, and the library's loss scaler, beside torch's own.

usage: torch_rule_cases.py CASE...
"""
import io
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import megadp
import megadp.torch
from support import DEVICE
from torch_cases import Net, batches, compare, fresh, main, refused, train

own = megadp.torch
RULES = {"adamw": (own.ShardedAdamW, torch.optim.AdamW, dict(lr=0.01, betas=(0.8, 0.9), eps=1e-4, weight_decay=0.1)),
         "adam": (own.ShardedAdam, torch.optim.Adam, dict(lr=0.01, betas=(0.8, 0.9), eps=1e-4, weight_decay=0.1)),
         "sgd": (own.ShardedSGD, torch.optim.SGD, dict(lr=0.05, weight_decay=0.1)),
         "momentum": (own.ShardedSGD, torch.optim.SGD, dict(lr=0.05, momentum=0.9, weight_decay=0.1)),
         "nesterov": (own.ShardedSGD, torch.optim.SGD, dict(lr=0.05, momentum=0.9, weight_decay=0.1, nesterov=True))}
OF_GROUP = {"adamw": dict(betas=(0.5, 0.7), eps=1e-2), "adam": dict(betas=(0.0, 0.7), weight_decay=0.0), "sgd": dict(lr=0.01),
            "momentum": dict(momentum=0.5, weight_decay=0.0), "nesterov": dict(momentum=0.0)}


def groups_of(module, values):
    return [dict(params=[p for p in module.parameters() if p.dim() == 2]), dict(params=[p for p in module.parameters() if p.dim() == 1], **values)]


def ours(rule, module=None, options=None, **of_model):
    module = module if module is not None else fresh()
    model = own.DataParallel(module, megadp.Comm(timeout=60), param_groups=groups_of(module, OF_GROUP[rule]), **of_model)
    return model, RULES[rule][0](model, **{**RULES[rule][2], **(options or {})})


def theirs(rule, module=None, **options):
    model = DistributedDataParallel(module if module is not None else fresh())
    return model, RULES[rule][1](groups_of(model.module, OF_GROUP[rule]), **{**RULES[rule][2], **options})


def plain(model, optimizer, scheduler=None):
    def step(_, loss):
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()

    return step


def close(a, b):
    """Of what our optimizers keep, too, which they show on the CPU."""
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, check_device=False)


def whole(model):
    return [p.detach().clone() for p in model.module.parameters()]


def case_rules():
    """Losses, parameters and states, with groups of values of their own that change on the way, and every sharding."""
    for rule in RULES:
        found = []
        for make, options in ((theirs, {}), *((ours, dict(sharding=sharding)) for sharding in ("zero_0", "zero_1", "zero_2"))):
            model, optimizer = make(rule, **options)
            data = batches(12)
            losses = train(model, optimizer, plain(model, optimizer), data[:6])
            optimizer.param_groups[0].update(lr=0.02, weight_decay=0.0)
            optimizer.param_groups[1].update({"betas": (0.9, 0.5), "eps": 1e-3} if rule.startswith("adam") else
                                             {"momentum": 0.0 if rule == "sgd" else 0.7})
            losses += train(model, optimizer, plain(model, optimizer), data[6:])
            found.append((losses, whole(model), optimizer.state_dict()))
        for losses, params, state in found[1:]:
            compare(f"losses of {rule}", losses, found[0][0])
            close(params, found[0][1])
            close(state["state"], found[0][2]["state"])
            assert state["param_groups"] == found[0][2]["param_groups"], (state["param_groups"], found[0][2]["param_groups"])


def case_schedules():
    """Those that change momentum or betas too, without a warning, and what they leave in the groups."""
    rates = torch.optim.lr_scheduler
    makes = {"one cycle": lambda optimizer: rates.OneCycleLR(optimizer, 0.05, total_steps=12),
             "cyclic": lambda optimizer: rates.CyclicLR(optimizer, 0.001, 0.05, step_size_up=3, cycle_momentum=True),
             "warm-up and cosine": lambda optimizer: rates.SequentialLR(
                 optimizer, [rates.LinearLR(optimizer, 0.1, total_iters=4), rates.CosineAnnealingLR(optimizer, 8)], [4])}
    for rule in ("adamw", "adam", "momentum", "nesterov"):
        for name, make_schedule in makes.items():
            found = []
            for make in (ours, theirs):
                model, optimizer = make(rule)
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    if name.startswith("warm"):
                        warnings.filterwarnings("ignore", message="The epoch parameter")  # torch's own, of SequentialLR
                    scheduler = make_schedule(optimizer)
                    losses = train(model, optimizer, plain(model, optimizer, scheduler), batches(11))
                found.append((losses, optimizer.state_dict()["param_groups"]))
            compare(f"losses of {rule}, {name}", found[0][0], found[1][0])
            assert found[0][1] == found[1][1], found
    model, optimizer = ours("sgd")
    assert optimizer._native.info()["state"] == [{"name": "master", "dtype": "f32"}]
    optimizer.param_groups[1]["momentum"] = 0.9
    mse_loss(model(batches(1)[0]), batches(1)[0]).backward()
    refused("param_groups[1] has momentum 0.9|keeps no momentum_buffer", optimizer.step)


def saved(*what):
    torch.save([each.state_dict() for each in what], file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=True)


def case_states():
    """torch's state, through ours, to torch's again: equal, and so is the training that goes on from it; also of half-width parameters."""
    for rule in RULES:
        data, found = batches(6), []
        for through in (False, True):
            model, optimizer = theirs(rule)
            train(model, optimizer, plain(model, optimizer), data[:3])
            middle = saved(model, optimizer)
            if through:
                mine, sharded = ours(rule, Net(), dict(lr=1))
                mine.load_state_dict(middle[0])
                sharded.load_state_dict(middle[1])
                back = saved(mine, sharded)
                torch.testing.assert_close(back, middle, rtol=0, atol=0)
                model, optimizer = theirs(rule, Net(), lr=1)
                model.load_state_dict(back[0])
                optimizer.load_state_dict(back[1])
                own_losses = train(mine, sharded, plain(mine, sharded), data[3:])
            found.append(train(model, optimizer, plain(model, optimizer), data[3:]))
        assert found[0] == found[1]
        compare(f"going on from torch's state of {rule}", own_losses, found[0])
        data = batches(6, dtype=torch.bfloat16)
        model, optimizer = ours(rule, fresh(dtype=torch.bfloat16), sharding="zero_1")
        train(model, optimizer, plain(model, optimizer), data[:3])
        middle = saved(model, optimizer)
        train(model, optimizer, plain(model, optimizer), data[3:])
        again, other = ours(rule, Net(dtype=torch.bfloat16), dict(lr=1), sharding="zero_2")
        again.load_state_dict(middle[0])
        other.load_state_dict(middle[1])
        train(again, other, plain(again, other), data[3:])
        assert all(map(torch.equal, whole(model), whole(again))), rule
    # A group's values come with the state that they made.
    data = batches(6)
    model, optimizer = theirs("momentum")
    train(model, optimizer, plain(model, optimizer), data[:3])
    middle = saved(model, optimizer)
    module = Net()
    mine = own.DataParallel(module, megadp.Comm(timeout=60), param_groups=groups_of(module, dict(momentum=0.0)))
    sharded = own.ShardedSGD(mine, lr=1, momentum=0.1)
    mine.load_state_dict(middle[0])
    sharded.load_state_dict(middle[1])
    compare("going on with another group's momentum", train(mine, sharded, plain(mine, sharded), data[3:]),
            train(model, optimizer, plain(model, optimizer), data[3:]))
    states = {rule: theirs(rule)[1].state_dict() for rule in RULES}
    for rule, other, said in (("adam", "adamw", "decoupled_weight_decay=True|ShardedAdam offers decoupled_weight_decay=False only"),
                              ("adamw", "adam", "decoupled_weight_decay=False"), ("sgd", "adam", "has no momentum|ShardedSGD"),
                              ("adam", "sgd", "has no betas, eps"), ("sgd", "momentum", "momentum 0.9|keeps no momentum_buffer"),
                              ("momentum", "nesterov", "nesterov=True|offers nesterov=False only")):
        refused(said, ours(rule)[1].load_state_dict, states[other])


class PlainLion(torch.optim.Optimizer):
    """Program 1 of the paper, on whole tensors."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in group["params"]:
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - lr * group["weight_decay"]).sub_(lr * (beta1 * mean + (1 - beta1) * p.grad).sign())
                mean.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def case_lion():
    data, found = batches(20), []
    values = dict(lr=1e-3, betas=(0.8, 0.95), weight_decay=0.5)
    for make in ("ours", "theirs"):
        module = fresh()
        groups = groups_of(module, dict(betas=(0.9, 0.99), lr=1e-4))
        if make == "ours":
            model = own.DataParallel(module, megadp.Comm(timeout=60), param_groups=groups)
            optimizer = own.ShardedLion(model, **values)
        else:
            model, optimizer = DistributedDataParallel(module), PlainLion(groups, **values)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [2e-3, 1e-3], total_steps=21)
        found.append((train(model, optimizer, plain(model, optimizer, scheduler), data), optimizer.state_dict()["state"]))
        if make == "ours":
            middle = saved(model, optimizer)
            other = own.ShardedLion(own.DataParallel(Net(), megadp.Comm(timeout=60), param_groups=None), foreach=True)
            refused("parameter groups of [3, 3]", other.load_state_dict, middle[1])
            module = Net()
            other = own.ShardedLion(own.DataParallel(module, megadp.Comm(timeout=60), param_groups=groups_of(module, {})), lr=1)
            other.load_state_dict(middle[1])
            torch.testing.assert_close(other.state_dict(), middle[1], rtol=0, atol=0)
    compare("losses of lion", found[0][0], found[1][0])
    for number, state in found[1][1].items():
        assert sorted(found[0][1][number]) == ["exp_avg", "step"] and found[0][1][number]["step"] == 20
        close(found[0][1][number]["exp_avg"], state["exp_avg"])


# Several

def pair_of_ours(module=None, matrices=None, rest=None, **options):
    module = module if module is not None else fresh()
    model = own.DataParallel(module, megadp.Comm(timeout=60), param_groups=groups_of(module, {}), **options)
    return model, [own.ShardedSGD(model, **{**dict(lr=0.05, momentum=0.9, nesterov=True), **(matrices or {})}, groups=[0]),
                   own.ShardedAdamW(model, **{**dict(lr=0.01), **(rest or {})}, groups=[1])]


def pair_of_theirs():
    model = DistributedDataParallel(fresh())
    matrices, rest = (group["params"] for group in groups_of(model.module, {}))
    return model, [torch.optim.SGD(matrices, lr=0.05, momentum=0.9, nesterov=True), torch.optim.AdamW(rest, lr=0.01)]


def case_several():
    """The matrices by one, the rest by another: as two of torch's; with a schedule of each, hooks, clipping over both, and every sharding."""
    found, counted = [], []
    for make, options in ((pair_of_theirs, {}), *((pair_of_ours, dict(sharding=sharding)) for sharding in ("zero_0", "zero_1", "zero_2"))):
        model, (a, b) = make(**options)
        schedules = [torch.optim.lr_scheduler.StepLR(a, 4, 0.5), torch.optim.lr_scheduler.OneCycleLR(b, 0.02, total_steps=13)]
        hooks = []
        for each in (a, b):
            each.register_step_post_hook(lambda optimizer, *_: hooks.append(type(optimizer).__name__.replace("Sharded", "")))

        def step(number, loss):
            loss.backward()
            if number % 3 == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            if make is pair_of_theirs:
                a.step()
                b.step()
            else:
                assert own.step_many([a, b], None) is None and a.report is b.report
            for schedule in schedules:
                schedule.step()

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found.append(train(model, a, step, batches(12)) if make is pair_of_ours else
                         train(model, Both(a, b), step, batches(12)))
        counted.append(sorted(hooks))
        states = [each.state_dict() for each in (a, b)]
        if make is pair_of_ours:
            compare("losses of two optimizers", found[-1], found[0])
            assert counted[-1] == counted[0] == ["AdamW"] * 12 + ["SGD"] * 12, counted
            close([each["state"] for each in states], [each["state"] for each in expected])
        else:
            expected = states
    model.zero_grad()
    mse_loss(model(batches(1)[0]), batches(1)[0]).backward()
    refused("parameter group 1, which no optimizer of this step has", a.step)
    refused("optimizers[1] is optimizers[0] again", own.step_many, [a, a])
    refused("optimizers[1] is a SGD", own.step_many, [a, torch.optim.SGD(model.parameters())])
    refused("optimizers[1] is of another model", own.step_many, [a, pair_of_ours()[1][1]])
    refused("optimizers is empty", own.step_many, [])
    refused("groups is [0, 2]|from 0 to 1", lambda: own.ShardedLion(model, groups=[0, 2]))
    refused("groups is []", lambda: own.ShardedLion(model, groups=[]))
    own.step_many([b, a])
    assert a.report.step == 13


class Both:
    """Of two optimizers what train() needs."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def zero_grad(self):
        for each in self.optimizers:
            each.zero_grad()


def case_several_saved():
    """state_dict of each, and checkpoints of both, from which another model goes on with the same bits."""
    data = batches(8)
    directory = [tempfile.mkdtemp()]
    dist.broadcast_object_list(directory)
    model, pair = pair_of_ours(sharding="zero_1")
    schedules = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in pair]

    def steps(model, pair, schedules, data):
        def step(_, loss):
            loss.backward()
            own.step_many(pair)
            for each in schedules:
                each.step()

        return train(model, pair[0], step, data)

    steps(model, pair, schedules, data[:4])
    own.save_checkpoint(directory[0], model, pair, scheduler=schedules, extra="here")
    kept = [each.state_dict() for each in schedules]
    states = saved(model, *pair)
    wanted = steps(model, pair, schedules, data[4:])
    for way in ("checkpoint", "state_dict"):
        again, other = pair_of_ours(Net(), dict(lr=1), dict(lr=1), sharding="zero_2")
        later = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in other]
        if way == "checkpoint":
            refused("optimizer has 1 of the model's 2 parameter groups", own.load_checkpoint, directory[0], again, other[0])
            refused("scheduler has 1 schedulers|states of 2",
                    lambda: own.load_checkpoint(directory[0], again, other, scheduler=later[0]))
            assert own.load_checkpoint(directory[0], again, other[::-1], scheduler=later) == "here"
        else:
            again.load_state_dict(states[0])
            for each, state, schedule, at in zip(other, states[1:], later, kept):
                each.load_state_dict(state)
                schedule.load_state_dict(at)
        assert steps(again, other, later, data[4:]) == wanted, way
        assert all(map(torch.equal, whole(again), whole(model)))


# The scaler

def spoiled(steps, at):
    data = batches(steps)
    for number in at:
        data[number] = data[number] * (float("inf") if dist.get_rank() == 1 else 1)
    return data


def scaled_training(kind, way, make, data, several=False, **options):
    model, optimizer = make()
    both = optimizer if several else [optimizer]
    scaler = kind(DEVICE, init_scale=2.0**10, growth_interval=3, **options)
    scales, norms = [], []

    def step(_, loss):
        scaler.scale([(loss,)])[0][0].backward()
        if way != "plain":
            for each in both:
                scaler.unscale_(each)
        if way == "norm":
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)))
        if way == "value":  # which makes infinite ones finite again
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
        if kind is own.GradScaler:
            scaler.step(both if several else optimizer)
        else:
            for each in both:
                scaler.step(each)
        scaler.update()
        scales.append(scaler.get_scale())

    losses = train(model, Both(*both), step, data)
    return ([value for value in losses if abs(value) < 1e30], scales, [value for value in norms if abs(value) < 1e30],
            {name: value for name, value in scaler.state_dict().items() if name not in ("hysteresis", "min_scale", "_overflows")}, whole(model))


def case_scaler():
    """Beside torch.amp.GradScaler, which works with sharded optimizers too: scales, losses, parameters."""
    data = spoiled(14, (1, 2, 6, 7, 12))
    for way in ("plain", "unscaled", "norm", "value"):
        reference = scaled_training(torch.amp.GradScaler, way, lambda: theirs("adamw"), data)
        for kind in (own.GradScaler, torch.amp.GradScaler):
            options = dict(check_finite=way == "norm", gather_in_forward=way == "plain",
                           sharding={"unscaled": "zero_0", "value": "zero_2"}.get(way, "zero_1"))
            found = scaled_training(kind, way, lambda options=options: ours("adamw", **options), data)
            compare(f"losses, {way}, {kind.__module__}", found[0], reference[0])
            assert found[1] == reference[1] and found[3] == reference[3], (way, kind, found, reference)
            assert len(found[2]) == len(reference[2]) == (9 if way == "norm" else 0)
            close(found[4], reference[4])
    assert 256.0 in reference[1] and len(set(reference[1])) > 3, reference[1]
    many = scaled_training(own.GradScaler, "plain", lambda: ours("momentum"), spoiled(60, range(0, 60)))[1]
    assert many == scaled_training(torch.amp.GradScaler, "plain", lambda: theirs("momentum"), spoiled(60, range(0, 60)))[1], many
    uneven, data = dict(growth_factor=1.7, backoff_factor=0.3), spoiled(30, (3, 4, 9, 20))
    assert (scaled_training(own.GradScaler, "plain", lambda: ours("sgd"), data, **uneven)[1] ==
            scaled_training(torch.amp.GradScaler, "plain", lambda: theirs("sgd"), data, **uneven)[1])
    limited = scaled_training(own.GradScaler, "plain", lambda: ours("sgd"), spoiled(9, (1, 3, 4, 5, 6)), hysteresis=2, min_scale=256.0)[1]
    assert limited == [1024, 1024, 1024, 512, 256, 256, 256, 256, 256], limited


def case_scaler_clipped_infinity():
    """An infinite gradient that clipping makes finite, after unscale_ has seen it, still skips the step."""
    x = torch.full((1, 3), 1e30)
    for sharding in ("zero_0", "zero_1", "zero_2"):
        for kind in (own.GradScaler, torch.amp.GradScaler):
            model = own.DataParallel(torch.nn.Linear(3, 2, bias=False), megadp.Comm(timeout=60), sharding=sharding)
            optimizer, scaler = own.ShardedSGD(model), kind(DEVICE, init_scale=8.0)
            before = whole(model)
            scaler.scale((model(x) * 1e30).sum()).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() == 4 and all(map(torch.equal, before, whole(model))), (sharding, kind, scaler.get_scale())
            assert optimizer.report is None if kind is torch.amp.GradScaler else optimizer.report.skipped


def case_scaler_of_several():
    data = spoiled(9, (1, 5))
    for way in ("plain", "unscaled", "norm"):
        reference = scaled_training(torch.amp.GradScaler, way, pair_of_theirs, data, several=True)
        found = scaled_training(own.GradScaler, way, pair_of_ours, data, several=True)
        compare(f"losses of two, {way}", found[0], reference[0])
        assert found[1] == reference[1] and len(found[0]) == 7, (found[1], reference[1])
        close(found[4], reference[4])


def case_scaler_state():
    """States go both ways, and values change on the way."""
    x = batches(1)[0]
    model, optimizer = ours("adam")
    scaler = own.GradScaler(init_scale=8.0, growth_interval=5)

    def step():
        optimizer.zero_grad()
        scaler.scale(mse_loss(model(x), x)).backward()
        scaler.step(optimizer)
        scaler.update()

    other = torch.amp.GradScaler(DEVICE, init_scale=8.0, growth_interval=5)
    other.scale(x)
    for number in range(3):
        step()
    assert scaler.state_dict() == {"scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 5, "_growth_tracker": 3,
                                   "hysteresis": 1, "min_scale": 1e-37, "_overflows": 0}, scaler.state_dict()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict().items() <= scaler.state_dict().items()
    fresh_one = own.GradScaler(hysteresis=2)
    fresh_one.load_state_dict({**other.state_dict(), "scale": 32.0})
    assert (fresh_one.get_scale(), fresh_one.get_hysteresis(), fresh_one.get_growth_interval()) == (32.0, 2, 5)
    scaler.load_state_dict({**other.state_dict(), "scale": 32.0})
    assert optimizer._native.scaler().scale == 32 and optimizer._native.scaler().clean_steps == 3
    step()
    step()
    assert scaler.get_scale() == 64 and optimizer.report.loss_scale == 32 and optimizer.report.step == 5
    scaler.set_growth_factor(4.0)
    scaler.set_backoff_factor(0.25)
    scaler.set_growth_interval(1)
    scaler.set_hysteresis(2)
    step()
    assert scaler.get_scale() == 256 and (scaler.get_growth_factor(), scaler.get_backoff_factor()) == (4, 0.25)
    scaler.update(16.0)
    assert scaler.get_scale() == 16


def case_scaler_refused():
    """What is out of order, and what is not a scaler's; one that is not enabled."""
    x = batches(1)[0]
    model, optimizer = ours("adam")
    scaler = own.GradScaler(init_scale=8.0)
    scaler.scale(mse_loss(model(x), x)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    mse_loss(model(x), x).backward()
    refused("STATE|call scaler.step(optimizer)", optimizer.step)
    refused("STATE|update() of the GradScaler without step()", scaler.update)
    scaler.step(optimizer)
    refused("STATE|second time", scaler.step, optimizer)
    refused("STATE|unscale_() after step()", scaler.unscale_, optimizer)
    scaler.update()
    optimizer.zero_grad()
    mse_loss(model(x), x).backward()
    scaler.unscale_(optimizer)
    refused("STATE|unscale_() after unscale_()", scaler.unscale_, optimizer)
    refused("closure", lambda: scaler.step(optimizer, lambda: None))
    scaler.step(optimizer)
    scaler.update()
    refused("not the one that this GradScaler has stepped", scaler.step, ours("sgd")[1])
    refused("is a SGD", scaler.step, torch.optim.SGD(model.parameters()))
    refused("has another GradScaler", own.GradScaler().step, optimizer)
    refused("is empty", scaler.load_state_dict, {})
    refused("no _growth_tracker", scaler.load_state_dict, {name: 1 for name in ("scale", "growth_factor", "backoff_factor", "growth_interval")})
    for options, said in ((dict(init_scale=0.0), "scale is 0"), (dict(growth_interval=0), "growth_interval is 0"),
                          (dict(hysteresis=0), "hysteresis is 0")):
        refused(said, lambda options=options: own.GradScaler(**options))
    off = own.GradScaler(enabled=False)
    model, optimizer = ours("sgd")
    assert off.scale(x) is x and off.get_scale() == 1 and off.state_dict() == {} and not off.is_enabled()
    off.load_state_dict({})
    mse_loss(model(x), x).backward()
    off.unscale_(optimizer)
    off.step(optimizer)
    off.update()
    assert optimizer.report.loss_scale == 1


if __name__ == "__main__":
    main(sys.argv[1:], globals())
