# SPDX-License-Identifier: Apache-2.0
"""What test_torch_ddp.py runs on two ranks, under torchrun: scripts' ways of training, each with DistributedDataParallel over gloo and with
megadp.torch, on the same data. Prints "CASE: ok" or "CASE: why not" for each, on each rank.

usage: torch_cases.py CASE...
"""
import copy
import sys
import traceback
import warnings

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import megadp
import megadp.torch
from support import DEVICE

WIDTH, ROWS = 12, 8
CLOSE = 1e-6
OPTIONS = {}  # of every model of ours


class Net(torch.nn.Module):
    def __init__(self, norm=torch.nn.Identity, dtype=torch.float32):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, 2 * WIDTH, bias=norm is torch.nn.Identity)  # a norm takes a bias away: its gradient is noise
        self.norm = norm(2 * WIDTH) if norm is not torch.nn.Identity else norm()
        self.side = torch.nn.Linear(2 * WIDTH, 2 * WIDTH)
        self.last = torch.nn.Linear(2 * WIDTH, WIDTH)
        self.to(dtype)

    def forward(self, x, side=True):
        x = torch.tanh(self.norm(self.first(x)))
        return self.last(torch.tanh(self.side(x)) if side else x)


def fresh(**options):
    torch.manual_seed(3)
    return Net(**options)


def batches(steps, seed=0, dtype=torch.float32):
    data = torch.randn(steps, dist.get_world_size(), ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))
    return list((3 * data[:, dist.get_rank()]).to(dtype))


def ours(module=None, lr=0.01, **options):
    model = megadp.torch.DataParallel(module if module is not None else fresh(), megadp.Comm(timeout=60), **{**OPTIONS, **options})
    return model, megadp.torch.ShardedAdamW(model, lr=lr)


def theirs(module=None, lr=0.01, **options):
    model = DistributedDataParallel(module if module is not None else fresh(), **options)
    return model, torch.optim.AdamW(model.parameters(), lr=lr)


def train(model, optimizer, step, data):
    """Losses, the mean of both ranks', of steps that `step` takes from a loss: backward and all that follows."""
    losses = []
    for number, x in enumerate(data):
        optimizer.zero_grad()
        loss = mse_loss(model(x).float(), x.flip(-1).float())
        step(number, loss)
        mean = loss.detach().double()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def far(a, b):
    return max(abs(x - y) / max(abs(x), 1e-30) for x, y in zip(a, b))


def compare(what, mine, reference, close=CLOSE, of="DDP"):
    assert len(mine) == len(reference) and far(mine, reference) <= close, f"{what}: {far(mine, reference):.1e} apart: {mine} {reference}"
    sys.stdout.write(f"# {what}: {far(mine, reference):.1e} from {of}'s\n")  # at once, as main() does
    sys.stdout.flush()


def refused(text, call, *arguments):
    try:
        call(*arguments)
    except megadp.MegaDPError as error:
        for part in text.split("|"):
            assert part in str(error), f"{part!r} is not in: {error}"
        return
    raise AssertionError(f"nothing was said; expected {text!r}")


# Clipping

def clipped(make, data, clip, part=lambda model: list(model.parameters()), scale=True, **options):
    model, optimizer = make(**options)
    norms = []

    def step(_, loss):
        loss.backward()
        norms.append(float(clip(part(model))))
        optimizer.step()

    return train(model, optimizer, step, data), norms


