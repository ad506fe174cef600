#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What somebody who is no rank may send to a job's ports: what stops UCX, random bytes, nothing, connections that are left half open, and many
that say nothing. Run by strangers_test.py as another user or on a third host. Sends until its standard input ends. Says "ready",
"met" after the first open doors, "enough" after ROUNDS, and at the end, as a line of JSON, how it went.

usage: stranger.py ROUNDS NET ADDRESS...      NET: the folder with the victims' tables of sockets, like /proc/self/net
"""

import itertools
import json
import random
import select
import socket
import struct
import sys

# UCX's magic number, and then a length that no buffer has.
ENDS_UCX = struct.pack("<Q", 0xCAFEBABE12345678) + 16 * b"\xff"
IDLE = 200


def listening(folder):
    """The ports that somebody listens at."""
    ports = set()
    for table in ("tcp", "tcp6"):
        try:
            with open(f"{folder}/{table}", encoding="ascii") as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue  # the victim has ended
        ports |= {int(row[1].rsplit(":", 1)[1], 16) for row in rows if row[3] == "0A"}
    return ports


def connect(address, port):
    try:
        connection = socket.create_connection((address, port), timeout=0.05)
    except OSError:
        return None
    connection.setblocking(False)
    return connection


def send(connection, data):
    try:
        connection.sendall(data)
    except OSError:
        pass  # it has been refused already


def say(line):
    print(line, flush=True)


def main():
    rounds, folder, addresses = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    chance, done, attacks, connected, seen, kept = random.Random(1), 0, 0, 0, set(), []
    say("ready")
    while not select.select([sys.stdin], [], [], 0.005)[0]:
        ports = listening(folder)
        first = bool(ports) and not seen
        seen |= ports
        for address, port in itertools.product(addresses, sorted(ports)):
            idle = IDLE * [b""] if first else []
            for data in (ENDS_UCX, chance.randbytes(chance.randrange(1, 4096)), b"", ENDS_UCX[:8], chance.randbytes(3), *idle):
                connection = connect(address, port)
                if connection is None:
                    break
                connected += 1
                send(connection, data)
                kept = [*kept[-IDLE:], connection]  # half open for a while
        if first:
            say("met")
        attacks += bool(ports)
        done += 1
        if done == rounds:
            say("enough")
    say(json.dumps({"rounds": done, "attacks": attacks, "connected": connected, "ports": sorted(seen)}))


if __name__ == "__main__":
    main()
