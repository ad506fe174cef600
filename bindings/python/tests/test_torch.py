# SPDX-License-Identifier: Apache-2.0
"""megadp.torch in one process: views, dropped gradients, types, refusals; DLPack between torch and the library."""
import copy
import gc
import tempfile
import unittest
import warnings

import torch

import megadp
import megadp.torch
import support
from megadp._torch_elementwise import Elements


class World(unittest.TestCase):
    def setUp(self):
        self.comm = megadp.Comm()
        self.addCleanup(self.comm.close)

    def wrap(self, module, **options):
        return megadp.torch.DataParallel(module, self.comm, **options)


class Arrays(World):
    @unittest.skipIf(support.DEVICE != "cpu", "what Python reads by itself is memory of the host")
    def test_torch_takes_ours(self):
        buffer = megadp.Buffer(self.comm, [("w", (2, 3)), megadp.Param("h", (4,), torch.bfloat16), megadp.Param("e", (0,), "f16")])
        for take in (torch.from_dlpack, megadp.torch.as_tensor):
            taken = take(buffer.param("w"))
            taken.fill_(3)
            self.assertEqual(buffer.param("w").memoryview[1, 2], 3)
            buffer.param("w").memoryview[1, 2] = 4
            self.assertEqual((taken[1, 2].item(), taken.shape, taken.dtype), (4, (2, 3), torch.float32))
            self.assertEqual(take(buffer.param("h")).dtype, torch.bfloat16)
            self.assertEqual(take(buffer.param("e")).shape, (0,))

    def test_ours_take_torch(self):
        buffer = megadp.Buffer(self.comm, [("w", (2, 3)), megadp.Param("h", (4,), torch.bfloat16)])
        values = torch.arange(6.0).reshape(3, 2).T
        buffer.put("w", values)
        self.assertTrue(torch.equal(torch.from_dlpack(buffer.grad("w")), values))
        buffer.put("h", torch.arange(4, dtype=torch.bfloat16))
        out = torch.empty(4, dtype=torch.float64)
        buffer.write("h", torch.ones(4, dtype=torch.float16))
        buffer.read("h", out)
        self.assertEqual(out.tolist(), [1] * 4)
        with self.assertRaisesRegex(megadp.InvalidError, "grad"):
            buffer.put("w", torch.ones(2, 3, requires_grad=True))

    def test_views_outlive_the_buffer(self):
        comm = megadp.Comm()
        buffer = megadp.Buffer(comm, [("w", (2,))])
        views = [torch.from_dlpack(buffer.param("w")), megadp.torch.as_tensor(buffer.param("w"))]
        buffer.close()
        comm.close()
        del buffer, comm
        gc.collect()
        views[0].fill_(2)
        self.assertEqual(views[1].tolist(), [2, 2])