def case_clip_grad_norm():
    data = batches(12)
    ways = {"as it is": {}, "foreach": dict(foreach=True), "one by one": dict(foreach=False), "infinity norm": dict(norm_type=float("inf")),
            "first norm": dict(norm_type=1.0), "checked": dict(error_if_nonfinite=True)}
    for name, options in ways.items():
        clip = lambda ps, options=options: torch.nn.utils.clip_grad_norm_(ps, 0.3, **options)
        (mine, norms), (reference, expected) = (clipped(make, data, clip) for make in (ours, theirs))
        compare(f"losses, {name}", mine, reference)
        compare(f"norms, {name}", norms, expected)
    part = lambda model: list(model.module.last.parameters())
    clip = lambda ps: torch.nn.utils.clip_grad_norm_(ps, 0.1)
    (mine, norms), (reference, expected) = (clipped(make, data, clip, part) for make in (ours, theirs))
    compare("losses, a part", mine, reference)
    compare("norms, a part", norms, expected)
    (mine, _), (other, _) = (clipped(make, data, clip) for make in (ours, lambda: ours(gather_in_forward=True)))
    compare("losses, gather_in_forward", other, mine)


def case_clip_grad_value():
    data = batches(12)
    for foreach in (None, True, False):
        clip = lambda ps, foreach=foreach: torch.nn.utils.clip_grad_value_(ps, 0.004, foreach=foreach) or 0
        (mine, _), (reference, _) = (clipped(make, data, clip) for make in (ours, theirs))
        compare(f"losses, foreach={foreach}", mine, reference)


def case_clip_half_width():
    """bf16 parameters whose gradients are summed in fp32: .grad is there, and is clipped."""
    data = batches(6, dtype=torch.bfloat16)
    norms = []
    for clip in (True, False):
        model = megadp.torch.DataParallel(fresh(dtype=torch.bfloat16), megadp.Comm(timeout=60), **OPTIONS)
        optimizer = megadp.torch.ShardedAdamW(model, lr=0.01, max_grad_norm=0.0 if clip else 0.3)
        seen = []

        def step(_, loss):
            loss.backward()
            assert all(p.grad is not None and p.grad.dtype == torch.bfloat16 for p in model.parameters())
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3) if clip else None
            optimizer.step()
            seen.append(float(norm) if clip else optimizer.report.grad_norm)

        train(model, optimizer, step, data)
        norms.append(seen)
    compare("norms beside max_grad_norm's", *norms)
    accumulating, optimizer = ours(fresh(dtype=torch.bfloat16))
    for _ in range(2):
        with accumulating.no_sync():
            accumulating(data[0]).sum().backward()
            accumulating(data[1]).sum().backward()
        accumulating(data[2]).sum().backward()
        torch.nn.utils.clip_grad_norm_(accumulating.parameters(), 0.3)
        optimizer.step()
        optimizer.zero_grad()


def after_backward():
    """(options, our model, theirs) after a backward, with shards and without."""
    x = batches(1)[0]
    reference, _ = theirs()
    mse_loss(reference(x), x).backward()
    for options in ({}, dict(sharding="zero_0")):
        model, _ = ours(**options)
        mse_loss(model(x), x).backward()
        yield options, model, reference


def case_norm_for_a_log():
    """Norms are of reduced gradients, on every rank; values are refused, or right."""
    for options, model, reference in after_backward():
        for (name, p), q in zip(model.module.named_parameters(), reference.parameters()):
            compare(name, [p.grad.norm().item(), torch.linalg.vector_norm(p.grad).item(), torch.norm(p.grad, p=1).item()],
                    [q.grad.norm().item(), q.grad.norm().item(), q.grad.norm(p=1).item()])
            if options:
                torch.testing.assert_close(p.grad.clone(), q.grad)
            else:
                refused(f"{name!r}|zero_0", lambda p=p: p.grad.abs().mean())
                refused(f"{name!r}|shards", lambda p=p: p.grad.add_(torch.ones_like(p.grad)))
        assert "first.weight" in repr(model.module.first.weight.grad)


# Scaling

