# SPDX-License-Identifier: Apache-2.0
"""Sharded optimizers."""
import ctypes
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Literal, Optional, Sequence, Tuple

from . import _raw
from ._buffer import Buffer, Which
from ._comm import c_text, whole
from ._errors import MegaDPError, invalid
from ._handles import Closable, inside
from ._library import lib, sized, text_of
from ._optimizer_config import Rule, optimizer_config, state_names
from ._param_group import ParamGroup, divisor, native_group, optional
from ._param_states import ParamStates, read_param_states
from ._pieces import Pieces, Place, UpdateFunction, calling, set_update
from ._scaler import Scaler, native_scaler, scaler_from
from ._tensor import Tensor, _struct
from ._waiting import run, wait_for


@dataclass(frozen=True)
class StepReport:
    """What a step did. grad_norm: the optimizer's norm of the whole gradient over all ranks, divided, before clipping. clip_factor: 1 where it was not
    clipped. step: steps taken so far, skipped ones not counted. skipped: a gradient was not finite, so nothing was changed. unchecked: as
    it was asked for, and grad_norm is nan."""

    grad_norm: float
    clip_factor: float
    loss_scale: float
    step: int
    skipped: bool
    clipped: bool
    unchecked: bool = False


class Optimizer(Closable):
    """Updates what this rank owns by a rule, from fp32 masters and the rule's state, which is zero at first.

    rule: "adamw" or "adam" (state exp_avg and exp_avg_sq), "sgd" (none), "sgd_momentum" or "sgd_nesterov" (momentum_buffer), "lion"
    (exp_avg), "caller" (arrays of the names that `state` lists, at most 4; set_update and pieces say how it updates). weight_decay is L2 regularization in adam and sgd, decoupled in adamw and lion. lr (None: 1e-3, lion 1e-4), betas (None: 0.9,
    0.999, lion 0.9, 0.99; adamw, adam, lion), eps (None: 1e-8; adamw, adam), momentum (None: 0.9; sgd_momentum, sgd_nesterov),
    max_grad_norm (0: no clipping) by norm ("l2" or "inf"), max_grad_value (each element, last; 0: no clipping), param_groups: for Params
    that name one; what a ParamGroup leaves out is the optimizer's. A number that is given is meant, also 0.
    first_param_group: the number of param_groups[0], the others follow (none: one group); parameters of other groups are other
    optimizers', and all of them step together by step_many. None: this one has all parameters, in groups from 0 on.
    average_decay: the optimizer keeps an exponential moving average of the parameters, with this decay, such as 0.999 (0: none): averaged.
    state_dtype: "f32" or "bf16", of what the rule keeps; with stochastic_state rounded stochastically, not to nearest. no_master: bf16
    parameters have no fp32 masters and are rounded stochastically. seed: of that rounding; its bits are the same on any number of ranks. None
    of them goes with "caller".
    param_states: what "caller" keeps besides of whole parameters, of any size: {name: {parameter: (shape, dtype)}}, at most 4 names; typed
    views of the owner's memory are in Piece.param_states and come from state. Parameters that are cut over the ranks have none.
    check_update: to debug "caller": behind each piece come copies of its two halves; a step that makes anything else of them is INVALID.
    Collective over the world, with equal arguments; blocking.
    Raises MegaDPError: INVALID (a value, one that the rule has not, a parameter's group), DESYNC, STATE, MEMORY, those of a lost communicator.
    """

    def __init__(self, buffer: Buffer, *, rule: Rule = "adamw", lr: Optional[float] = None, betas: Optional[Tuple[float, float]] = None,
                 eps: Optional[float] = None, weight_decay: float = 0.0, momentum: Optional[float] = None, max_grad_norm: float = 0.0,
                 max_grad_value: float = 0.0, norm: Literal["l2", "inf"] = "l2", param_groups: Sequence[ParamGroup] = (),
                 first_param_group: Optional[int] = None, state: Sequence[str] = (), average_decay: float = 0.0,
                 state_dtype: Literal["f32", "bf16"] = "f32", stochastic_state: bool = False, no_master: bool = False, seed: int = 0,
                 param_states: Optional[ParamStates] = None, check_update: bool = False) -> None:
        arrays = state_names(state)
        kept = read_param_states(param_states or {}, buffer._number)
        config = optimizer_config(arrays, kept, len(buffer), rule=rule, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
                                  momentum=momentum, max_grad_norm=max_grad_norm, max_grad_value=max_grad_value, norm=norm,
                                  param_groups=param_groups, first_param_group=first_param_group, average_decay=average_decay,
                                  state_dtype=state_dtype, stochastic_state=stochastic_state, no_master=no_master, seed=seed,
                                  check_update=check_update)
        self._buffer = buffer
        self._scales = False  # by a scaler
        self._own(buffer._tree.make(buffer._handle, lib.mdp_optimizer_create, _raw.mdp_optimizer, lib.mdp_optimizer_destroy,
                                    ctypes.byref(config)), lib.mdp_optimizer_destroy)
        self._place = Place(self._handle, self._shared.kept, arrays, buffer._device, tuple(param.shape for param in buffer.params), kept)

    def set_param_group(self, group: int, value: ParamGroup) -> None:
        """Replaces the values of one parameter group from the next step on; to be called alike on all ranks. group: its number, as Params
        name it. Local. Raises MegaDPError: INVALID."""
        self._call(lib.mdp_optimizer_set_param_group, whole(group, "group", 0, 2**63), ctypes.byref(native_group(value, "value")))

    def set_scaler(self, scaler: Optional[Scaler]) -> None:
        """Gives the optimizer a loss scaler, or with None takes it away. Steps then divide gradients by its scale and are skipped where one
        is not finite, and the scale follows that, on the device: no step waits for the host. Waits for the last step. Collective over the
        world, with equal values; blocking. Raises MegaDPError: INVALID, DESYNC, those of a lost communicator."""
        given = None if scaler is None else ctypes.byref(native_scaler(scaler))
        self._buffer._tree.run(self._handle, lib.mdp_optimizer_set_scaler, given)
        self._scales = scaler is not None

    def scaler(self) -> Scaler:
        """The scaler as the last step has left it, which is waited for. Local. Raises MegaDPError: STATE (none; forked child), those of a
        lost communicator."""
        found: Scaler = run(lambda: scaler_from(lambda out: self._call(lib.mdp_optimizer_scaler, out)))
        return found

    def scale(self) -> Tensor:
        """Where the scaler's scale lies: one float32 in the device's memory, by which losses are multiplied; to be read in the order of the
        stream that steps are given, not written. Valid as long as the Tensor. Local. Raises MegaDPError: STATE (no scaler; forked child)."""
        out = sized(_raw.mdp_tensor)
        lease = self._handle.lend()
        self._call(lib.mdp_optimizer_scale, ctypes.byref(out))
        return Tensor(out, lease)

    def step(self, lr: Optional[float] = None, loss_scale: Optional[float] = None, *, grad_divisor: Optional[float] = None,
             unchecked: bool = False, report: bool = True, wait: bool = True, stream: int = 0) -> Optional[StepReport]:
        """Takes one step: Buffer.sync where it was not called, then the update. lr: from this step on. loss_scale: gradients are divided by
        it, and a non-finite one makes all ranks skip the step, as with a scaler, beside which it is refused; without either, that is
        NUMERIC on all ranks. Either way nothing has changed. grad_divisor: they are divided by it too, such as the number of microbatches.
        unchecked: no norm is computed, and what is not finite spreads; INVALID with clipping, a loss_scale or scaler, the rule "caller". On
        one node, with overlap=False and unless Buffer.sync came before, on all ranks or none, gradients are then reduced, parameters
        updated and gathered in one pass over memory.

        wait=True returns when all parameters are whole. wait=False returns while they are still gathered, as soon as the report is known
        (with report=False as soon as gradients are reduced); Buffer.wait then waits for one or all of them. Collective over the world.
        Raises MegaDPError: INVALID, STATE (as Buffer.sync, or that has failed before), NUMERIC, those of a lost communicator."""
        config = _step_config(loss_scale, grad_divisor, stream, lr, unchecked)
        found: Optional[StepReport] = calling([self._place], lambda: _take(self, lib.mdp_optimizer_step, config, report, wait))
        return found

    def set_update(self, update: UpdateFunction) -> None:
        """The update of rule "caller": steps call update(piece) on their own thread, once for each Piece that this rank owns of a
        parameter, unless the step is skipped. In it only requests, errors and ranks may be asked for (STATE). Parameters are rounded and
        gathered when all ranks' functions have returned. What one raises comes out of the step there, and the step is ABORTED on the other
        ranks, with the parameter and the rank: masters and state may have changed, and steps are STATE until a checkpoint is loaded or
        set_steps called. On a device each such step waits for the norm. Local. Raises MegaDPError: INVALID, STATE (another rule)."""
        if not callable(update):
            raise invalid(f"update is {update!r}; it must be a function of a Piece")
        set_update(update, self._place)

    def pieces(self, lr: Optional[float] = None, loss_scale: Optional[float] = None, *, grad_divisor: Optional[float] = None,
               stream: int = 0) -> Pieces:
        """A step of rule "caller" without a function, as a context manager over its pieces; blocks as step(wait=True):

            with optimizer.pieces() as pieces:
                for piece in pieces:
                    piece.master -= piece.lr * piece.grad
            pieces.report

        The block may call collectives, but not change gradients or begin another step (STATE). If it raises, on any rank, or a signal's
        handler where it begins or ends, the step fails on all, as set_update says, and that error goes on; to leave pieces out is STATE.
        Collective over the world. Entering it raises what step does, leaving it MegaDPError: ABORTED, STATE, those of a lost communicator."""
        config = _step_config(loss_scale, grad_divisor, stream, lr)
        return Pieces([self._place], config, _report)

    def swap_average(self, *, wait: bool = True, stream: int = 0) -> None:
        """Puts the averages in the place of the optimizer's parameters, rounded, on all ranks; or, called again, what was there before, bit
        for bit. Meanwhile gradients, steps, checkpoints, "master" and writes of parameters are STATE in all of the buffer. wait as in step.
        averaged does both. Collective over the world. Raises MegaDPError: STATE (no average_decay; another optimizer's averages are there; a
        step is under way), those of a lost communicator."""
        if wait or not self._buffer._on_host:
            self._buffer._tree.run(self._handle, lib.mdp_optimizer_swap_average, stream or None, None)
        else:
            run(lambda: wait_for(self._call, lib.mdp_optimizer_swap_average, stream or None))

    @contextmanager
    def averaged(self, *, stream: int = 0) -> Iterator[None]:
        """As a context manager: in it the parameters are their averages, for evaluation. Collective over the world at both ends; blocking.
        Raises what swap_average does; an error of the block itself goes on.

            with optimizer.averaged():
                evaluate()
        """
        self.swap_average(stream=stream)
        try:
            yield
        except BaseException:
            try:
                self.swap_average(stream=stream)
            except MegaDPError:  # the communicator is lost, which is mostly what the block has raised
                pass
            raise
        self.swap_average(stream=stream)

    def steps(self, param: Which) -> int:
        """How many steps the parameter has taken part in; not counted are skipped ones, and those for which all ranks had skipped it. Waits
        for the last step. Local. Raises MegaDPError: INVALID, STATE (frozen; forked child), those of a lost communicator."""
        number = self._buffer._number(param)
        count = ctypes.c_uint64()
        run(lambda: self._call(lib.mdp_optimizer_steps, number, ctypes.byref(count)))
        return count.value

    def set_steps(self, taken: int, steps: Optional[Sequence[int]] = None) -> None:
        """Goes on as after `taken` steps, from which reports count on, and of which parameter p has taken part in steps[p] (None: each in
        all). With what state lends, to restore what was saved; to be called alike on all ranks. Waits for the last step. Local.
        Raises MegaDPError: INVALID, STATE (forked child), those of a lost communicator."""
        number = whole(taken, "taken", 0, 2**64)
        if steps is None:
            run(lambda: self._call(lib.mdp_optimizer_set_steps, number, None, 0))
            return
        listed = [whole(each, f"steps[{p}]", 0, 2**64) for p, each in enumerate(steps)]
        counts = (ctypes.c_uint64 * len(listed))(*listed)
        run(lambda: self._call(lib.mdp_optimizer_set_steps, number, counts, len(listed)))

    def info(self) -> Dict[str, Any]:
        """The rule, its values, param_groups, steps taken, and the arrays that state lends: the fields of mdp_optimizer_info. Waits for the
        last step. Local. Raises MegaDPError: STATE (forked child), those of a lost communicator."""
        found: Dict[str, Any] = run(lambda: text_of(lambda *text: self._call(lib.mdp_optimizer_info, *text)))
        return found

    def state(self, param: Which, name: str) -> Tensor:
        """The owned slice of one parameter's "master" (none with no_master), its "average" with average_decay, or of what the rule keeps
        ("exp_avg", "exp_avg_sq", "momentum_buffer", a name of your own rule's `state`): float32, or as state_dtype says, one dimension, empty
        where this rank owns nothing of it; Range.param_begin says where it begins. Of param_states it has the shape and dtype given. May be
        written between steps and before
        the first; a master holds what is written into it until its parameter is written again. Waits for the last step. Local.
        Raises MegaDPError: INVALID, STATE (frozen; forked child), those of a lost communicator."""
        number = self._buffer._number(param)
        out = sized(_raw.mdp_tensor)
        lease = self._handle.lend()
        run(lambda: self._call(lib.mdp_optimizer_state, number, c_text(name, "name"), ctypes.byref(out)))
        kept = self._place.param_states.get(name, {}).get(number)
        if kept is None:
            return Tensor(out, lease)
        owned = out.shape[0] > 0
        return Tensor(_struct(kept.dtype, (out.device_type, out.device_id), out.data or 0, kept.shape if owned else (0,), None), lease)


