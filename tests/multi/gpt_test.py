#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The GPT example under every launcher at hand, and on two hosts: the same losses and parameters, bit for bit. What it computes on 1 to 4 ranks
and however the work is cut is tested beside it (examples/c/gpt).

usage: gpt_test.py MEGADP GPT [unittest arguments]
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import unittest

from hosts import TwoHosts
from launcher_variables import without_launcher

MEGADP, GPT = sys.argv[1], sys.argv[2]
SMALL = ["--layers", "2", "--width", "32", "--heads", "2", "--context", "32", "--batch", "24"]
TIMEOUT = 240


def clean_environment(**more):
    return {**without_launcher(), "OPENBLAS_NUM_THREADS": "1", **more}


def parse(outputs):
    """The JSON lines of a job; rank 0 alone prints, so there is exactly one configuration and one summary."""
    lines = [json.loads(line) for output in outputs for line in output.splitlines() if line.startswith("{")]
    configs = [line["config"] for line in lines if "config" in line]
    summaries = [line["summary"] for line in lines if "summary" in line]
    if len(configs) != 1 or len(summaries) != 1:
        raise AssertionError(f"{len(configs)} configurations and {len(summaries)} summaries were printed:\n" + "\n".join(outputs))
    return configs[0], [line for line in lines if "step" in line], summaries[0]


def run_all(commands):
    """Runs (command, environment) pairs side by side, and returns what each printed."""
    processes = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command, env in commands
    ]
    results = []
    for process in processes:
        try:
            results.append(process.communicate(timeout=TIMEOUT))
        except subprocess.TimeoutExpired:
            process.kill()
            results.append(process.communicate())
    for (command, _), process, (out, err) in zip(commands, processes, results):
        if process.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: exit code {process.returncode}\n{out[-2000:]}\n{err[-4000:]}")
    return [out for out, _ in results]


def gpt(*arguments):
    return [GPT, "--json", *SMALL, *map(str, arguments)]


def train(ranks, *arguments):
    command = gpt(*arguments) if ranks == 1 else [MEGADP, "run", "--no-prefix", "-n", str(ranks), "--", *gpt(*arguments)]
    return parse(run_all([(command, clean_environment())]))


def trace(steps):
    return [(step["step"], step["loss"], step["param_hash"]) for step in steps]


class Launchers(unittest.TestCase):
    RANKS = 4

    @classmethod
    def setUpClass(cls):
        cls.command = gpt("--steps", 5)
        cls.expected = trace(train(cls.RANKS, "--steps", 5)[1])

    def check(self, commands):
        config, steps, _ = parse(run_all(commands))
        self.assertEqual(config["nranks"], self.RANKS)
        self.assertEqual(trace(steps), self.expected)

    def test_open_mpi(self):
        mpirun = shutil.which("mpirun.openmpi") or shutil.which("orterun")
        if mpirun is None:
            self.skipTest("Open MPI is not installed")
        options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(self.RANKS)]
        self.check([([mpirun, *options, *self.command], clean_environment())])

    def test_mpich(self):
        mpiexec = shutil.which("mpiexec.mpich") or shutil.which("mpiexec.hydra")
        if mpiexec is None:
            self.skipTest("MPICH is not installed")
        self.check([([mpiexec, "-n", str(self.RANKS), *self.command], clean_environment())])

    def test_torchrun_variables(self):
        """torchrun's agent listens on MASTER_PORT while the ranks run: megadp must not need that port."""
        import socket

        with socket.create_server(("127.0.0.1", 0)) as agent:
            port = agent.getsockname()[1]
            self.check([(self.command,
                         clean_environment(RANK=str(rank), WORLD_SIZE=str(self.RANKS), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(self.RANKS),
                                           GROUP_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID=f"run{port}",
                                           TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_MAX_RESTARTS="0")) for rank in range(self.RANKS)])

    def test_slurm_variables(self):
        job = str(secrets.randbelow(10**8))
        self.check([(self.command,
                     clean_environment(SLURM_PROCID=str(rank), SLURM_NTASKS=str(self.RANKS), SLURM_STEP_NUM_TASKS=str(self.RANKS),
                                       SLURM_JOB_ID=job, SLURM_STEP_ID="0", SLURM_NNODES="1", SLURM_STEP_NUM_NODES="1",
                                       SLURM_LOCALID=str(rank), SLURM_STEP_NODELIST="node1")) for rank in range(self.RANKS)])


class Hosts(unittest.TestCase):
    def test_same_losses_as_one_host(self):
        hosts = TwoHosts(self)
        expected = trace(train(4, "--steps", 8)[1])
        for way in ((), ("--zero-2",), ("--instances", "2"), ("--zero-2", "--instances", "2")):
            lines = hosts.run(MEGADP, (2, 2), gpt("--steps", 8, *way))
            config, steps, _ = parse(run_all([(line, clean_environment()) for line in lines]))
            self.assertEqual(config["nranks"], 4)
            self.assertEqual(trace(steps), expected)

    def test_tensor_parallel(self):
        """A model within each host, and one over both; a replica's ranks sample while the others have left."""
        hosts = TwoHosts(self)
        for way in (("--tp", "2"), ("--tp", "2", "--sp"), ("--tp", "4"), ("--tp", "4", "--sp")):
            of_one_host = train(4, "--heads", 4, "--steps", 5, *way)
            lines = hosts.run(MEGADP, (2, 2), gpt("--heads", 4, "--steps", 5, *way))
            _, steps, summary = parse(run_all([(line, clean_environment()) for line in lines]))
            self.assertEqual(trace(steps), trace(of_one_host[1]))
            self.assertEqual(summary["sample"], of_one_host[2]["sample"])

    def test_context_parallel(self):
        """A sequence over both hosts: keys and values around the ring, and all to all; and beside tensor parallelism."""
        hosts = TwoHosts(self)
        for way in (("--cp", "4", "--cp-form", "ring"), ("--cp", "4", "--cp-form", "all-to-all"), ("--tp", "2", "--cp", "2", "--sp")):
            of_one_host = train(4, "--heads", 4, "--steps", 3, *way)
            lines = hosts.run(MEGADP, (2, 2), gpt("--heads", 4, "--steps", 3, *way))
            _, steps, _ = parse(run_all([(line, clean_environment()) for line in lines]))
            self.assertEqual(trace(steps), trace(of_one_host[1]))

    def test_bf16_wire(self):
        hosts = TwoHosts(self)
        way = ("--bf16-wire", "--error-feedback")
        lines = hosts.run(MEGADP, (2, 2), gpt("--steps", 8, *way))
        self.assertEqual(trace(parse(run_all([(line, clean_environment()) for line in lines]))[1]), trace(train(4, "--steps", 8, *way)[1]))
        # Of one rank on each host: what each sends of a gradient are two bytes less of the other's half of the elements.
        steps, sent = 10, []
        for way in ((), ("--bf16-wire",)):
            before = hosts.sent()
            outputs = run_all([(line, clean_environment()) for line in hosts.run(MEGADP, (1, 1), gpt("--steps", steps, *way, "--no-hash"))])
            sent.append(hosts.sent() - before)
        elements = json.loads(next(line for line in "".join(outputs).splitlines() if '"plan"' in line))["plan"]["grad_bytes"] / 4
        saved = (sent[0] - sent[1]) / (steps * elements)
        self.assertTrue(0.95 < saved < 1.1, f"{sent[0]} and {sent[1]} bytes were sent: {saved:.3f} for each element and step saved, 1 wanted")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
