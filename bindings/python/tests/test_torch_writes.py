# SPDX-License-Identifier: Apache-2.0
"""megadp.torch in one process: what scripts write into a model, by every way, what they put in the place of its parts, and copies of it."""
import copy
import ctypes
import io
import tempfile
import unittest
import warnings

import torch
from torch.nn.utils import prune

import megadp
import megadp.torch
import support
from megadp._torch_grads import lazy_zeros, stand_in_of
from test_torch import World


class Writes(World):
    """Values that a script writes into parameters are what the next step goes on from, also where fp32 masters have more bits."""

    def trained(self, dtype=torch.bfloat16, **options):
        torch.manual_seed(5)
        model = self.wrap(torch.nn.Sequential(torch.nn.Linear(3, 2, dtype=dtype), torch.nn.Linear(2, 2, dtype=dtype)), **options)
        optimizer = megadp.torch.ShardedAdamW(model, lr=1e-4, weight_decay=0.0)
        self.step(model, optimizer)
        return model, optimizer

    @staticmethod
    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(4, 3, dtype=model.module[0].weight.dtype)).sum().backward()
        optimizer.step()

    def test_every_way_of_writing(self):
        values = torch.full((2, 3), 8.0)

        def in_place(model):
            with torch.no_grad():
                model.module[0].weight.copy_(values)

        def averaged(model):
            copied = copy.deepcopy(model)
            torch.nn.init.constant_(copied.module[0].weight, 8.0)
            for p, q in zip(model.parameters(), copied.parameters()):
                p.detach().copy_(q.detach())

        ways = {"load_state_dict": lambda model: model.load_state_dict({"module.0.weight": values}, strict=False),
                "without module.": lambda model: model.load_state_dict({"0.weight": values}, strict=False),
                "of the module": lambda model: model.module.load_state_dict({"0.weight": values}, strict=False),
                "of a part": lambda model: model.module[0].load_state_dict({"weight": values}, strict=False),
                "in place": in_place, "from a copy": averaged,
                "init": lambda model: torch.nn.init.constant_(model.module[0].weight, 8.0),
                "a step's own": lambda model: torch.optim.SGD([{"params": [model.module[0].weight]}], lr=0.1).step()}
        for dtype in (torch.bfloat16, torch.float32):
            for gather in (False, True):
                for name, write in ways.items():
                    with self.subTest(name, dtype=dtype, gather=gather):
                        model, optimizer = self.trained(dtype, gather_in_forward=gather)
                        masters = [torch.from_dlpack(optimizer._native.state(i, "master")).clone() for i in range(4)]
                        write(model)
                        self.step(model, optimizer)
                        after = [torch.from_dlpack(optimizer._native.state(i, "master")) for i in range(4)]
                        if name != "a step's own":
                            torch.testing.assert_close((after[0] - 8.0).abs(), torch.full((6,), 1e-4), rtol=0, atol=2e-5)
                        if name != "from a copy":  # of the others no bit is lost
                            for i in (1, 2, 3):
                                torch.testing.assert_close(after[i], masters[i], rtol=0, atol=1.2e-4)
                                self.assertFalse(torch.equal(after[i].to(torch.bfloat16).float(), after[i]))

    def test_names_that_do_not_fit(self):
        model, optimizer = self.trained()
        plain = {name.removeprefix("module."): values.clone() for name, values in model.state_dict().items()}
        self.assertEqual(list(plain), list(model.module.state_dict()))
        model.load_state_dict(plain)
        for state in ({**plain, "1.strange": torch.zeros(2)}, {"0.weight": plain["0.weight"]}, {}, {"module.0.weight": torch.zeros(9)}):
            with self.assertRaisesRegex(RuntimeError, "0.weight|1.weight|strange"):
                model.load_state_dict(state)
        found = model.load_state_dict({"module.strange": torch.zeros(2)}, strict=False)
        self.assertEqual((len(found.missing_keys), found.unexpected_keys), (4, ["module.strange"]))
        with self.assertRaisesRegex(megadp.InvalidError, "assign is True"):
            model.load_state_dict(plain, assign=True)
        self.step(model, optimizer)

    def test_parameters_that_were_replaced(self):
        """They would not be trained, and nobody would notice."""
        for replace in (lambda module: module.load_state_dict(copy.deepcopy(module.state_dict()), assign=True),
                        lambda module: setattr(module[0], "weight", torch.nn.Parameter(torch.ones(2, 3)))):
            model, optimizer = self.trained(torch.float32)
            optimizer.zero_grad()
            replace(model.module)
            model(torch.ones(4, 3)).sum().backward()
            with self.assertRaisesRegex(megadp.InvalidError, "'0.weight' was replaced"):
                optimizer.step()

    def test_layers_that_came_later(self):
        for change, said in ((lambda module: module.__setitem__(1, torch.nn.Linear(2, 2)), "'1.weight' was replaced"),
                             (lambda module: module[1].add_module("more", torch.nn.Linear(2, 2)), "'1.more.weight' came into the module"),
                             (lambda module: module[0].register_parameter("more", torch.nn.Parameter(torch.ones(2))), "'0.more' came into")):
            model, optimizer = self.trained(torch.float32)
            optimizer.zero_grad()
            change(model.module)
            model(torch.ones(4, 3)).sum().backward()
            for use in (optimizer.step, model.sync):
                with self.assertRaisesRegex(megadp.InvalidError, said):
                    use()
        # What is frozen may come, until it is to be trained.
        model, optimizer = self.trained(torch.float32)
        model.module.append(torch.nn.Linear(2, 2).requires_grad_(False))
        self.step(model, optimizer)
        model.module[2].requires_grad_(True)
        with self.assertRaisesRegex(megadp.InvalidError, "'2.weight' came into the module"):
            optimizer.step()

    def test_masters_of_another_checkpoint(self):
        """They do not take the place of what the model has been given, and it is said."""
        model, optimizer = self.trained()
        state = optimizer.state_dict()
        self.assertEqual({entry["master"].dtype for entry in state["state"].values()}, {torch.float32})
        torch.nn.init.constant_(model.module[0].weight, 8.0)
        optimizer.load_state_dict(state)
        with self.assertWarnsRegex(UserWarning, "6 of 14 masters"):
            self.step(model, optimizer)
        self.assertEqual(model.module[0].weight.unique().tolist(), [8.0])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.step(model, optimizer)
            torchs = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
            torchs.load_state_dict(state)  # casts the masters to bfloat16, and trains on without them
            for values in torchs.state_dict()["state"].values():
                values["master"].zero_()
            before = [torch.from_dlpack(optimizer._native.state(i, "master")).clone() for i in range(4)]
            optimizer.load_state_dict(torchs.state_dict())
            optimizer.state_dict()
        torch.testing.assert_close([torch.from_dlpack(optimizer._native.state(i, "master")) for i in range(4)], before, rtol=0, atol=0)

    def test_masters_that_round_to_what_was_written(self):
        """Keep their bits: to write a part of a parameter, or what is there already, costs no update."""
        def row(model):
            with torch.no_grad():
                model.module[0].weight[0] = 0.0

        def nothing(model):
            with torch.no_grad():
                model.module[0].weight.clamp_(-100.0, 100.0)

        def again(model):
            model.load_state_dict(copy.deepcopy(model.state_dict()))

        found = []
        for write in (None, row, nothing, again):
            model, optimizer = self.trained()
            for _ in range(10):
                if write is not None:
                    write(model)
                self.step(model, optimizer)
            found.append([torch.from_dlpack(optimizer._native.state(i, "master")).clone() for i in range(4)])
        untouched, rowed, *same = found
        self.assertNotEqual(untouched[0].tolist(), untouched[0].bfloat16().tolist())
        for each in same:
            self.assertTrue(all(map(torch.equal, each, untouched)))
        torch.testing.assert_close(rowed[0][:3].abs(), torch.full((3,), 1e-4), rtol=0, atol=2e-5)
        self.assertTrue(torch.equal(rowed[0][3:], untouched[0][3:]))

    def test_masters_that_were_not_saved(self):
        """Begin as the parameters that are loaded with them, also where masters were that round to these."""
        for model_first in (True, False):
            model, optimizer = self.trained()
            weights, state = copy.deepcopy(model.state_dict()), optimizer.state_dict()
            for values in state["state"].values():
                del values["master"]
            loads = [lambda: model.load_state_dict(weights), lambda: optimizer.load_state_dict(state)]
            for load in loads if model_first else loads[::-1]:
                load()
            optimizer.state_dict()
            for i, p in model.trained.items():
                self.assertTrue(torch.equal(torch.from_dlpack(optimizer._native.state(i, "master")), p.detach().float().view(-1)))

    def test_hooks(self):
        """Of torch's for state_dict and load_state_dict."""
        model, optimizer = self.trained()
        seen = []
        optimizer.register_state_dict_post_hook(lambda _, state: {**state, "mine": 1})
        optimizer.register_load_state_dict_pre_hook(lambda _, state: seen.append(state.pop("mine")))
        optimizer.register_load_state_dict_post_hook(lambda _: seen.append(2))
        optimizer.load_state_dict(optimizer.state_dict())
        self.assertEqual(seen, [1, 2])