def step_many(optimizers: Sequence[Optimizer], loss_scale: Optional[float] = None, *, grad_divisor: Optional[float] = None,
              unchecked: bool = False, report: bool = True, wait: bool = True, stream: int = 0) -> Optional[StepReport]:
    """One step of several optimizers of one buffer, each made with first_param_group, which have all trained parameters between them: one
    sync, one norm and one report, and all of them skip it or none. They clip alike; only the first may have a scaler, which is all
    theirs. Learning rates are set by set_param_group. Collective over the world, with the same list. All else as Optimizer.step.
    Raises MegaDPError: INVALID (a parameter that none or two of them have), STATE, NUMERIC, those of a lost communicator."""
    listed = _checked(optimizers)
    handles = [each._handle for each in listed]

    def call(_: Any, *arguments: Any) -> Any:
        kinds = ctypes.POINTER(_raw.mdp_optimizer) * len(handles)
        return inside(handles, lambda *pointers: lib.mdp_optimizer_step_many(kinds(*pointers), len(pointers), *arguments))

    config = _step_config(loss_scale, grad_divisor, stream, unchecked=unchecked)
    found: Optional[StepReport] = calling([each._place for each in listed], lambda: _take(listed[0], call, config, report, wait))
    return found


def pieces_many(optimizers: Sequence[Optimizer], loss_scale: Optional[float] = None, *, grad_divisor: Optional[float] = None,
                stream: int = 0) -> Pieces:
    """step_many as Optimizer.pieces: the pieces of those whose rule is "caller", in the order of the list; the others are updated by the
    library at the end. Collective over the world, with the same list. Raises MegaDPError: as both."""
    return Pieces([each._place for each in _checked(optimizers)], _step_config(loss_scale, grad_divisor, stream), _report)