class Gradients(World):
    def step(self, model, optimizer, x):
        model(x).sum().backward()
        return {name: p.grad.clone() for name, p in model.module.named_parameters()}, optimizer.step()

    def test_dropped_views(self):
        """zero_grad(set_to_none=True) on the wrapped module: gradients are copied, and views come back."""
        model = self.wrap(torch.nn.Linear(3, 2))
        optimizer = megadp.torch.ShardedAdamW(model)
        for _ in range(3):
            model.module.zero_grad(set_to_none=True)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                model(torch.ones(4, 3)).sum().backward()
            for i, p in model.trained.items():
                self.assertEqual(p.grad.data_ptr(), model.storage.grad(i).data)
                self.assertEqual(p.grad.unique().tolist(), [4])
            optimizer.step()

    def test_zero_grad_is_expected(self):
        for owner in ("model", "optimizer"):
            for set_to_none in (True, False):
                model = self.wrap(torch.nn.Linear(3, 2))
                optimizer = megadp.torch.ShardedAdamW(model)
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    for _ in range(3):
                        {"model": model, "optimizer": optimizer}[owner].zero_grad(set_to_none)
                        model(torch.ones(4, 3)).sum().backward()
                        self.assertEqual(model.module.weight.grad.unique().tolist(), [4])
                        optimizer.step()

    def test_half_width(self):
        """bfloat16 parameters with gradients summed in float32, or in their own type."""
        for grad_dtype in ("f32", "same"):
            model = self.wrap(torch.nn.Linear(3, 2, dtype=torch.bfloat16), grad_dtype=grad_dtype)
            optimizer = megadp.torch.ShardedAdamW(model, lr=0.5, weight_decay=0.0)
            before = model.module.weight.clone()
            model(torch.ones(4, 3, dtype=torch.bfloat16)).sum().backward()
            self.assertEqual(model.storage.grad(0).dtype, {"f32": "float32", "same": "bfloat16"}[grad_dtype])
            optimizer.step()
            torch.testing.assert_close(model.module.weight, before - 0.5, rtol=0.01, atol=0.01)

    def test_not_finite(self):
        model = self.wrap(torch.nn.Linear(3, 2))
        optimizer = megadp.torch.ShardedAdamW(model)
        model(torch.full((1, 3), float("inf"))).sum().backward()
        with self.assertRaises(megadp.MegaDPError) as caught:
            optimizer.step()
        self.assertEqual((caught.exception.code, caught.exception.param), (megadp.Status.NUMERIC, 0))

    def test_checked(self):
        """With check_finite whoever needs finite gradients is told; who throws them away, or looks himself, is not. Training goes on."""
        for sharding in ("zero_1", "zero_2"):
            model = self.wrap(torch.nn.Linear(3, 2), sharding=sharding, check_finite=True)
            optimizer = megadp.torch.ShardedAdamW(model)
            scaler = torch.amp.GradScaler(support.DEVICE, init_scale=8.0)
            clip = lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # noqa: E731
            for use in (optimizer.step, clip, model.sync):
                model(torch.full((1, 3), float("inf"))).sum().backward()
                with self.assertRaisesRegex(megadp.MegaDPError, "weight") as caught:
                    use()
                self.assertEqual((caught.exception.code, caught.exception.param), (megadp.Status.NUMERIC, 0))
                optimizer.zero_grad()
            model(torch.full((1, 3), float("inf"))).sum().backward()
            optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 3), float("inf"))).sum()).backward()
            scaler.unscale_(optimizer)
            clip()
            scaler.step(optimizer)
            scaler.update()
            self.assertEqual((scaler.get_scale(), optimizer.report), (4.0, None))
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            self.assertEqual(optimizer.report.step, 1)

    def test_order_of_use(self):
        """A module that lists its parameters in another order than it uses them; and what Buffer is told of the wire."""
        module = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
        module.forward = lambda x: module[0](module[1](module[2](x)))
        orders = None
        for _ in range(2):
            model = self.wrap(module, use_order=orders, bucket_elements=1, wire_dtype="bf16", error_feedback=True, check_large=True)
            model(torch.ones(1, 3)).sum().backward()
            model.sync()
            orders = model.storage.use_order()
            self.assertEqual(orders, [2, 1, 0])
            module = copy.deepcopy(model).module
            module.forward = lambda x, module=module: module[0](module[1](module[2](x)))
        self.assertEqual([param.use_order for param in model.storage.params], orders)

    def test_steps_without_gradients(self):
        """Before the first backward, as where a schedule is wound forward; and after one that has used them up, which torch would apply again."""
        model = self.wrap(torch.nn.Linear(3, 2))
        optimizer = megadp.torch.ShardedAdamW(model)
        before = [p.detach().clone() for p in model.parameters()]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(2):
                optimizer.step()
                self.assertEqual([p.grad for p in model.parameters()], [None, None])
            self.assertTrue(all(map(torch.equal, before, model.parameters())))
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
        self.assertFalse(any(map(torch.equal, before, model.parameters())))
        before = [p.detach().clone() for p in model.parameters()]
        with self.assertWarnsRegex(UserWarning, "used up, of 'weight' say: it changes nothing"):
            optimizer.step()
        self.assertTrue(all(map(torch.equal, before, model.parameters())))

    def test_gradients_that_cannot_be_taken(self):
        model = self.wrap(torch.nn.Linear(3, 2))
        with warnings.catch_warnings(), self.assertRaisesRegex(megadp.MegaDPError, r"create_graph=True\) has brought a gradient of '.*autograd.grad"):
            warnings.simplefilter("ignore")
            model(torch.ones(4, 3)).square().sum().backward(create_graph=True)
        model = self.wrap(torch.nn.Embedding(5, 3, sparse=True))
        with self.assertRaisesRegex(megadp.MegaDPError, "'weight' whose layout is torch.sparse_coo; .* sparse=False"):
            model(torch.tensor([1, 2])).sum().backward()

    def test_backward_that_raised(self):
        class Bad(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                raise RuntimeError("of the script's")

        module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
        model = self.wrap(module)
        optimizer = megadp.torch.ShardedAdamW(model)
        with self.assertRaisesRegex(RuntimeError, "of the script's"):
            module[1](Bad.apply(module[0](torch.ones(4, 3)))).sum().backward()
        with self.assertRaisesRegex(megadp.MegaDPError, r"backward\(\) that has raised, .*zero_grad\(\)"):
            optimizer.step()
        optimizer.zero_grad()
        within = []
        module[0].weight.register_post_accumulate_grad_hook(lambda _: within.append(self.assertRaisesRegex(
            megadp.MegaDPError, "under way; wait", optimizer.step)))
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        self.assertEqual((within, optimizer.report.step), ([None], 1))

    def test_gradient_of_none_for_what_stands_in(self):
        """Of a bf16 parameter, in the pass after one that has brought a gradient: .grad is back before other gradients come."""
        class Kept(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, scale):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                return grad, None

        class Scaled(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.scale = torch.nn.Linear(3, 3, dtype=torch.bfloat16), torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))

            def forward(self, x, used):
                return self.one(x) * self.scale if used else Kept.apply(self.one(x), self.scale)

        for sharding in ("zero_1", "zero_2"):
            model, seen, x = self.wrap(Scaled(), sharding=sharding), [], torch.ones(4, 3, dtype=torch.bfloat16)
            scale, one = model.module.scale, model.module.one.weight
            with model.no_sync():
                model(x, True).sum().backward()
            before = scale.grad
            one.register_post_accumulate_grad_hook(lambda _: seen.append(scale.grad is before))
            model(x, False).sum().backward()
            self.assertEqual((seen, scale.grad is before), ([True], True))
            norm = scale.grad.norm().item()
            model.zero_grad()
            model(x, True).sum().backward()
            self.assertEqual(scale.grad.norm().item(), norm)

    def test_gradients_taken_by_a_hook(self):
        """That of an optimizer which steps in backward, on this rank's own gradient: not taken for a function's None."""
        for sharding in ("zero_1", "zero_2"):
            module = torch.nn.Linear(3, 2)
            module.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
            model = self.wrap(module, sharding=sharding)
            with self.assertRaisesRegex(megadp.MegaDPError, "'weight' before the module was wrapped has set p.grad to None"):
                model(torch.ones(4, 3)).sum().backward()

    def test_clipping(self):
        model = self.wrap(torch.nn.Linear(3, 2))
        optimizer = megadp.torch.ShardedAdamW(model, max_grad_norm=0.5)
        model(torch.ones(4, 3)).sum().backward()
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
        optimizer.step()
        self.assertAlmostEqual(optimizer.report.grad_norm, norm, places=4)
        self.assertTrue(optimizer.report.clipped)

    def test_closure(self):
        model = self.wrap(torch.nn.Linear(3, 2))
        optimizer = megadp.torch.ShardedAdamW(model)

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(4, 3)).sum()
            loss.backward()
            return loss

        self.assertIsInstance(optimizer.step(closure), torch.Tensor)
        self.assertEqual(optimizer.report.step, 1)