def case_grad_scaler():
    data = batches(10)
    data[4] = data[4] * (float("inf") if dist.get_rank() == 1 else 1)
    found = []
    for way in ("plain", "unscaled", "clipped", "checked"):
        for make in (ours, theirs):
            model, optimizer = make(**(dict(check_finite=True) if way == "checked" and make is ours else {}))
            scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10, growth_interval=3)
            scales = []

            def step(_, loss):
                scaler.scale(loss).backward()
                if way != "plain":
                    scaler.unscale_(optimizer)
                if way in ("clipped", "checked"):
                    scales.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)))
                scaler.step(optimizer)
                scaler.update()
                scales.append(scaler.get_scale())

            losses = train(model, optimizer, step, data)
            found.append(([value for value in losses if abs(value) < 1e30], [value for value in scales if abs(value) < 1e30], len(scales)))
        compare(f"losses, {way}", found[-2][0], found[-1][0])
        compare(f"scales, {way}", found[-2][1], found[-1][1])
        assert found[-1][2] == found[-2][2] and len(found[-1][0]) == len(found[-2][0]) == 9, found


def case_changed_gradients():
    x = batches(1)[0]

    def after_backward(change, **options):
        model, optimizer = ours(**options)
        mse_loss(model(x), x).backward()
        change(model.module.side.weight)
        return optimizer.step

    def beneath(p):
        with torch._C.DisableTorchFunctionSubclass():
            p.grad.mul_(0.5)

    def replaced(p):
        p.grad = torch.ones_like(p)

    refused("'side.weight'|max_grad_norm|clip_grad_norm_|GradScaler|DistributedDataParallel around", after_backward(beneath))
    refused("'side.weight'|replaced|DistributedDataParallel around", after_backward(replaced))
    refused("'side.weight'", after_backward(lambda p: setattr(p, "grad", None)))
    refused("'side.weight'|finite", lambda: after_backward(lambda p: p.grad.mul_(float("nan"))))
    after_backward(lambda p: p.grad.add_(torch.ones_like(p)), sharding="zero_0")()


# ZeRO-2

def case_zero_2():
    """The same scripts, with one option more."""
    OPTIONS["sharding"] = "zero_2"
    try:
        for case in (case_clip_grad_norm, case_clip_grad_value, case_clip_half_width, case_grad_scaler, case_frozen_for_a_while,
                     case_accumulation, case_ends_earlier, case_thrown_away):
            case()
        refused("spill_limit is 7", lambda: ours(spill_limit=7))
        x = batches(1)[0]
        model, optimizer = ours()
        refused("mdp_grad_acquire", lambda: model.storage.grad(0))
        with model.no_sync():
            mse_loss(model(x), x).backward()
            refused("'side.weight'|zero_0", lambda: model.module.side.weight.grad.abs().mean())
            refused("'side.weight'|added up already", lambda: model.module.side.weight.grad.zero_())
        optimizer.zero_grad()
        mse_loss(model(x), x).backward()
        refused("'side.weight'|zero_0", lambda: model.module.side.weight.grad.abs().mean())
        optimizer.step()
    finally:
        OPTIONS.clear()


# Optimizer instances

def case_instances():
    """The bits of one instance; norms count every element once."""
    data, found = batches(3), []
    for options in (dict(), dict(instances=2), dict(instances=2, sharding="zero_2")):
        model, optimizer = ours(**options)
        norms = []

        def step(_, loss):
            loss.backward()
            norms.extend(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9, norm_type=degree).item() for degree in (2.0, float("inf")))
            optimizer.step()

        train(model, optimizer, step, data)
        kept = optimizer._native.state(0, "exp_avg").size
        whole = optimizer.state_dict()["state"]
        if found:
            torch.testing.assert_close(whole, first, rtol=0, atol=0)
        first = whole
        found.append((norms, torch.cat([p.detach().flatten() for p in model.parameters()]), kept))
    for norms, values, kept in found[1:]:
        assert torch.equal(values, found[0][1]) and kept == model.module.first.weight.numel(), (values - found[0][1], kept)
        compare("norms", norms, found[0][0])
    refused("instances is 3", lambda: ours(instances=3))
    refused("instances is 2|Grid", lambda: megadp.torch.DataParallel(fresh(), megadp.Grid(megadp.Comm()), instances=2))


# Module buffers

