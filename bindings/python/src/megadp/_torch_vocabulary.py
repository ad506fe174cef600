# SPDX-License-Identifier: Apache-2.0
"""torch.nn.Embedding and the cross-entropy of a vocabulary that is cut over tensor-parallel ranks."""
from typing import Any, Literal, Optional

import torch
from torch.autograd.function import once_differentiable

from ._comm import Comm, choice
from ._errors import invalid
from ._torch_eager import eager
from ._torch_linear import Part, Shared, check_drawn
from ._torch_once import once
from ._torch_placement import mark
from ._torch_steps import stream_of
from .tp import CrossEntropy, Embedding, Grad, Placed, region, share_of_others

Reduction = Literal["none", "mean", "sum"]
_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, ids: torch.Tensor, table: Embedding) -> torch.Tensor:  # type: ignore[override, unused-ignore]
        out = weight.new_empty(table.out_shape(ids.shape, weight.shape[1]))
        table.forward(ids, weight.detach(), out, stream=stream_of(weight))
        ctx.save_for_backward(ids)
        ctx.table, ctx.shape = table, weight.shape
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override, unused-ignore]
        of_weight = grad.new_empty(ctx.shape)
        ctx.table.backward(*ctx.saved_tensors, grad.detach(), of_weight, stream=stream_of(grad))
        return of_weight, None, None


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor,  # type: ignore[override, unused-ignore]
                loss: CrossEntropy) -> torch.Tensor:
        losses, saved = (logits.new_empty(shape, dtype=torch.float32) for shape in (targets.shape, (*targets.shape, 2)))
        loss.forward(logits.detach(), targets, losses, saved, stream=stream_of(logits))
        ctx.save_for_backward(logits, targets, saved)
        ctx.loss = loss
        return losses

    @staticmethod
    @once("vocab_parallel_cross_entropy")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override, unused-ignore]
        logits, targets, saved = ctx.saved_tensors
        of_logits = torch.empty_like(logits)
        ctx.loss.backward(logits.detach(), targets, saved, grad.detach(), of_logits, stream=stream_of(grad))
        return of_logits, None, None