class Steps(unittest.TestCase):
    def test_elsewhere_than_tried(self):
        """Steps of torch's optimizers are tried out on the CPU and taken where parameters are: here on torch's device without memory, which
        refuses what mixes devices as others do."""
        for name, given in (("RMSprop", {}), ("Adam", {"amsgrad": True}), ("Rprop", {}), ("SGD", {"momentum": 0.9})):
            elements = Elements(getattr(torch.optim, name), {"lr": 0.1, **given})
            kept = elements.kept(elements.defaults)
            master, grad, *arrays = (torch.empty(7, device="meta") for _ in range(2 + len(kept.entries)))
            self.assertTrue(arrays)
            with torch.no_grad():
                for step in (1, 2, 3):
                    elements.update(elements.defaults, kept, master, grad, dict(zip(kept.entries, arrays)), step)


class Groups(World):
    def test_new_ones(self):
        """Trainers replace param_groups: optimizers of torch's went on with the rates of the dicts that they were made with."""
        for make in (megadp.torch.ShardedSGD, lambda model, **given: megadp.torch.ShardedElementwise(model, torch.optim.SGD, **given)):
            module = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Linear(1, 1))
            groups = [{"params": list(part.parameters())} for part in module]
            model = self.wrap(module, param_groups=groups)
            optimizer = make(model, lr=1.0)
            before = [p.detach().clone() for p in module.parameters()]
            optimizer.param_groups = [dict(group, lr=lr) for group, lr in zip(optimizer.param_groups, (0.0, 0.5))]
            model(torch.ones(1, 2)).sum().backward()
            grads = [p.grad.detach().clone() for p in module.parameters()]
            optimizer.step()
            for p, was, grad, lr in zip(module.parameters(), before, grads, (0, 0, 0.5, 0.5)):
                torch.testing.assert_close(p.detach(), was - lr * grad)


