#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collectives on f32 arrays over several nodes by torch.distributed over Gloo, measured and printed as between_nodes.c does: a line for
each by rank 0, its name and the median in milliseconds of the slowest rank's times.

usage: torch_between_nodes.py MIB ROUNDS      one rank; RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME are set
"""
import statistics
import sys
import time

import torch
import torch.distributed as dist


def main():
    mib, rounds = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    count = mib * 262144 // ranks * ranks
    whole, part = torch.ones(count), torch.ones(count // ranks)
    kinds = {"all_reduce": lambda: dist.all_reduce(whole), "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
             "all_gather": lambda: dist.all_gather_into_tensor(whole, part), "broadcast": lambda: dist.broadcast(whole, 0)}
    for name, call in kinds.items():
        times = []
        for _ in range(rounds):
            whole.fill_(1)
            part.fill_(1)
            dist.barrier()
            begin = time.perf_counter()
            call()
            dist.barrier()  # so that the slowest rank counts
            times.append((time.perf_counter() - begin) * 1e3)
            if name == "all_reduce" and whole[-1].item() != ranks:
                sys.exit(f"a sum of ones over {ranks} ranks is {whole[-1].item()}")
        if dist.get_rank() == 0:
            print(name, f"{statistics.median(times):.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
