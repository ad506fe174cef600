# SPDX-License-Identifier: Apache-2.0
"""Waiting for parameters as the forward goes on, wherever they are used.

A module waits for its own parameters before its forward. But a weight may also be used without that: by another module
(F.linear(x, self.a.weight)), by a function that is given it (MultiheadAttention and its out_proj), by the caller. So between a step and
its first use a parameter is of a class of its own, whose __torch_function__ waits; from then on it is what it was, and costs nothing.
"""
import sys
from typing import Any, Dict, List, Optional, Tuple

import torch

from ._buffer import Buffer
from ._errors import MegaDPError, Status
from ._library import lib
from ._torch_eager import eager
from ._torch_steps import stream_of
from ._waiting import run

_AT_ONCE = frozenset(("grad", "requires_grad", "shape", "dtype", "device", "is_cuda", "is_cpu", "ndim", "is_leaf", "_backward_hooks"))
_GATHERING = "_megadp_gathering"  # of a parameter that is awaited: the model may be gone before its module is used


class AwaitedParameter(torch.nn.Parameter):
    """A parameter whose new values may not be whole yet. What looks at them waits first."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None) -> Any:
        if getattr(func, "__name__", "") in ("__get__", "__set__") and getattr(func.__self__, "__name__", "") in _AT_ONCE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        _wait_for_all_in((args, kwargs))
        return func(*args, **(kwargs or {}))

    def detach(self) -> Any:
        _wait_for_all_in(self)
        if sys._getframe(1).f_code is torch.nn.Parameter.__new__.__code__:
            # Parameter(weight) wants from detach() what it was given, which is a Parameter by now. Of one, it would have made this itself.
            return torch.Tensor._make_subclass(torch.nn.Parameter, self, False)  # type: ignore[attr-defined, unused-ignore]
        return self.detach()

    def __deepcopy__(self, memo: Any) -> Any:
        _wait_for_all_in(self)
        return self.__deepcopy__(memo)  # which is the original class's now

    def __reduce_ex__(self, protocol: Any) -> Any:
        _wait_for_all_in(self)
        return self.__reduce_ex__(protocol)

    def __hash__(self) -> int:
        return id(self)


def _end_waiting(p: torch.nn.Parameter) -> None:
    p.__class__ = torch.nn.Parameter
    p.__dict__.pop(_GATHERING, None)


@eager
def _wait_for(p: torch.nn.Parameter) -> None:
    gathering = p.__dict__.get(_GATHERING)
    if gathering is not None:
        gathering.wait(p)
    else:  # another thread has waited
        _end_waiting(p)


def _wait_for_all_in(value: Any) -> None:
    if type(value) is AwaitedParameter:
        _wait_for(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _wait_for_all_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            _wait_for_all_in(item)


class _Hook:
    __name__ = "megadp_before"  # which torch.jit asks for

    @property
    def __globals__(self) -> Any:  # and this, where it is to compile the hook
        raise MegaDPError(Status.UNSUPPORTED, "torch.jit.script cannot compile the hooks that gather_in_forward=True has put on the module: give it "
                          "copy.deepcopy(model).module, where model is the DataParallel; such a copy has none")


class _Before(_Hook):
    """A module's forward hook; copies and files of the module get one that does nothing, which an Unwrapped takes away."""

    def __init__(self, own: List[torch.nn.Parameter]) -> None:
        self._own = own

    def __call__(self, *_: Any) -> None:
        for p in self._own:
            if type(p) is AwaitedParameter:
                _wait_for(p)

    def __reduce__(self) -> Any:
        return _nothing_to_wait_for, ()


class _Nothing(_Hook):
    def __call__(self, *_: Any) -> None:
        pass


def _nothing_to_wait_for() -> _Nothing:
    return _Nothing()


def remove_idle_hooks(module: torch.nn.Module) -> None:
    for part in module.modules():
        for number in [number for number, hook in part._forward_pre_hooks.items() if type(hook) is _Nothing]:
            del part._forward_pre_hooks[number]


class Gathering:
    """Which parameters have been waited for since the last step. params: by number. viewed: those that may be used by a view of them, too."""

    def __init__(self, storage: Buffer, module: torch.nn.Module, params: Dict[int, torch.nn.Parameter], viewed: List[torch.nn.Parameter]) -> None:
        self._storage, self._params = storage, params
        self._lease = storage._handle.lend()  # a closed Buffer's gathers go on
        self._numbers = {id(p): i for i, p in params.items()}
        # Compiled code does not come through __torch_function__, and a class of its own would be compiled for anew.
        self._compiled = any(isinstance(part, torch.jit.ScriptModule) or type(part).__name__ == "OptimizedModule" or
                             getattr(part, "_compiled_call_impl", None) is not None for part in module.modules())
        apart = set(map(id, viewed))
        self._plain = {i: type(p) is torch.nn.Parameter and not self._compiled and id(p) not in apart for i, p in params.items()}
        for part in module.modules() if not self._compiled else ():
            own = [p for p in part.parameters(recurse=False) if id(p) in self._numbers]
            if own:
                part.register_forward_pre_hook(_Before(own))

    def stepped(self) -> None:
        """New values are on their way. Those of parameters that cannot be awaited are waited for here."""
        for i, p in self._params.items():
            if self._plain[i]:
                p.__dict__[_GATHERING] = self
                p.__class__ = AwaitedParameter
            else:  # nothing would say when it is used
                self._storage.wait(i, stream=stream_of(p))

    def wait(self, p: torch.nn.Parameter) -> None:
        """It stays awaited while this waits, for other threads, and where a signal's handler raises."""
        number, stream = self._numbers[id(p)], stream_of(p)
        try:
            if self._storage.closed:
                run(lambda: self._lease.call(lib.mdp_param_wait, number, stream or None))
            else:
                self._storage.wait(number, stream=stream)
        except MegaDPError:  # is told once: what is there may be saved
            _end_waiting(p)
            raise
        _end_waiting(p)

    def waited(self) -> None:
        for p in self._params.values():
            if p.__dict__.get(_GATHERING) is self:
                _end_waiting(p)
