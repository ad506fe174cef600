# SPDX-License-Identifier: Apache-2.0
"""megadp.torch over several ranks: the digits, under the real torchrun too, overlap, unused parameters, gathering in the forward."""
import os
import subprocess
import sys
import unittest

import support

EXAMPLE = os.path.join(support.PACKAGE, "examples", "digits_torch.py")

# The gradient of the first layer, the last to be known, is held back until bucket 0 has been reduced on all ranks: where buckets were
# launched at the step only, that would never happen.
OVERLAP = """
import time, torch, megadp, megadp.torch
torch.set_num_threads(1)
LAYERS, WIDTH = 8, 128
comm = megadp.Comm()
module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
held = []
def hold(p):
    end = time.monotonic() + 100
    while model.storage.bucket(0).reduce_end_ns <= begun and time.monotonic() < end:
        time.sleep(0.001)
    held.append(time.monotonic_ns())
module[0].weight.register_post_accumulate_grad_hook(hold)
model = megadp.torch.DataParallel(module, comm, bucket_count=4, gather_in_forward=True)
optimizer = megadp.torch.ShardedAdamW(model)
x = torch.ones(WIDTH, WIDTH)
for step in range(3):
    held.clear()
    begun = time.monotonic_ns()
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    first, last = model.storage.bucket(0), model.storage.bucket(3)
    assert begun < first.reduce_begin_ns < first.reduce_end_ns < held[0] < first.sync_ns, (first, held)
    assert last.reduce_begin_ns > held[0], (last, held)
model.wait()
model.storage.verify()
print(f"bucket 0 reduced {(first.sync_ns - first.reduce_end_ns) / 1e6:.1f} ms before the end of backward", flush=True)
"""

# Like torch's own AdamW on the mean of both ranks' gradients, with microbatches, unused parameters, tied weights, buffers, frozen ones.
EQUAL = """
import copy, warnings, torch, megadp, megadp.torch
warnings.simplefilter("error")
torch.set_num_threads(1)
torch.manual_seed(0)
comm = megadp.Comm()
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 16)
        self.hidden = torch.nn.Linear(16, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.sometimes = torch.nn.Linear(16, 16)
        self.never = torch.nn.Linear(3, 3)
        self.frozen = torch.nn.Linear(16, 16).requires_grad_(False)
        self.out = torch.nn.Linear(16, 10)
        self.out.weight = self.embed.weight
    def forward(self, x, detour):
        y = self.norm(torch.tanh(self.hidden(self.frozen(self.embed(x)))))
        return self.out(self.sometimes(y) if detour else y)
reference = Net()
module = copy.deepcopy(reference)
if comm.rank == 1:  # other values, which rank 0's replace
    with torch.no_grad():
        for values in module.parameters():  # broadcast_buffers=False leaves buffers alone
            values.add_(1)
decayed = [p for p in module.parameters() if p.requires_grad and p.ndim > 1]
rest = [p for p in module.parameters() if p.requires_grad and p.ndim <= 1]
model = megadp.torch.DataParallel(module, comm, param_groups=[dict(params=decayed), dict(params=rest, weight_decay=0.0)],
                                  gather_in_forward=bool(GATHER), broadcast_buffers=False)
for name, value in model.module.state_dict().items():
    assert torch.equal(value, reference.state_dict()[name]), name
optimizer = megadp.torch.ShardedAdamW(model, lr=0.01, weight_decay=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
ours = dict(reference.named_parameters())
theirs = torch.optim.AdamW([dict(params=[p for p in ours.values() if p.requires_grad and p.ndim > 1]),
                            dict(params=[p for p in ours.values() if p.requires_grad and p.ndim <= 1], weight_decay=0.0)],
                           lr=0.01, weight_decay=0.1)
their_schedule = torch.optim.lr_scheduler.StepLR(theirs, 3, 0.5)
generator = torch.Generator().manual_seed(5)
loss_of = torch.nn.functional.cross_entropy
for step in range(7):
    micro = 3 if step in (2, 5) else 1
    data = torch.randint(0, 10, (2, micro, 8), generator=generator)
    detour = [[rank == step % 2 and k != 1 for k in range(micro)] for rank in range(2)]
    optimizer.zero_grad(set_to_none=step % 3 != 1)
    for k in range(micro):
        if k < micro - 1:
            with model.no_sync():
                loss_of(model(data[comm.rank, k], detour[comm.rank][k]), data[comm.rank, k]).backward()
        else:
            loss_of(model(data[comm.rank, k], detour[comm.rank][k]), data[comm.rank, k]).backward()
    optimizer.step()
    schedule.step()
    theirs.zero_grad()
    before = copy.deepcopy({name: value for name, value in reference.named_buffers()})
    for rank in range(2):  # statistics of the batch norm are each rank's own
        reference.load_state_dict(before, strict=False)
        for k in range(micro):
            (loss_of(reference(data[rank, k], detour[rank][k]), data[rank, k]) / 2).backward()
        if rank == comm.rank:
            kept = copy.deepcopy({name: value for name, value in reference.named_buffers()})
    reference.load_state_dict(kept, strict=False)
    theirs.step()
    their_schedule.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, reference.state_dict()[name.removeprefix("module.")], rtol=0, atol=2e-6, msg=name)
assert optimizer.report.step == 7
model.storage.verify()
state = optimizer.state_dict()
assert optimizer.param_groups[0]["lr"] == 0.0025 == state["param_groups"][0]["lr"]
index = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
mapped = {id(q): p for (n, q), p in zip(module.named_parameters(), reference.parameters())}
for p in model.trained.values():
    mine, expected = state["state"].get(index[id(p)]), theirs.state[mapped[id(p)]]
    assert (mine is not None) == bool(expected)  # none of what no step has reached
    if expected:
        assert mine["step"] == expected["step"], (mine["step"], expected["step"])
        torch.testing.assert_close(mine["exp_avg"], expected["exp_avg"].cpu(), rtol=0, atol=2e-6)
print("equal", flush=True)
"""


