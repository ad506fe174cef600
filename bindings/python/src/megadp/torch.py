# SPDX-License-Identifier: Apache-2.0
"""PyTorch: DataParallel, whose parameters and gradients live in the library's memory, and the sharded optimizers.

docs/from-ddp.md says what becomes of scripts written for DistributedDataParallel. torch.compile compiles what lies between the layers and operators that
communicate, and calls these as they stand (fullgraph=True refuses them).
"""
import contextlib
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Mapping, NoReturn, Optional, Sequence, Tuple, Union

import torch

from . import _torch_ddp as ddp
from ._buffer import Buffer
from ._comm import Comm
from ._errors import MegaDPError, invalid
from ._grid import Grid
from ._params import Param
from ._saved import Together
from ._torch_alone import Alone
from ._torch_checkpoint import load_checkpoint, save_checkpoint
from ._torch_cp import context_parallel_attention, context_parallel_part, context_parallel_positions
from ._torch_ddp import Unwrapped
from ._torch_eager import eager
from ._torch_elementwise import ShardedElementwise, check_elementwise
from ._torch_gather import Gathering
from ._torch_linear import ColumnParallelLinear, RowParallelLinear
from ._torch_modules import ModuleBuffers, SyncBatchNorm, broadcast_each, join_batch_norms
from ._torch_optimizer import ShardedOptimizer, step_many
from ._torch_placement import Kept, Registered, check_apart, compare_over, kept_views, place, placed_by_name, registered_with
from ._torch_regions import (all_to_all_tensor_parallel, copy_to_tensor_parallel, gather_from_tensor_parallel, reduce_from_tensor_parallel,
                             reduce_scatter_to_tensor_parallel, scatter_to_tensor_parallel)
from ._torch_rules import ShardedAdam, ShardedAdamW, ShardedLion, ShardedSGD
from ._torch_scaler import GradScaler
from ._torch_spatial import HaloPad, Spatial, spatial_parts, spatial_slices
from ._torch_steps import Gradients, as_tensor, stream_of
from ._torch_vocabulary import VocabParallelEmbedding, vocab_parallel_cross_entropy
from ._waiting import Request

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ColumnParallelLinear", "DataParallel", "GradScaler", "HaloPad", "RowParallelLinear", "ShardedAdam", "ShardedAdamW", "ShardedElementwise",
           "ShardedLion", "ShardedOptimizer", "ShardedSGD", "Spatial", "SyncBatchNorm", "Unwrapped", "VocabParallelEmbedding", "all_to_all_tensor_parallel", "as_tensor",
           "check_elementwise", "context_parallel_attention", "context_parallel_part", "context_parallel_positions", "copy_to_tensor_parallel",
           "gather_from_tensor_parallel", "load_checkpoint", "place", "reduce_from_tensor_parallel", "reduce_scatter_to_tensor_parallel", "save_checkpoint",
           "scatter_to_tensor_parallel", "spatial_parts", "spatial_slices", "step_many", "vocab_parallel_cross_entropy"]


