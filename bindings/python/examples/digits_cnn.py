# SPDX-License-Identifier: Apache-2.0
"""A small convolutional network on images that are cut over ranks: rows and columns over a grid, batches over what is left.

usage: megadp run -n 4 python digits_cnn.py digits.csv [ROWS COLUMNS [STEPS]]      (2 x 1 ranks an image, 50 steps; prints the loss of each)
digits.csv is what tests/bindings/digits.py writes.
"""
import sys

import torch

import megadp
import megadp.torch as mt

SIZE, BATCH = 8, 64


class Network(torch.nn.Module):
    """Convolutions of each rank's part; features are averaged over the image, and the classifier is on all ranks alike."""

    def __init__(self, comm, grid):
        super().__init__()
        torch.manual_seed(1)  # the same on all ranks, and for every grid
        first, second = torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.Conv2d(8, 16, 5, stride=2, padding=2)
        classifier = torch.nn.Linear(16, 10)
        self.comm, self.parts = comm, mt.spatial_parts((SIZE, SIZE), grid)
        self.first = mt.Spatial(first, comm, grid, self.parts)
        self.norm = torch.nn.SyncBatchNorm(8)
        self.pool = mt.Spatial(torch.nn.MaxPool2d(3, stride=1, padding=1), comm, grid, self.first.out_parts)
        self.second = mt.Spatial(second, comm, grid, self.pool.out_parts)
        self.outputs = sum(self.second.out_parts[0]) * sum(self.second.out_parts[1])
        self.classifier = classifier

    def forward(self, x):
        x = self.pool(torch.relu(self.norm(self.first(x))))
        x = torch.relu(self.second(x)).sum((2, 3))
        # Each rank's part of the image has used its own features: what comes back to them is the sum of all ranks' gradients.
        return self.classifier(mt.reduce_from_tensor_parallel(x, self.comm, grad="partial") / self.outputs)


def main(path, rows=2, columns=1, steps=50):
    torch.set_num_threads(1)
    grid = (int(rows), int(columns))
    with open(path, encoding="ascii") as file:
        data = torch.tensor([[float(value) for value in line.split(",")] for line in file])
    images, digits = data[:, :SIZE * SIZE].view(-1, 1, SIZE, SIZE) / 16, data[:, SIZE * SIZE].long()
    with megadp.Comm() as comm:
        cut = grid[0] * grid[1]
        replica, replicas = comm.rank // cut, comm.size // cut
        image_ranks = comm.split(replica)
        model = mt.DataParallel(Network(image_ranks, grid), comm)
        own = (slice(None), slice(None), *mt.spatial_slices(model.module.parts, image_ranks.rank))
        optimizer = mt.ShardedAdamW(model, lr=1e-2, weight_decay=0.01)
        share = torch.arange(BATCH * replica // replicas, BATCH * (replica + 1) // replicas)
        for t in range(int(steps)):
            batch = (BATCH * t + share) % len(digits)
            loss = torch.nn.functional.cross_entropy(model(images[batch][own]), digits[batch])
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
    main(*sys.argv[1:])
