# SPDX-License-Identifier: Apache-2.0
"""Ranks that multiprocessing started meet through their pipes: no launcher, no address, no port.

usage: meet_by_pipes.py [RANKS]
"""
import multiprocessing
import sys

import megadp


def rank_main(rank, size, pipe):
    def gather(mine):
        pipe.send_bytes(mine)
        return pipe.recv()

    with megadp.Comm(bootstrap=gather, rank=rank, size=size) as comm:
        pipe.close()  # the ranks have met, and need it no more
        comm.barrier()
        print(f"rank {comm.rank} of {comm.size}", flush=True)


def serve(pipes):
    """Gives every rank the bytes of all, as often as they ask."""
    try:
        while True:
            parts = [pipe.recv_bytes() for pipe in pipes]
            for pipe in pipes:
                pipe.send(parts)
    except EOFError:
        pass


def main(size):
    context = multiprocessing.get_context("spawn")
    pipes, ranks = [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        ranks.append(context.Process(target=rank_main, args=(rank, size, theirs)))
        ranks[-1].start()
        theirs.close()
        pipes.append(ours)
    serve(pipes)
    for rank in ranks:
        rank.join()
    return max(abs(rank.exitcode) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