def evaluated(model, x):
    model.eval()
    with torch.no_grad():
        loss = mse_loss(model(x), x).item()
    model.train()
    return loss


def case_batch_norm():
    data, common = batches(20), torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(9))
    found = {}
    for make in (ours, theirs):
        model, optimizer = make(fresh(norm=torch.nn.BatchNorm1d))

        def step(_, loss):
            loss.backward()
            optimizer.step()

        losses = train(model, optimizer, step, data)
        mine = evaluated(model, common)
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, mine)
        assert len(set(every)) == 1, f"{make.__name__}: the same batch evaluates to {every}"
        found[make] = [*losses, mine]
    compare("losses and evaluation", found[ours], found[theirs])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, _ = ours(fresh(norm=torch.nn.BatchNorm1d), broadcast_buffers=False)
    for x in data[:3]:
        model(x).sum()
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, model.module.norm.running_mean.sum().item())
    assert len(set(every)) == 2, "with broadcast_buffers=False each rank has its own"


def case_buffers_unlike():
    """Of other shapes or types, though of as many bytes: bytes of one would be read as those of the other."""
    rank, x = dist.get_rank(), batches(1)[0]
    for values, said in ((torch.ones(3 + rank), "'side.place' is float32 of shape (3,) on rank 0|'side.place' is float32 of shape (4,) on rank 1"),
                         (torch.ones((2, 2) if rank else (4,)), "of shape (4,) on rank 0|of shape (2, 2) on rank 1|broadcast_buffers=False"),
                         (torch.ones(4, dtype=torch.int32 if rank else torch.float32), "is float32 of|is int32 of"),
                         (torch.ones(4) if rank else None, "there are no more on rank 0|'side.place' is float32")):
        module = fresh()
        module.side.register_buffer("place", values)
        refused(said, megadp.torch.DataParallel, module, megadp.Comm(timeout=60))
        megadp.torch.DataParallel(module, megadp.Comm(timeout=60), broadcast_buffers=False)
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH))
    model = megadp.torch.DataParallel(module, megadp.Comm(timeout=60))
    model(x)
    module[1].num_batches_tracked = module[1].num_batches_tracked.int()
    model(x)  # another layout, and alike
    if rank:
        module[1].num_batches_tracked = module[1].num_batches_tracked.short()
    refused("DESYNC|get other shapes or types they do on all ranks", model, x)


def case_sync_batch_norm():
    """Like one process on the whole batch; torch's own refuses CPUs."""
    steps, sizes = 8, (5, 3)
    whole = torch.randn(steps, sum(sizes), WIDTH, 4, generator=torch.Generator().manual_seed(2))
    share = slice(0, sizes[0]) if dist.get_rank() == 0 else slice(sizes[0], sum(sizes))

    class Image(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(4)
            self.before, self.norm, self.after = (torch.nn.Conv1d(WIDTH, 6, 1), torch.nn.BatchNorm1d(6), torch.nn.Conv1d(6, WIDTH, 1))

        def forward(self, x):
            return self.after(torch.tanh(self.norm(self.before(x))))

    reference = Image()
    their_optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01)
    model = megadp.torch.DataParallel(torch.nn.SyncBatchNorm.convert_sync_batchnorm(Image()), megadp.Comm(timeout=60))
    optimizer = megadp.torch.ShardedAdamW(model, lr=0.01)
    mine, expected = [], []
    for x in whole:
        loss = mse_loss(reference(x), x)
        their_optimizer.zero_grad()
        loss.backward()
        their_optimizer.step()
        expected.append(loss.item())
        out = model(x[share])
        # Weighted so that the mean over ranks is the mean over the whole batch.
        part = mse_loss(out, x[share]) * len(out) * 2 / sum(sizes)
        optimizer.zero_grad()
        part.backward()
        optimizer.step()
        total = part.detach().double()
        dist.all_reduce(total)
        mine.append(total.item() / 2)
    compare("losses of one process on all rows", mine, expected)
    torch.testing.assert_close(model.module.norm.running_var, reference.norm.running_var, rtol=1e-5, atol=1e-6)
    assert type(copy.deepcopy(model).module.norm) is torch.nn.SyncBatchNorm