class Averages(World):
    def test_in_their_place(self):
        """As torch's AveragedModel that begins with the model before its first step; of a rule and of an optimizer of torch's."""
        decay = 0.75
        for gather in (False, True):
            for make in (lambda model: megadp.torch.ShardedAdamW(model, lr=0.1, average_decay=decay),
                         lambda model: megadp.torch.ShardedElementwise(model, torch.optim.RMSprop, lr=0.1, average_decay=decay)):
                model = self.wrap(torch.nn.Linear(3, 2), gather_in_forward=gather)
                optimizer = make(model)
                expected = [p.detach().clone() for p in model.module.parameters()]
                x = torch.randn(8, 3)
                for _ in range(3):
                    optimizer.zero_grad()
                    model(x).square().sum().backward()
                    optimizer.step()
                    model.wait()
                    for average, p in zip(expected, model.module.parameters()):
                        average += (1 - decay) * (p.detach() - average)
                before = [p.detach().clone() for p in model.module.parameters()]
                with torch.no_grad(), optimizer.averaged():
                    for average, p in zip(expected, model.module.parameters()):
                        torch.testing.assert_close(p, average, rtol=0, atol=0)
                    model(x)
                    with self.assertRaisesRegex(megadp.MegaDPError, "swap them back first"):
                        optimizer.step()
                self.assertTrue(all(map(torch.equal, before, model.module.parameters())))
                optimizer.zero_grad()
                model(x).square().sum().backward()
                optimizer.step()

    def test_refused(self):
        with self.assertRaisesRegex(megadp.InvalidError, "average_decay"):
            megadp.torch.ShardedAdamW(self.wrap(torch.nn.Linear(3, 2)), average_decay=1)
        with self.assertRaisesRegex(megadp.MegaDPError, "keeps no average"):
            with megadp.torch.ShardedAdamW(self.wrap(torch.nn.Linear(3, 2))).averaged():
                pass


