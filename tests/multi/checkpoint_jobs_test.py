#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two jobs save into one directory, and a third loads what is the newest meanwhile: every save gets a number of its own, every load finds a
whole checkpoint, and nothing else is left in the end.

usage: checkpoint_jobs_test.py SAVER
"""
import os
import subprocess
import sys
import tempfile

from launcher_variables import without_launcher

SAVER = sys.argv[1]
SAVES, LIMIT = 40, 120


def start(*arguments, **streams):
    return subprocess.Popen([SAVER, *arguments], env=without_launcher(), stdout=subprocess.PIPE, text=True, **streams)


def main():
    with tempfile.TemporaryDirectory(prefix="megadp-jobs-") as folder:
        directory = os.path.join(folder, "saved")
        subprocess.run([SAVER, "save", directory, "1", "0"], env=without_launcher(), check=True, timeout=LIMIT, stdout=subprocess.DEVNULL)
        jobs = [start(how, directory, str(SAVES), "0") for how in ("save", "beside")]
        loader = start("load", stdin=subprocess.PIPE)
        loads = 0
        while any(job.poll() is None for job in jobs):
            loader.stdin.write(directory + "\n")
            loader.stdin.flush()
            outcome = loader.stdout.readline().strip()
            assert outcome.isdigit() and 1 <= int(outcome) <= 2 * SAVES + 1, f"load {loads}: {outcome}"
            loads += 1
        said = [job.communicate(timeout=LIMIT)[0].count("saved ") for job in jobs]
        assert said == [SAVES] * 2 and all(job.returncode == 0 for job in jobs), said
        wanted = [f"checkpoint-{number:06d}" for number in range(1, 2 * SAVES + 2)]
        names = sorted(os.listdir(directory))
        assert names == wanted, f"{len(names)} names: {sorted(set(names) ^ set(wanted))}"
        outcomes, _ = loader.communicate("".join(os.path.join(directory, name) + "\n" for name in names), timeout=LIMIT)
        assert all(outcome.isdigit() for outcome in outcomes.split()) and len(outcomes.split()) == len(names), outcomes
        assert loads > 0, "nothing was loaded meanwhile"
        print(f"2 jobs, {len(names)} checkpoints, {loads} loads meanwhile")
    return 0


if __name__ == "__main__":
    sys.exit(main())
