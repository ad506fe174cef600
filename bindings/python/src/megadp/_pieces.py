# SPDX-License-Identifier: Apache-2.0
"""Updates of the caller's: what this rank owns of a parameter, handed to a function of his, or one after another to a loop."""
import ctypes
import functools
import importlib.util
import types
from typing import TYPE_CHECKING, Any, Callable, Dict, Generator, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import _dlpack, _raw
from ._dtypes import BY_CODE
from ._errors import MegaDPError, Status, invalid
from ._handles import Handle, Lease, keep
from ._library import lib, sized
from ._param_states import ParamState
from ._tensor import Tensor, _count, _struct
from ._waiting import run

if TYPE_CHECKING:
    from ._optimizer import StepReport

_F32 = BY_CODE[_raw.MDP_DTYPE_F32]


class Place(NamedTuple):
    """Whose pieces these are: the optimizer, the names of its arrays, the DLPack device of its memory, the parameters' shapes, what it
    keeps of some of them besides, and the Update that was set last, for as long as the optimizer is there."""

    handle: Handle
    kept: List[Any]
    arrays: Tuple[str, ...]
    device: Tuple[int, int]
    shapes: Tuple[Tuple[int, ...], ...]
    param_states: Mapping[str, Mapping[int, ParamState]]


class _Arrays(Dict[str, Any]):
    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self or value is not self[name]:
            raise TypeError(f"{name!r} of a Piece's state is memory to be written into: piece.state[{name!r}][:] = ...")


