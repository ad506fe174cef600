#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Strangers at the ports of a job over two hosts: while it starts and trains, another user of one of the hosts, and a third host, send what
they like to every port that is open (see stranger.py). And ranks that cannot come because of their user, or of a root that is elsewhere.

usage: strangers_test.py MEGADP BETWEEN_HOSTS [unittest arguments]
"""

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time
import unittest

from hosts import PORT, TwoHosts
from launcher_variables import without_launcher

MEGADP, BETWEEN_HOSTS = sys.argv[1], sys.argv[2]
STRANGER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stranger.py")
LIMIT = 120  # seconds after which a test has hung
ROUNDS = 100
AS_NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
SOCKETS = {"MEGADP_TRANSPORT": "sockets"}


def end(process):
    if process.poll() is None:
        process.kill()
    process.communicate()


class Strangers(unittest.TestCase):
    def start(self, hosts, host, transport, seconds=LIMIT):
        """The ranks of one host."""
        line = hosts.run(MEGADP, (2, 2), [BETWEEN_HOSTS, "train", str(seconds)])[host]
        job = subprocess.Popen(line, env={**without_launcher(), **transport}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(end, job)
        return job

    def send_stranger(self, place, net, addresses):
        stranger = subprocess.Popen([*place, sys.executable, "-B", STRANGER, str(ROUNDS), net, *addresses], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True)
        self.addCleanup(end, stranger)
        self.assertEqual(stranger.stdout.readline(), "ready\n")
        return stranger

    def check(self, jobs, stranger):
        """The job ends well while the stranger is there. What the stranger met with in its rounds."""
        heard = [stranger.stdout.readline()]
        while heard[-1] not in ("enough\n", ""):
            heard.append(stranger.stdout.readline())
        jobs[0].send_signal(signal.SIGUSR1)  # ends the training
        outputs = [job.communicate(timeout=LIMIT) for job in jobs]
        told = json.loads(stranger.communicate("", timeout=LIMIT)[0].splitlines()[-1])
        self.assertEqual([job.returncode for job in jobs], [0, 0], (told, outputs))
        for out, _ in outputs:
            self.assertGreater(json.loads(out.splitlines()[-1])["steps"], 10)
        self.assertGreaterEqual(told["rounds"], ROUNDS)
        print(told, {line.split(": ", 2)[-1] for _, err in outputs for line in err.splitlines()})
        return told

    def another_user(self, transport):
        hosts = TwoHosts(self)
        jobs = [self.start(hosts, host, transport) for host in (0, 1)]
        for job in jobs:
            self.assertIn("training", job.stdout.readline())
        place = ["ip", "netns", "exec", hosts.names[0], *AS_NOBODY]
        return self.check(jobs, self.send_stranger(place, "/proc/self/net", ["127.0.0.1", "10.83.0.1"]))

    def test_another_user_with_ucx(self):
        told = self.another_user({"MEGADP_TRANSPORT": "ucx"})
        self.assertGreaterEqual(told["attacks"], ROUNDS, "UCX's ports were not found: the test sees nothing")
        self.assertEqual(told["connected"], 0)

    def test_another_user_with_sockets(self):
        self.assertEqual(self.another_user(SOCKETS)["ports"], [])

    def test_a_third_host_with_sockets(self):
        """From before the job begins: the doors at which the ranks meet are open for a while."""
        hosts = TwoHosts(self)
        place, net = hosts.third()
        stranger = self.send_stranger(place, net, ["10.83.0.1"])
        first = self.start(hosts, 0, SOCKETS)
        self.assertEqual(stranger.stdout.readline(), "met\n")
        told = self.check([first, self.start(hosts, 1, SOCKETS)], stranger)
        self.assertIn(PORT, told["ports"])
        self.assertGreater(told["connected"], 100)

    def test_ranks_with_different_transports(self):
        hosts = TwoHosts(self)
        jobs = [self.start(hosts, host, transport, 1) for host, transport in ((0, SOCKETS), (1, {"MEGADP_TRANSPORT": "ucx"}))]
        for job in jobs:
            self.assertRegex(job.communicate(timeout=LIMIT)[1],
                             "MDP_E_DESYNC: rank 0 sends between nodes by sockets and rank 2 by ucx: MEGADP_TRANSPORT")

    def test_an_unknown_transport(self):
        hosts = TwoHosts(self)
        jobs = [self.start(hosts, host, {"MEGADP_TRANSPORT": "pigeons"}, 1) for host in (0, 1)]
        for job in jobs:
            self.assertRegex(job.communicate(timeout=LIMIT)[1], "MDP_E_INVALID: .*MEGADP_TRANSPORT is 'pigeons'; it must be ucx or sockets")


class Misplaced(unittest.TestCase):
    def rank(self, number, prefix=(), timeout="2", **variables):
        """What a rank says that is alone, and how long it takes."""
        variables = {"RANK": str(number), "LOCAL_RANK": str(number), "LOCAL_SIZE": "2", "NRANKS": "2", "JOB": "misplaced", "SECRET": 32 * "ab",
                     **variables}
        began = time.monotonic()
        done = subprocess.run([*prefix, BETWEEN_HOSTS, "train", "1", timeout], stderr=subprocess.PIPE, text=True, timeout=LIMIT,
                              env={**without_launcher(), **{f"MEGADP_{name}": value for name, value in variables.items()}})
        self.assertEqual(done.returncode, 1)
        return done.stderr, time.monotonic() - began

    def test_a_rank_of_another_user(self):
        self.assertRegex(self.rank(1, AS_NOBODY)[0], "Connection refused; all ranks of a node must be started by one user.* user 65534")

    def test_two_of_rank_0(self):
        """As from two terminals. The second one takes the place when the first gives up, if its time is not over by then."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            said = [started.result()[0] for started in [pool.submit(self.rank, 0, timeout=timeout) for timeout in ("4", "8")]]
        asked = [text for text in said if "was it started as rank 0 too?" in text]
        self.assertEqual(len(asked), 1, said)
        self.assertRegex(asked[0], r"process \d+ of user 0 listen(ed|s) there: ")
        self.assertIn("rank 1 did not come to the rendezvous", said[1])

    def test_a_root_that_is_elsewhere(self):
        """An address of no machine (RFC 5737): it used to be waited at for the whole timeout, here 5 minutes."""
        said, seconds = self.rank(0, timeout="300", ROOT="203.0.113.5:29999")
        self.assertRegex(said, "MDP_E_INVALID: the root address 203.0.113.5:29999 is no address of this machine, where rank 0 was started")
        self.assertLess(seconds, 60)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
