# SPDX-License-Identifier: Apache-2.0
"""PyTorch: DataParallel, whose parameters and gradients live in the library's memory, and ShardedAdamW.

Gradients are taken by post-accumulate hooks while backward goes on. A gradient that autograd has made anew (the first of a step, after
zero_grad) is copied into its slot; what is accumulated later goes into the slot directly, since .grad is a view of it then.
"""
import contextlib
import warnings
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Union

import torch

from ._buffer import Buffer
from ._comm import Comm
from ._errors import MegaDPError, Status, invalid
from ._grid import Grid
from ._optimizer import Group, Optimizer, StepReport
from ._params import Param
from ._tensor import Tensor

_ELEMENTS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def as_tensor(view: Tensor) -> torch.Tensor:
    """A torch tensor on library memory, which it keeps alive."""
    if view.device != "cpu":
        taken: torch.Tensor = torch.from_dlpack(view)
        return taken
    dtype = _ELEMENTS[view.dtype]
    if view.size == 0:
        return torch.empty(view.shape, dtype=dtype)
    return torch.frombuffer(view.memoryview, dtype=dtype).view(view.shape)


class DataParallel(torch.nn.Module):
    """Trains a module on all ranks of a communicator (or of a Grid's data-parallel groups); to be used like the module.

    The parameters' data moves into the library's memory, with rank 0's values on all ranks, and so do module buffers' values, once. Frozen
    parameters (requires_grad False) are broadcast and left alone. param_groups: as torch's optimizers take them, for ShardedAdamW.
    gather_in_forward: each submodule waits for its own parameters as its forward begins, so that those of a step are gathered meanwhile;
    then nothing else may look at parameters between a step and the next forward without wait(). options: those of Buffer.
    A parameter that takes no part in a step (on this rank) is skipped. Collective; blocking. One thread at a time.
    Raises MegaDPError, as Buffer.

    module: what was wrapped. storage: the Buffer.
    """

    def __init__(self, module: torch.nn.Module, where: Union[Comm, Grid], *, param_groups: Optional[Sequence[Dict[str, Any]]] = None,
                 gather_in_forward: bool = False, **options: Any) -> None:
        super().__init__()
        self.module = module
        self.gather_in_forward = gather_in_forward
        named = list(module.named_parameters())
        self.group_options, groups = _read_groups(param_groups, [p for _, p in named if p.requires_grad])
        self.names = [name for name, _ in named]
        self.storage = Buffer(where, [Param(name, tuple(p.shape), p.dtype if p.requires_grad else "f32", group=groups.get(id(p), 0),
                                            frozen=not p.requires_grad) for name, p in named], **options)
        self.trained = {i: p for i, (_, p) in enumerate(named) if p.requires_grad}
        self._last = True         # whether the microbatch whose forward comes next is the step's last
        self._counted = False     # whether this step has several, and the library knows
        self._expected_drop = False
        self._warned = False
        self._arrived = bytearray(len(named))  # in this microbatch
        self._views: Dict[int, Optional[torch.Tensor]] = {}
        self._addresses: Dict[int, int] = {}  # of gradients
        self._places: Dict[int, int] = {}     # of parameters
        self._take_memory()
        self._share_the_rest(where)
        self._hook(module)

    def _take_memory(self) -> None:
        with torch.no_grad():
            for i, p in self.trained.items():
                memory = as_tensor(self.storage.param(i))
                memory.copy_(p.data)
                p.data = memory
                self._places[i] = memory.data_ptr()
                grad = as_tensor(self.storage.grad(i))
                # Torch wants gradients of the parameter's type; where the library keeps wider ones, they are put.
                self._views[i] = grad if grad.dtype == p.dtype else None
                p.grad = self._views[i]
                self._addresses[i] = grad.data_ptr()
        self.storage.changed()
        self.storage.broadcast()

    def _share_the_rest(self, where: Union[Comm, Grid]) -> None:
        comm = where if isinstance(where, Comm) else where.comm("dp-cp")
        frozen = [p.data for p in self.module.parameters() if not p.requires_grad]
        for values in [*frozen, *self.module.buffers()]:
            if values.numel():
                whole = values.detach().contiguous()
                comm.broadcast(whole.view(-1).view(torch.uint8))
                if whole.data_ptr() != values.data_ptr():
                    values.copy_(whole)
        if comm is not where:
            comm.close()

    def _hook(self, module: torch.nn.Module) -> None:
        me = weakref.ref(self)  # a parameter's hooks would keep us, and we keep the parameter

        def on_grad(number: int) -> Callable[[torch.Tensor], None]:
            def arrived(p: torch.Tensor) -> None:
                wrapper = me()
                if wrapper is not None:
                    wrapper._on_grad(number, p)

            return arrived

        numbers = {id(p): i for i, p in self.trained.items()}
        for i, p in self.trained.items():
            p.register_post_accumulate_grad_hook(on_grad(i))
        if not self.gather_in_forward:
            return

        def waiting(own: List[int]) -> Callable[..., None]:
            def before(*_: Any) -> None:
                wrapper = me()
                if wrapper is not None and not wrapper.storage.closed:
                    for i in own:
                        wrapper.storage.wait(i)

            return before

        for part in module.modules():
            own = [numbers[id(p)] for p in part.parameters(recurse=False) if id(p) in numbers]
            if own:
                part.register_forward_pre_hook(waiting(own))

    def _on_grad(self, number: int, p: torch.Tensor) -> None:
        view, grad = self._views[number], p.grad
        stream = torch.cuda.current_stream(p.device).cuda_stream if p.is_cuda else 0
        if view is not None and grad is not None and grad.data_ptr() == self._addresses[number]:
            self.storage.ready(number, stream=stream)
        else:
            if view is not None and not self._expected_drop and not self._warned:
                self._warned = True
                warnings.warn(f"the gradient of {self.names[number]!r} is not the view that DataParallel has given it (zero_grad("
                              "set_to_none=True) on the wrapped module drops views): it is copied. zero_grad of DataParallel or "
                              "ShardedAdamW says beforehand", stacklevel=2)
            self.storage.put(number, grad, stream=stream)
            p.grad = view
        self._arrived[number] = 1

    def forward(self, *arguments: Any, **named: Any) -> Any:
        if torch.is_grad_enabled() and self.training and (not self._last or self._counted):
            self.storage.begin_microbatch(self._last)
            self._counted = True
            self._arrived = bytearray(len(self.names))
        return self.module(*arguments, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Microbatches whose forward and backward lie in this block are not the last of their step: gradients add up, and nothing is
        communicated. The last one lies outside. Local."""
        before, self._last = self._last, False
        try:
            yield
        finally:
            self._last = before

    def sync(self) -> None:
        """Ends backward: skips parameters that no gradient came for, then as Buffer.sync. ShardedAdamW.step calls it. Collective;
        blocking. Raises MegaDPError: INVALID (a parameter's memory was replaced, as .to() and .half() do), STATE, those of a lost comm."""
        for i, p in self.trained.items():
            if p.numel() and p.data_ptr() != self._places[i]:
                raise invalid(f"parameter {self.names[i]!r} has left the library's memory (.to(), .half() or an assignment to .data): "
                              "convert modules before they are wrapped")
            if not self._arrived[i]:
                self.storage.skip(i)
        self.storage.sync()

    def stepped(self) -> None:
        """The gradients have been used up; the next forward begins a step. For optimizers of one's own. Local."""
        self._arrived = bytearray(len(self.names))
        self._counted = False
        self._expected_drop = False

    def wait(self) -> None:
        """Returns when all parameters hold their values after the last step. Local."""
        self.storage.wait()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Gradients begin anew. set_to_none (the quicker way): autograd makes new ones, which are copied into their slots. Local."""
        if set_to_none:
            self._expected_drop = True
            for p in self.trained.values():
                p.grad = None
        else:
            self.storage.zero_grad()
            for i, p in self.trained.items():
                p.grad = self._views[i]

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        self.wait()
        return super().state_dict(*arguments, **named)

    def load_state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Writes parameters, alike on all ranks; the optimizer's masters follow. Local."""
        self.wait()
        found = super().load_state_dict(*arguments, **named)
        self.storage.changed()
        return found


def _read_groups(param_groups: Optional[Sequence[Dict[str, Any]]], trained: List[torch.nn.Parameter]) -> Any:
    """([{options}], {id of a parameter: its group}) of torch's form of parameter groups; parameters that none names go to the first."""
    if not param_groups:
        return [{}], {}
    numbers = {id(p): number for number, group in enumerate(param_groups) for p in group["params"]}
    unknown = set(numbers) - {id(p) for p in trained}
    if unknown:
        raise invalid(f"param_groups holds {len(unknown)} tensors that are not trained parameters of the module")
    options = [{name: value for name, value in group.items() if name != "params"} for group in param_groups]
    strange = {name for group in options for name in group} - {"lr", "weight_decay"}
    if strange:
        raise invalid(f"param_groups sets {', '.join(sorted(strange))}; a group has params, lr and weight_decay of its own")
    return options, numbers


class ShardedAdamW(torch.optim.Optimizer):
    """AdamW on this rank's shard of a DataParallel module's parameters: torch.optim.AdamW's arguments and result, 1/dp of its state.

    max_grad_norm: gradients are scaled down to this global norm (0: off). Learning-rate schedulers work; lr and weight_decay of
    param_groups may change, betas and eps may not. One step count serves all parameters, also those that were skipped in some steps
    (torch counts for each). report: the last step's StepReport. Collective; blocking.
    """

    report: Optional[StepReport]

    def __init__(self, model: DataParallel, lr: float = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
                 *, max_grad_norm: float = 0.0) -> None:
        if not isinstance(model, DataParallel):
            raise invalid(f"model is a {type(model).__name__}; it must be a megadp.torch.DataParallel")
        groups: List[Dict[str, Any]] = [dict(options, params=[]) for options in model.group_options]
        for i, p in model.trained.items():
            groups[model.storage.params[i].group]["params"].append(p)
        super().__init__(groups, dict(lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay))
        self.model = model
        self.report = None
        self._fixed = (tuple(betas), eps)
        self._told = [self._values(group) for group in self.param_groups]
        self._native = Optimizer(model.storage, lr=lr, betas=tuple(betas), eps=eps, max_grad_norm=max_grad_norm, groups=self._told)

    @staticmethod
    def _values(group: Dict[str, Any]) -> Group:
        return Group(float(group["lr"]), float(group["weight_decay"]))

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Agrees on the gradients with all ranks and takes a step. Returns closure's value. Collective; blocking until the parameters are
        whole (with gather_in_forward: until the norm is known).
        Raises MegaDPError: STATE, NUMERIC (a gradient is not finite; nothing has changed), INVALID, those of a lost communicator."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, group in enumerate(self.param_groups):
            if (tuple(group["betas"]), group["eps"]) != self._fixed:
                raise invalid(f"betas and eps of group {number} have changed to {group['betas']}, {group['eps']}; they are fixed at "
                              f"{self._fixed[0]}, {self._fixed[1]}")
            if self._values(group) != self._told[number]:
                self._told[number] = self._values(group)
                self._native.set_group(number, self._told[number])
        self.model.sync()
        stream = next((torch.cuda.current_stream(p.device).cuda_stream for p in self.model.trained.values() if p.is_cuda), 0)
        self.report = self._native.step(wait=not self.model.gather_in_forward, stream=stream)
        self.model.stepped()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As DataParallel.zero_grad. Local."""
        self.model.zero_grad(set_to_none)

    def state_dict(self) -> Dict[str, Any]:  # type: ignore[override]
        """This rank's shard, as copies: for each parameter "exp_avg", "exp_avg_sq" and "master" (float32, what this rank owns of the
        flattened parameter), and "begin", where that begins. Local."""
        begins = {piece.param: piece.param_begin for piece in self.model.storage.owned()}
        position = {id(p): i for i, p in enumerate(p for group in self.param_groups for p in group["params"])}
        state = {}
        for i, p in self.model.trained.items():
            entry: Dict[str, Any] = {name: as_tensor(self._native.state(i, name)).clone() for name in ("exp_avg", "exp_avg_sq", "master")}
            entry["begin"] = begins.get(i, 0)
            state[position[id(p)]] = entry
        groups = [{**{name: value for name, value in group.items() if name != "params"}, "params": [position[id(p)] for p in group["params"]]}
                  for group in self.param_groups]
        return {"state": state, "param_groups": groups, "step": self.report.step if self.report else 0}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:  # type: ignore[override]
        """Refused: the library cannot begin at a step other than the first yet, and moments without their step count would be wrong."""
        raise MegaDPError(Status.UNSUPPORTED, "ShardedAdamW cannot load a state: libmegadp has no call that sets the step count")