class Flat(torch.nn.Module):
    """Whose weights are views of one parameter, made once, kept as attributes of two kinds."""

    def __init__(self, dtype, made_once):
        super().__init__()
        torch.manual_seed(5)
        self.flat, self.made_once = torch.nn.Parameter(torch.randn(24, dtype=dtype)), made_once
        self.weights = {"first": (self.views()[0],)}
        self.last = torch.nn.Identity()
        self.last.weight = self.views()[1]

    def views(self):
        return self.flat.view(6, 4)[:4], self.flat[16:].view(2, 4)

    def forward(self, x):
        first, last = (self.weights["first"][0], self.last.weight) if self.made_once else self.views()
        return torch.nn.functional.linear(torch.nn.functional.linear(x, first), last)


class Kept(World):
    """Views of parameters that a module keeps follow them into the library's memory."""

    def trained(self, made_once, dtype, **options):
        module = Flat(dtype, made_once)
        model = self.wrap(module, **options)
        optimizer, losses = megadp.torch.ShardedSGD(model, lr=0.1), []
        for step in range(3):
            loss = model(torch.ones(3, 4, dtype=dtype)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        with torch.no_grad():
            return [*losses, *module.weights["first"][0].flatten().tolist(), *module.last.weight.flatten().tolist()]

    def test_views_follow(self):
        for dtype in (torch.float32, torch.bfloat16):
            for options in ({}, {"sharding": "zero_2"}, {"gather_in_forward": True}):
                mine = self.trained(True, dtype, **options)
                self.assertEqual(mine, self.trained(False, dtype, **options))
                self.assertGreater(len(set(mine[:3])), 2)

    def test_views_are_waited_for(self):
        model = self.wrap(Flat(torch.float32, True), gather_in_forward=True)
        optimizer = megadp.torch.ShardedSGD(model, lr=0.1)
        model(torch.ones(3, 4)).sum().backward()
        waited, wait = [], model.storage.wait
        model.storage.wait = lambda number, *, stream=0: waited.append(number) or wait(number, stream=stream)
        optimizer.step()
        self.assertEqual(waited, [0])

    def test_what_cannot_follow(self):
        def wider(module):
            memory = torch.ones(8)
            module.weight = torch.nn.Parameter(memory[:6].view(2, 3))
            module.kept = [{"memory": memory}]

        def turned(module):
            module.weight = torch.nn.Parameter(torch.ones(3, 2).t())
            module.kept = [{"memory": module.weight.t()}]

        def bits(module):
            module.kept = [{"memory": module.weight.data.view(torch.int32)}]

        for change in (wider, turned, bits):
            module = torch.nn.Sequential(torch.nn.Linear(3, 2))
            change(module[0])
            with self.assertRaisesRegex(megadp.InvalidError, r"'0.kept\[0\]\[memory\]' shares memory with parameter '0.weight'.*in forward"):
                self.wrap(module)
            module[0].weight.requires_grad_(False)  # stays where it is
            self.wrap(module)

    def test_what_modules_keep(self):
        """The parameters themselves, and what torch's own helpers make of them, in the module's memory or beside it."""
        make = lambda: torch.nn.Linear(3, 3)  # noqa: E731
        named = torch.nn.Linear(3, 3)
        named.same, named.copied = [named.weight], named.weight.detach().clone()
        x = torch.ones(2, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are newer ones
            older = [torch.nn.utils.weight_norm(make()), torch.nn.utils.spectral_norm(make())]
        for module in (named, *older, torch.nn.LSTM(3, 4, 2), torch.nn.utils.parametrizations.weight_norm(make()),
                       torch.nn.utils.parametrizations.spectral_norm(make()), prune.l1_unstructured(make(), "weight", 2)):
            model = self.wrap(module)
            optimizer = megadp.torch.ShardedSGD(model, lr=0.1)
            losses = []
            for _ in range(2):
                out = model(x)
                loss = (out[0] if isinstance(out, tuple) else out).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            self.assertNotEqual(*losses)


class StandIns(World):
    def test_stand_ins_have_memory(self):
        """What writes into .grad and knows no __torch_function__, as process groups of torch's do, hits what is there for that, and nothing else."""
        for dtype, sharding in ((torch.float32, "zero_2"), (torch.bfloat16, "zero_2"), (torch.bfloat16, "zero_1")):
            ends = []
            for write in (False, True):
                torch.manual_seed(1)
                model = self.wrap(torch.nn.Sequential(torch.nn.Linear(30, 50, dtype=dtype), torch.nn.Linear(50, 2, dtype=dtype)), sharding=sharding)
                optimizer = megadp.torch.ShardedSGD(model, lr=0.1)
                for _ in range(2):
                    model(torch.ones(4, 30, dtype=dtype)).sum().backward()
                    for p in model.parameters() if write else ():
                        self.assertGreaterEqual(p.grad.untyped_storage().nbytes(), p.nbytes)
                        self.assertTrue(p.grad.is_contiguous())
                        ctypes.memset(p.grad.data_ptr(), 0x7f, p.nbytes)
                    optimizer.step()
                    optimizer.zero_grad()
                ends.append([p.detach().clone() for p in model.parameters()])
            self.assertTrue(all(map(torch.equal, *ends)))

    def test_stand_ins_cost_nothing(self):
        """A page that is written is memory, and comes back; all others are none."""
        def pages():
            with open("/proc/self/statm") as file:
                return [int(number) << 12 for number in file.read().split()[:2]]

        before, like = pages(), torch.empty(1 << 28, device="cpu")
        there = stand_in_of(like, lazy_zeros(like.nbytes))
        self.assertEqual(there[-1].item(), 0.0)
        there[:1 << 20].fill_(1.0)
        self.assertLess(pages()[1] - before[1], 64 << 20)
        del there, like
        self.assertLess(pages()[0] - before[0], 64 << 20)


class Momentum(World):
    def sgd(self, through=None):
        """Ours and torch's: parameters and state after each of some steps with momentum that comes and goes. through: called while it is 0."""
        ends = {True: [], False: []}
        for own in ends:
            torch.manual_seed(3)
            module = torch.nn.Linear(3, 2)
            groups = [{"params": [module.weight]}, {"params": [module.bias], "momentum": 0.0}]
            model = self.wrap(module, param_groups=groups) if own else module
            optimizer = megadp.torch.ShardedSGD(model, lr=0.1, momentum=0.9) if own else torch.optim.SGD(groups, lr=0.1, momentum=0.9)
            for step, values in enumerate(((0.9, 0.0), (0.9, 0.0), (0.0, 0.0), (0.0, 0.9), (0.9, 0.0), (0.5, 0.9))):
                for group, momentum in zip(optimizer.param_groups, values):
                    group["momentum"] = momentum
                model(torch.full((2, 3), step + 1.0)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if own and step == 2 and through is not None:
                    through(model, optimizer)
                ends[own].append(([p.detach().clone() for p in module.parameters()], copy.deepcopy(optimizer.state_dict()["state"])))
        return ends.values()

    def test_momentum_of_0_for_a_while(self):
        """torch keeps the buffer from before."""
        for (mine, state), (theirs, whole) in zip(*self.sgd()):
            has = {number: {"momentum_buffer": entry["momentum_buffer"]} for number, entry in whole.items() if entry.get("momentum_buffer") is not None}
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=0)
            torch.testing.assert_close(state, has, rtol=1e-6, atol=0)

    def test_saved_meanwhile(self):
        def by_states(model, optimizer):
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

        def by_checkpoint(model, optimizer):
            with tempfile.TemporaryDirectory() as folder:
                megadp.torch.save_checkpoint(folder, model, optimizer)
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                megadp.torch.load_checkpoint(folder, model, optimizer)

        for through in (by_states, by_checkpoint):
            mine, theirs = self.sgd(through)
            torch.testing.assert_close([each[0] for each in mine], [each[0] for each in theirs], rtol=1e-6, atol=0)

    def test_rate_as_a_tensor(self):
        """It is trained with, and what cannot be saved of it is said with the remedy."""
        model = self.wrap(torch.nn.Linear(3, 2))
        optimizer = megadp.torch.ShardedAdamW(model, lr=torch.tensor(0.1))
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        with tempfile.TemporaryDirectory() as folder:
            for given, at in ((None, "param_groups.0.*lr"), (scheduler, "base_lrs")):
                with self.assertRaisesRegex(megadp.InvalidError, at + ".* is a Tensor.*make it with a number"):
                    megadp.torch.save_checkpoint(folder, model, optimizer, scheduler=given)


class Interrupted(World):
    """Calls that meet, and signals whose handlers raise: nothing is lost, and zero_grad() begins anew."""

    def model(self):
        torch.manual_seed(5)
        model = self.wrap(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)))
        return model, megadp.torch.ShardedSGD(model, lr=1.0)

    @staticmethod
    def backward(model):
        model(torch.ones(4, 3)).sum().backward()

    def expected(self):
        model, optimizer = self.model()
        self.backward(model)
        optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    def test_calls_that_meet(self):
        """A step during a save, of the script's or of the library's own calls, is refused, and is taken when it is called again."""
        def refused(model, optimizer):
            model._alone("save_checkpoint()", optimizer.step)

        def refused_within(model, optimizer):
            def sync():
                model.storage.sync = synced
                raise megadp.MegaDPError(megadp.Status.STATE, "buffer is in use by mdp_checkpoint_save on another thread")

            synced, model.storage.sync = model.storage.sync, sync
            optimizer.step()

        for meet, said in ((refused, "step.. comes while save_checkpoint.. of the same model"), (refused_within, "in use by")):
            model, optimizer = self.model()
            self.backward(model)
            with self.assertRaisesRegex(megadp.MegaDPError, said) as caught:
                meet(model, optimizer)
            self.assertEqual(caught.exception.code, megadp.Status.STATE)
            optimizer.step()
            self.assertTrue(all(map(torch.equal, model.parameters(), self.expected())))
        with tempfile.TemporaryDirectory() as folder:
            for call in (megadp.torch.save_checkpoint, megadp.torch.load_checkpoint):
                for begin in (optimizer.zero_grad, lambda: self.backward(model)):  # who is in a step has gradients
                    begin()
                    with self.assertRaisesRegex(megadp.MegaDPError, f"{call.__name__}.. comes while step"):
                        model._alone("step()", lambda: call(folder, model, optimizer))
                optimizer.zero_grad()
                call(folder, model, optimizer)
            with self.assertRaisesRegex(megadp.MegaDPError, "state_dict.. comes while"):
                model._alone("step()", optimizer.state_dict)
            model.module.get_extra_state = lambda: optimizer.state_dict()["state"][0]["step"].item()
            model.module.set_extra_state = lambda _: optimizer.state_dict()
            megadp.torch.save_checkpoint(folder, model, optimizer)
            megadp.torch.load_checkpoint(folder, model, optimizer)

    def test_refused_beside_averages(self):
        """What is refused in averaged() has done nothing."""
        model, _ = self.model()
        optimizer = megadp.torch.ShardedSGD(model, lr=1.0, average_decay=0.5)
        with optimizer.averaged():
            for call in (model.sync, optimizer.step):
                with self.assertRaisesRegex(megadp.MegaDPError, "swap them back"):
                    call()
        with model.no_sync():
            self.backward(model)
        self.backward(model)
        optimizer.step()
        optimizer.zero_grad()
        model.module[0](torch.ones(4, 3)).sum().backward()
        with optimizer.averaged(), self.assertRaisesRegex(megadp.MegaDPError, "swap them back"):
            optimizer.zero_grad()
        optimizer.zero_grad()
        self.backward(model)
        optimizer.step()

    def test_signals(self):
        """Raised between the library's taking a gradient and what is noted of that here, and between others of its calls."""
        for call in ("put", "skip", "begin_microbatch", "sync"):
            for at in range(1, 5):
                model, optimizer = self.model()
                expected, whole = self.expected(), getattr(model.storage, call)
                calls = []

                def interrupted(*given, **named):
                    found = whole(*given, **named)
                    calls.append(call)
                    if len(calls) == at:
                        raise KeyboardInterrupt
                    return found

                setattr(model.storage, call, interrupted)
                try:
                    with model.no_sync():
                        model.module[0](torch.ones(4, 3)).sum().backward()
                    optimizer.zero_grad()
                    self.backward(model)
                    optimizer.zero_grad()
                except KeyboardInterrupt:
                    pass
                delattr(model.storage, call)
                optimizer.zero_grad()
                self.backward(model)
                optimizer.step()
                self.assertTrue(all(map(torch.equal, model.parameters(), expected)), f"{call} {at}")