def _checked(optimizers: Sequence[Optimizer]) -> List[Optimizer]:
    listed = list(optimizers)
    if not listed:
        raise invalid("optimizers is empty; give all of the buffer's")
    for number, each in enumerate(listed):
        if not isinstance(each, Optimizer):
            raise invalid(f"optimizers[{number}] is a {type(each).__name__}; it must be a megadp.Optimizer")
    return listed


def _step_config(loss_scale: Optional[float], grad_divisor: Optional[float], stream: int, lr: Optional[float] = None,
                 unchecked: bool = False) -> Any:
    return sized(_raw.mdp_step_config, loss_scale=divisor(loss_scale, "loss_scale"), grad_divisor=divisor(grad_divisor, "grad_divisor"),
                 stream=stream or None, lr=optional(lr, "lr"), flags=(0 if lr is None else _raw.MDP_STEP_SET_LR) | (_raw.MDP_STEP_UNCHECKED if unchecked else 0))


def _take(optimizer: Optimizer, function: Any, config: Any, report: bool, wait: bool) -> Optional[StepReport]:
    found = sized(_raw.mdp_step_report) if report else None
    arguments = (function, ctypes.byref(config), None if found is None else ctypes.byref(found))
    if wait or not optimizer._buffer._on_host:
        optimizer._buffer._tree.run(optimizer._handle, *arguments, None)
    else:  # comes back when gradients are reduced, or the norm is known, for which it needs the other ranks
        run(lambda: wait_for(optimizer._call, *arguments))
    return None if found is None else _report(found)


def _report(found: Any) -> StepReport:
    return StepReport(found.grad_norm, found.clip_factor, found.loss_scale, found.step,
                      bool(found.flags & _raw.MDP_STEPPED_SKIPPED), bool(found.flags & _raw.MDP_STEPPED_CLIPPED),
                      bool(found.flags & _raw.MDP_STEPPED_UNCHECKED))