# Frozen parameters

def case_frozen():
    module = fresh()
    module.side.requires_grad_(False)
    model, optimizer = ours(module)
    x = batches(1)[0]
    module.side.requires_grad_(True)
    refused("'side.weight'|register_frozen=True", lambda: model(x))
    refused("'side.weight'|register_frozen=True", model.sync)


def case_frozen_for_a_while():
    """Also from the start, registered; and counted as torch counts, for each parameter."""
    data = batches(24)
    found = []
    for make, options in ((ours, dict(register_frozen=True)), (theirs, dict(find_unused_parameters=True))):
        module = fresh()
        if make is ours:  # DDP must see them as trained at first
            module.side.requires_grad_(False)
        model, optimizer = make(module, **options)

        def step(number, loss):
            loss.backward()
            optimizer.step()
            module.side.requires_grad_(not (number < 4 or 10 <= number < 17))

        module.side.requires_grad_(False)
        found.append(train(model, optimizer, step, data))
    compare("losses", *found)


# How steps end

def case_accumulation():
    data = batches(8)
    model, optimizer = ours()
    mse_loss(model(data[0]), data[0]).backward()
    refused("no_sync|zero_grad", lambda: mse_loss(model(data[1]), data[1]).backward())
    model, optimizer = ours()
    loss = mse_loss(model(data[0]), data[0])
    loss.backward(retain_graph=True)
    refused("no_sync", loss.backward)
    model, optimizer = ours()
    mse_loss(model(data[0]), data[0]).backward()
    optimizer.step()
    refused("zero_grad", lambda: mse_loss(model(data[1]), data[1]).backward())
    refused("DistributedSampler|model.sync()", model.join)

    def accumulated(make, ends):
        model, optimizer = make()
        for number, x in enumerate(data[:ends]):
            if number % 3 < 2 and not (make is theirs and number == ends - 1):
                with model.no_sync():
                    (mse_loss(model(x), x) / 3).backward()
            else:
                (mse_loss(model(x), x) / 3).backward()
            if number % 3 == 2 or number == ends - 1:  # the last step's data ends inside no_sync
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
                optimizer.step()
                optimizer.zero_grad()
        return [p.detach().double().sum().item() for p in model.parameters()]

    for ends in (6, 7, 8):
        compare(f"parameters after {ends} batches", accumulated(ours, ends), accumulated(theirs, ends), 1e-5)


