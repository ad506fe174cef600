# SPDX-License-Identifier: Apache-2.0
"""Muon for matrices, AdamW for the rest, in one step: what digits_muon.py and gpt_muon.py train with.

Muon (Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024) takes Nesterov's momentum and moves a matrix along the
nearest orthogonal one, which needs all of it: the matrices are whole, each on one rank. Steps are scaled by 0.2 sqrt(max(rows, columns)) as
in Moonlight (Liu et al., Muon is Scalable for LLM Training, 2025), so that they are as long as AdamW's and one learning rate serves both.
"""
import math

import numpy as np

import megadp

MATRICES, REST = 0, 1  # groups of parameters


def param(name, shape, by_muon):
    """cost: of the products, which are nearly all of the work; by it the matrices are balanced over the ranks."""
    if not by_muon:
        return megadp.Param(name, shape, param_group=REST)
    low, high = sorted(shape)
    return megadp.Param(name, shape, param_group=MATRICES, sharding="whole", cost=low * low * (2.0 * high + low))


def orthogonal(matrix, steps=5):
    """Near U V^T of the singular value decomposition U S V^T: Newton and Schulz's iteration, by the quintic polynomial of Jordan et al."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def update(piece):
    matrix, grad, momentum = (piece.shaped(name) for name in ("master", "grad", "momentum"))
    momentum *= piece.momentum
    momentum += grad
    matrix *= 1 - piece.lr * piece.weight_decay
    matrix -= piece.lr * 0.2 * math.sqrt(max(matrix.shape)) * orthogonal(grad + piece.momentum * momentum)


def optimizers(buffer, lr, weight_decay=0.0, momentum=0.95, betas=(0.9, 0.95)):
    """For megadp.step_many: Muon for the parameters of group MATRICES, AdamW for those of group REST."""
    for each in buffer.params:
        if each.param_group == MATRICES and each.placement == "sharded":
            raise ValueError(f"parameter {each.name!r} is cut over the tensor-parallel ranks, and Muon needs all of a matrix: place it "
                             "\"replicated\", train without tensor parallelism, or leave the parameter to AdamW")
    muon = megadp.Optimizer(buffer, rule="caller", state=["momentum"], lr=lr, momentum=momentum, weight_decay=weight_decay,
                            first_param_group=MATRICES)
    muon.set_update(update)
    return [muon, megadp.Optimizer(buffer, lr=lr, betas=betas, weight_decay=weight_decay, first_param_group=REST)]