class Piece:
    """What this rank owns of one parameter, for the caller's update of it in one step. Read-only; usable until the update function returns,
    or the next piece is asked for, and STATE after that. Views taken meanwhile keep their memory valid for as long as they live, but the
    gradient's is the next bucket's then.

    optimizer: its number in the list of step_many, 0 for step. param: the parameter's number. param_begin, count: which elements of the
    flattened parameter. shape: the parameter's, if this is all of it, as with sharding "whole" or "zero_0"; None of a part. step: of the parameter, 1 in its first. lr, beta1, beta2, betas, eps, weight_decay, momentum: of its group, in
    this step. stream: the one the step was given, 0 for the default; on a device the update's work belongs on it.
    """

    def __init__(self, update: "_raw.mdp_update", place: Place, lease: Lease) -> None:
        self.optimizer: int = update.optimizer
        self.param: int = update.param
        self.param_begin: int = update.param_begin
        self.count: int = update.count
        self.step: int = update.step
        self.lr: float = update.lr
        self.beta1: float = update.beta1
        self.beta2: float = update.beta2
        self.betas: Tuple[float, float] = (update.beta1, update.beta2)
        self.eps: float = update.eps
        self.weight_decay: float = update.weight_decay
        self.momentum: float = update.momentum
        self.stream: int = update.stream or 0
        shape = place.shapes[self.param]
        self.shape: Optional[Tuple[int, ...]] = shape if self.count == _count(shape) else None
        self._device = place.device
        self._lease: Optional[Lease] = lease
        self._data = {"master": ctypes.cast(update.master, ctypes.c_void_p).value, "grad": ctypes.cast(update.grad, ctypes.c_void_p).value}
        self._names = place.arrays
        for number, name in enumerate(place.arrays):
            self._data[name] = ctypes.cast(update.state[number], ctypes.c_void_p).value
        self._kept = {name: (ctypes.cast(update.param_states[number], ctypes.c_void_p).value, of[self.param])
                      for number, (name, of) in enumerate(place.param_states.items()) if self.param in of}
        self._views: Dict[str, Any] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("master", "grad"):
            if value is not self._views.get(name):  # what `piece.master -= ...` assigns is the view itself
                raise AttributeError(f"{name} of a Piece is memory to be written into: piece.{name}[:] = ...")
        elif not name.startswith("_") and name in self.__dict__:
            raise AttributeError(f"{name} of a Piece is read-only")
        else:
            super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"Piece(param={self.param}, param_begin={self.param_begin}, count={self.count}, step={self.step})"

    @property
    def master(self) -> Any:
        """To be updated in place: float32, one dimension, a numpy array; a Tensor on a device, or where numpy is not installed."""
        return self._view("master", False)

    @property
    def grad(self) -> Any:
        """The gradient, divided and clipped, as master is. To be read only."""
        return self._view("grad", True)

    @property
    def state(self) -> Dict[str, Any]:
        """By the names that the optimizer was given; each as master is, zero at first, to be updated in place."""
        return _Arrays((name, self._view(name, False)) for name in self._names)

    @property
    def param_states(self) -> Dict[str, Any]:
        """What the optimizer's param_states gives this parameter, by name: of the shape and dtype that it says, zero at first, to be updated in
        place; numpy arrays or Tensors, as master is."""
        return _Arrays((name, self._view(name, False)) for name in self._kept)

    def shaped(self, name: str = "master") -> Any:
        """"master", "grad" or a state array in the shape of the parameter, on the same memory. Local.
        Raises MegaDPError: INVALID (name; this is a part of the parameter), STATE (too late)."""
        if name not in self._data:
            raise invalid(f"name is {name!r}; a piece has {', '.join(self._data)}")
        if self.shape is None:
            raise invalid(f"{self!r} is a part of its parameter, which has no shape; register the parameter, or the Buffer, with "
                          "sharding=\"whole\"")
        return self._view(name, name == "grad").reshape(self.shape) if self._shows_arrays() else self._tensor(name, name == "grad", self.shape)

    def tensor(self, name: str) -> Tensor:
        """"master", "grad" or a state array as a Tensor, wherever it lies. Local. Raises MegaDPError: INVALID (name), STATE (too late)."""
        if name not in self._data and name not in self._kept:
            raise invalid(f"name is {name!r}; a piece has {', '.join([*self._data, *self._kept])}")
        return self._tensor(name, name == "grad")

    def _tensor(self, name: str, readonly: bool, shape: Optional[Tuple[int, ...]] = None) -> Tensor:
        if self._lease is None:
            raise MegaDPError(Status.STATE, f"{self!r} is used after its update: a piece is usable until the update function returns, or the "
                              "next piece is asked for")
        if name in self._kept:
            address, kept = self._kept[name]
            return Tensor(_struct(kept.dtype, self._device, address or 0, kept.shape, None), self._lease, readonly)
        return Tensor(_struct(_F32, self._device, self._data[name] or 0, (self.count,) if shape is None else shape, None), self._lease, readonly)

    def _shows_arrays(self) -> bool:
        return self._device[0] == _dlpack.CPU and _has_numpy()

    def _view(self, name: str, readonly: bool) -> Any:
        tensor = self._tensor(name, readonly)
        if name not in self._views:
            self._views[name] = tensor.numpy() if self._shows_arrays() else tensor
        return self._views[name]

    def _end(self) -> None:
        self._lease = None
        self._views.clear()


@functools.lru_cache(None)
def _has_numpy() -> bool:
    return importlib.util.find_spec("numpy") is not None


UpdateFunction = Callable[[Piece], Any]

# No exception may get into ctypes (see _Asked in _waiting.py): on the way to the caller's function there is only C, and a generator that
# goes on inside a `try`. What the library hands back as `user` is the generator.
_send = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.py_object, ctypes.c_void_p)(types.GeneratorType.send)
_call = ctypes.cast(_send, _raw.mdp_update_fn)


def _updates(function: UpdateFunction, place: Place, raised: List[BaseException]) -> Generator[int, Optional[int], None]:
    """Is sent the address of an mdp_update, and answers 0, or 1 where the function has raised."""
    answer = 0
    while True:
        try:
            while True:
                address = yield answer
                piece = Piece(_raw.mdp_update.from_address(address or 0), place, place.handle.lend())
                try:
                    function(piece)
                finally:
                    piece._end()
                answer = 0
        except GeneratorExit:
            return
        except BaseException as error:
            answer = 1
            raised.append(error)


