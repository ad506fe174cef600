# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch's, or of one's own for torch, over shards: their step is taken on the flat pieces that this rank owns, and what they
keep of an element is the library's. That is right where each element goes its own way, which is tried out before."""
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, List, NamedTuple, NoReturn, Optional, Sequence, Tuple, Type

import torch

from ._errors import MegaDPError, invalid
from ._param_group import ParamGroup
from ._pieces import Piece
from ._torch_optimizer import ShardedOptimizer
from ._torch_steps import as_tensor

if TYPE_CHECKING:
    from .torch import DataParallel

# Why these cannot be had on pieces of parameters, by their names in torch and elsewhere.
_REFUSED = {
    "ASGD": "it keeps 'eta' and 'mu', numbers of a whole parameter",
    "Adafactor": "it factors the second moment by the rows and columns of a matrix",
    "LAMB": "its trust ratio goes by the norm of a whole parameter",
    "LARS": "its trust ratio goes by the norm of a whole parameter",
    "LBFGS": "it searches along a line through all parameters, and calls the closure several times a step",
    "Muon": "it orthogonalizes whole matrices",
    "NAdam": "it keeps 'mu_product', a number of a whole parameter",
    "Shampoo": "it preconditions by the rows and columns of a matrix",
    "SOAP": "it preconditions by the rows and columns of a matrix",
    "SparseAdam": "it takes sparse gradients, and the library's are dense",
}
_OFFERS = {"capturable": False, "differentiable": False, "fused": False}
_STEPS = 4  # that are tried out


class Kept(NamedTuple):
    """What a class keeps of a parameter: arrays of its shape, and how it counts steps (None: it does not)."""

    arrays: Tuple[str, ...]
    step: Any


class Elements:
    """The step of torch's optimizers of one class, on pieces. kind: the class. given: the arguments that it is made with."""

    def __init__(self, kind: Type[torch.optim.Optimizer], given: Dict[str, Any]) -> None:
        self.kind, self._given = kind, given
        self.defaults = dict(self.make([torch.zeros(1)]).defaults)
        self._inner: Optional[torch.optim.Optimizer] = None
        self._kept: Dict[FrozenSet[str], Kept] = {}

    def make(self, params: List[Any]) -> torch.optim.Optimizer:
        try:
            return self.kind(params, **self._given)
        except (TypeError, ValueError) as error:
            raise invalid(f"torch's {self.kind.__name__} cannot be made with {self._given or 'no arguments'}: {error}") from error

    def refuse(self, why: str) -> NoReturn:
        raise invalid(f"kind is {self.kind.__name__}, whose step cannot be taken on pieces of parameters: {why}")

    def kept(self, values: Dict[str, Any]) -> Kept:
        """What the class keeps with a group's values, which is tried out once for each set of them that are not 0 or off."""
        values = {name: value for name, value in values.items() if name != "params"}
        on = frozenset(name for name, value in values.items() if value)
        if on not in self._kept:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):  # a class that draws random numbers leaves the script's alone
                self._kept[on] = self._try({**values, "lr": max(float(values.get("lr") or 0), 1e-2)})  # with which it can be seen to move
        return self._kept[on]

    def update(self, values: Dict[str, Any], kept: Kept, master: torch.Tensor, grad: torch.Tensor, arrays: Dict[str, torch.Tensor],
               step: int) -> None:
        """Step number `step` of a piece, of which arrays are all that the class is told and keeps. The first makes them, as the class does."""
        group = {**values, "params": [master]}
        master.grad = grad
        if step == 1:
            optimizer = self.make([group])
        else:
            if self._inner is None:
                self._inner = self.make([torch.zeros(1)])
            optimizer = self._inner
            optimizer.param_groups = [group]
            optimizer.state.clear()
            optimizer.state[master] = dict(arrays)
            if isinstance(kept.step, torch.Tensor):
                optimizer.state[master]["step"] = torch.full_like(kept.step, step - 1)
            elif kept.step is not None:
                optimizer.state[master]["step"] = type(kept.step)(step - 1)
        optimizer.step()
        found = optimizer.state.get(master, {})
        for name, array in arrays.items():
            if name in found and found[name] is not array:
                array.copy_(found[name])
        optimizer.state.clear()
        optimizer.param_groups = []
        master.grad = None

    def _try(self, values: Dict[str, Any]) -> Kept:
        """Some steps of a matrix, and of it in two pieces, which must come to the same."""
        generator = torch.Generator().manual_seed(1)
        start = torch.randn(6, 11, generator=generator)
        sizes = torch.tensor([100.0, 30, 1, 1, 0.03, 0.01])[:, None]  # so that norms of pieces are others than that of the whole
        grads = [sizes * torch.randn(6, 11, generator=generator) for _ in range(_STEPS)]
        whole = start.clone()
        optimizer = self.make([{**values, "params": [whole]}])
        for number, grad in enumerate(grads, 1):
            whole.grad = grad.clone()
            try:
                optimizer.step()
            except (RuntimeError, TypeError, ValueError) as error:
                self.refuse(str(error))
            count = optimizer.state.get(whole, {}).get("step", number)
            if float(count) != number:
                self.refuse(f"its 'step' is {count} after {number} steps")
        kept = self._read(whole, optimizer.state.get(whole, {}))
        self._compare(whole, optimizer.state.get(whole, {}), kept, values, start, grads)
        return kept

    def _read(self, whole: torch.Tensor, state: Dict[str, Any]) -> Kept:
        arrays = []
        for name, value in state.items():
            if name == "step" or value is None:
                continue
            if not isinstance(value, torch.Tensor) or value.shape != whole.shape or value.dtype != torch.float32:
                what = f"{tuple(value.shape)}, {value.dtype}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
                self.refuse(f"it keeps {name!r} ({what}) of a parameter of shape {tuple(whole.shape)}, and only float32 of that shape can be cut")
            arrays.append(name)
        return Kept(tuple(arrays), state.get("step"))

    def _compare(self, whole: torch.Tensor, state: Dict[str, Any], kept: Kept, values: Dict[str, Any], start: torch.Tensor,
                 grads: List[torch.Tensor]) -> None:
        cut = 25
        for begin, end in ((0, cut), (cut, start.numel())):
            master = start.view(-1)[begin:end].clone()
            arrays = {name: torch.zeros_like(master) for name in kept.arrays}
            for number, grad in enumerate(grads, 1):
                try:
                    self.update(values, kept, master, grad.view(-1)[begin:end].clone(), arrays, number)
                except (MegaDPError, RuntimeError, TypeError, ValueError, KeyError) as error:
                    self.refuse(f"{type(error).__name__}: {error}")
            for name, found, expected in [("parameter", master, whole), *((name, arrays[name], state[name]) for name in kept.arrays)]:
                if not torch.allclose(found, expected.reshape(-1)[begin:end], rtol=1e-5, atol=1e-7, equal_nan=True):
                    self.refuse(f"after {_STEPS} steps the {name} is not the same where it is cut in two")


