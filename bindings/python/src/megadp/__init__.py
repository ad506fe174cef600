# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training: gradients reduced while backward goes on, optimizer state sharded over the ranks.

    with megadp.Comm() as comm:                                   # from the launcher's environment
        buffer = megadp.Buffer(comm, {"w": (64, 10)})             # memory of the library
        optimizer = megadp.Optimizer(buffer, lr=1e-3)
        buffer.put("w", gradient)                                 # on its way to the other ranks
        optimizer.step()                                          # with the mean of all ranks' gradients

Every failure is a MegaDPError. Needs nothing but the library; numpy where numpy arrays are asked for. megadp.torch and megadp.jax are
imported on their own.
"""
from ._buffer import Bucket, Buffer, GradSummary, Range, Stats
from ._checkpoint import CheckpointTensor, checkpoint_damage, checkpoint_data, checkpoint_info, export_checkpoint, load_checkpoint, save_checkpoint, verify_checkpoint
from ._comm import Comm, unique_id
from ._errors import InvalidError, MegaDPError, Status
from ._grid import Grid
from ._library import info, lib, version_text
from ._log import log_to
from ._optimizer import Optimizer, StepReport, pieces_many, step_many
from ._optimizer_config import OptimizerOptions
from ._param_group import ParamGroup
from ._params import BufferOptions, Param, Plan, grid_groups, plan, plan_layout
from ._pieces import Piece, Pieces
from ._scaler import Scaler
from ._tensor import Tensor
from ._waiting import Request
from .halo import ConvPart, Halo, conv_split
from .tp import TpLinear, TpSaved

__version__ = version_text(lib.mdp_version())
__all__ = ["Bucket", "Buffer", "BufferOptions", "CheckpointTensor", "Comm", "ConvPart", "GradSummary", "Grid", "Halo", "InvalidError", "MegaDPError",
           "Optimizer", "OptimizerOptions", "Param", "ParamGroup", "Piece", "Pieces", "Plan", "Range", "Request", "Scaler", "Stats", "Status", "StepReport", "Tensor", "TpLinear", "TpSaved",
           "checkpoint_damage", "checkpoint_data", "checkpoint_info", "conv_split", "export_checkpoint", "grid_groups", "info", "load_checkpoint", "log_to", "pieces_many", "plan", "plan_layout", "save_checkpoint", "step_many", "unique_id", "verify_checkpoint"]
