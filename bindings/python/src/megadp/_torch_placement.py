# SPDX-License-Identifier: Apache-2.0
"""How tensor-parallel ranks hold each parameter of a module: what DataParallel registers it with. And that parameters stay where they are."""
import warnings
from collections import Counter
from itertools import chain
from operator import is_, methodcaller
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from ._comm import Comm, choice
from ._errors import InvalidError, invalid
from ._grid import Grid
from ._params import PLACEMENTS, Placement
from .tp import Placed

_MARK = "_megadp_placement"
_SAID_OF = "_megadp_placement_said_of"  # how many parameters: of a smaller part of a model it is an exception
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SUMMED = 1 << 18  # elements at a time, since each takes 8 bytes: of a large weight there is no room for another
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # an odd number without a pattern: products with it, in 64 bits, have none either


def mark(parameter: torch.Tensor, placed: Placed, said_of: int = 0) -> None:
    """said_of: 0 for what a layer says of its own."""
    setattr(parameter, _MARK, placed)
    setattr(parameter, _SAID_OF, said_of)


def place(what: Union[torch.nn.Module, torch.Tensor], placement: Placement, shard_dim: int = 0, shard_stride: int = 0) -> None:
    """Says how tensor-parallel ranks hold a parameter, or all of a module's parameters: "replicated" (the same gradient on all), "partial_sum" (the
    same, but each rank has a part of the gradient: what works on a part of the sequence, such as a LayerNorm between layers with
    sequence=True), "sharded" along shard_dim, in shard_stride pieces a rank. What is said of a smaller part of a model counts before what is
    said of a larger one, in any order; ColumnParallelLinear, RowParallelLinear and VocabParallelEmbedding say their own. A module buffer is replicated unless a checkpoint is told here that it is
    "sharded" (running statistics of what is cut). Before DataParallel; a copy of a module forgets it. Local.
    Raises MegaDPError: INVALID."""
    choice(placement, "placement", {name: code for name, code in PLACEMENTS.items() if name})
    parameters = [what] if isinstance(what, torch.Tensor) else list(what.parameters())
    if isinstance(what, torch.nn.Module):
        placements_of(what)  # of the layers that know theirs
    for p in parameters:
        if getattr(p, _SAID_OF, len(parameters)) >= len(parameters):
            mark(p, Placed(placement, shard_dim, shard_stride), len(parameters))


def placements_of(module: torch.nn.Module) -> Dict[int, Placed]:
    """By id of a parameter, of those of which it is known. Raises MegaDPError: INVALID (a layer's blocks that no placement describes), by name."""
    for path, part in module.named_modules():
        tell = getattr(part, "_tell_placements", None)
        if tell is not None:
            try:
                tell()
            except InvalidError as error:
                raise invalid(f"{path or 'the module'}: {error.text}") from None
    return {id(p): getattr(p, _MARK) for p in module.parameters() if hasattr(p, _MARK)}


def placed_by_name(module: torch.nn.Module) -> Dict[str, Placed]:
    """Of parameters and module buffers, by their names in state_dict, those of which it is known."""
    return {name: getattr(values, _MARK) for name, values in [*module.named_parameters(), *module.named_buffers()] if hasattr(values, _MARK)}


def registered_with(module: torch.nn.Module, named: List[Tuple[str, torch.nn.Parameter]], where: Union[Comm, Grid]) -> List[Dict[str, Any]]:
    """Fields of each parameter's Param. Raises MegaDPError: INVALID (it is not known, and ranks are tensor-parallel; they are not those
    that a layer was made for; they are expert-parallel)."""
    experts = where.coords("ep", expert=True)[1] if isinstance(where, Grid) else 1
    if experts > 1:
        raise invalid(f"the Grid has ep={experts}, and DataParallel has no experts: all ranks would get rank 0's, and their average. Wrap the module "
                      "without its experts with a Grid without ep, and train these by megadp.Buffer, with Param(expert=True), and megadp.Optimizer")
    index, size = where.coords("tp") if isinstance(where, Grid) else (0, 1)
    for path, part in module.named_modules():
        ranks = getattr(part, "_tensor_parallel", None)
        if ranks is not None and ranks != (index, size) and ranks[1] > 1:
            raise invalid(f"{path or 'the module'} was made on rank {ranks[0]} of {ranks[1]} tensor-parallel ranks; DataParallel has been given "
                          f"rank {index} of {size}: wrap it with the megadp.Grid whose comm('tp') the layer has")
        if ranks is not None and size > 1 and hasattr(part, "parametrizations"):
            raise invalid(f"{path or 'the module'} is cut over tensor-parallel ranks and has a parametrization (weight_norm, spectral_norm and their "
                          "like), which would see this rank's part alone: use the layer without, or one that is not cut")
    known = placements_of(module)
    for name, p in named:
        if size > 1 and id(p) not in known:
            raise invalid(f"parameter {name!r} has no placement, and {size} ranks are tensor-parallel: megadp.torch.place(module, 'replicated') "
                          "says that each has all of it and the same gradient, 'partial_sum' that gradients are parts of a sum")
    return [known[id(p)]._asdict() if id(p) in known else {} for _, p in named]


