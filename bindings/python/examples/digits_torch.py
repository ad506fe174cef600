# SPDX-License-Identifier: Apache-2.0
"""The network of digits_numpy.py in PyTorch.

usage: torchrun --nproc-per-node 2 digits_torch.py digits.csv      (or megadp run -n 2 python ...; prints the loss of each step)
digits.csv is what tests/bindings/digits.py writes.
"""
import sys

import torch

import megadp
import megadp.torch

STEPS, BATCH = 100, 64


def initial_model():
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    state = 1
    with torch.no_grad():
        for layer in (model[0], model[2]):
            columns, rows = layer.weight.shape
            for i in range(rows):  # the order of the other languages, whose weights are the transpose of torch's
                for j in range(columns):
                    state = (state * 1664525 + 1013904223) % 2**32
                    layer.weight[j, i] = (state / 2**32 - 0.5) * 2 / rows**0.5
            layer.bias.zero_()
    return model


def main(path):
    torch.set_num_threads(1)
    with open(path, encoding="ascii") as file:
        data = torch.tensor([[float(value) for value in line.split(",")] for line in file])
    pixels, digits = data[:, :64] / 16, data[:, 64].long()
    with megadp.Comm() as comm:
        model = megadp.torch.DataParallel(initial_model(), comm)
        optimizer = megadp.torch.ShardedAdamW(model, lr=1e-2, weight_decay=0.01)
        share = torch.arange(BATCH * comm.rank // comm.size, BATCH * (comm.rank + 1) // comm.size)
        for t in range(STEPS):
            batch = (BATCH * t + share) % len(digits)
            loss = torch.nn.functional.cross_entropy(model(pixels[batch]), digits[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().double()
            comm.all_reduce(mean, op="avg")
            if comm.rank == 0:
                print(f"{mean.item():.9f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1])
