#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saving and loading parameters and both moments of AdamW, by megadp, torch.save, torch.distributed.checkpoint and safetensors, beside plain
files of as many bytes (written in pieces of 1 MiB, as dd does), each rank its share; all files are synced. They take turns within one run, each
round beginning with another one; what is loaded is first driven out of memory (POSIX_FADV_DONTNEED). Prints a line of JSON for each: the
medians over the rounds, each counted as its slowest rank, and the plain files' median as a part of it.

usage: torch_checkpoint.py [--ranks 1] [--rounds 5] [--mib 512] DIRECTORY   (PYTHONPATH, MEGADP_LIBRARY as for the binding's tests)
77: no PyTorch, no safetensors, or no megadp.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

try:
    import numpy
    import safetensors.torch
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    import megadp
except ImportError as missing:
    print(f"skipped: {missing}", file=sys.stderr)
    sys.exit(77)

TENSORS = 16  # of each kind
MIB = 1 << 20


def sync(path):
    for name in (path, os.path.dirname(path)):
        descriptor = os.open(name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def drop(folder):
    """Drives files that have been synced out of memory."""
    for path, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(path, name), os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


class Plain:
    def __init__(self, state, rank):
        self.bytes = torch.cat([tensor.flatten() for tensor in state.values()]).numpy().view(numpy.uint8)
        self.rank = rank

    def save(self, folder):
        path = os.path.join(folder, str(self.rank))
        with open(path, "wb", buffering=0) as file:
            for at in range(0, len(self.bytes), MIB):
                file.write(self.bytes[at:at + MIB])
            os.fsync(file.fileno())

    def load(self, folder):
        with open(os.path.join(folder, str(self.rank)), "rb", buffering=0) as file:
            for at in range(0, len(self.bytes), MIB):
                file.readinto(self.bytes[at:at + MIB])


class TorchSave:
    def __init__(self, state, rank):
        self.state, self.rank = state, rank

    def save(self, folder):
        path = os.path.join(folder, f"{self.rank}.pt")
        torch.save(self.state, path)
        sync(path)

    def load(self, folder):
        for name, tensor in torch.load(os.path.join(folder, f"{self.rank}.pt"), weights_only=True).items():
            self.state[name].copy_(tensor)


class Safetensors:
    def __init__(self, state, rank):
        self.state, self.rank = state, rank

    def save(self, folder):
        path = os.path.join(folder, f"{self.rank}.safetensors")
        safetensors.torch.save_file(self.state, path)
        sync(path)

    def load(self, folder):
        for name, tensor in safetensors.torch.load_file(os.path.join(folder, f"{self.rank}.safetensors")).items():
            self.state[name].copy_(tensor)


class Distributed:
    """torch.distributed.checkpoint; each rank's tensors have names of their own."""

    def __init__(self, state, rank):
        self.state = {f"{rank}.{name}": tensor for name, tensor in state.items()}

    def save(self, folder):
        dcp.save(self.state, storage_writer=dcp.FileSystemWriter(folder, sync_files=True))

    def load(self, folder):
        dcp.load(self.state, storage_reader=dcp.FileSystemReader(folder))


class Megadp:
    """The same bytes over all ranks: ZeRO-1, so that each rank has its share of all three."""

    def __init__(self, elements):
        self.comm = megadp.Comm()
        self.buffer = megadp.Buffer(self.comm, {f"layer.{i}": (elements,) for i in range(TENSORS)})
        self.optimizer = megadp.Optimizer(self.buffer)
        values = numpy.random.default_rng(0).random(elements, dtype=numpy.float32)
        for i in range(TENSORS):
            self.buffer.write(i, values)

    def save(self, folder):
        megadp.save_checkpoint(folder, self.optimizer)

    def load(self, folder):
        megadp.load_checkpoint(folder, self.optimizer)


def slowest(work):
    dist.barrier()
    begin = time.perf_counter()
    work()
    took = torch.tensor([time.perf_counter() - begin])
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.item()


def run(arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    elements = arguments.mib * MIB // 12 // TENSORS
    share = {f"{kind}.{i}": torch.rand(elements // ranks) for kind in ("param", "exp_avg", "exp_avg_sq") for i in range(TENSORS)}
    contenders = {"plain files": Plain(share, rank), "megadp": Megadp(elements), "torch.save": TorchSave(share, rank),
                  "safetensors": Safetensors(share, rank), "torch.distributed.checkpoint": Distributed(share, rank)}
    names = list(contenders)
    times = {name: ([], []) for name in names}
    for number in range(arguments.rounds + 1):
        for name in names[number % len(names):] + names[:number % len(names)]:
            folder = os.path.join(arguments.directory, name)
            if rank == 0:
                os.makedirs(folder)
            dist.barrier()
            saved = slowest(lambda name=name, folder=folder: contenders[name].save(folder))
            if rank == 0:
                drop(folder)
            loaded = slowest(lambda name=name, folder=folder: contenders[name].load(folder))
            if number > 0:  # the first warms up
                times[name][0].append(saved)
                times[name][1].append(loaded)
            dist.barrier()
            if rank == 0:
                shutil.rmtree(folder)
    if rank == 0:
        plain = [statistics.median(values) for values in times["plain files"]]
        for name, (saved, loaded) in times.items():
            medians = statistics.median(saved), statistics.median(loaded)
            print(json.dumps({"mib": arguments.mib, "ranks": ranks, "contender": name, "save_s": round(medians[0], 3),
                              "of_plain_save": round(plain[0] / medians[0], 2), "load_s": round(medians[1], 3),
                              "of_plain_load": round(plain[1] / medians[1], 2)}), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("directory")
    arguments = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        run(arguments)
        return 0
    os.makedirs(arguments.directory, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(arguments.ranks), *sys.argv]
    return subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS="1"), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
