# SPDX-License-Identifier: Apache-2.0
"""How tensor-parallel ranks hold each parameter of a module: what DataParallel registers it with. And that parameters stay where they are."""
from itertools import chain
from operator import is_, methodcaller
from typing import Any, Dict, Iterator, List, Tuple, Union

import torch

from ._comm import Comm, choice
from ._errors import invalid
from ._grid import Grid
from ._params import PLACEMENTS, Placement
from .tp import Placed

_MARK = "_megadp_placement"


def mark(parameter: torch.Tensor, placed: Placed) -> None:
    setattr(parameter, _MARK, placed)


def place(what: Union[torch.nn.Module, torch.Tensor], placement: Placement, shard_dim: int = 0, shard_stride: int = 0) -> None:
    """Says how tensor-parallel ranks hold a parameter, or all of a module's parameters of which it was not said yet: "replicated" (the same gradient on
    all), "partial_sum" (the same, but each rank has a part of the gradient: what works on a part of the sequence, such as a LayerNorm
    between layers with sequence=True), "sharded" along shard_dim, in shard_stride pieces a rank. ColumnParallelLinear,
    RowParallelLinear and VocabParallelEmbedding say their own. A module buffer is replicated unless a checkpoint is told here that it is
    "sharded" (running statistics of what is cut). Before DataParallel; a copy of a module forgets it. Local.
    Raises MegaDPError: INVALID."""
    choice(placement, "placement", {name: code for name, code in PLACEMENTS.items() if name})
    parameters = [what] if isinstance(what, torch.Tensor) else list(what.parameters())
    if isinstance(what, torch.nn.Module):
        placements_of(what)  # of the layers that know theirs
        parameters = [p for p in parameters if not hasattr(p, _MARK)]
    for p in parameters:
        mark(p, Placed(placement, shard_dim, shard_stride))


def placements_of(module: torch.nn.Module) -> Dict[int, Placed]:
    """By id of a parameter, of those of which it is known."""
    for part in module.modules():
        tell = getattr(part, "_tell_placements", None)
        if tell is not None:
            tell()
    return {id(p): getattr(p, _MARK) for p in module.parameters() if hasattr(p, _MARK)}


def placed_by_name(module: torch.nn.Module) -> Dict[str, Placed]:
    """Of parameters and module buffers, by their names in state_dict, those of which it is known."""
    return {name: getattr(values, _MARK) for name, values in [*module.named_parameters(), *module.named_buffers()] if hasattr(values, _MARK)}


def registered_with(module: torch.nn.Module, named: List[Tuple[str, torch.nn.Parameter]], where: Union[Comm, Grid]) -> List[Dict[str, Any]]:
    """Fields of each parameter's Param. Raises MegaDPError: INVALID (it is not known, and ranks are tensor-parallel; they are not those
    that a layer was made for)."""
    index, size = where.coords("tp") if isinstance(where, Grid) else (0, 1)
    for path, part in module.named_modules():
        ranks = getattr(part, "_tensor_parallel", None)
        if ranks is not None and ranks != (index, size) and ranks[1] > 1:
            raise invalid(f"{path or 'the module'} was made on rank {ranks[0]} of {ranks[1]} tensor-parallel ranks; DataParallel has been given "
                          f"rank {index} of {size}: wrap it with the megadp.Grid whose comm('tp') the layer has")
    known = placements_of(module)
    for name, p in named:
        if size > 1 and id(p) not in known:
            raise invalid(f"parameter {name!r} has no placement, and {size} ranks are tensor-parallel: megadp.torch.place(module, 'replicated') "
                          "says that each has all of it and the same gradient, 'partial_sum' that gradients are parts of a sum")
    return [known[id(p)]._asdict() if id(p) in known else {} for _, p in named]


class Registered:
    """The parameters that are trained, where they were when the module was wrapped. params: by number, in the library's memory."""

    def __init__(self, module: torch.nn.Module, names: List[str], params: Dict[int, torch.nn.Parameter], others: List[torch.nn.Parameter]) -> None:
        """others: which the module has besides."""
        self._module, self._names, self._params = module, names, params
        self._at = {i: p.data_ptr() for i, p in params.items()}
        self._known = {id(p) for p in (*params.values(), *others)}
        self._others = others  # an id is one's own for as long as this is there
        self._look()

    def _look(self) -> None:
        # Walking over the names of some hundred parameters takes a millisecond, comparing what modules hold a small part of that.
        self._holders = [holder for part in self._module.modules() for holder in (part._parameters, part._modules)]
        self._sizes = list(map(len, self._holders))
        self._full = [holder for holder in self._holders if len(holder)]  # most are empty
        self._held = list(self._now_held())

    def _now_held(self) -> Iterator[Any]:
        return chain.from_iterable(map(methodcaller("values"), self._full))

    def check(self) -> None:
        """That the module's parameters are those that were registered, in the library's memory. Raises MegaDPError: INVALID, by name."""
        with torch._C.DisableTorchFunctionSubclass():  # which parameters have while they are awaited; nobody looks at values here
            for i, p in self._params.items():
                if p.data_ptr() != self._at[i]:
                    self.check_memory(i, p)
        if list(map(len, self._holders)) != self._sizes or not all(map(is_, self._now_held(), self._held)):
            self._check_names()

    def check_memory(self, number: int, p: torch.Tensor) -> None:
        if p.data_ptr() != self._at[number]:
            raise invalid(f"parameter {self._names[number]!r} has left the library's memory (.to(), .half(), .share_memory(), an assignment to "
                          ".data, vector_to_parameters, or the module was wrapped again): convert modules before they are wrapped, once, and "
                          "copy values into parameters")

    def _check_names(self) -> None:
        strange = [(name, p) for name, p in self._module.named_parameters() if id(p) not in self._known]
        trained = {self._names[i] for i in self._params}
        for name, p in strange:
            if name in trained:
                raise invalid(f"parameter {name!r} was replaced by another, which would not be trained (assign=True of load_state_dict does "
                              "that, and an assignment to a module's attribute): copy values into it, and make layers before the module is wrapped")
            if p.requires_grad:
                raise invalid(f"parameter {name!r} came into the module after it was wrapped, and would not be trained: make layers before the "
                              "module is wrapped, or freeze this one (requires_grad_(False))")
        if not strange:  # a frozen one may be unfrozen
            self._look()
