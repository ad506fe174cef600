# SPDX-License-Identifier: Apache-2.0
"""What the sharded optimizers have in common: the library's Optimizer as one of torch's. Their rules are in _torch_rules.py."""
import difflib
import warnings
from contextlib import contextmanager
from operator import is_
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple

import torch

from ._errors import MegaDPError, Status, invalid
from ._grid import Grid
from ._optimizer import Optimizer, StepReport, step_many as step_native
from ._optimizer_config import Rule
from ._param_group import ParamGroup
from ._param_states import ParamStates
from ._torch_placement import placement_of
from ._torch_state import Form, NoState, ShardedState, explained
from ._torch_steps import stream_of

if TYPE_CHECKING:
    from ._torch_scaler import GradScaler
    from .torch import DataParallel

_NO_EFFECT = ("foreach", "fused")  # how torch's go over their tensors
_STORAGE = ("state_dtype", "stochastic_state", "no_master", "seed")  # options of the library's Optimizer
_ARRAYS: Dict[Rule, Tuple[str, ...]] = {"adamw": ("exp_avg", "exp_avg_sq"), "adam": ("exp_avg", "exp_avg_sq"), "sgd": (),
                                          "sgd_momentum": ("momentum_buffer",), "sgd_nesterov": ("momentum_buffer",), "lion": ("exp_avg",)}

# What groups of torch's optimizers may have; what else stands in one, such as a name, or a factor for a scheduler of the script's, is the script's own.
_OF_TORCH = ("lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "amsgrad", "maximize", "alpha", "centered", "rho", "lambd",
             "t0", "etas", "step_sizes", "lr_decay", "initial_accumulator_value", "momentum_decay", "decoupled_weight_decay", "max_grad_norm",
             "capturable", "differentiable", *_NO_EFFECT)


def _is_meant(name: str) -> bool:
    """Whether a group's entry is meant for the optimizer, perhaps misspelt."""
    return name in _OF_TORCH or bool(difflib.get_close_matches(name, _OF_TORCH, 1, 0.8))


class Course(NamedTuple):
    """A step that is under way: who takes it, and where a GradScaler does, what gradients are divided by besides its scale."""

    optimizers: Tuple["ShardedOptimizer", ...]
    scaled: bool = False
    grad_divisor: Optional[float] = None


