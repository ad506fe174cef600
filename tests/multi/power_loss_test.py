#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The power goes while checkpoints are saved, blocking or beside the training, or exported: it is recorded call by call, cut off after every
one, and what a device may then hold is laid out and loaded. A file's bytes are sure after an fsync of the file, names in a folder after one
of the folder; of the rest any part may be there. MEGADP_SEED=N repeats a run.

usage: power_loss_test.py SAVER RECORDER [MEGADP]
"""

import os
import random
import subprocess
import sys
import tempfile

from launcher_variables import without_launcher

SAVER, RECORDER = sys.argv[1], sys.argv[2]
SEED = int(os.environ.get("MEGADP_SEED", 1))
SAVES, SUBSETS, LIMIT = 3, 20, 120
KEPT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "checkpoint-0.1")


class Node:
    """A file or folder: what is sure, and what has happened since."""

    def __init__(self, is_folder):
        self.is_folder, self.pending = is_folder, []
        self.sure = {} if is_folder else b""
        self.names = {}  # of a folder, as the process sees them

    def apply(self, state, change):
        if not self.is_folder:
            at, data = change
            return state[:at].ljust(at, b"\0") + data + state[at + len(data):]
        before, after, node = change  # names; None: there was none, or is none any more
        state = {name: one for name, one in state.items() if not (name == before and one is node)}
        return state if after is None else {**state, after: node}

    def after(self, keep):
        state = self.sure
        for change in self.pending:
            if keep():
                state = self.apply(state, change)
        return state

    def change(self, change):
        self.pending.append(change)
        if self.is_folder:
            self.names = self.apply(self.names, change)

    def sync(self):
        self.sure, self.pending = self.after(lambda: True), []


class Device:
    """Takes the recorded calls one by one."""

    def __init__(self, inode):
        self.root = Node(True)
        self.nodes = {str(inode): self.root}  # an inode is used again once its file is gone
        self.returned = 0

    def take(self, line):
        call, *words = line.split()
        if call == "said":
            self.returned = int(words[1])
            return
        node = self.nodes[words[0]]
        if call in ("mkdir", "create"):
            made = self.nodes[words[2]] = Node(call == "mkdir")
            node.change((None, words[1], made))
        elif call == "write":
            node.change((int(words[1]), bytes.fromhex(words[2])))
        elif call == "fsync":
            node.sync()
        elif call == "rename":
            self.rename(node, *words[1:])
        elif call == "unlink":
            node.change((words[1], None, node.names[words[1]]))
        else:
            raise ValueError(line)

    def rename(self, node, before, after):
        """Out of a folder below these are two changes of names."""
        folder, _, name = before.rpartition("/")
        if folder:
            moved = node.names[folder].names[name]
            node.names[folder].change((name, None, moved))
            node.change((None, after, moved))
        else:
            node.change((before, after, node.names[before]))

    def state(self, keep):
        """A tree of what is left: dicts are folders."""
        def of(node):
            state = node.after(keep)
            return {name: of(one) for name, one in sorted(state.items())} if node.is_folder else state
        return of(self.root)


def lay_out(tree, path):
    os.mkdir(path)
    for name, content in tree.items():
        if isinstance(content, dict):
            lay_out(content, os.path.join(path, name))
        else:
            with open(os.path.join(path, name), "wb") as file:
                file.write(content)


def record(folder, command):
    """The inode of the folder that is recorded, and the calls. command: from the path of the folder below it."""
    below, to = os.path.join(folder, "recorded"), os.path.join(folder, "calls")
    os.mkdir(below)
    environment = {**without_launcher(), "LD_PRELOAD": RECORDER, "RECORD_BELOW": below, "RECORD_TO": to}
    subprocess.run(command(os.path.join(below, "saved")), env=environment, check=True, timeout=LIMIT, stdout=subprocess.DEVNULL)
    with open(to, encoding="utf-8") as file:
        return os.stat(below).st_ino, file.read().splitlines()


def states_of(inode, calls):
    """(calls before the cut, saves that have returned, tree), none twice for the same cut."""
    device, rng = Device(inode), random.Random(SEED)
    for cut in range(len(calls) + 1):
        if cut > 0:
            device.take(calls[cut - 1])
        keeps = [lambda: True, lambda: False] + [lambda: rng.random() < 0.5] * SUBSETS
        seen = []
        for tree in map(device.state, keeps):
            if tree not in seen:
                seen.append(tree)
                yield cut, device.returned, tree


def wrong(returned, tree, outcome):
    """What a load must not say."""
    if outcome.isdigit():
        return int(outcome) not in (returned, returned + 1) or outcome == "0"
    none = "there is no checkpoint" if "saved" in tree else "opening the folder"
    return returned > 0 or not outcome.startswith("MDP_E_SYSTEM") or none not in outcome


def fails(how):
    with tempfile.TemporaryDirectory(prefix="megadp-power-") as folder:
        inode, calls = record(folder, lambda saved: [SAVER, how, saved, str(SAVES), "1"])
        states = list(states_of(inode, calls))
        paths = []
        for number, (_, _, tree) in enumerate(states):
            at = os.path.join(folder, f"state-{number}")
            lay_out(tree, at)
            paths.append(os.path.join(at, "saved"))
        loaded = subprocess.run([SAVER, "load"], env=without_launcher(), input="\n".join(paths) + "\n", text=True, check=True,
                                timeout=LIMIT, stdout=subprocess.PIPE).stdout.splitlines()
        assert len(loaded) == len(states), (len(loaded), len(states))
        failures = [(cut, returned, outcome) for (cut, returned, tree), outcome in zip(states, loaded) if wrong(returned, tree, outcome)]
        for cut, returned, outcome in failures[:10]:
            print(f"cut after call {cut} ({calls[cut - 1][:100] if cut else 'none'}), {returned} saves had returned: {outcome}")
        numbers = {outcome for outcome in loaded if outcome.isdigit()}
        # Otherwise something else was recorded than what the test is about.
        whole = len(numbers) == SAVES and sum(call.startswith("rename") for call in calls) == 2 * SAVES - 1
        print(f"{how}: {len(calls) + 1} cuts, {len(states)} states, {len(failures)} failures, numbers {sorted(numbers)}")
    return bool(failures) or not whole


def export(megadp, source, path, most_bytes=0):
    done = subprocess.run([megadp, "checkpoint", "export", source, path, "--most-bytes", str(most_bytes)], env=without_launcher(), timeout=LIMIT,
                          stderr=subprocess.PIPE, text=True)
    return "" if done.returncode == 0 else done.stderr


def content(path):
    with open(path, "rb") as file:
        return file.read()


def export_fails(megadp, name, most_bytes):
    """Whatever is left, the file with this name, which comes last, is there as a whole model or not at all; in the end it is."""
    with tempfile.TemporaryDirectory(prefix="megadp-power-") as folder:
        reference = os.path.join(folder, "reference.safetensors")
        assert export(megadp, KEPT, reference) == ""
        inode, calls = record(folder, lambda saved: [megadp, "checkpoint", "export", KEPT, os.path.join(saved, "model.safetensors"),
                                                     "--most-bytes", str(most_bytes)])
        there = failures = states = 0
        for cut, _, tree in states_of(inode, calls):
            states += 1
            at = os.path.join(folder, f"state-{states}")
            lay_out(tree, at)
            last, again = os.path.join(at, "saved", name), os.path.join(at, "again.safetensors")
            found = os.path.exists(last)
            there += found
            problem = export(megadp, last, again) if found else ""
            if problem or (found and content(again) != content(reference)) or (cut == len(calls) and not found):
                failures += 1
                print(f"cut after call {cut} ({calls[cut - 1][:100] if cut else 'none'}): {problem or 'another model, or none'}")
        print(f"export of {name}: {len(calls) + 1} cuts, {states} states, {failures} failures, in {there} it was there")
    return failures > 0 or there == 0


def main():
    failed = [fails(how) for how in ("save", "beside")]
    for megadp in sys.argv[3:]:
        failed += [export_fails(megadp, "model.safetensors", 0), export_fails(megadp, "model.safetensors.index.json", 100)]
    return 1 if any(failed) else 0


if __name__ == "__main__":
    sys.exit(main())
