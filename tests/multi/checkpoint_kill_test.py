#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two ranks that save, in turn blocking and beside the training, are killed at random moments. What has been saved before loads,
and what was left is cleared away.

usage: checkpoint_kill_test.py MEGADP SAVER [KILLS]    MEGADP_SEED=N repeats a run's moments
"""
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from launcher_variables import without_launcher

MEGADP, SAVER = sys.argv[1], sys.argv[2]
KILLS = int(sys.argv[3]) if len(sys.argv) > 3 else 25
KEEP, LIMIT = 2, 60


def children(pid):
    """All processes below one that this test has started."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="utf-8") as file:
            for child in file.read().split():
                found += [int(child)] + children(int(child))
    return found


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_all(pid):
    try:
        pids = [pid] + children(pid)
    except FileNotFoundError:
        pids = [pid]
    for one in pids:
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            pass
    end = time.monotonic() + LIMIT
    while any(is_alive(one) for one in pids[1:]):  # what it waits for may hold a process back, and with it its locks
        assert time.monotonic() < end, f"processes {pids} do not die"
        time.sleep(0.001)


def load(directory):
    """The number of the newest checkpoint, or 0."""
    done = subprocess.run([SAVER, "load"], env=without_launcher(), input=directory + "\n", text=True, check=True, timeout=LIMIT,
                          stdout=subprocess.PIPE)
    outcome = done.stdout.strip()
    if outcome.isdigit():
        return int(outcome)
    assert outcome.startswith("MDP_E_SYSTEM"), outcome
    return 0


def save_and_kill(how, directory, moment):
    """The number of the last save that had returned."""
    run = subprocess.Popen([MEGADP, "run", "-n", "2", SAVER, how, directory, "1000000", str(KEEP)], env=without_launcher(),
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    first = run.stdout.readline()  # so that most are killed inside a save, not before the first
    time.sleep(moment)
    kill_all(run.pid)
    said = [first] + run.stdout.read().splitlines()
    run.wait(timeout=LIMIT)
    numbers = [int(line.split()[-1]) for line in said if "saved " in line and line.split()[-1].isdigit()]
    return max(numbers, default=0)


def main():
    rng = random.Random(int(os.environ.get("MEGADP_SEED", time.time_ns())))
    with tempfile.TemporaryDirectory(prefix="megadp-kill-") as folder:
        directory, left, newest = os.path.join(folder, "saved"), 0, 0
        for number in range(KILLS):
            returned = save_and_kill(("save", "beside")[number % 2], directory, rng.random() * 0.05)
            left += any(name.startswith(".") for name in os.listdir(directory))
            loaded = load(directory)
            assert loaded >= returned and loaded >= newest, f"kill {number}: {loaded} was loaded, and {returned} had been saved, {newest} before"
            newest = loaded
        subprocess.run([SAVER, "save", directory, "1", str(KEEP)], env=without_launcher(), check=True, timeout=LIMIT, stdout=subprocess.DEVNULL)
        names = sorted(os.listdir(directory))
        assert len(names) == KEEP and all(name.startswith("checkpoint-") for name in names), names
        print(f"{KILLS} kills, {left} left something behind, {newest} checkpoints")
        assert left > 0, "no kill was inside a save"
    return 0


if __name__ == "__main__":
    sys.exit(main())