class ShardedOptimizer(torch.optim.Optimizer):
    """The base of the optimizers over this rank's shard of a DataParallel module's parameters: 1/dp of the state of torch's of that name.

    max_grad_norm: gradients are scaled down to this global norm (0: off); torch.nn.utils.clip_grad_norm_ before the step does the same with
    one more pass. groups: which of DataParallel's param_groups are this optimizer's, by number and one after another; the others are other
    sharded optimizers', and all of them step together by step_many. None: all. As torch's, each parameter has a step count of its own.
    Values of param_groups (lr, betas, momentum ...) may change between steps, as learning-rate schedulers change them. foreach and fused
    are taken and mean nothing; average_decay is Optimizer's, and averaged() puts the averages in the place of the parameters. amsgrad, maximize,
    capturable and differentiable are refused. torch.amp.GradScaler works, and so does megadp.torch.GradScaler, which does not wait for the
    device. state_dtype, stochastic_state, no_master and seed are Optimizer's; state_dict() is float32 all the same, without a master where there
    is none.
    report: the last step's StepReport; None on a GPU with megadp.torch.GradScaler. Collective; blocking. Raises MegaDPError: INVALID, as
    Optimizer.
    """

    report: Optional[StepReport]
    _hyper: Tuple[str, ...]     # what a group has for the library
    _offers: Dict[str, Any]     # options of torch's class that can be had with this value alone
    _counts = True              # torch's state has a step count

    def __init__(self, model: "DataParallel", rule: Rule, values: Dict[str, Any], options: Dict[str, Any], torchs: Dict[str, Any],
                 max_grad_norm: float, groups: Optional[Sequence[int]], arrays: Optional[Tuple[str, ...]] = None,
                 param_states: Optional[ParamStates] = None) -> None:
        """arrays: what rule "caller" keeps; None: what the rule has. param_states: what it keeps of single parameters."""
        name = type(self).__name__
        options = dict(options)
        average_decay = float(options.pop("average_decay", 0.0))
        storage = {option: options.pop(option) for option in _STORAGE if option in options}
        check_model(model)
        for option in options:
            if option not in _NO_EFFECT and option not in self._offers:
                raise invalid(f"{option} is not an option of {name}")
        self._check_offers(options, name)
        numbers = group_numbers(groups, len(model.group_options))
        for number in numbers:
            strange = sorted(name for name in set(model.group_options[number]) - set(self._hyper) if _is_meant(name))
            if strange:
                raise invalid(f"param_groups[{number}] of DataParallel sets {', '.join(strange)}; {name}'s groups have "
                              f"{', '.join(self._hyper)}")
        self._complete = False
        self._no_state = NoState(name)
        self._shown: Optional[Dict[Any, Any]] = None  # to torch's state_dict
        # All that torch's groups have, so that torch's optimizer loads what state_dict gives.
        super().__init__([dict(model.group_options[number], params=model.group_params[number]) for number in numbers],
                         {**torchs, **options, **values})
        self._complete = True
        self.model = model
        self.report = None
        self._arrays, self._first = _ARRAYS[rule] if arrays is None else arrays, numbers[0]
        self._course: Optional[Course] = None
        self._scaler: Optional["GradScaler"] = None
        self._members = [tuple(group["params"]) for group in self.param_groups]
        self._told = [self._values(group, f"param_groups[{number}]") for number, group in enumerate(self.param_groups)]
        own = self._values(values, name)
        self._native = Optimizer(model.storage, rule=rule, lr=own.lr, betas=own.betas, eps=own.eps, momentum=own.momentum,
                                 max_grad_norm=max_grad_norm, param_groups=self._told,
                                 first_param_group=None if groups is None else self._first, state=arrays or (),
                                 average_decay=average_decay, param_states=param_states, **storage)
        mine = {id(p) for group in self.param_groups for p in group["params"]}
        form = Form(self._torch_name(), self._arrays, self._arrays_of, self._counts, not storage.get("no_master", False),
                    self._as_torch)
        self._sharded = ShardedState(model, self._native, {i: p for i, p in model.trained.items() if id(p) in mine}, form)
        self._collected: Optional[Tuple[Optional[int], Any]] = None  # by consolidate_state_dict: the rank that has it (None: all), and what is there

    def _check_offers(self, group: Dict[str, Any], what: str) -> None:
        for name, offered in self._offers.items():
            if group.get(name, offered) not in (offered, None):
                raise invalid(f"{what} has {name}={group[name]!r}; {type(self).__name__} offers {name}={offered!r} only")

    def _values(self, group: Dict[str, Any], what: str) -> ParamGroup:
        """What the library is told of a group. Raises MegaDPError: INVALID."""
        lacking = [name for name in self._hyper if name not in group]
        if lacking:
            raise invalid(f"{what} has no {', '.join(lacking)}; {type(self).__name__}'s groups have {', '.join(self._hyper)}")
        self._check_offers(group, what)
        found = {name: float(group[name]) for name in self._hyper if name != "betas"}
        return ParamGroup(betas=tuple(map(float, group["betas"])) if "betas" in self._hyper else None, **found)  # type: ignore[arg-type]

    def _before_saving(self) -> None:
        """Arrays are to be what torch has."""

    def _taken(self, entries: Optional[Mapping[int, Mapping[str, Any]]]) -> None:
        """State and groups have come. entries: torch's, by a parameter's number, of those that have one; None: from a checkpoint."""

    def _arrays_of(self, p: torch.Tensor) -> Tuple[str, ...]:
        """What torch keeps of a parameter that has taken part in a step."""
        return self._arrays

    def _as_torch(self, p: torch.Tensor, name: str, values: torch.Tensor) -> Any:
        """What torch has under this name, of which these are the values."""
        return values

    def _torch_name(self) -> str:
        return type(self).__name__.replace("Sharded", "")

    @property
    def state(self) -> Any:  # type: ignore[override, unused-ignore]
        return self._no_state if self._shown is None else self._shown

    @state.setter
    def state(self, value: Any) -> None:
        if self._complete:
            self._no_state.refuse()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise MegaDPError(Status.UNSUPPORTED, f"{type(self).__name__} cannot be pickled or copied (torch.save, copy.deepcopy), since each rank keeps its "
                          "shard of the state: save state_dict(), called on all ranks, or call megadp.torch.save_checkpoint")

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Refused once the optimizer is there: memory and shards are laid out when a module is wrapped."""
        if self._complete:
            raise MegaDPError(Status.UNSUPPORTED, f"add_param_group() of {type(self).__name__} is not offered: parameters are registered when "
                              "the module is wrapped. Wrap all of them (those to be trained later with register_frozen=True, or freeze them "
                              "after wrapping), and give groups as param_groups of DataParallel")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override, unused-ignore]
        """Agrees on the gradients with all ranks and takes a step. Parameters that no rank has a gradient for stay as they are. Returns
        closure's value. Collective; blocking until the parameters are whole (with gather_in_forward: until the norm is known).
        Raises MegaDPError: STATE, NUMERIC (a gradient is not finite; nothing has changed), INVALID, those of a lost communicator."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        course = self._course or Course((self,))
        if self._scaler is not None and not course.scaled:
            raise MegaDPError(Status.STATE, f"step() of a {type(self).__name__} whose losses a megadp.torch.GradScaler scales: call "
                              "scaler.step(optimizer)")
        later = course.optimizers[course.optimizers.index(self) + 1:]
        if later:  # so that all of their hooks run, and schedulers see a step of each
            later[0].step()
        else:
            _take(course)
        return loss

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """As a context manager: in it the parameters are their averages, as torch.optim.swa_utils.AveragedModel keeps them, without a second
        model. They begin as the parameters are before the first step. state_dict has none of them, save_checkpoint has. In it the model is
        for evaluation: gradients, steps, checkpoints and writes of parameters are refused. Collective at both ends; blocking.
        Raises MegaDPError: STATE (no average_decay), INVALID (a parameter has left the library's memory), those of a lost communicator."""
        self.model.registered.check()
        self._sharded.settle()
        on_gpu = next((p for p in self.model.trained.values() if p.is_cuda), None)
        with self._native.averaged(stream=0 if on_gpu is None else stream_of(on_gpu)):
            yield

    def _tell(self) -> None:
        """What has changed since the last step."""
        self._check_members()
        for number, group in enumerate(self.param_groups):
            values = self._values(group, f"param_groups[{number}]")
            if values != self._told[number]:
                self._native.set_param_group(self._first + number, values)
                self._changed(group, self._told[number], values)
                self._told[number] = values
        self._sharded.settle()
        self._collected = None

    def _check_members(self) -> None:
        if len(self.param_groups) != len(self._members):
            raise invalid(f"param_groups has {len(self.param_groups)} groups; {type(self).__name__} was made with {len(self._members)}, which "
                          "stay: lr=0.0 and weight_decay=0.0, or requires_grad_(False), leave parameters as they are")
        for number, (group, members) in enumerate(zip(self.param_groups, self._members)):
            if len(group["params"]) != len(members) or not all(map(is_, group["params"], members)):
                raise invalid(f"param_groups[{number}]['params'] has other parameters ({len(group['params'])}) than when {type(self).__name__} was "
                              f"made ({len(members)}), which stay: requires_grad_(False) leaves a parameter as it is, and groups are given as "
                              "param_groups of DataParallel")

    def _changed(self, group: Dict[str, Any], before: ParamGroup, now: ParamGroup) -> None:
        """A group's values are others than in the last step."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As DataParallel.zero_grad, of all parameters of the model. Local."""
        self.model.zero_grad(set_to_none)

    def state_dict(self) -> Dict[str, Any]:  # type: ignore[override, unused-ignore]
        """What the state_dict of torch's optimizer is after the same steps, whole and the same on all ranks, in copies on the CPU, float32;
        of a parameter of less than 32 bits also its fp32 "master"; nothing of parameters that were frozen when the module was wrapped. So `state = optimizer.state_dict()` on all ranks, and torch.save on one; with
        tensor-parallel ranks on one of each: it is of this one's parts, says so ("tensor_parallel"), and those of another are refused.
        With sharding="zero_0" or one rank local; otherwise collective and blocking, unless consolidate_state_dict was called
        before. Raises MegaDPError: STATE (collected on another rank), those of a lost communicator (TIMEOUT, if not all ranks call it)."""
        if self._collected is None:
            state = self._collect(None)
        else:
            rank, state = self._collected
            if state is None and self.model.gradients.whole:  # each rank keeps all, so this waits for no other
                state = self._collect(None)
            if state is None:
                raise MegaDPError(Status.STATE, f"state_dict() on rank {self.model._comm.rank}: consolidate_state_dict(to={rank}) has "
                                  f"collected the state on rank {rank}; call it there, or have it on all ranks by consolidate_state_dict() "
                                  "without to, or without calling that")
        self._shown = state
        try:
            found: Dict[str, Any] = super().state_dict()
        finally:
            self._shown = None
        return found if self._part() is None else {**found, "tensor_parallel": self._part()}

    def _part(self) -> Optional[Tuple[int, int]]:
        """This rank and how many there are, where what they keep is cut over tensor-parallel ranks."""
        where = self.model._where
        index, size = where.coords("tp") if isinstance(where, Grid) else (0, 1)
        return (index, size) if any(placement_of(p) == "sharded" for p in self._sharded.params.values()) and size > 1 else None

    def consolidate_state_dict(self, to: Optional[int] = None) -> None:
        """Collects the state; until the next step state_dict() is local. to: on this rank alone, which has memory for it, and state_dict()
        elsewhere is an error (with sharding="zero_0" it is local everywhere). None: on all ranks, in memory of each. As of
        torch.distributed.optim.ZeroRedundancyOptimizer, whose None is rank 0: trainers call it without to, and where they know nothing of the
        other ranks, each takes itself for the first and saves. Collective; blocking. Raises MegaDPError: INVALID, those of a lost communicator."""
        if to is not None and not (isinstance(to, int) and 0 <= to < self.model._comm.size):
            raise invalid(f"to is {to!r}; it must be a rank, from 0 to {self.model._comm.size - 1}, or None for all of them")
        self._collected = None
        self._collected = (to, self._collect(to))

    def _collect(self, rank: Optional[int]) -> Any:
        def collect() -> Any:
            self._before_saving()
            return self._sharded.collect(rank)

        try:
            # What a script's get_extra_state() collects is its own.
            return self.model._alone("state_dict()", collect, ("save_checkpoint()", "load_checkpoint()"))
        except MegaDPError as error:
            raise explained(error, f". state_dict() of {type(self).__name__} collects what all ranks keep: call it on all of them, and "
                            "torch.save on one") from None

    @torch.no_grad()
    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:  # type: ignore[override, unused-ignore]
        """Goes on from what state_dict gave, with any number of ranks and any sharding, or from that of torch's optimizer. Takes over the
        values of groups as well, as torch does. The model may be loaded before or after, up to the next step: a master that does not round
        to its parameter then follows it, with a warning; one that was not saved, or not as float32, follows too. To be called alike on all
        ranks. Local. Raises MegaDPError: INVALID (what does not fit; then nothing has changed)."""
        for hook in getattr(self, "_optimizer_load_state_dict_pre_hooks", {}).values():
            state_dict = hook(self, state_dict) or state_dict
        groups, params = self._groups_of(state_dict)
        of, own = state_dict.get("tensor_parallel"), self._part()
        if of is not None and (own is None or tuple(of) != own):
            here = "there are no parts" if own is None else f"this is rank {own[0]} of {own[1]}"
            raise invalid(f"state_dict is that of rank {of[0]} of {of[1]} tensor-parallel ranks, and here {here}: each loads what it has saved, or "
                          "all use save_checkpoint and load_checkpoint, which cut anew")
        number_of = {id(p): i for i, p in self._sharded.params.items()}
        saved = zip((number for group in groups for number in group["params"]), params)
        # torch has no state of a parameter before its first step, and none of a frozen one
        entries = {number_of[id(p)]: state_dict["state"].get(number, {}) for number, p in saved if id(p) in number_of}
        self._sharded.load(entries)
        self._take_groups(groups)
        self._taken(entries)
        self._collected = None
        for hook in getattr(self, "_optimizer_load_state_dict_post_hooks", {}).values():
            hook(self)

    def _take_groups(self, groups: List[Dict[str, Any]]) -> None:
        """Takes over the values of saved groups (lr, weight_decay, what schedulers keep there), beside state that came with them. Local."""
        for number, (group, values) in enumerate(zip(self.param_groups, groups)):
            group.update({name: value for name, value in values.items() if name != "params"})
            if "betas" in group:
                group["betas"] = tuple(group["betas"])
            self._told[number] = self._values(group, f"param_groups[{number}]")
            self._native.set_param_group(self._first + number, self._told[number])

    def _loaded(self, groups: Optional[List[Dict[str, Any]]]) -> None:
        """State has come from a checkpoint, with the saved groups' values; None: it begins anew, with those that are here. Local."""
        if groups is not None:
            self._take_groups(groups)
        self._sharded.forget()
        self._taken(None)
        self._collected = None

    def _groups_of(self, state_dict: Dict[str, Any]) -> Tuple[List[Dict[str, Any]], List[torch.Tensor]]:
        """The groups, and the parameters that theirs are, in order."""
        if not isinstance(state_dict, dict) or "state" not in state_dict or "param_groups" not in state_dict:
            raise invalid(f"state_dict has {sorted(state_dict)}; an optimizer's has 'state' and 'param_groups'")
        groups = state_dict["param_groups"]
        self.check_groups(groups, "state_dict")
        sizes, mine = ([len(group["params"]) for group in each] for each in (groups, self.param_groups))
        every: List[torch.Tensor] = list(self.model.module.parameters())
        whole = len(mine) == 1 == len(self.model.group_options)
        if sizes != mine and whole and sizes == [len(every)]:  # torch.optim.AdamW(model.parameters()) has the frozen ones too
            return groups, every
        if sizes != mine:
            raise invalid(f"state_dict has parameter groups of {sizes} parameters; this optimizer has {mine}, of those that are trained")
        return groups, [p for group in self.param_groups for p in group["params"]]

    def check_groups(self, groups: List[Dict[str, Any]], what: str) -> None:
        """That this optimizer can go on with the values of saved groups. Raises MegaDPError: INVALID."""
        for number, group in enumerate(groups):
            self._values(group, f"group {number} of {what}")


