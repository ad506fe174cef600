# SPDX-License-Identifier: Apache-2.0
"""What type checkers must accept, and what they must know of it; never run."""
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import numpy as np
import numpy.typing as npt
from typing_extensions import Unpack, assert_type

import megadp


def arrays(buffer: megadp.Buffer, out: npt.NDArray[np.float64]) -> float:
    w = buffer.param("w").numpy()
    mean: float = w.mean()
    assert_type(buffer.read("w"), npt.NDArray[np.float32])
    assert_type(buffer.read(0, out), npt.NDArray[np.float64])
    np.add(buffer.grad("w", readonly=True).numpy(), 1, out=out)
    return mean


def update(piece: megadp.Piece) -> None:
    piece.state["mean"][:] = piece.grad
    if piece.shape is not None:
        piece.shaped("grad")[:] = piece.param_states["rows"]
    piece.master[:] -= piece.lr * piece.tensor("grad").numpy() / (piece.step + piece.param_begin)


def train(comm: megadp.Comm, **options: Unpack[megadp.BufferOptions]) -> Optional[megadp.StepReport]:
    comm.all_reduce(np.zeros(2), op="avg")
    params = {"w": (8, 4), "b": np.zeros(4, np.float32)}
    buffer = megadp.Buffer(comm, params, **options)
    buffer = megadp.Buffer(megadp.Grid(comm, tp=1, instances=1), [("w", (8,)), megadp.Param("b", (4,), np.float16, placement="sharded", tie="b",
                                                                                   use_order=1)],
                           grad_dtype="same", sharding="zero_1", missing="skip", bucket_elements=1 << 20, overlap=False, scaling="tokens",
                           wire_dtype="bf16", error_feedback=True, check_finite=True, check_large=False)
    buffer.tokens(3)
    lion: megadp.OptimizerOptions = {"rule": "lion", "state_dtype": "bf16", "param_groups": [megadp.ParamGroup(lr=0)]}
    found: Dict[str, object] = megadp.plan_layout(params, 8, {"tp": 2, "order": "tp-dp"}, lion, high_bandwidth_padding=True)
    assert found and megadp.plan(params, world=4, rank=1, grid={"cp": 2}, bucket_count=3, ignore_memory=True).buckets
    assert megadp.grid_groups("dp-cp", 4, {"ep": 2}, expert=True)
    assert_type(buffer.use_order() + [buffer.stats().large_gradients, megadp.plan(params, optimizer={"betas": (0.9, 0.95)}).feedback_bytes], List[int])
    assert_type(buffer.grad_summaries([0, None], 2)[0], megadp.GradSummary)
    optimizer = megadp.Optimizer(buffer, lr=1e-3, betas=(0.9, 0.95), max_grad_value=1, norm="inf",
                                 param_groups=[megadp.ParamGroup(weight_decay=0.1), megadp.ParamGroup(lr=0)])
    optimizer.state("w", "exp_avg").numpy()[:] = 0
    rest = megadp.Optimizer(buffer, rule="sgd_nesterov", momentum=0.95, first_param_group=2,
                            param_groups=[megadp.ParamGroup(betas=None, eps=None, momentum=0)])
    rest.state("w", "momentum_buffer").numpy()[:] = 0
    mine = megadp.Optimizer(buffer, rule="caller", state=["mean"], first_param_group=3, param_states={"rows": {"w": ((8,), np.float32)}})
    megadp.Buffer(comm, [megadp.Param("w", (8, 4), sharding="whole", cost=2.5)], sharding="whole")
    mine.set_update(update)
    with megadp.pieces_many([optimizer, mine], 2.0) as pieces:
        for piece in pieces:
            update(piece)
    with mine.pieces(lr=0.1, grad_divisor=2):
        assert_type(pieces.report, Optional[megadp.StepReport])
    optimizer.set_scaler(megadp.Scaler(scale=1024, growth_interval=100, hysteresis=2, constant=False))
    assert_type(optimizer.scaler().scale + optimizer.scale().size, float)
    optimizer.set_scaler(None)
    assert_type(megadp.step_many([optimizer, rest], grad_divisor=2, wait=False), Optional[megadp.StepReport])
    megadp.save_checkpoint("checkpoints", buffer, optimizer, tensors={"x": np.zeros(3)}, shared_data=b"all", rank_data=bytearray(1), keep=3)
    megadp.load_checkpoint(Path("checkpoints"), optimizer, tensors={"x": megadp.CheckpointTensor(np.zeros(3), "sharded", shard_dim=0)},
                           optional=["x.*"], params_only=True, load_hyper=False)
    assert_type(megadp.checkpoint_data("checkpoints", rank=0), bytes)
    assert megadp.checkpoint_info("checkpoints")["path"]
    buffer.broadcast()
    sent = buffer.broadcast(root=1, wait=False)
    assert sent is not None and sent.wait(1.0) and comm.barrier(wait=False) is not None
    assert_type(buffer.index("w") + buffer.bucket_count + comm.world_rank() + comm.world_rank(0), int)
    return optimizer.step(wait=False, grad_divisor=2)


def tensor_parallel(comm: megadp.Comm, buffer: megadp.Buffer, x: npt.NDArray[np.float32], out: npt.NDArray[np.float32]) -> None:
    megadp.tp.region(comm, "gather", x, out, dim=1, grad="partial", parts=[1, 2], backward=True)
    layer = megadp.TpLinear(comm, split="row", in_features=4, out_features=2, bias=True, grad="replicated", buffer=buffer, weight="w",
                            bias_param=1, blocks=(2, 2), dtype=np.float32)
    assert_type(layer.forward(x, out), megadp.TpSaved)
    with layer.forward(x, out, weight=x, save=True) as saved:
        layer.backward(out, x, saved=saved, grad_weight=x, add=True)
    assert_type(layer.weight_shape, Tuple[int, int])
    embedding = megadp.tp.Embedding(comm, rows=8, grad="partial", sequence=True, check_replicated=True)
    embedding.backward(x, embedding.forward(x, out), grad_weight=x, add=True, stream=0)
    assert_type(embedding.out_shape((2, 3), 4), Tuple[int, ...])
    loss = megadp.tp.CrossEntropy(comm, classes=8, ignore_index=-100, label_smoothing=0.1, z_loss=1e-4)
    losses, saved_sums = loss.forward(x, x, losses=out)
    loss.backward(x, x, saved_sums, losses, grad_logits=x)
    assert_type(megadp.Grid(comm, tp=2).seed(1, "tensor"), int)


def connect(id: bytes) -> None:
    megadp.Comm.from_id(id, 0, 2, backend="host", timeout=3)
    megadp.Comm.from_environment(exact_sums=True, sockets=True, device=0, host_threads=1, threads_always=True)