def _refuse_known(kind: Any) -> None:
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise invalid(f"kind is {kind!r}; it must be a class of torch.optim, or one made like them")
    if kind.__name__ in _REFUSED:
        raise invalid(f"kind is {kind.__name__}, whose step cannot be taken on pieces of parameters: {_REFUSED[kind.__name__]}")


def check_elementwise(kind: Type[torch.optim.Optimizer], **values: Any) -> Tuple[str, ...]:
    """Tries out whether a torch optimizer's step can be taken on pieces: some steps of a matrix, made with `values`, beside those of the same
    matrix cut in two. Returns the names of the arrays that it keeps. What only happens later, or with other numbers, is not seen. Local.
    Raises MegaDPError: INVALID, which says what stands against it."""
    _refuse_known(kind)
    elements = Elements(kind, values)
    return elements.kept(elements.defaults).arrays


class ShardedElementwise(ShardedOptimizer):
    """An optimizer of torch's (kind: its class) whose update is element-wise, over this rank's shard of a DataParallel module's parameters:
    RMSprop, Adagrad, Adadelta, Adamax, RAdam, Rprop, Adam with amsgrad, or one of your own.

        optimizer = megadp.torch.ShardedElementwise(model, torch.optim.RMSprop, lr=1e-2, momentum=0.9)

    values: its arguments, but params. Its step is taken on the pieces that this rank owns, fp32 masters, one after another; what it keeps of
    an element, at most 4 float32 arrays, is the library's, so that checkpoints have it and state_dict() is torch's. Others (LBFGS,
    Adafactor, Muon, LAMB, NAdam ...) are refused by name, or by what check_elementwise finds, which is tried here. A step that fails on one
    rank fails on all; load a checkpoint then. All else is as ShardedOptimizer says. Raises MegaDPError: INVALID, as Optimizer.
    """

    _offers = _OFFERS

    def __init__(self, model: "DataParallel", kind: Type[torch.optim.Optimizer], *, max_grad_norm: float = 0.0,
                 groups: Optional[Sequence[int]] = None, average_decay: float = 0.0, **values: Any) -> None:
        _refuse_known(kind)
        self._elements = elements = Elements(kind, values)
        self._hyper = tuple(elements.defaults)
        self._check_offers(elements.defaults, kind.__name__)
        kept = [elements.kept({**elements.defaults, **options}) for options in [{}, *getattr(model, "group_options", [])]]
        self._counts = kept[0].step is not None
        arrays = tuple(dict.fromkeys(name for each in kept for name in each.arrays))
        super().__init__(model, "caller", elements.defaults, {"average_decay": average_decay}, {}, max_grad_norm, groups, arrays)
        of_param = {number: group for group in self.param_groups for number, p in self._sharded.params.items()
                    if any(p is each for each in group["params"])}

        def update(piece: Piece) -> None:
            group = {name: value for name, value in of_param[piece.param].items() if name != "params"}
            known = elements.kept(group)
            taken = {name: as_tensor(piece._tensor(name, False)) for name in ("master", "grad", *known.arrays)}
            elements.update(group, known, taken.pop("master"), taken.pop("grad"), taken, piece.step)

        self._native.set_update(update)

    def _torch_name(self) -> str:
        return self._elements.kind.__name__

    def _values(self, group: Dict[str, Any], what: str) -> ParamGroup:
        lacking = [name for name in self._hyper if name not in group]
        if lacking:
            raise invalid(f"{what} has no {', '.join(lacking)}; {self._torch_name()}'s groups have {', '.join(self._hyper)}")
        self._check_offers(group, what)
        if self._complete:
            more = [name for name in self._elements.kept(group).arrays if name not in self._arrays]
            if more:
                raise invalid(f"{what} has values with which {self._torch_name()} keeps {', '.join(more)}, and it was made with such that it "
                              "does not: make it with values that need them")
        return ParamGroup(lr=float(group["lr"])) if "lr" in group else ParamGroup()

    def _arrays_of(self, p: torch.Tensor) -> Tuple[str, ...]:
        group = next(group for group in self.param_groups if any(each is p for each in group["params"]))
        return self._elements.kept(group).arrays