def check_model(model: Any) -> None:
    if not hasattr(model, "group_options"):
        raise invalid(f"model is a {type(model).__name__}; it must be a megadp.torch.DataParallel (not its parameters(); groups of "
                      "parameters are given to DataParallel as param_groups)")


def group_numbers(groups: Optional[Sequence[int]], count: int) -> List[int]:
    if groups is None:
        return list(range(count))
    numbers = list(groups)
    if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))) or not 0 <= numbers[0] <= count - len(numbers):
        raise invalid(f"groups is {numbers}; it must be numbers of DataParallel's param_groups, one after another, from 0 to {count - 1}")
    return numbers


def _take(course: Course) -> None:
    """The library's step of all of them."""
    course.optimizers[0].model._alone("step()", lambda: _take_alone(course))


def _take_alone(course: Course) -> None:
    model = course.optimizers[0].model
    used = model.gradients.left_over()
    if used is not None:
        warnings.warn(f"step() with gradients that the last step has used up, of {model.names[used]!r} say: it changes nothing, while torch's "
                      "would apply them again. Call backward() before each step(), and optimizer.zero_grad() after it", stacklevel=5)
    for each in course.optimizers:
        each._tell()
    model._end_backward(needed=not course.scaled)
    on_gpu = next((p for p in model.trained.values() if p.is_cuda), None)
    stream = 0 if on_gpu is None else stream_of(on_gpu)
    report = on_gpu is None or not course.scaled  # it waits for a GPU
    natives = [each._native for each in course.optimizers]
    wait = not model.gather_in_forward
    try:
        if len(natives) == 1:
            found = natives[0].step(grad_divisor=course.grad_divisor, report=report, wait=wait, stream=stream)
        else:
            found = step_native(natives, grad_divisor=course.grad_divisor, report=report, wait=wait, stream=stream)
    except MegaDPError as error:
        error.text = error.text.replace("mdp_optimizer_step_many", "megadp.torch.step_many([a, b, ...])")
        error.args = (error.args[0], error.text, *error.args[2:])
        raise model.gradients.explained(error) from None
    for each in course.optimizers:
        each.report = found
    model._stepped()


