# SPDX-License-Identifier: Apache-2.0
# Ranks find each other under real launchers (Open MPI's mpirun, MPICH's mpiexec) and under the variables of those that are not installed.
# Usage: launchers_test.py PATH_TO_MULTI_WORLD [unittest arguments]. The program joins from its environment, exchanges its rank with all
# others and prints one line. What cannot be tried on this machine is skipped with its reason.
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

from launcher_variables import without_launcher

PROGRAM = ""
LIMIT = 90  # seconds after which a test has hung


def environment(more=None):
    return {**without_launcher(), **(more or {})}


def run(command, env=None):
    """Exit code and the lines of the output, sorted: ranks write in any order. A launcher may complain of its own affairs beside it (Open
    MPI's PMIx does, where several jobs begin and end at once): that counts where something has failed."""
    done = subprocess.run(command, env=environment(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=LIMIT, text=True)
    said = done.stdout + (done.stderr if done.returncode else "")
    return done.returncode, sorted(line for line in said.splitlines() if line.strip())


def together(environments):
    """The program once per environment, all at once: exit codes and lines, in order."""
    ranks = [subprocess.Popen([PROGRAM, "--environment"], env=environment(env), stdout=subprocess.PIPE, text=True) for env in environments]
    lines = [rank.communicate(timeout=LIMIT)[0].strip() for rank in ranks]
    return [rank.returncode for rank in ranks], lines


def expected(launcher, hosts):
    heard = " ".join(f"{rank}@{host}" for rank, host in enumerate(hosts))
    return [f"{launcher}: rank {rank} of {len(hosts)}, heard {heard}" for rank in range(len(hosts))]


def needs(program):
    return unittest.skipUnless(shutil.which(program), f"{program} is not installed")


def mpirun():
    options = ["--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    return ["mpirun.openmpi" if shutil.which("mpirun.openmpi") else "mpirun", *options]


class OneHost(unittest.TestCase):
    @needs("mpirun.openmpi")
    def test_open_mpi(self):
        self.assertEqual(run([*mpirun(), "-n", "3", PROGRAM, "--environment"]), (0, expected("Open MPI", [0, 0, 0])))

    @needs("mpiexec.mpich")
    def test_mpich(self):
        self.assertEqual(run(["mpiexec.mpich", "-n", "3", PROGRAM, "--environment"]), (0, expected("MPICH", [0, 0, 0])))

    @needs("mpiexec.mpich")
    def test_mpich_with_scripts_in_between(self):
        command = ["mpiexec.mpich", "-n", "2", "sh", "-c", f"sh -c '{PROGRAM} --environment; exit $?'; exit $?"]
        self.assertEqual(run(command), (0, expected("MPICH", [0, 0])))

    @needs("mpirun.openmpi")
    def test_two_jobs_at_once(self):
        """In a folder each: two of Open MPI's that begin at once may both try to make the one that they share, and one fails."""
        command = [*mpirun(), "-n", "2", PROGRAM, "--environment"]
        with contextlib.ExitStack() as folders:
            jobs = [subprocess.Popen(command, env={**environment(), "TMPDIR": folders.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))},
                                     stdout=subprocess.PIPE, text=True) for _ in range(3)]
            for job in jobs:
                self.assertEqual(sorted(job.communicate(timeout=LIMIT)[0].splitlines()), expected("Open MPI", [0, 0]))

    def torchrun(self, rank, port, **more):
        return {"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", **more}

    def test_torchrun_whose_agent_listens(self):
        with socket.create_server(("127.0.0.1", 0)) as agent:
            agent.setblocking(False)
            port = agent.getsockname()[1]
            self.assertEqual(together([self.torchrun(rank, port) for rank in range(3)]), ([0] * 3, expected("torchrun", [0, 0, 0])))
            with self.assertRaises(BlockingIOError, msg="somebody connected to the agent's port"):
                agent.accept()

    def test_torchrun_that_does_not_say_how_many_hosts(self):
        with socket.create_server(("127.0.0.1", 0)) as agent:
            port = agent.getsockname()[1]
            ranks = [{"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": socket.gethostname(), "MASTER_PORT": str(port)} for rank in range(2)]
            self.assertEqual(together(ranks), ([0] * 2, expected("torchrun", [0, 0])))

    def test_slurm(self):
        ranks = [{"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_NNODES": "1",
                  "SLURM_LOCALID": str(rank)} for rank in range(2)]
        self.assertEqual(together(ranks), ([0] * 2, expected("SLURM", [0, 0])))

    def test_bootstrap(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([PROGRAM, "--bootstrap", folder, str(rank), "3"], env=environment(), stdout=subprocess.PIPE, text=True)
                     for rank in range(3)]
            lines = [rank.communicate(timeout=LIMIT)[0].strip() for rank in ranks]
        self.assertEqual(([rank.returncode for rank in ranks], lines), ([0] * 3, expected("bootstrap", [0, 0, 0])))

    def test_alone(self):
        self.assertEqual(together([{}]), ([0], expected("alone", [0])))

    def test_a_partial_environment_is_no_single_rank(self):
        codes, lines = together([{"RANK": "0"}, {"OMPI_COMM_WORLD_SIZE": "2"}, {"MEGADP_RANK": "0"}, {"PMI_RANK": "0"}, {"SLURM_STEP_ID": "0"}])
        self.assertEqual(codes, [1] * 5)
        for line in lines:
            self.assertIn("MDP_E_INVALID", line)
            self.assertIn("missing", line)


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("ip"), "network namespaces need root and iproute2")
class TwoHosts(unittest.TestCase):
    """Two network namespaces joined by a cable stand for two hosts."""

    def setUp(self):
        self.names = [f"mdpL{os.getpid()}{letter}" for letter in "ab"]
        a, b = self.names
        self.addCleanup(self.remove)
        commands = [f"netns add {a}", f"netns add {b}", f"link add mdpL0 netns {a} type veth peer name mdpL1 netns {b}",
                    f"-n {a} addr add 10.79.0.1/24 dev mdpL0", f"-n {b} addr add 10.79.0.2/24 dev mdpL1"]
        commands += [f"-n {a} link set mdpL0 up", f"-n {b} link set mdpL1 up", f"-n {a} link set lo up", f"-n {b} link set lo up"]
        for command in commands:
            done = subprocess.run(["ip", *command.split()], stderr=subprocess.PIPE, text=True)
            if done.returncode != 0:
                self.skipTest(f"ip {command}: {done.stderr.strip()}")

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def spread(self, environments):
        """Ranks in turn on the first and the second host."""
        ranks = []
        for rank, env in enumerate(environments):
            command = ["ip", "netns", "exec", self.names[rank % 2], PROGRAM, "--environment"]
            ranks.append(subprocess.Popen(command, env=environment(env), stdout=subprocess.PIPE, text=True))
        lines = [rank.communicate(timeout=LIMIT)[0].strip() for rank in ranks]
        return [rank.returncode for rank in ranks], lines

    def test_bootstrap(self):
        """Neither launcher nor address: all that the hosts share is a folder."""
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen(["ip", "netns", "exec", self.names[rank % 2], PROGRAM, "--bootstrap", folder, str(rank), "4"],
                                      env=environment(), stdout=subprocess.PIPE, text=True) for rank in range(4)]
            lines = [rank.communicate(timeout=LIMIT)[0].strip() for rank in ranks]
        self.assertEqual(([rank.returncode for rank in ranks], lines), ([0] * 4, expected("bootstrap", [0, 1, 0, 1])))

    def test_torchrun(self):
        ranks = [{"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank // 2), "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.79.0.1",
                  "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "0"} for rank in range(4)]
        self.assertEqual(self.spread(ranks), ([0] * 4, expected("torchrun", [0, 1, 0, 1])))

    def test_root_by_hand(self):
        ranks = [{"SLURM_PROCID": str(rank), "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NNODES": "2",
                  "MEGADP_ROOT": "10.79.0.1:21999"} for rank in range(4)]
        self.assertEqual(self.spread(ranks), ([0] * 4, expected("SLURM", [0, 1, 0, 1])))


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