def placement_of(parameter: Any) -> Optional[str]:
    placed = getattr(parameter, _MARK, None)
    return None if placed is None else str(placed.placement)


def _bits(values: torch.Tensor) -> Optional[torch.Tensor]:
    integers = _BITS.get(values.element_size())
    return None if integers is None else values.detach().view(integers).flatten()


def _factors(count: int, device: torch.device) -> torch.Tensor:
    """An odd number for each position, as if drawn: with plain ones, such as 2 i + 1, the sums of many permutations were the same."""
    numbers = torch.arange(1, count + 1, dtype=torch.int64, device=device)
    for _ in range(2):
        numbers.mul_(_ODD)
        numbers.bitwise_xor_(numbers >> 32)
    return numbers.bitwise_or_(1)


def _sum(bits: torch.Tensor) -> torch.Tensor:
    total = bits.new_zeros((), dtype=torch.int64)
    factors = _factors(min(len(bits), _SUMMED), bits.device)
    for some in torch.split(bits, _SUMMED):
        if some.dtype == torch.int64:
            some = some ^ (some >> 32)  # the low bits of 1.0 and its like are zeros, which would leave little of a factor
        total = total * _ODD + (some * factors[:len(some)]).sum()
    return total


def sum_of_bits(values: torch.Tensor) -> Optional[torch.Tensor]:
    """A number that differs if values do, or their order, as good as always; the same on any device. None for types without a sum."""
    bits = _bits(values)
    return None if bits is None else _sum(bits)


def fingerprint(values: torch.Tensor) -> Tuple[int, int]:
    """The sum of bits, and whether values are not all one number. Zeros for types without a sum, and for what has no values."""
    bits = None if values.is_meta else _bits(values)
    if bits is None:
        return 0, 0
    return int(_sum(bits)), int(any(bool((some != bits[:1]).any()) for some in torch.split(bits, _SUMMED)))


def parts_alike(of_ranks: Sequence[Sequence[int]]) -> int:
    """How many ranks have the same part, by their fingerprints; the most there are. Parts that are all one number, such as a bias of zeros, do not
    count: that is no accident."""
    return max(Counter(total for total, varies in of_ranks if varies).values(), default=0)


def fingerprints_over(comm: Comm, own: Sequence[Tuple[int, int]]) -> List[List[List[int]]]:
    """Of each fingerprint those of all ranks. Collective."""
    mine = torch.tensor(own, dtype=torch.int64, device="cpu")
    every = mine.new_empty(comm.size, *mine.shape)
    comm.all_gather(mine, every)
    found: List[List[List[int]]] = every.transpose(0, 1).tolist()
    return found


def compare_over(comm: Comm, named: List[Tuple[str, torch.nn.Parameter]], frozen: List[Tuple[str, torch.nn.Parameter]]) -> None:
    """Over tensor-parallel ranks: warns of what is cut and has the same numbers on several of them, and refuses what is frozen, whole, and
    not the same. (What is trained, the library compares.) Collective. Raises MegaDPError: INVALID."""
    cut = [(name, p) for name, p in named if placement_of(p) == "sharded"]
    whole = [(name, p) for name, p in frozen if placement_of(p) != "sharded"]
    if not cut and not whole:
        return
    of_ranks = fingerprints_over(comm, [fingerprint(p) for _, p in (*cut, *whole)])
    for (name, _), prints in zip(cut, of_ranks):
        if parts_alike(prints) > 1:
            warnings.warn(f"the parts of {name!r} are alike on tensor-parallel ranks, as if the layer had a fraction of its width: draw values by its "
                          "reset_parameters(), make it by from_linear or from_embedding, or draw parts with another seed on each rank "
                          "(Grid.seed(seed, 'tensor'))")
    for (name, _), prints in zip(whole, of_ranks[len(cut):]):
        if len({total for total, _ in prints}) > 1:
            raise invalid(f"parameter {name!r}, which is frozen, is not the same on all tensor-parallel ranks: begin with the same torch.manual_seed on "
                          "them, or load the same values")