class VocabParallelEmbedding(Part):
    """torch.nn.Embedding whose rows are cut over the ranks of comm (a Grid's comm("tp")): weight is this rank's, under torch's name.

    ids, integers, are the same on all ranks, and so is the output; `grad` says whether the gradient that comes back is the same on all
    ranks ("replicated") or a part on each ("partial"). With sequence=True the output is cut along its first dimension, and grad
    has no meaning. num_embeddings divides by the number of ranks: round it up, and say by `classes` of vocab_parallel_cross_entropy how
    many count. dtype: float32, bfloat16 or float16. Values begin as torch.nn.Embedding's do: see reset_parameters. DataParallel with the Grid
    knows which part the weight is. comm stays open. A copy uses the same ranks; state_dict has this rank's part.

    Tied to the last layer: `head = ColumnParallelLinear(embedding_dim, num_embeddings, comm, bias=False); head.weight = embedding.weight`.
    Both have the same rows, and the gradients of both uses add up.
    Collective over comm; blocking. Raises MegaDPError: INVALID, those of a lost communicator.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, comm: Comm, *, grad: Grad = "replicated",
                 sequence: bool = False, device: Any = None, dtype: Optional[torch.dtype] = None) -> None:
        self._set_up(_drawn(num_embeddings, embedding_dim, device, dtype, comm), comm, grad, sequence)

    def _set_up(self, like: torch.nn.Embedding, comm: Comm, grad: Grad, sequence: bool) -> None:
        torch.nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = like.num_embeddings, like.embedding_dim
        self.sequence = sequence
        if like.num_embeddings % comm.size:
            raise invalid(f"num_embeddings is {like.num_embeddings}, which {comm.size} ranks cannot share evenly; "
                          f"{like.num_embeddings + -like.num_embeddings % comm.size} would do")
        self._grad = grad
        self._shared = Shared(comm)
        self._tensor_parallel = (comm.rank, comm.size)
        self._table = Embedding(comm, like.num_embeddings, grad=grad, sequence=sequence)
        self.weight = torch.nn.Parameter(self._own(like.weight.detach()), like.weight.requires_grad)

    def _own(self, whole: torch.Tensor) -> torch.Tensor:
        rows = self._table.rows
        return whole.narrow(0, self._shared.comm.rank * rows, rows).clone()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws the weight anew, as torch.nn.Embedding does: each rank draws the whole table, from random numbers that must be the same on all
        tensor-parallel ranks (torch.manual_seed), and keeps its part. Collective; blocking.
        Raises MegaDPError: INVALID (they were not the same), those of a lost communicator."""
        whole = _drawn(self.num_embeddings, self.embedding_dim, self.weight.device, self.weight.dtype, self._shared.comm)
        self.weight.copy_(self._own(whole.weight))

    @eager
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows `ids`. Collective; blocking, and so is its backward. Raises MegaDPError: INVALID (on the CPU an id that is not in the table; on a
        GPU its row is NaN; one rank's part was loaded on all), those of a lost communicator."""
        self._check_loaded()
        found: torch.Tensor = _Rows.apply(self.weight, _integers(ids, "ids"), self._table)  # type: ignore[no-untyped-call, unused-ignore]
        return found

    @classmethod
    def from_embedding(cls, whole: torch.nn.Embedding, comm: Comm, *, grad: Grad = "replicated",
                       sequence: bool = False) -> "VocabParallelEmbedding":
        """This rank's part of a table that is the same on all ranks; copies. Collective; blocking."""
        for name in ("padding_idx", "max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(whole, name) not in (None, False):
                raise invalid(f"whole has {name}={getattr(whole, name)!r}; an embedding that is cut over ranks has no such option: make it without")
        check_drawn([whole.weight], comm, "torch.nn.Embedding by from_embedding")
        layer = cls.__new__(cls)
        layer._set_up(whole, comm, grad, sequence)
        return layer.train(whole.training)

    @torch.no_grad()
    def to_embedding(self) -> torch.nn.Embedding:
        """The whole table, on all ranks, as a torch.nn.Embedding of its own. Collective; blocking."""
        whole = torch.nn.Embedding(self.num_embeddings, self.embedding_dim, device="meta", dtype=self.weight.dtype)
        whole = whole.to_empty(device=self.weight.device)
        region(self._shared.comm, "gather", self.weight.detach(), whole.weight.detach(), grad="replicated", stream=stream_of(self.weight))
        whole.weight.requires_grad_(self.weight.requires_grad)
        return whole.train(self.training)

    def _tell_placements(self) -> None:
        mark(self.weight, Placed("sharded", 0, 1))

    def extra_repr(self) -> str:
        rank, size = self._tensor_parallel
        told = ", sequence=True" if self.sequence else f", grad={self._grad!r}"
        return f"{self.num_embeddings}, {self.embedding_dim}, rank {rank} of {size}{told}"


@eager
def vocab_parallel_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, comm: Comm, *, ignore_index: int = -100,
                                 label_smoothing: float = 0.0, z_loss: float = 0.0, classes: int = 0,
                                 reduction: Reduction = "mean") -> torch.Tensor:
    """torch.nn.functional.cross_entropy of logits whose last dimension, the classes, is cut over the ranks of comm, the same number on each: what
    a ColumnParallelLinear without gather_output gives. targets, integers that number the whole's classes, have the other dimensions.

    The losses are the same on all ranks, float32 whatever the logits are; the gradient that comes back must be too. classes: how many there
    are (0: as many as all ranks have columns); columns beyond are padding, and do not count. label_smoothing as torch has it: every class,
    the target too, gets label_smoothing / classes. z_loss: adds z_loss * logsumexp(logits)^2. "mean" divides by the number of targets that
    are not ignore_index. Collective over comm, which stays open, forward; blocking. Backward is local.
    Raises MegaDPError: INVALID (on the CPU a target that is no class; on a GPU its loss is NaN), those of a lost communicator."""
    choice(reduction, "reduction", _REDUCTIONS)
    if logits.dim() == 0:
        raise invalid("logits has no dimension; its last one is this rank's classes")
    targets = _integers(targets, "targets")
    loss = CrossEntropy(comm, classes, ignore_index, share_of_others(label_smoothing, classes or logits.shape[-1] * comm.size), z_loss)
    losses: torch.Tensor = _Losses.apply(logits, targets, loss)  # type: ignore[no-untyped-call, unused-ignore]
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / (targets != ignore_index).sum()


def _integers(values: torch.Tensor, argument: str) -> torch.Tensor:
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise invalid(f"{argument} has dtype {values.dtype}; it must be int64 (torch.long), or other integers")
    return values.to(torch.int64)


def _drawn(num_embeddings: int, embedding_dim: int, device: Any, dtype: Optional[torch.dtype], comm: Comm) -> torch.nn.Embedding:
    """A whole table of torch's, with the values that it begins with; the same on all ranks."""
    whole = torch.nn.Embedding(num_embeddings, embedding_dim, device=device, dtype=dtype)
    check_drawn([whole.weight], comm, "torch.nn.Embedding by from_embedding")
    return whole
