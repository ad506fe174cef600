# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch's, or of one's own for torch, over shards: their step is taken on the flat pieces that this rank owns, and what they
keep of an element is the library's. That is right where each element goes its own way, which is tried out before. Of others whole parameters
are stepped (_torch_whole.py)."""
import math
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, List, NoReturn, Optional, Sequence, Set, Tuple, Type

import torch

from ._buffer import Which
from ._errors import MegaDPError, invalid
from ._param_group import ParamGroup
from ._pieces import Piece
from ._torch_optimizer import ShardedOptimizer, check_model, group_numbers
from ._torch_steps import as_tensor
from ._torch_update import CLOSE, SAYS_UNSHARDED, STEPS, Kept, Stepping, tried_with
from ._torch_whole import ACROSS, Whole
from ._whole import MOST, OWNED_WHOLE, SAYS_WHOLE, Keeps, arrange, check_uncut

if TYPE_CHECKING:
    from .torch import DataParallel

# Why these cannot be had on pieces of parameters, by their names in torch and elsewhere.
_REFUSED = {
    "ASGD": "it keeps 'eta' and 'mu', numbers of a whole parameter",
    "AdamP": "it projects by the angle between a whole parameter and its gradient",
    "Adafactor": "it factors the second moment by the rows and columns of a matrix",
    "LAMB": "its trust ratio goes by the norm of a whole parameter",
    "LARS": "its trust ratio goes by the norm of a whole parameter",
    "Muon": "it orthogonalizes whole matrices",
    "NAdam": "it keeps 'mu_product', a number of a whole parameter",
    "SGDP": "it projects by the angle between a whole parameter and its gradient",
    "Shampoo": "it preconditions by the rows and columns of a matrix",
    "SOAP": "it preconditions by the rows and columns of a matrix",
}
_MOST = 2**15 - 1  # elements of what is tried out: torch takes more on several threads, each of which rounds its last ones as it likes
_OFFERS = {"capturable": False, "differentiable": False, "fused": False}


class Elements(Stepping):
    """The step of torch's optimizers of one class, on pieces."""

    def __init__(self, kind: Type[torch.optim.Optimizer], given: Dict[str, Any]) -> None:
        if kind.__name__ in _REFUSED:
            _refuse(kind, _REFUSED[kind.__name__])
        super().__init__(kind, given)
        self._kept: Dict[FrozenSet[str], Kept] = {}
        self._tried: Set[Tuple[FrozenSet[str], Tuple[int, ...]]] = set()

    def refuse(self, why: str, anywhere: bool = False) -> NoReturn:
        _refuse(self.kind, why, anywhere)

    def kept(self, values: Dict[str, Any], shape: Optional[Tuple[int, ...]] = None) -> Kept:
        values = {name: value for name, value in values.items() if name != "params"}
        on = frozenset(name for name, value in tried_with(values).items() if value)  # a rate of 0, as schedules begin and end, is tried too
        if on in self._kept and (shape is None or 0 in shape or (on, shape) in self._tried):
            return self._kept[on]
        # A class that draws random numbers leaves the script's alone, and the script's default device leaves the class on the CPU.
        with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
            if on not in self._kept:
                sizes = torch.tensor([100.0, 30, 1, 1, 0.03, 0.01], dtype=torch.float32)[:, None]  # so that norms of pieces are others than that of the whole
                self._kept[on] = self._try(tried_with(values), (6, 11), sizes, CLOSE)
            if shape is not None and 0 not in shape and (on, shape) not in self._tried:
                self._try_shape(tried_with(values), self._kept[on], shape, on)
                self._tried.add((on, shape))
        return self._kept[on]

    def _try_shape(self, values: Dict[str, Any], kept: Kept, shape: Tuple[int, ...], on: FrozenSet[str]) -> None:
        """That a class does to a parameter of this shape what it does to a small matrix: it may go by sizes, and by how many there are. Tried with as
        many elements as take no time; in their full number without memory, to see what is kept."""
        less = list(shape)
        while math.prod(less) > _MOST:
            longest = less.index(max(less))
            less[longest] = (less[longest] + 1) // 2
        if (on, tuple(less)) not in self._tried:
            sizes = torch.logspace(1, -1, math.prod(less), dtype=torch.float32).view(less)
            self._same_names(kept, set(self._try(values, tuple(less), sizes, dict(rtol=1e-5, atol=1e-5)).entries), shape)
            self._tried.add((on, tuple(less)))
        if less == list(shape):
            return
        like = torch.zeros(shape, dtype=torch.float32, device="meta")
        like.grad = torch.zeros_like(like)
        optimizer: Optional[torch.optim.Optimizer] = None
        try:
            optimizer = self.make_trial(values, [like])
            optimizer.step()
        except Exception:  # it reads values: what it has made until then counts
            pass
        state = {} if optimizer is None else optimizer.state.get(like, {})
        self._same_names(kept, {*kept.entries, *self._read(like, state).entries}, shape)

    def _same_names(self, kept: Kept, found: Set[str], shape: Tuple[int, ...]) -> None:
        if set(kept.entries) != found:
            what, small = (", ".join(map(repr, sorted(each))) or "nothing" for each in (found, kept.entries))
            self.refuse(f"it keeps {what} of a parameter of shape {shape}, and {small} of a small matrix")

    def _try(self, values: Dict[str, Any], shape: Tuple[int, ...], sizes: torch.Tensor, close: Dict[str, float]) -> Kept:
        """Some steps of a parameter, and of it in two pieces, which must come to the same."""
        generator = torch.Generator("cpu").manual_seed(1)
        # Of masters' type, whatever the script's default type is.
        start = torch.randn(shape, generator=generator, dtype=torch.float32)
        grads = [[sizes * torch.randn(shape, generator=generator, dtype=torch.float32)] for _ in range(STEPS)]
        whole = start.clone()
        optimizer = self.make_trial(values, [whole])
        changed = self.steps(optimizer, [whole], grads)
        state = optimizer.state.get(whole, {})
        kept = self._read(whole, state)
        self.check_beside(values, changed, [start], grads, optimizer)
        cut = start.numel() * 25 // 66
        if start.numel() > 256:
            cut -= cut % 64  # so that what a processor takes together is the same in both
        for part in (slice(0, cut), slice(cut, None)):
            if start.view(-1)[part].numel() == 0:
                continue
            of_part = {name: entry._replace(shape=tuple(whole.view(-1)[part].shape)) for name, entry in kept.entries.items()}
            expected = {name: values.reshape(-1)[part] for name, values in (("parameter", whole), *((name, state[name]) for name in of_part))}
            self.repeat(values, Kept(of_part, kept.step), start.view(-1)[part].clone(), [grad.view(-1)[part] for grad, in grads], expected,
                        "it is cut in two" if shape == (6, 11) else f"one of shape {shape} is cut in two", close)
        return kept

    def _read(self, whole: torch.Tensor, state: Dict[str, Any]) -> Kept:
        kept = self.entries(whole, state)
        for name, entry in kept.entries.items():
            if entry.number is not None or entry.shape != whole.shape or entry.dtype != torch.float32:
                what = f"{entry.shape}, {entry.dtype}" if entry.number is None else f"a {entry.number.__name__}"
                self.refuse(f"it keeps {name!r} ({what}) of a parameter of shape {tuple(whole.shape)}, and only float32 of that shape can be cut")
        return kept