class Copies(World):
    @unittest.skipIf(support.DEVICE != "cpu", "PyTorch averages no integers on a device, which a BatchNorm has")
    def test_copies(self):
        for gather in (False, True):
            model = self.wrap(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)),
                              gather_in_forward=gather)
            optimizer = megadp.torch.ShardedAdamW(model, lr=0.1)
            averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
            x = torch.randn(8, 3)
            for _ in range(2):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
                averaged.update_parameters(model)
            model.eval()
            expected = model(x)
            copied = copy.deepcopy(model)
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            loaded = torch.load(file, weights_only=False)
            states = io.BytesIO()
            torch.save(model.state_dict(), states)
            states.seek(0)
            fresh = copy.deepcopy(loaded)
            fresh.load_state_dict(torch.load(states))
            for other in (copied, loaded, fresh):
                self.assertIsInstance(other, megadp.torch.Unwrapped)
                self.assertEqual(list(other.state_dict()), list(model.state_dict()))
                torch.testing.assert_close(other(x), expected, rtol=0, atol=0)
                other.train()
                other(x).sum().backward()
            self.assertFalse(averaged.training and not averaged(x).isfinite().all())
            again = self.wrap(loaded.module)
            again(x).sum().backward()
            megadp.torch.ShardedAdamW(again).step()
            self.assertTrue(torch.equal(model(x), expected))

    def test_copies_of_optimizers(self):
        """They would have no state."""
        optimizer = megadp.torch.ShardedAdamW(self.wrap(torch.nn.Linear(3, 2)))
        for copied in (copy.deepcopy, copy.copy, lambda each: torch.save(each, io.BytesIO()), lambda each: copy.deepcopy({"optimizer": each})):
            with self.assertRaisesRegex(megadp.MegaDPError, r"ShardedAdamW cannot be pickled or copied.*state_dict\(\).*save_checkpoint"):
                copied(optimizer)

    def test_allowed_by_name(self):
        """torch.load(weights_only=True) takes a file of the model where the script allows Unwrapped and the module's own classes."""
        classes = [torch.nn.Sequential, torch.nn.Linear, megadp.torch.Unwrapped]
        for gather in (False, True):
            model = self.wrap(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)), gather_in_forward=gather).eval()
            file = io.BytesIO()
            torch.save(copy.deepcopy(model) if gather else model, file)
            file.seek(0)
            with torch.serialization.safe_globals(classes):
                loaded = torch.load(file, weights_only=True)
            self.assertEqual((type(loaded), loaded.training), (megadp.torch.Unwrapped, False))
            self.assertTrue(torch.equal(loaded(torch.ones(1, 3)), model(torch.ones(1, 3))))

    def test_scripted(self):
        """torch.jit.script compiles hooks with a module, and cannot compile ours; a copy of the model has none."""
        for gather in (False, True):
            model, x = self.wrap(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)), gather_in_forward=gather), torch.ones(1, 3)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for module in (model.module, copy.deepcopy(model.module)) if gather else ():
                    with self.assertRaisesRegex(megadp.MegaDPError, r"gather_in_forward=True .* copy.deepcopy\(model\).module"):
                        torch.jit.script(module)
                scripted = torch.jit.script(copy.deepcopy(model).module)
            self.assertTrue(torch.equal(scripted(x), model(x)))


if __name__ == "__main__":
    unittest.main()
