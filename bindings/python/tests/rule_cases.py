# SPDX-License-Identifier: Apache-2.0
"""What test_rules.py runs on some ranks: steps of the library beside those of rule_emulation.py, which must have the same bits. Each rank
prints "CASE RULE ok".

usage: rule_cases.py CASE...
"""
import sys

import numpy as np

import megadp
from rule_emulation import HYPER, STATE, rounded, step

STEPS = 200
RATES = (1e-3, 3e-2, 1e-4, 0.0, 7e-3)
PARAMS = {"a": ("f32", 291, 0), "b": ("f32", 41, 1), "h": ("bf16", 130, 0), "f": ("f16", 77, 1), "c": ("f32", 1030, 1)}
FIRST = {0: dict(weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8, momentum=0.9), 1: dict(weight_decay=0.0, betas=(0.8, 0.95), eps=1e-6, momentum=0.5)}
LATER = {0: dict(weight_decay=0.03, betas=(0.0, 0.9), eps=1e-3, momentum=0.0), 1: dict(weight_decay=0.2, betas=(0.95, 0.5), eps=1e-8, momentum=0.97)}


def known(rule, values):
    return {name: value for name, value in values.items() if name == "weight_decay" or name in HYPER[rule]}


class Job:
    """A buffer and its optimizers beside what they should hold. Gradients are added up exactly, in any order, on any number of ranks."""

    def __init__(self, comm, rules, seed=0, sharding="zero_1", **options):
        self.comm, self.rules = comm, rules  # by group
        self.random = np.random.default_rng(seed)
        self.buffer = megadp.Buffer(comm, [megadp.Param(name, (size,), dtype, param_group=group)
                                           for name, (dtype, size, group) in PARAMS.items()], scaling="sum", sharding=sharding, bucket_elements=200)
        self.values = {name: self.draw(size, 16) for name, (_, size, _) in PARAMS.items()}
        for name, values in self.values.items():
            self.buffer.write(name, values)
        if rules[0] == rules[1]:
            both = [megadp.ParamGroup(**known(rules[group], FIRST[group])) for group in (0, 1)]
            self.optimizers = [megadp.Optimizer(self.buffer, rule=rules[0], param_groups=both, **options)]
        else:
            self.optimizers = [megadp.Optimizer(self.buffer, rule=rules[group], first_param_group=group, **options,
                                                param_groups=[megadp.ParamGroup(**known(rules[group], FIRST[group]))]) for group in (0, 1)]
        self.state = {name: [np.zeros(size, np.float32) for _ in STATE[rules[group]]] for name, (_, size, group) in PARAMS.items()}
        self.groups, self.taken = FIRST, 0

    def draw(self, size, parts):
        """Numbers of 8 bits, whose sums are exact and which every type holds."""
        return self.random.integers(-127, 128, size).astype(np.float32) / np.float32(parts)

    def step(self, lr, times=1.0, spoiled=False, report=True):
        """times: what gradients are multiplied by on their way, as a loss scale does. spoiled: one is infinite on the last rank."""
        whole, size, rank = {}, self.comm.size, self.comm.rank
        for name, (_, count, _) in reversed(PARAMS.items()):
            whole[name] = self.draw(count, 64)
            parts = [self.draw(count, 64) for _ in range(size - 1)]
            parts.append(whole[name] - sum(parts, np.zeros(count, np.float32)))
            mine = parts[rank] * np.float32(times)
            if spoiled and rank == size - 1 and name == "b":
                mine[7] = np.inf
            self.buffer.put(name, mine)
        for group in (0, 1):
            optimizer = self.optimizers[min(group, len(self.optimizers) - 1)]
            optimizer.set_param_group(group, megadp.ParamGroup(lr=lr, **known(self.rules[group], self.groups[group])))
        found = megadp.step_many(self.optimizers, report=report) if len(self.optimizers) > 1 else self.optimizers[0].step(report=report)
        if spoiled:
            return found
        self.taken += 1
        factor = self.factor(found, whole)
        for name, (_, _, group) in PARAMS.items():
            g = whole[name] * np.float32(times) * factor
            self.values[name], self.state[name] = step(self.rules[group], self.values[name], self.state[name], g, self.taken, lr,
                                                       **{"weight_decay": 0.0, **known(self.rules[group], self.groups[group])})
        return found

    def factor(self, found, whole):
        """What gradients are multiplied by, as a float: of the norm that the step tells, which is checked."""
        norm = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in whole.values()))
        if found is None:
            return np.float32(1)
        assert abs(found.grad_norm - norm) <= 1e-12 * norm, (found.grad_norm, norm)
        clip = min(1.0, self.most / (found.grad_norm + 1e-6))
        assert found.clip_factor == np.float32(clip) and found.clipped == (clip < 1), found
        return np.float32(clip / found.loss_scale)

    most = float("inf")

    def check(self):
        self.buffer.wait()
        self.buffer.verify()
        for name, (dtype, size, group) in PARAMS.items():
            values = np.empty(size, np.float32)
            self.buffer.read(name, values)
            same(f"parameter {name}", values, rounded(self.values[name], dtype))
            number = list(PARAMS).index(name)
            begin = next((piece.param_begin for piece in self.buffer.owned() if piece.param == number), 0)
            optimizer = self.optimizers[min(group, len(self.optimizers) - 1)]
            for array, expected in zip(("master", *STATE[self.rules[group]]), (self.values[name], *self.state[name])):
                mine = optimizer.state(name, array).numpy()
                same(f"{array} of {name}", mine, expected[begin:begin + len(mine)])
            assert optimizer.steps(name) == self.taken


