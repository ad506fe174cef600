# SPDX-License-Identifier: Apache-2.0
"""How tensor-parallel ranks hold each parameter of a module: what DataParallel registers it with."""
from typing import Any, Dict, List, Tuple, Union

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