class Update:
    """An optimizer's update function, as the library calls it."""

    def __init__(self, function: UpdateFunction, place: Place) -> None:
        self.raised: List[BaseException] = []  # in the step under way
        self.generator = _updates(function, place, self.raised)
        next(self.generator)


def set_update(function: UpdateFunction, place: Place) -> None:
    update = Update(function, place)
    keep(place.kept, update, lambda: place.handle.call(lib.mdp_optimizer_set_update, _call, ctypes.c_void_p(id(update.generator))))


def calling(places: Sequence[Place], step: Callable[[], Any]) -> Any:
    """step(), in which these optimizers' functions may be called. What one of them raises comes out, with the library's error as its cause."""
    updates: List[Update] = [update for place in places for update in place.kept]
    for each in updates:
        each.raised.clear()
    try:
        return step()
    except MegaDPError as error:
        raised = next((each.raised.pop() for each in updates if each.raised), None)
        if raised is None:
            raise
        failure = error
    if raised.__cause__ is None and raised.__context__ is None:  # its own says more
        raised.__cause__ = failure
    raise raised


def _fail(leases: List[Lease]) -> None:
    """Ends a step whose begin or end a signal's handler has interrupted: nobody else would, and the other ranks wait for it."""
    try:
        run(lambda: leases[0].call(lib.mdp_optimizer_step_finish, 1, None, None))
    except MegaDPError:  # it was not begun, or has ended
        pass


class Pieces:
    """The pieces of one step, to be updated in a loop: see Optimizer.pieces. report: the step's StepReport, once the block has ended."""

    report: "Optional[StepReport]"

    def __init__(self, places: Sequence[Place], config: Any, read_report: Callable[[Any], "StepReport"]) -> None:
        self.report = None
        self._places, self._config, self._read_report = places, config, read_report
        self._leases: List[Lease] = []  # close() in the block leaves the step its optimizers
        self._piece: Optional[Piece] = None

    def __enter__(self) -> "Pieces":
        if self._leases or self.report is not None:
            raise MegaDPError(Status.STATE, "these pieces are those of a step that was begun before; each step has its own, of pieces()")
        leases = [place.handle.lend() for place in self._places]
        pointers = [place.handle.call(lambda pointer: pointer) for place in self._places]
        kinds = ctypes.POINTER(_raw.mdp_optimizer) * len(pointers)
        self._leases = leases
        try:
            run(lambda: lib.mdp_optimizer_step_begin(kinds(*pointers), len(pointers), ctypes.byref(self._config)))
        except BaseException as error:
            self._leases = []
            if not isinstance(error, MegaDPError):
                _fail(leases)
            raise
        return self

    def __iter__(self) -> Iterator[Piece]:
        while True:
            self._end_piece()
            if not self._leases:
                raise MegaDPError(Status.STATE, "pieces are handed out in a `with` block of pieces(), and this one is not entered or has ended")
            update = sized(_raw.mdp_update)
            run(lambda: self._leases[0].call(lib.mdp_optimizer_step_next, ctypes.byref(update)))
            if update.count == 0:
                return
            self._piece = Piece(update, self._places[update.optimizer], self._leases[update.optimizer])
            yield self._piece

    def _end_piece(self) -> None:
        if self._piece is not None:
            self._piece._end()
            self._piece = None

    def __exit__(self, kind: Optional[type], error: Optional[BaseException], traceback: Any) -> None:
        leases = self._leases
        try:
            self._end_piece()
            self._leases, report = [], sized(_raw.mdp_step_report)
            run(lambda: leases[0].call(lib.mdp_optimizer_step_finish, int(error is not None), ctypes.byref(report), None))
        except MegaDPError:
            if error is None:
                raise
            return  # what the block has raised goes on
        except BaseException:
            _fail(leases)
            raise
        if error is None:
            self.report = self._read_report(report)