class Refusals(World):
    def test_groups_added_later(self):
        optimizer = megadp.torch.ShardedAdamW(self.wrap(torch.nn.Linear(3, 2)))
        with self.assertRaisesRegex(megadp.MegaDPError, "register_frozen"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
        with self.assertRaisesRegex(megadp.InvalidError, "amsgrad"):
            megadp.torch.ShardedAdamW(self.wrap(torch.nn.Linear(3, 2)), amsgrad=True)
        megadp.torch.ShardedAdamW(self.wrap(torch.nn.Linear(3, 2)), fused=True, foreach=None, amsgrad=False)

    def test_options_of_rules(self):
        """What torch's have and this library has not is refused by name, and so is a group's value that the rule has not."""
        own = megadp.torch
        for kind, options, text in ((own.ShardedAdam, dict(amsgrad=True), "ShardedAdam has amsgrad=True; ShardedAdam offers amsgrad=False only"),
                                    (own.ShardedAdam, dict(decoupled_weight_decay=True), "decoupled_weight_decay=True"),
                                    (own.ShardedAdamW, dict(maximize=True), "maximize=True"), (own.ShardedLion, dict(maximize=True), "maximize=True"),
                                    (own.ShardedAdam, dict(capturable=True), "capturable=True"),
                                    (own.ShardedSGD, dict(dampening=0.5), "dampening=0.5; ShardedSGD offers dampening=0 only"),
                                    (own.ShardedSGD, dict(differentiable=True), "differentiable=True"),
                                    (own.ShardedSGD, dict(nesterov=True), "nesterov is True and momentum 0"),
                                    (own.ShardedSGD, dict(amsgrad=False), "amsgrad is not an option of ShardedSGD"),
                                    (own.ShardedLion, dict(eps=1e-8), "eps is not an option of ShardedLion"),
                                    (own.ShardedLion, dict(groups=[1]), r"groups is \[1\]; .* from 0 to 0"),
                                    (own.ShardedAdam, dict(eps=0), "eps is 0"), (own.ShardedSGD, dict(momentum=1.0), "momentum is 1")):
            with self.subTest(kind=kind, options=options), self.assertRaisesRegex(megadp.InvalidError, text):
                kind(self.wrap(torch.nn.Linear(3, 2)), **options)
        own.ShardedSGD(self.wrap(torch.nn.Linear(3, 2)), 0.1, 0.9, 0, 0.0, True, maximize=False, foreach=True, fused=None)
        linear = torch.nn.Linear(3, 2)
        model = self.wrap(linear, param_groups=[{"params": [linear.weight]}, {"params": [linear.bias], "momentum": 0.9}])
        with self.assertRaisesRegex(megadp.InvalidError, r"param_groups\[1\] of DataParallel sets momentum; ShardedAdamW's groups have lr, betas"):
            own.ShardedAdamW(model)
        self.assertEqual(own.ShardedSGD(model, groups=[0])._native.info()["rule"], "SGD")
        self.assertEqual(own.ShardedSGD(model, groups=[1])._native.info()["rule"], "SGD with momentum")
        self.assertEqual(own.ShardedSGD(model)._native.info()["rule"], "SGD with momentum")

    def test_parameters_that_moved(self):
        model = self.wrap(torch.nn.Linear(3, 2))
        optimizer = megadp.torch.ShardedAdamW(model)
        model(torch.ones(1, 3)).sum().backward()
        model.module.bias.data = torch.zeros(2)
        with self.assertRaisesRegex(megadp.InvalidError, "'bias' has left"):
            optimizer.step()

    def test_parameters_that_moved_are_not_saved_loaded_or_averaged(self):
        fill = lambda module: torch.nn.utils.vector_to_parameters(torch.ones(8), module.parameters())
        ways = [lambda module: module.bfloat16(), lambda module: module.to(torch.float64).to(torch.float32), fill]
        ways += [lambda module: module.share_memory()] if support.DEVICE == "cpu" else []
        with tempfile.TemporaryDirectory() as directory:
            whole = self.wrap(torch.nn.Linear(3, 2))
            megadp.torch.save_checkpoint(directory, whole, None)
            for gather in (False, True):
                for move in ways:
                    model = self.wrap(torch.nn.Linear(3, 2), gather_in_forward=gather)
                    optimizer = megadp.torch.ShardedAdamW(model, average_decay=0.5)
                    model(torch.ones(1, 3)).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    move(model.module)
                    for use in (lambda: megadp.torch.save_checkpoint(directory, model, optimizer), lambda: optimizer.averaged().__enter__(),
                                lambda: megadp.torch.load_checkpoint(directory, model, None), optimizer.step):
                        with self.assertRaisesRegex(megadp.InvalidError, "'weight' has left the library's memory"):
                            use()
            whole.module.load_state_dict({name: values.clone() for name, values in whole.module.state_dict().items()}, assign=True)
            with self.assertRaisesRegex(megadp.InvalidError, "'weight' was replaced"):
                megadp.torch.save_checkpoint(directory, whole, None)

    def test_converted_or_wrapped_again(self):
        model = self.wrap(torch.nn.Linear(3, 2))
        model.bfloat16()
        with self.assertRaisesRegex(megadp.InvalidError, "has left the library's memory"):
            model(torch.ones(4, 3, dtype=torch.bfloat16)).sum().backward()
        linear = torch.nn.Linear(3, 2)
        first, second = self.wrap(linear), self.wrap(linear)
        with self.assertRaisesRegex(megadp.InvalidError, "has left the library's memory .*wrapped again"):
            second(torch.ones(4, 3)).sum().backward()
        with self.assertRaisesRegex(megadp.InvalidError, "module is a DataParallel already"):
            self.wrap(first)
        with self.assertRaisesRegex(megadp.InvalidError, "1 is a DataParallel already"):
            self.wrap(torch.nn.Sequential(torch.nn.Linear(3, 3), self.wrap(torch.nn.Linear(3, 2))))

    def test_state(self):
        """What torch's have in .state, and what scripts do to it; what to do instead."""
        model = self.wrap(torch.nn.Linear(3, 2))
        optimizer = megadp.torch.ShardedAdamW(model)
        p = model.module.weight
        for use in (lambda: setattr(optimizer, "state", {}), optimizer.state.clear, lambda: optimizer.state[p],
                    lambda: optimizer.state.get(p), lambda: p in optimizer.state, lambda: optimizer.state.update({p: {}}),
                    lambda: optimizer.state.pop(p), lambda: optimizer.state.setdefault(p, {})):
            with self.assertRaisesRegex(megadp.MegaDPError, r"state of ShardedAdamW is not offered.* state_dict\(\) .*load_state_dict\(\)"):
                use()
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        state = optimizer.state_dict()
        self.assertEqual(sorted(state["state"]), [0, 1])
        optimizer.load_state_dict({**state, "state": {1: state["state"][1]}})
        self.assertEqual(sorted(optimizer.state_dict()["state"]), [1])

    def test_members_of_groups(self):
        linear = torch.nn.Linear(3, 2)
        model = self.wrap(linear, param_groups=[{"params": [linear.weight]}, {"params": [linear.bias]}])
        optimizer = megadp.torch.ShardedAdamW(model)
        model(torch.ones(4, 3)).sum().backward()
        groups, members = optimizer.param_groups, optimizer.param_groups[1]["params"]
        for number in (0, 2):
            groups[1]["params"] = members * number
            with self.assertRaisesRegex(megadp.InvalidError, rf"param_groups\[1\]\['params'\] has other parameters \({number}\)"):
                optimizer.step()
        groups[1]["params"] = list(members)
        optimizer.param_groups = groups[:1]
        with self.assertRaisesRegex(megadp.InvalidError, "param_groups has 1 groups; ShardedAdamW was made with 2"):
            optimizer.step()
        optimizer.param_groups = groups
        optimizer.step()

    def test_changed_values(self):
        """What a step goes by is what param_groups says then."""
        model = self.wrap(torch.nn.Linear(3, 2))
        optimizer = megadp.torch.ShardedAdamW(model)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.param_groups[0]["betas"] = (1.5, 0.5)
        with self.assertRaisesRegex(megadp.InvalidError, "beta1 is 1.5"):
            optimizer.step()
        optimizer.param_groups[0].update(betas=(0.5, 0.75), eps=0)
        with self.assertRaisesRegex(megadp.InvalidError, "eps is 0"):
            optimizer.step()
        optimizer.param_groups[0]["eps"] = 0.5
        optimizer.step()
        state = optimizer.state_dict()["state"][0]
        self.assertEqual((state["exp_avg"].unique().tolist(), state["exp_avg_sq"].unique().tolist()), ([0.5], [0.25]))
        self.assertEqual(optimizer._native.info()["groups"][0]["eps"], 0.5)

    def test_arguments(self):
        linear = torch.nn.Linear(3, 2)
        with self.assertRaisesRegex(megadp.InvalidError, "DataParallel"):
            megadp.torch.ShardedAdamW(linear)
        with self.assertRaisesRegex(megadp.InvalidError, "not trained parameters"):
            self.wrap(linear, param_groups=[{"params": [torch.nn.Parameter(torch.ones(1))]}])
        with self.assertRaisesRegex(megadp.InvalidError, "DataParallel sets dampening; ShardedAdamW's groups have lr, betas"):
            megadp.torch.ShardedAdamW(self.wrap(linear, param_groups=[{"params": list(linear.parameters()), "dampening": 0.5}]))
        with self.assertRaisesRegex(megadp.InvalidError, "parameter 'weight' has dtype 'torch.float64'.*module.float"):
            self.wrap(torch.nn.Linear(3, 2, dtype=torch.float64))
        with self.assertRaisesRegex(megadp.InvalidError, "use_order has 1 entries; the module has 2 parameters"):
            self.wrap(linear, use_order=[0])
        with self.assertRaisesRegex(megadp.InvalidError, "wire_dtype"):
            self.wrap(linear, wire_dtype="f16")
        with self.assertRaisesRegex(megadp.InvalidError, "state_dict has \\[\\]"):
            megadp.torch.ShardedAdamW(self.wrap(linear)).load_state_dict({})
        with self.assertRaisesRegex(megadp.InvalidError, "group 0 of state_dict has no betas, eps"):
            megadp.torch.ShardedAdamW(self.wrap(linear)).load_state_dict(torch.optim.SGD(linear.parameters(), lr=0.1).state_dict())

    def test_loading_parameters(self):
        """load_state_dict writes into the library's memory; the masters of bfloat16 parameters follow."""
        model = self.wrap(torch.nn.Linear(3, 2, dtype=torch.bfloat16))
        optimizer = megadp.torch.ShardedAdamW(model, lr=0.5, weight_decay=0.0)
        model(torch.ones(4, 3, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        model.load_state_dict({"module.weight": torch.full((2, 3), 8.0), "module.bias": torch.zeros(2)})
        optimizer.zero_grad()
        model(torch.ones(4, 3, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        self.assertEqual(model.module.weight.unique().tolist(), [7.5])


if __name__ == "__main__":
    unittest.main()