def _refuse(kind: Any, why: str, anywhere: bool = False) -> NoReturn:
    raise invalid(f"kind is {kind.__name__}, whose step cannot be taken on pieces of parameters: {why}. {SAYS_UNSHARDED if anywhere else SAYS_WHOLE}")


def _refuse_known(kind: Any) -> None:
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise invalid(f"kind is {kind!r}; it must be a class of torch.optim, or one made like them")
    for each in kind.__mro__:
        if each.__name__ in ACROSS:
            raise invalid(f"kind is {kind.__name__}, whose step cannot be taken on shards: {ACROSS[each.__name__]}")


def check_elementwise(kind: Type[torch.optim.Optimizer], **values: Any) -> Tuple[str, ...]:
    """Tries out whether a torch optimizer's step can be taken on pieces: some steps of a matrix, made with `values`, beside those of the same
    matrix cut in two. Returns the names of the arrays that it keeps. What only happens later, with other numbers or with other shapes (which
    ShardedElementwise tries), is not seen. Local.
    Raises MegaDPError: INVALID, which says what stands against it."""
    _refuse_known(kind)
    elements = Elements(kind, values)
    return tuple(elements.kept(elements.defaults).entries)


class ShardedElementwise(ShardedOptimizer):
    """An optimizer of torch's (kind: its class) over this rank's shard of a DataParallel module's parameters: RMSprop, Adagrad, Adadelta,
    Adamax, RAdam, Rprop, Adam with amsgrad, or one of your own, whose update is element-wise.

        optimizer = megadp.torch.ShardedElementwise(model, torch.optim.RMSprop, lr=1e-2, momentum=0.9)

    values: its arguments, but params. Its step is taken on the pieces that this rank owns, fp32 masters, one after another; what it keeps of
    an element, at most 4 float32 arrays, is the library's, so that checkpoints have it and state_dict() is torch's.
    With DataParallel(..., sharding="whole") (or "zero_0") a class may also go by all of a parameter (Muon, Adafactor, LAMB, LARS, NAdam ...):
    its owner steps it in its shape, and what is kept of it, numbers and tensors of any shape, is its owner's, at most 4 names besides. Not of
    parameters that tensor-parallel ranks have in parts. Without it such a class is refused by name, or by what check_elementwise finds, which
    is tried here, at sizes like those of the parameters; and so is always what goes by several parameters at once (LBFGS), which is tried here
    too, and what goes by something that it keeps in its groups or in itself. What it begins to keep or to change later fails the step in which
    it does.
    A step that fails on one rank fails on all; load a checkpoint then. All else is as ShardedOptimizer says.
    Raises MegaDPError: INVALID, as Optimizer.
    """

    _offers = _OFFERS

    def __init__(self, model: "DataParallel", kind: Type[torch.optim.Optimizer], *, max_grad_norm: float = 0.0,
                 groups: Optional[Sequence[int]] = None, average_decay: float = 0.0, **values: Any) -> None:
        _refuse_known(kind)
        check_model(model)
        numbers = group_numbers(groups, len(model.group_options))
        group_of = {id(p): number for number in numbers for p in model.group_params[number]}
        numbered = {i: p for i, p in model.trained.items() if id(p) in group_of}
        self._shapes = {id(p): model.storage.params[i].shape for i, p in numbered.items()}
        self._check_offers(Stepping(kind, values).defaults, kind.__name__)  # before it is tried with them
        tried = {i: (model.group_options[group_of[id(p)]], self._shapes[id(p)]) for i, p in numbered.items()}
        self._elements, by_elements = _stepping(model, kind, values, list(tried.values()))
        elements = self._elements
        self._hyper = tuple(elements.defaults)
        made = {i: elements.kept({**elements.defaults, **options}, shape) for i, (options, shape) in tried.items()}
        self._counts = any(each.step is not None for each in made.values())
        arrays, states = self._arranged(model, made, by_elements)
        super().__init__(model, "caller", elements.defaults, {"average_decay": average_decay}, {}, max_grad_norm, groups, arrays, states)
        whole = model._sharding in OWNED_WHOLE  # then a class sees parameters as they are, also one that has been found to go by elements
        number_of = {i: group_of[id(p)] - numbers[0] for i, p in numbered.items()}
        self._stepped_with: List[Dict[str, Any]] = []
        groups = self._stepped_with  # not self, which has what has this function

        def update(piece: Piece) -> None:
            group = groups[number_of[piece.param]]
            shape = model.storage.params[piece.param].shape if whole else None
            known = elements.kept(group, shape)
            taken = {name: as_tensor(piece._tensor(name, False, shape)) for name in ("master", "grad", *known.entries)}
            elements.update(group, known, taken.pop("master"), taken.pop("grad"), taken, piece.step)

        self._native.set_update(update)

    def _tell(self) -> None:
        super()._tell()
        self._stepped_with[:] = [{name: value for name, value in group.items() if name != "params"} for group in self.param_groups]

    def _arranged(self, model: "DataParallel", made: Dict[int, Kept], by_elements: bool) -> Tuple[Tuple[str, ...], Dict[str, Dict[Which, Keeps]]]:
        """Names of arrays, and param_states. Of an element-wise rule all are arrays, so that a checkpoint fits any sharding."""
        params, kind, whole = model.storage.params, self._elements.kind.__name__, isinstance(self._elements, Whole)
        states: Dict[str, Dict[Which, Keeps]] = {}
        if by_elements and all(entry.number is None and entry.dtype == torch.float32 and (entry.shape == params[i].shape or not whole)
                               for i, each in made.items() for entry in each.entries.values()):
            arrays = tuple(dict.fromkeys(name for each in made.values() for name in each.entries))
            if len(arrays) > MOST:
                raise invalid(f"{kind} keeps {', '.join(arrays)} of each element; an optimizer has at most {MOST} such arrays. {SAYS_UNSHARDED}")
        else:
            check_uncut(kind, model._where, {i: params[i] for i in made})
            kept = {i: {name: Keeps(entry.shape, str(entry.dtype).rpartition(".")[2]) for name, entry in each.entries.items()}
                    for i, each in made.items() if 0 not in params[i].shape}
            try:
                arrays, states = arrange(kind, kept, {i: params[i].shape for i in made})
            except MegaDPError as error:
                raise invalid(f"{error.text}. {SAYS_UNSHARDED}") from None
        self._names = {id(model.trained[i]): {*arrays, *(name for name, of in states.items() if i in of)} for i in made}
        return arrays, states

    def _torch_name(self) -> str:
        return self._elements.kind.__name__

    def _values(self, group: Dict[str, Any], what: str) -> ParamGroup:
        lacking = [name for name in self._hyper if name not in group]
        if lacking:
            raise invalid(f"{what} has no {', '.join(lacking)}; {self._torch_name()}'s groups have {', '.join(self._hyper)}")
        self._check_offers(group, what)
        if self._complete:
            found = {self._shapes[id(p)]: self._names[id(p)] for p in group.get("params", ()) if id(p) in self._names}
            more = {name for shape, names in found.items() for name in self._elements.kept(group, shape).entries if name not in names}
            if more:
                raise invalid(f"{what} has values with which {self._torch_name()} keeps {', '.join(sorted(more))}, and it was made with such "
                              "that it does not: make it with values that need them")
        return ParamGroup() if group.get("lr") is None else ParamGroup(lr=float(group["lr"]))  # None: Adafactor of transformers has its own

    def check_groups(self, groups: List[Dict[str, Any]], what: str) -> None:
        for number, group in enumerate(groups):  # saved ones name their parameters by numbers, or not at all
            mine = self.param_groups[number]["params"] if number < len(self.param_groups) else []
            self._values({**group, "params": mine}, f"group {number} of {what}")

    def _kept_of(self, p: torch.Tensor) -> Kept:
        group = next(group for group in self.param_groups if any(each is p for each in group["params"]))
        return self._elements.kept(group, self._shapes[id(p)])

    def _arrays_of(self, p: torch.Tensor) -> Tuple[str, ...]:
        return tuple(self._kept_of(p).entries)

    def _as_torch(self, p: torch.Tensor, name: str, values: torch.Tensor) -> Any:
        kept = self._kept_of(p)
        if name == "step":
            return values if kept.step is None or isinstance(kept.step, torch.Tensor) else type(kept.step)(values.item())
        entry = kept.entries.get(name)
        return values if entry is None or entry.number is None else entry.told(values, p)


def _stepping(model: "DataParallel", kind: Type[torch.optim.Optimizer], values: Dict[str, Any],
              tried: Sequence[Tuple[Dict[str, Any], Tuple[int, ...]]]) -> Tuple[Stepping, bool]:
    """Where parameters are whole, on whole ones, and else on pieces; and whether pieces would do. tried: a group's options and a shape of each."""
    try:
        elements = Elements(kind, values)
        for options, shape in tried:
            elements.kept({**elements.defaults, **options}, shape)
        if model._sharding not in OWNED_WHOLE:
            return elements, True
        by_elements = True
    except MegaDPError:
        if model._sharding not in OWNED_WHOLE:
            raise
        by_elements = False
    return Whole(kind, values, next((p.device for p in model.trained.values()), torch.device("cpu"))), by_elements