# The function that trains ends right after its last step, of which rank 1 has not gathered its part: it is stopped until rank 0 has begun to read.
GONE = """
import gc, os, signal, sys, threading, time, torch, megadp, megadp.torch
torch.set_num_threads(1)
torch.manual_seed(0)
comm = megadp.Comm()
pids = torch.zeros(comm.size, dtype=torch.int64)
comm.all_gather(torch.tensor([os.getpid()]), pids)
module = torch.nn.Linear(2048, 4096, bias=False)
def train():
    model = megadp.torch.DataParallel(module, comm, gather_in_forward=True)
    optimizer = megadp.torch.ShardedSGD(model, lr=1.0)
    for _ in range(2):
        model(torch.ones(2, 2048)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if CLOSED:
        model.storage.close()
def go_on():
    while open(f"/proc/{pids[1].item()}/stat").read().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    time.sleep(1)
    os.kill(pids[1].item(), signal.SIGCONT)
train()
gc.collect()
if comm.rank == 0:
    threading.Thread(target=go_on).start()
with torch.no_grad():
    at_once = module.weight.detach().clone()
    comm.barrier()
    assert torch.equal(module.weight, at_once)
whole = torch.empty(comm.size, *at_once.shape)
comm.all_gather(at_once, whole)
assert torch.equal(whole[0], whole[1])
print("whole", flush=True)
"""


class TorchTraining(unittest.TestCase):
    def losses(self, ended):
        return [float(line) for line in support.check_ended(self, ended).split()]

    def test_losses(self):
        of_one, of_two = (self.losses(support.run_ranks(n, [EXAMPLE, support.DIGITS])) for n in (1, 2))
        support.check_losses(self, of_one, of_two)

    def test_torchrun(self):
        """The real one, unchanged; its agent occupies MASTER_PORT."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", EXAMPLE, support.DIGITS]
        environment = {name: value for name, value in support.environment(OMP_NUM_THREADS="1").items() if not name.startswith("MEGADP_R")}
        ended = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=support.PATIENCE)
        of_two = self.losses(ended)
        support.check_losses(self, self.losses(support.run_ranks(1, [EXAMPLE, support.DIGITS])), of_two)

    def test_overlap(self):
        """Buckets are reduced before backward has ended."""
        out = support.check_ended(self, support.run_ranks(2, ["-c", OVERLAP]))
        print(out.strip(), flush=True)
        self.assertEqual(out.count("bucket 0 reduced"), 2)

    def test_the_model_is_gone(self):
        """A module that is used on after its model and optimizer: parameters were read in the middle of the last gather."""
        for closed in ("False", "True"):
            with self.subTest(closed=closed):
                out = support.check_ended(self, support.run_ranks(2, ["-c", GONE.replace("CLOSED", closed)]))
                self.assertEqual(out.split(), ["whole"] * 2)

    def test_equal_to_torch(self):
        """Microbatches, parameters used by one rank, by none or twice, groups, schedules, statistics of batch norms."""
        for gather in ("False", "True"):
            with self.subTest(gather_in_forward=gather):
                out = support.check_ended(self, support.run_ranks(2, ["-c", EQUAL.replace("GATHER", gather)]))
                self.assertEqual(out.split(), ["equal", "equal"])


if __name__ == "__main__":
    unittest.main()