def run_course(course: Course, closure: Optional[Callable[[], Any]] = None) -> Any:
    """step() of each, of which the last takes the step. Returns closure's value."""
    for each in course.optimizers:
        each._course = course
    try:
        return course.optimizers[0].step(closure)
    finally:
        for each in course.optimizers:
            each._course = None


def check_course(optimizers: Any) -> Tuple[ShardedOptimizer, ...]:
    """Those of one model, each once. Raises MegaDPError: INVALID."""
    listed = tuple(optimizers)
    if not listed:
        raise invalid("optimizers is empty; give all that have parameters of the model")
    for number, each in enumerate(listed):
        if not isinstance(each, ShardedOptimizer):
            raise invalid(f"optimizers[{number}] is a {type(each).__name__}; it must be a sharded optimizer of megadp.torch")
        if each.model is not listed[0].model:
            raise invalid(f"optimizers[{number}] is of another model than optimizers[0]")
        if each in listed[:number]:
            raise invalid(f"optimizers[{number}] is optimizers[{listed.index(each)}] again")
    return listed


def step_many(optimizers: Sequence[ShardedOptimizer], closure: Optional[Callable[[], Any]] = None) -> Any:
    """One step of all sharded optimizers of a model, each made with groups=: as step() of one that has all parameters, with one norm over
    all of them. They have the same max_grad_norm. Hooks run, and schedulers count, as if each had been stepped. Returns closure's value.
    Collective, with the same list; blocking as step(). Raises MegaDPError: INVALID (a parameter that none or two of them have), as step()."""
    return run_course(Course(check_course(optimizers)), closure)
