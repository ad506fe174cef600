# SPDX-License-Identifier: Apache-2.0
"""Programs of test_torch_tp.py that save and load checkpoints, one rank each.

usage: torch_tp_checkpoint_cases.py CASE [ARGUMENT ...]
"""
import hashlib
import json
import sys

import torch

import megadp
import megadp.torch as mt
from megadp.torch import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding, vocab_parallel_cross_entropy
from support import refused
from torch_tp_cases import BATCH, FEATURES, HIDDEN, TOKENS, Cut

WORDS = 16


class Saved(torch.nn.Module):
    """All that tensor-parallel ranks may hold: tied, fused, frozen; module buffers that are alike and that are cut."""

    def __init__(self, comm, said=True):
        super().__init__()
        self.comm = comm
        self.words = VocabParallelEmbedding(WORDS, FEATURES, comm)
        self.cut = Cut(comm, False)
        self.gates = ColumnParallelLinear(FEATURES, 2 * HIDDEN, comm, blocks=(HIDDEN, HIDDEN))
        self.joins = RowParallelLinear(HIDDEN, FEATURES, comm, grad="replicated", bias=False)
        self.joins.weight.requires_grad_(False)
        self.head = ColumnParallelLinear(FEATURES, WORDS, comm, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.zeros(HIDDEN // comm.size))
        self.register_buffer("mask", torch.zeros(3, HIDDEN // comm.size, dtype=torch.bool))
        if said:
            mt.place(self.scale, "sharded", 0)
            mt.place(self.mask, "sharded", 1)

    def forward(self, ids):
        x = self.cut(self.words(ids))
        gate, up = self.gates(x).chunk(2, -1)
        return self.head(x + self.joins(torch.sigmoid(gate) * up * (1 + self.scale)))

    def whole(self):
        """Bytes of all of it, whole; the same however it is cut."""
        def gathered(values, dim):
            return mt.gather_from_tensor_parallel(values.float(), self.comm, dim, grad="replicated")

        found = {name: dict(getattr(part, "to_linear", getattr(part, "to_embedding", None))().state_dict()) for name, part in (
            ("words", self.words), ("up", self.cut.up), ("down", self.cut.down), ("gates", self.gates), ("joins", self.joins))}
        found["rest"] = {"norm": self.cut.norm.weight, "bias": self.cut.norm.bias, "seen": self.seen, "scale": gathered(self.scale, 0),
                         "mask": gathered(self.mask, 1)}
        return hashlib.sha256(b"".join(bytes(values.detach().contiguous().view(-1).view(torch.uint8).tolist())
                                       for each in found.values() for values in each.values())).hexdigest()


def saved_training(comm, folder, mode, tp, dtype="float32"):
    """mode save: three steps, a checkpoint, three more; go_on: from the checkpoint, and whether it goes on with the same bits. Rank 0 tells."""
    with megadp.Grid(comm, tp=int(tp)) as grid, grid.comm("tp") as over, grid.comm("dp") as data_parallel:
        torch.manual_seed(11 if mode == "save" else 12)
        module = Saved(over).to(getattr(torch, dtype))
        mt.place(module.scale, "sharded", 0)
        mt.place(module.mask, "sharded", 1)
        model = mt.DataParallel(module, grid)
        optimizer, losses = mt.ShardedAdamW(model, lr=1e-2 if mode == "save" else 0.5), []

        def step(number):
            ids = torch.randint(WORDS, (TOKENS, BATCH), generator=torch.Generator().manual_seed(number % 4))
            ids = ids[:, data_parallel.rank * BATCH // data_parallel.size:(data_parallel.rank + 1) * BATCH // data_parallel.size]
            loss = vocab_parallel_cross_entropy(model(ids).float(), (ids * 5 + 3) % WORDS, over)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total = loss.detach().reshape(1).double()
            data_parallel.all_reduce(total, op="avg")
            losses.append(total.item())

        if mode == "save":
            with torch.no_grad():
                module.seen.fill_(7)
                at = over.rank * HIDDEN // over.size + torch.arange(HIDDEN // over.size)
                module.scale.copy_(at / 64)
                module.mask.copy_((at + torch.arange(3).reshape(3, 1)) % 3 == 0)
            for number in range(3):
                step(number)
            torch.manual_seed(40 + comm.rank)
            mt.save_checkpoint(folder, model, optimizer, extra={"after": 3})
        else:
            torch.manual_seed(90)
            assert mt.load_checkpoint(folder, model, optimizer) == {"after": 3}
            assert optimizer.param_groups[0]["lr"] == 1e-2
        model.wait()
        drawn = torch.rand(1).item()
        of_seed = [torch.rand(1, generator=torch.Generator().manual_seed(seed)).item() for seed in (40 + comm.rank, 90)]
        saved = module.whole()
        for number in range(3, 6):
            step(number)
        model.wait()
        model.storage.verify()
        if comm.rank == 0:
            print(json.dumps({"saved": saved, "after": module.whole(), "losses": losses[-3:], "random": of_seed.index(drawn)}), flush=True)
        else:
            module.whole()


def unsaid(comm, folder):
    """A module buffer that is cut, and nobody has said so."""
    with megadp.Grid(comm, tp=2) as grid, grid.comm("tp") as over:
        torch.manual_seed(11)
        model = mt.DataParallel(Saved(over, said=False), grid)
        model.module.scale.fill_(over.rank)
        refused(lambda: mt.save_checkpoint(folder, model, None), "'scale' is not the same on all tensor-parallel ranks")
        model.module.scale.fill_(1)
        mt.save_checkpoint(folder, model, None)
        model.module.scale.zero_()
        mt.load_checkpoint(folder, model, None)
        assert model.module.scale.tolist() == [1] * (HIDDEN // 2)
    with megadp.Grid(comm, pp=2) as grid:
        staged = mt.DataParallel(torch.nn.Linear(2, 2), grid)
        refused(lambda: mt.save_checkpoint(folder, staged, None), "1 of 2")


if __name__ == "__main__":
    name, *more = sys.argv[1:]
    with megadp.Comm() as world:
        globals()[name](world, *more)
    print(f"{name} done", flush=True)