def case_ends_earlier():
    """A rank without data takes part by sync()."""
    data, found = batches(6), []
    for whole in (False, True):
        model, optimizer = ours(fresh(norm=torch.nn.BatchNorm1d))
        losses = []
        for number, x in enumerate(data):
            optimizer.zero_grad()
            if dist.get_rank() == 0 or number < 3:
                loss = mse_loss(model(x), x.flip(-1))
                loss.backward()
                losses.append(loss.item())
            elif not whole:
                model.sync()
            else:
                (0 * mse_loss(model(x), x)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
        model.storage.verify()
        found.append(losses)
    compare("losses", *found)


def case_thrown_away():
    """Gradients that no step uses: zero_grad, of the optimizer, of the model, of the wrapped module."""
    data = batches(2)
    for gather in (False, True):
        model, optimizer = ours(gather_in_forward=gather)
        drops = (optimizer.zero_grad, lambda: optimizer.zero_grad(set_to_none=False), lambda: model.zero_grad(),
                 lambda: model.module.zero_grad(set_to_none=False),
                 lambda: [torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0), model.module.zero_grad()],
                 lambda: [torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0), model.module.zero_grad(set_to_none=False)])
        reference, their_optimizer = theirs()
        for drop in drops:
            mse_loss(model(data[0]), data[0]).backward()
            drop()
            mse_loss(model(data[1]), data[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
            mse_loss(reference(data[1]), data[1]).backward()
            their_optimizer.step()
            their_optimizer.zero_grad()
        with model.no_sync():
            mse_loss(model(data[0]), data[0]).backward()
        optimizer.zero_grad()
        mse_loss(model(data[1]), data[1]).backward()
        optimizer.step()
        mse_loss(reference(data[1]), data[1]).backward()
        their_optimizer.step()
        for p, q in zip(model.parameters(), reference.parameters()):
            torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-5, atol=1e-6)


def case_own_optimizer():
    data = batches(8)
    refused("'first.weight'|ShardedAdamW|zero_0", lambda: own_steps("zero_1", data[:1]))
    reference, optimizer = theirs()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)

    def step(_, loss):
        loss.backward()
        optimizer.step()

    expected = train(reference, optimizer, step, data)
    compare("losses", own_steps("zero_0", data), expected)
    model, _ = ours(sharding="zero_0")
    optimizer_without = torch.optim.SGD(model.parameters(), lr=0.05)
    mse_loss(model(data[0]), data[0]).backward()
    optimizer_without.step()
    refused("stepped()", lambda: mse_loss(model(data[1]), data[1]).backward())


def own_steps(sharding, data):
    model, _ = ours(sharding=sharding)
    own = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(_, loss):
        loss.backward()
        own.step()
        model.stepped()

    return train(model, own, step, data)


# DDP's other words

def case_words():
    linear = torch.nn.Linear(3, 2)
    model = megadp.torch.DataParallel(linear, find_unused_parameters=True, static_graph=False, gradient_as_bucket_view=True, bucket_cap_mb=25,
                                      process_group=dist.group.WORLD, device_ids=None, output_device=None, broadcast_buffers=True)
    assert model.storage.params[0].name == "weight" and dist.get_world_size() == 2
    for options, said in ((dict(mixed_precision=object()), "mixed_precision"), (dict(bucket_cap_mb=0), "bucket_cap_mb"),
                          (dict(device_ids=[0, 1]), "device_ids"), (dict(init_sync=False), "init_sync"), (dict(bucket_element=3), "bucket_element"),
                          (dict(output_device=0), "output_device"), (dict(bucket_cap_mb=1, bucket_count=2), "bucket_count")):
        refused(said, lambda options=options: megadp.torch.DataParallel(torch.nn.Linear(3, 2), **options))
    refused("device_ids", lambda: megadp.torch.DataParallel(torch.nn.Linear(3, 2), [0]))
    refused("register_comm_hook", model.register_comm_hook)


def case_asked_of_the_wrapper():
    """Who asks a wrapper for what the module has is told where it is; the Trainer of transformers, which would go on with other losses, by a warning."""
    module = fresh()
    module.loss_type, module.enable = "ForCausalLM", lambda: None
    model = megadp.torch.DataParallel(module)
    for name, said in (("enable", "model.module.enable"), ("last", "model.module.last"), ("loss_typ", "object has no attribute 'loss_typ'")):
        try:
            raise AssertionError(getattr(model, name))
        except AttributeError as error:
            assert said in str(error), error
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert getattr(model, "loss_type", None) is None and not hasattr(model, "_no_such")
        assert [each.filename for each in seen] == [__file__] and "Trainer(model=model.module" in str(seen[0].message), seen
        module.loss_type = None
        assert not hasattr(model, "loss_type") and len(seen) == 1


def main(cases, module):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for case in cases:
        try:
            module["case_" + case]()
            sys.stdout.write(f"{case}: ok\n")  # at once: the ranks share a pipe
            sys.stdout.flush()
        except Exception as error:  # the next case has communicators of its own
            traceback.print_exc()
            sys.stdout.write(f"{case}: {type(error).__name__}: {error}".replace("\n", " ")[:600] + "\n")
            sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:], globals())
