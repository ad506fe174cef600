# SPDX-License-Identifier: Apache-2.0
"""What type checkers must refuse, on each line that says `wrong` and on no other; never run."""
import megadp


def train(comm: megadp.Comm, array: object) -> None:
    params = {"w": (8, 4)}
    buffer = megadp.Buffer(comm, params, bucket_elemnts=1 << 20)  # wrong
    megadp.Buffer(comm, params, bucket_count="3")  # wrong
    megadp.Buffer(comm, params, sharding="zero_3")  # wrong
    megadp.Param("w", (8, 4), sharding="hole")  # wrong
    megadp.Buffer(comm, params, missing="skipped")  # wrong
    megadp.Buffer(comm, params, grad_dtype="bf16")  # wrong
    megadp.Buffer(comm, params, wire_dtype="f16")  # wrong
    megadp.Buffer(comm, params, check_finite="yes")  # wrong
    megadp.Param("w", (2,), use_order="first")  # wrong
    megadp.plan(params, world=2, bucket_elemnts=1)  # wrong
    megadp.plan(params, world=2, grid={"dp": 2})  # wrong
    megadp.plan_layout(params, 2, over_lap=True)  # wrong
    megadp.plan(params, optimizer={"rule": "adamax"})  # wrong
    megadp.plan_layout(params, optimizer={"state_type": "bf16"})  # wrong
    megadp.Param("w", (2,), placement="shard")  # wrong
    megadp.Comm(backend="gpu")  # wrong
    megadp.Comm.from_environment(time_out=3)  # wrong
    megadp.Comm.from_id(b"", 0, 2, backend="mpi")  # wrong
    megadp.Comm(b"", 0, nranks=2)  # wrong
    comm.all_reduce(array, op="mean")  # wrong
    comm.reduce_scatter(array, array, "mean")  # wrong
    megadp.Optimizer(buffer, rule="adamax")  # wrong
    megadp.Optimizer(buffer, betas=(0.9,))  # wrong
    megadp.Optimizer(buffer, rule="caller", state=3)  # wrong
    megadp.Optimizer(buffer).set_update(3)  # wrong
    megadp.Optimizer(buffer).set_update(lambda piece: piece.gradient)  # wrong
    megadp.pieces_many([buffer])  # wrong
    megadp.ParamGroup(beta1=0.9)  # wrong
    megadp.Scaler(hysterisis=2)  # wrong
    megadp.step_many([buffer])  # wrong
    megadp.step_many([], lr=0.1)  # wrong
    megadp.save_checkpoint("checkpoints", comm)  # wrong
    megadp.save_checkpoint("checkpoints", buffer, optional="x")  # wrong
    megadp.load_checkpoint(3, buffer)  # wrong
    megadp.CheckpointTensor(array, placement="partial_sum")  # wrong
    buffer.param("w").numpy().shpae  # wrong
    buffer.read("w").shpae  # wrong
    megadp.tp.region(comm, "gathered", array, array)  # wrong
    megadp.tp.region(comm, "gather", array, array, grad="sum")  # wrong
    megadp.TpLinear(comm, "columns", 4, 4)  # wrong
    megadp.TpLinear(comm, "column", 4, 4, sequential=True)  # wrong
    megadp.TpLinear(comm, "column", 4, 4).forward(array, array, save=False).close()  # wrong
    megadp.tp.Embedding(comm, 8, grad="sum")  # wrong
    megadp.tp.CrossEntropy(comm, classes=8, ignored=3)  # wrong
    megadp.Grid(comm, tp=2).seed(1, "dropout")  # wrong
