# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces with a cable between them: two hosts, as far as sockets and shared memory by descriptor can tell."""

import itertools
import json
import os
import secrets
import shutil
import subprocess
import tempfile

PORT = 29517
_numbers = itertools.count()


class TwoHosts:
    """Made for one test, which is skipped where namespaces are not permitted, and gone with it."""

    def __init__(self, test):
        name = f"mdp{os.getpid()}{'abcdefghijklmnopqrstuvwxyz'[next(_numbers) % 26]}"
        self.names = [name + "0", name + "1"]
        self.ends = [name + "x", name + "y"]
        self.folder, self.test = tempfile.mkdtemp(), test
        test.addCleanup(self._remove)
        steps = [["ip", "netns", "add", host] for host in self.names]
        steps.append(["ip", "link", "add", self.ends[0], "type", "veth", "peer", "name", self.ends[1]])
        for i, (host, end) in enumerate(zip(self.names, self.ends)):
            steps += [["ip", "link", "set", end, "netns", host], ["ip", "-n", host, "addr", "add", f"10.83.0.{i + 1}/24", "dev", end],
                      ["ip", "-n", host, "addr", "add", f"fe80::{i + 1}/64", "dev", end, "nodad"],
                      ["ip", "-n", host, "link", "set", end, "up"], ["ip", "-n", host, "link", "set", "lo", "up"]]
        for step in steps:
            try:
                done = subprocess.run(step, capture_output=True, text=True)
            except FileNotFoundError:
                test.skipTest("no `ip` program (package iproute2)")
            if done.returncode != 0:
                test.skipTest(f"network namespaces cannot be made here: {done.stderr.strip()}")
        self.secret = os.path.join(self.folder, "secret")
        with open(os.open(self.secret, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))

    def _remove(self):
        for host in self.names:
            subprocess.run(["ip", "netns", "del", host], capture_output=True)
        shutil.rmtree(self.folder)

    def third(self):
        """A host that is no part of the job, with a cable to the first: how a command is run there, and the first host's tables of sockets."""
        host, ends = self.names[0] + "s", [self.ends[0] + "s", self.ends[0] + "t"]
        self.names.append(host)
        for step in (["netns", "add", host], ["link", "add", ends[0], "type", "veth", "peer", "name", ends[1]],
                     ["link", "set", ends[0], "netns", self.names[0]], ["link", "set", ends[1], "netns", host],
                     ["-n", self.names[0], "addr", "add", "10.84.0.1/24", "dev", ends[0]], ["-n", host, "addr", "add", "10.84.0.2/24", "dev", ends[1]],
                     ["-n", self.names[0], "link", "set", ends[0], "up"], ["-n", host, "link", "set", ends[1], "up"],
                     ["-n", host, "route", "add", "10.83.0.0/24", "via", "10.84.0.1"]):
            subprocess.run(["ip", *step], check=True)
        inside = subprocess.Popen(["ip", "netns", "exec", self.names[0], "cat"], stdin=subprocess.PIPE)
        self.test.addCleanup(inside.communicate)
        return ["ip", "netns", "exec", host], f"/proc/{inside.pid}/net"

    def cut_the_cable(self):
        subprocess.run(["ip", "-n", self.names[0], "link", "set", self.ends[0], "down"], check=True)

    def slow_down(self, rate):
        """The cable takes no more than that in each direction, as `tc` writes it."""
        for host, end in zip(self.names, self.ends):
            subprocess.run(["ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", end, "root", "tbf", "rate", rate, "burst", "16kb", "limit", "32kb"],
                           check=True)

    def read(self, path):
        """What both hosts have at `path`, one after the other."""
        commands = [["ip", "netns", "exec", host, "cat", path] for host in self.names[:2]]
        return "".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in commands)

    def sent(self):
        """How many bytes the first host has put on the cable."""
        shown = subprocess.run(["ip", "-n", self.names[0], "-s", "-j", "link", "show", "dev", self.ends[0]], capture_output=True, text=True, check=True)
        return json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"]

    def run(self, megadp, ranks, command, options=(), link_local=False):
        """The line of `megadp run` for each host; ranks: how many on each. With link_local they meet at an address that holds on the cable alone,
        which each host says with its own end."""
        lines, first = [], 0
        for host, end, count in zip(self.names, self.ends, ranks):
            root = f"[fe80::1%{end}]" if link_local else "10.83.0.1"
            lines.append(["ip", "netns", "exec", host, megadp, "run", "--no-prefix", "-n", str(count), "--nranks", str(sum(ranks)),
                          "--first-rank", str(first), "--root", f"{root}:{PORT}", "--secret-file", self.secret, *options, "--", *command])
            first += count
        return lines