def same(what, found, expected):
    differs = np.flatnonzero(found.view(np.uint32) != expected.view(np.uint32))
    assert not len(differs), f"{len(differs)} of {len(found)} elements of {what} differ, such as {found[differs[:3]]} and {expected[differs[:3]]}"


def rules_of(job):
    return "+".join(dict.fromkeys(job.rules))


def ended(case, job):
    job.check()
    sys.stdout.write(f"{case} {rules_of(job)} ok\n")  # at once: the ranks share a pipe
    sys.stdout.flush()


def case_steps(comm):
    """200 steps of each rule, with several learning rates, and values of groups that change on the way."""
    for rule in STATE:
        job = Job(comm, (rule, rule))
        for number in range(STEPS):
            job.groups = FIRST if number % 80 < 50 else LATER
            job.step(RATES[number * len(RATES) // STEPS])
            if number in (0, 60):
                job.check()
        ended("steps", job)


def case_together(comm):
    """Two optimizers of one buffer, also with gradients that are sharded."""
    for rules, sharding in ((("sgd_nesterov", "adamw"), "zero_1"), (("lion", "adam"), "zero_2"), (("sgd", "sgd_momentum"), "zero_0")):
        job = Job(comm, rules, 1, sharding)
        for number in range(40):
            job.groups = FIRST if number % 20 < 10 else LATER
            job.step(RATES[number % len(RATES)])
        ended("together", job)


def case_clipped(comm):
    """By a norm that about every second step is beyond; together too."""
    for rules in [(rule, rule) for rule in STATE] + [("sgd_momentum", "adamw")]:
        job = Job(comm, rules, 2, max_grad_norm=45.4)
        job.most = 45.4
        clipped = [job.step(3e-3).clipped for _ in range(40)]
        assert 0 < sum(clipped) < len(clipped), clipped
        ended("clipped", job)


def case_scaled(comm):
    """By a scaler, whose scale divides, and whose overflows are steps that change nothing, anywhere; clipping goes by the divided norm."""
    for rules in [(rule, rule) for rule in STATE] + [("lion", "sgd_nesterov")]:
        job = Job(comm, rules, 3, max_grad_norm=45.4)
        job.most = 45.4
        job.optimizers[0].set_scaler(megadp.Scaler(scale=1024, growth_interval=3, hysteresis=2))
        scale, scales = job.optimizers[0].scale(), []
        for mark in "x.xx...x" * 3:
            now = float(scale.numpy()[0])
            found = job.step(3e-3, now, mark == "x")
            assert (found.skipped, found.loss_scale, found.step) == (mark == "x", now, job.taken), found
            scales.append(float(scale.numpy()[0]))
        assert scales[:8] == [1024, 1024, 512, 256, 256, 256, 512, 512], scales
        ended("scaled", job)


if __name__ == "__main__":
    with megadp.Comm() as world:
        for case in sys.argv[1:]:
            globals()["case_" + case](world)
