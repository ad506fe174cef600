# SPDX-License-Identifier: Apache-2.0
"""Ranks that meet by a callable which gathers bytes: processes as in the example, and threads of which one does it wrong."""
import os
import re
import subprocess
import sys
import threading
import time
import unittest

import megadp

EXAMPLE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples", "meet_by_pipes.py")


class Board:
    """Gathers between threads; a call of a rank that has left counts as broken."""

    def __init__(self, ranks):
        self.barrier, self.parts = threading.Barrier(ranks), [None] * ranks

    def gather(self, rank):
        def call(mine):
            self.parts[rank] = mine
            self.barrier.wait(60)
            everyone = list(self.parts)
            self.barrier.wait(60)
            return everyone
        return call


def meet(gathers, timeout=60):
    """What became of each rank."""
    outcomes = [None] * len(gathers)

    def join(rank):
        try:
            with megadp.Comm(bootstrap=gathers[rank], rank=rank, size=len(gathers), timeout=timeout) as comm:
                comm.barrier()
                outcomes[rank] = (comm.rank, comm.size)
        except megadp.MegaDPError as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(len(gathers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


class Bootstrap(unittest.TestCase):
    def test_processes(self):
        done = subprocess.run([sys.executable, "-B", EXAMPLE, "3"], capture_output=True, text=True, timeout=240)
        # Processes that share a pipe may write their line ends together.
        self.assertEqual((done.returncode, sorted(re.findall(r"rank \d of \d", done.stdout))), (0, [f"rank {rank} of 3" for rank in range(3)]),
                         done.stderr)

    def test_threads(self):
        board = Board(3)
        self.assertEqual(meet([board.gather(rank) for rank in range(3)]), [(rank, 3) for rank in range(3)])

    def test_wrong_lengths(self):
        for change in (lambda parts: parts[:-1], lambda parts: [*parts, parts[0]], lambda parts: [part[:-1] for part in parts], lambda parts: None):
            board = Board(2)
            right = board.gather(1)
            outcomes = meet([board.gather(0), lambda mine: change(right(mine))])
            self.assertEqual([error.code for error in outcomes], [megadp.Status.BACKEND] * 2)
            self.assertIsInstance(outcomes[1].__cause__, (ValueError, TypeError))
            self.assertIn("rank 1: config.bootstrap", str(outcomes[0]))

    def test_exception(self):
        board, called = Board(2), []
        right = board.gather(1)

        def raises(mine):
            called.append(mine)
            if len(called) == 1:
                raise KeyError("no store")
            return right(mine)

        outcomes = meet([board.gather(0), raises])
        self.assertEqual([error.code for error in outcomes], [megadp.Status.BACKEND] * 2)
        self.assertIsInstance(outcomes[1].__cause__, KeyError)

    def test_the_timeout_holds_while_the_callable_blocks(self):
        release = threading.Event()
        begun = time.monotonic()
        outcomes = meet([lambda mine: release.wait() and [mine]] * 2, timeout=0.5)
        self.assertLess(time.monotonic() - begun, 60)
        release.set()
        self.assertEqual([error.code for error in outcomes], [megadp.Status.TIMEOUT] * 2)

    def test_rank_and_size(self):
        with self.assertRaisesRegex(megadp.MegaDPError, "with a bootstrap, rank and size must be given too"):
            megadp.Comm(bootstrap=lambda mine: [mine])
        with self.assertRaisesRegex(megadp.MegaDPError, "there is an id, and a config.bootstrap too"):
            megadp.Comm(megadp.unique_id(), 0, 1, bootstrap=lambda mine: [mine])


if __name__ == "__main__":
    unittest.main(verbosity=2)