def check_apart(module: torch.nn.Module, trained: List[torch.nn.Parameter]) -> None:
    """That no trained parameter shares memory with another parameter or a module buffer: each of them gets memory of its own, and what was the
    same (tied by .data, or by torch.nn.Parameter(weight)) would go two ways. Raises MegaDPError: INVALID, by names."""
    mine = {id(p) for p in trained}
    places = []
    for name, values in (*module.named_parameters(), *module.named_buffers()):
        if values.layout is torch.strided and values.device.type != "meta" and values.numel():
            places.append((*_extent(values), values.is_contiguous(), id(values) in mine, name))
    places.sort()
    one = (0, 0, False, False, "")  # of those so far the one that reaches furthest
    for next_ in places:
        dense = one[2] and next_[2]  # of others that overlap, such as columns of a matrix, only those that begin together share elements for sure
        if next_[0] < one[1] and (dense or next_[0] == one[0]) and (one[3] or next_[3]):
            raise invalid(f"{one[4]!r} and {next_[4]!r} share memory and are two tensors, as .data = and torch.nn.Parameter(weight) make them: they would "
                          "go two ways, since each trained parameter gets memory of its own. Tie parameters as one (decoder.weight = encoder.weight), or "
                          "copy (.clone())")
        one = max(one, next_, key=lambda place: place[1])


class Kept(NamedTuple):
    """A tensor that a part of the module keeps as a plain attribute, on the memory of a parameter."""

    values: torch.Tensor
    of: torch.nn.Parameter
    offset: int  # in elements

    def follow(self) -> None:
        """The parameter has other memory now, and so has this; in autograd's graph it stays what it is."""
        memory = self.of.data
        self.values.data = memory.as_strided(self.values.shape, self.values.stride(), memory.storage_offset() + self.offset)


def kept_views(module: torch.nn.Module, trained: List[torch.nn.Parameter]) -> List[Kept]:
    """Those on the memory of trained parameters, such as a view that was made in __init__: left where they are they would have the values from
    before the training. Raises MegaDPError: INVALID, by names, of one that cannot follow its parameter."""
    names = {id(p): name for name, p in module.named_parameters()}
    places: Dict[int, List[torch.nn.Parameter]] = {}
    for p in trained:
        if _has_memory(p):
            places.setdefault(p.untyped_storage().data_ptr(), []).append(p)
    found = []
    for name, values in _attributes(module):
        for p in places.get(values.untyped_storage().data_ptr(), ()) if _has_memory(values) else ():
            (begin, end), (of_begin, of_end) = _extent(values), _extent(p)
            if begin >= of_end or of_begin >= end:
                continue
            if not (of_begin <= begin and end <= of_end and p.is_contiguous() and values.dtype == p.dtype):
                raise invalid(f"attribute {name!r} shares memory with parameter {names[id(p)]!r}, which gets memory of its own when the module is "
                              "wrapped, and is no plain view of it: make it in forward or by a property, or copy it (.clone())")
            found.append(Kept(values, p, (begin - of_begin) // p.element_size()))
            break
    return found


def _attributes(module: torch.nn.Module) -> Iterator[Tuple[str, torch.Tensor]]:
    """Tensors that parts of the module keep, also in lists, tuples and dicts, beside parameters and module buffers."""
    seen = {id(values) for values in chain(module.parameters(), module.buffers())}
    for path, part in module.named_modules():
        seen.update(map(id, (part._parameters, part._buffers, part._modules)))
        waiting = [(f"{path}.{name}" if path else name, value) for name, value in vars(part).items()]
        while waiting:
            name, value = waiting.pop()
            if id(value) in seen or not isinstance(value, (torch.Tensor, list, tuple, dict)):
                continue
            seen.add(id(value))
            if isinstance(value, torch.Tensor):
                yield name, value
            else:
                items = value.items() if isinstance(value, dict) else enumerate(value)
                waiting += [(f"{name}[{key}]", item) for key, item in items if isinstance(item, (torch.Tensor, list, tuple, dict))]


def _has_memory(values: torch.Tensor) -> bool:
    """Subclasses of torch's that dispatch by themselves may have none."""
    plain = type(values).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return plain and values.layout is torch.strided and values.device.type != "meta" and values.numel() > 0


def _extent(values: torch.Tensor) -> Tuple[int, int]:
    begin = values.data_ptr()
    return begin, begin + values.element_size() * (1 + sum((n - 1) * step for n, step in zip(values.shape, values.stride())))


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
        now = dict(self._module.named_parameters(remove_duplicate=False))
        for i, p in self._params.items():
            other = now.get(self._names[i], p)
            if other is not p and id(other) in self._known:
                raise invalid(f"parameter {self._names[i]!r} is another one of the module's now: tie parameters before the module is wrapped")
        for name, p in strange:
            if name in trained:
                raise invalid(f"parameter {name!r} was replaced by another, which would not be trained (assign=True of load_state_dict does "
                              "that, and an assignment to a module's attribute): copy values into it, and make layers before the module is wrapped")
            if p.requires_grad:
                raise invalid(f"parameter {name!r} came into the module after it was wrapped, and would not be trained: make layers before the "
                              "module is wrapped, or freeze this one (requires_grad_(False))")
        if not strange:  # a frozen one may be unfrozen
            self._look()