class DataParallel(torch.nn.Module):
    """Trains a module on all ranks of a communicator (or of a Grid's data-parallel groups); to be used like the module.

    where: a Comm or a Grid; None: the ranks of torch.distributed where it is initialized (of process_group), otherwise the launcher's.
    The parameters' data moves into the library's memory, with rank 0's values on all ranks (of those with tensor-parallel ranks: on all that have
    the same parts), and so do views of it that the module keeps as attributes; module buffers get rank 0's values, unless broadcast_buffers is False.
    param_groups: as torch's optimizers take them, for the sharded optimizers. register_frozen: parameters that are frozen (requires_grad False) when
    the module is wrapped may be trained later; each then takes the memory of a trained one (itself, its gradient, and 1/dp of its
    optimizer state). Without it they are broadcast and left alone, and it is an error if they are unfrozen. What is frozen after wrapping
    stays as it is meanwhile. broadcast_buffers (or forward_sync_buffers; None: True): module buffers are rank 0's before a forward that
    follows one with gradients, as DDP has it; such forwards are collective. torch.nn.SyncBatchNorm goes over these ranks, on CPUs too.
    gather_in_forward: parameters of a step are waited for as they are used, so that they are gathered meanwhile; not so where a layer is
    compiled (all are waited for in the step) or a parameter is of a class of its own (it is). What is given weights and does not ask
    __torch_function__ needs wait() before: extensions that use weights of other modules than their own, torch.tensor(p), a scripted function,
    torch.func.grad, torch.utils.dlpack.to_dlpack, a process group's own collectives. device_ids: inputs are moved there, as DDP does.
    use_order: of each of module.parameters() when it is used, as storage.use_order() says after a step; None: in that order.
    options: those of Buffer, and DDP's other keywords, which have no effect (find_unused_parameters, static_graph,
    gradient_as_bucket_view: always so) or are refused by name. bucket_cap_mb: bucket_elements, in MiB of fp32.

    where is a Grid with tensor-parallel ranks (tp): each has its parts of ColumnParallelLinear, RowParallelLinear and
    VocabParallelEmbedding; of other parameters place() says what they have. Dropout of what is cut is seeded by grid.seed(seed, "tensor"), of
    what all of them compute alike by grid.seed(seed, "replicated").
    Ranks with the same batch are then the tensor-parallel ones; gradients are averaged over the others. What they have whole must be the same on
    them when it is wrapped, and what is cut should not be: that is compared.
    A Grid with expert-parallel ranks (ep) is refused: experts are trained by Buffer and Optimizer, with Param(expert=True).

    instances: the ranks in so many runs of neighbours, each with all of the optimizer's state, as Grid(comm, instances=...) has them.

    sharding="zero_2": this rank keeps the sums of what it owns and a small pool of buckets; every pass is reduced, also inside no_sync, and
    .grad holds no values.

    A parameter that takes no part in a step (on this rank) is skipped. Between backward and step .grad stands for the reduced gradient:
    torch.nn.utils.clip_grad_norm_, clip_grad_value_ and torch.amp.GradScaler work on it, norms of it are over all ranks (all of that
    collective); its values can be read with one rank or sharding="zero_0", and are refused otherwise. What does not ask __torch_function__ (torch.tensor(p.grad), a
    scripted function and the others above) is not refused, and sees no reduced gradient.
    Collective; blocking. One thread at a time. Raises MegaDPError, as Buffer; INVALID for an option that is not offered.

    module: what was wrapped. storage: the Buffer. trained: registered parameters by number. require_backward_grad_sync: as in DDP.
    """

    def __init__(self, module: torch.nn.Module, where: Union[Comm, Grid, None] = None, *, instances: int = 1,
                 param_groups: Optional[Iterable[Any]] = None, gather_in_forward: bool = False, register_frozen: bool = False,
                 broadcast_buffers: Optional[bool] = None, forward_sync_buffers: Optional[bool] = None, process_group: Any = None,
                 device_ids: Optional[Sequence[Any]] = None, output_device: Any = None, bucket_cap_mb: Optional[float] = None,
                 use_order: Optional[Sequence[int]] = None,
                 **options: "Unpack[ddp.Options]") -> None:
        super().__init__()
        buffer_options = ddp.buffer_options(options, bucket_cap_mb)
        if where is not None and not isinstance(where, (Comm, Grid)):
            raise invalid(f"where is {where!r}; it must be a megadp.Comm or a megadp.Grid (device_ids is a keyword)")
        if where is not None and process_group is not None:
            raise invalid("where and process_group both say which ranks take part; give one of them")
        ddp.check_unwrapped(module)
        self._device = ddp.own_device(module, device_ids, output_device)
        where = ddp.comm_of(process_group, module) if where is None else where
        if instances != 1:
            if isinstance(where, Grid):
                raise invalid(f"instances is {instances} beside a Grid; give it to the Grid")
            where = Grid(where, instances=instances)
        self._where = where
        self.module = module
        self.gather_in_forward = gather_in_forward
        for path, part in module.named_modules():
            if isinstance(part, DataParallel):
                raise invalid(f"{path or 'module'} is a DataParallel already; wrap a module once, as a whole (copy.deepcopy(model).module is a copy "
                              "of what was wrapped)")
        named = list(module.named_parameters())
        orders = [0] * len(named) if use_order is None else use_order
        if len(orders) != len(named):
            raise invalid(f"use_order has {len(orders)} entries; the module has {len(named)} parameters")
        self.names = [name for name, _ in named]
        self.trained = {i: p for i, (_, p) in enumerate(named) if p.requires_grad or register_frozen}
        self._left_out = [(name, p) for i, (name, p) in enumerate(named) if i not in self.trained]
        check_apart(module, list(self.trained.values()))
        kept = kept_views(module, list(self.trained.values()))
        self.group_options, self.group_params, groups = ddp.read_groups(param_groups, list(self.trained.values()), [p for _, p in self._left_out])
        places = registered_with(module, named, where)
        self.storage = Buffer(where, [Param(name, tuple(p.shape), p.dtype if i in self.trained else "f32", param_group=groups.get(id(p), 0),
                                            frozen=i not in self.trained, use_order=orders[i], **places[i])
                                      for i, (name, p) in enumerate(named)], **buffer_options)
        self._sharding = buffer_options.get("sharding", "default")
        self._comm, norms_over, whole = self._groups_of(where, self._sharding == "zero_0")
        self._take_memory(kept)
        self.registered = Registered(module, self.names, self.trained, [p for _, p in self._left_out])
        self.gradients = Gradients(self.storage, self.names, self.registered, self.trained, norms_over, whole,
                                   self._sharding == "zero_2", where._instances if isinstance(where, Grid) else 1)
        self.gradients.hook()
        self.broadcasts_buffers = ddp.broadcasts_buffers(broadcast_buffers, forward_sync_buffers)
        self._share_the_rest(broadcast_buffers is not False)
        self._gathering = Gathering(self.storage, module, self.trained, [each.of for each in kept]) if gather_in_forward else None
        self._placed_as = placed_by_name(module)
        self._together: Optional[Together] = None
        self._alone = Alone()
        self._saving: Optional[Request] = None  # the last checkpoint that was to be written meanwhile

    @staticmethod
    def _groups_of(where: Union[Comm, Grid], unsharded: bool) -> Tuple[Comm, Optional[Comm], bool]:
        """The data-parallel ranks; the same where nothing else cuts the world; whether every rank has whole gradients."""
        if isinstance(where, Comm):
            return where, where, unsharded or where.size == 1
        comm = where.comm("dp-cp")
        alone = all(where.coords(axis)[1] == 1 for axis in ("tp", "pp"))
        return comm, comm if alone else None, unsharded or where._tree.size == 1

    def _take_memory(self, kept: Sequence[Kept]) -> None:
        with torch.no_grad():
            for i, p in self.trained.items():
                memory = as_tensor(self.storage.param(i))
                memory.copy_(p.data)
                p.data = memory
            for each in kept:
                each.follow()
        self.storage.changed()
        self.storage.broadcast()
        # Of those whose masters have more bits, what was written last. Where torch writes it counts; the library's writes do not.
        self._versions = {i: p._version for i, p in self.trained.items() if p.dtype != torch.float32}
        self._writes = dict.fromkeys(self._versions, 0)  # how often torch's have been followed

    def _share_the_rest(self, buffers_too: bool) -> None:
        broadcast_each(self._comm, [p.data for _, p in self._left_out])
        grid = self._where if isinstance(self._where, Grid) and self._where.coords("tp")[1] > 1 else None
        join_batch_norms(self.module, self._comm, grid)
        if grid is not None:
            self.storage.verify()  # nothing else makes tensor-parallel ranks alike
            with grid.comm("tp") as ranks:
                compare_over(ranks, list(self.module.named_parameters()), self._left_out)
        self._module_buffers = ModuleBuffers(self.module, self._comm)
        if buffers_too:
            self._module_buffers.broadcast()
        self._buffers_due = False  # a forward with gradients has been since they were alike
        self._forwarded = False    # in this step

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = self.__dict__.get("_modules", {}).get("module")
        raise ddp.no_attribute(type(self).__name__, name, module)

    @property
    def require_backward_grad_sync(self) -> bool:
        return not self.gradients.in_no_sync

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, value: bool) -> None:
        self.gradients.in_no_sync = not value

    def forward(self, *arguments: Any, **named: Any) -> Any:
        with_gradients = torch.is_grad_enabled()
        if self._device is not None:
            arguments, named = ddp.moved(arguments, self._device), ddp.moved(named, self._device)
        self._forwarded = True
        self._broadcast_buffers()
        if with_gradients:
            self._check_frozen()
            self.gradients.forward(self.require_backward_grad_sync)
        found = self.module(*arguments, **named)
        self._buffers_due = with_gradients and self.require_backward_grad_sync
        return found

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forward and backward of all batches but a step's last belong into this block: gradients add up, and nothing is communicated (with
        zero_2 each pass is reduced: all ranks make as many). A
        step that follows backward inside the block only (data has ended) is taken with what has come. Local."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @eager
    def _broadcast_buffers(self) -> None:
        if self._buffers_due and self.broadcasts_buffers:
            try:
                self._module_buffers.broadcast()
            except MegaDPError as error:
                raise ddp.explained_forward(error) from None

    def _check_frozen(self) -> None:
        for name, p in self._left_out:
            if p.requires_grad:
                raise invalid(f"parameter {name!r} was frozen when the module was wrapped and requires gradients now: it would not be "
                              "trained. DataParallel(..., register_frozen=True) registers frozen parameters too (each takes the memory "
                              "of a trained one), or freeze it after wrapping")

    def sync(self) -> None:
        """Ends backward: skips parameters that no gradient came for, then as Buffer.sync. The step of a sharded optimizer calls it, and so does
        the first look at gradients. A rank without data calls it in place of forward and backward while others go on. Collective; blocking.
        Raises MegaDPError: INVALID (a parameter's memory was replaced, as .to() and .half() do; one that is not registered came into the
        module or was unfrozen), STATE (gradients were changed or replaced), those of a lost communicator."""
        self._end_backward(needed=True)

    def _end_backward(self, needed: bool) -> None:
        """needed: as of Gradients.finish."""
        self._check_frozen()
        if not self._forwarded:  # the other ranks' forward has waited for this one's
            self._forwarded = True
            self._broadcast_buffers()
        self.registered.check()
        self.gradients.finish(needed)
        self.gradients.check()

    def _stepped(self) -> None:
        # As torch's steps do, so that backward through a graph from before the step says that parameters have changed. What is frozen has not.
        with torch._C.DisableTorchFunctionSubclass():  # which those have that are awaited
            for p in self.trained.values():
                if p.requires_grad:
                    torch.autograd.graph.increment_version(p)
            self._versions = {i: self.trained[i]._version for i in self._versions}
        self._forwarded = False
        self.gradients.used(by_library=True)
        if self._gathering is not None:
            self._gathering.stepped()

    def stepped(self) -> None:
        """The gradients have been used up and parameters written, alike on all ranks, by an optimizer of one's own (with
        sharding="zero_0": on a shard gradients are not whole): `model.sync(); own.step(); model.stepped(); own.zero_grad()`. Local."""
        self._forwarded = False
        self.gradients.used(by_library=False)
        self.storage.changed()
        self._versions = {i: self.trained[i]._version for i in self._versions}

    def wait(self) -> None:
        """Returns when all parameters hold their values after the last step. Local."""
        self.storage.wait()
        if self._gathering is not None:
            self._gathering.waited()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Gradients begin anew. set_to_none (the quicker way): autograd makes new ones, which are copied into their slots. Local, unless
        backward has brought gradients that no step has used (with zero_2 also inside no_sync): then their reduction is brought to its end;
        collective."""
        self.gradients.drop(set_to_none)

    def join(self, *_: Any, **__: Any) -> NoReturn:
        """Refused, with a sentence on what to do where ranks have unequal numbers of batches."""
        ddp.refuse_join()

    def register_comm_hook(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        ddp.refuse_comm_hook()

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """The names of DDP's, with "module." before the wrapped module's. Views, as torch's. Local; it waits for the last step."""
        self.wait()
        return super().state_dict(*arguments, **named)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Writes parameters and module buffers, to be called alike on all ranks; the optimizer's masters follow (module.load_state_dict does
        the same). Also takes names without "module.", as the module had them before it was wrapped. Local.
        Raises MegaDPError: INVALID (assign: parameters' memory is the library's); torch's RuntimeError for names that do not fit."""
        if assign:
            raise invalid("assign is True; parameters stay in the library's memory, so their values are copied: leave assign away")
        self.wait()
        alone = bool(state_dict) and not any(name.startswith("module.") for name in state_dict)
        found = self.module.load_state_dict(state_dict, strict) if alone else super().load_state_dict(state_dict, strict)
        self._follow_writes()
        return found

    def _follow_writes(self) -> None:
        """Tells the library of parameters that torch has written, whose masters follow then: where they do not round to what was written.
        All others keep all their bits."""
        with torch._C.DisableTorchFunctionSubclass():  # which those have that are awaited
            written = {i: self.trained[i]._version for i, version in self._versions.items() if self.trained[i]._version != version}
        for i, version in written.items():
            self.storage.write(i, self.trained[i].detach().clone(), stream=stream_of(self.trained[i]))
            self._versions[i] = version
            self._writes[i] += 1

    def _loaded(self) -> None:
        """The library has written parameters and module buffers, alike on all ranks, and knows the masters. Local."""
        self.wait()
        self._buffers_due = self._forwarded = False
        self._versions = {i: self.trained[i]._version for i in self._versions}

    def __reduce_ex__(self, protocol: Any) -> Any:
        """copy.deepcopy, AveragedModel and torch.save get an Unwrapped."""
        self.wait()
        return Unwrapped, (self.module, self.training)
