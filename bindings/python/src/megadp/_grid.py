# SPDX-License-Identifier: Apache-2.0
"""The world cut into parallel groups."""
import ctypes
from typing import Literal, Optional, Tuple

from . import _raw
from ._comm import Comm, choice, whole
from ._handles import Closable
from ._library import lib
from ._params import axes_code, grid_config

Random = Literal["replicated", "tensor", "expert"]
RANDOM = {"replicated": _raw.MDP_RANDOM_REPLICATED, "tensor": _raw.MDP_RANDOM_TENSOR, "expert": _raw.MDP_RANDOM_EXPERT}

class Grid(Closable):
    """A communicator cut into tensor (tp), context (cp), expert (ep), data (dp, what is left) and pipeline (pp) parallel groups.

    expert_tp: tensor parallel size of experts (0: tp). instances: runs of neighbours (a host's ranks, say) into which the dp x cp ranks are
    cut, each with all of the optimizer's state; gradients are summed inside one, then across. order: axes from fastest to slowest varying
    rank (None: "tp-cp-ep-dp-pp").
    Collective over comm, with equal arguments; blocking.
    Raises MegaDPError: INVALID (sizes that do not divide, order), DESYNC (ranks differ), STATE, those of a lost communicator.
    """

    def __init__(self, comm: Comm, *, tp: int = 1, cp: int = 1, ep: int = 1, pp: int = 1, expert_tp: int = 0, instances: int = 1,
                 order: Optional[str] = None) -> None:
        config = grid_config(tp, cp, ep, pp, expert_tp, instances, order)
        self._instances = max(1, instances)
        self._tree = comm._tree
        self._rank, self._size = comm.rank, comm.size
        self._own(self._tree.make(comm._handle, lib.mdp_grid_create, _raw.mdp_grid, lib.mdp_grid_destroy, ctypes.byref(config)),
                  lib.mdp_grid_destroy)

    def coords(self, axes: str, expert: bool = False) -> Tuple[int, int]:
        """(index, size) of this rank in the group that the axes ("dp", "dp-cp") span together. Local."""
        index, size = ctypes.c_int32(), ctypes.c_int32()
        self._call(lib.mdp_grid_coords, axes_code(axes, expert), ctypes.byref(index), ctypes.byref(size))
        return index.value, size.value

    def comm(self, axes: str, expert: bool = False) -> Comm:
        """The communicator of that group, to be closed by the caller. Collective over the whole world the first time; blocking."""
        return Comm._of(self._tree.make(self._handle, lib.mdp_grid_comm, _raw.mdp_comm, lib.mdp_comm_destroy, axes_code(axes, expert)))

    def seed(self, seed: int, stream: Random) -> int:
        """This rank's seed of a stream of random numbers (dropout, initial values), made from one that all ranks have: "replicated" (seed
        itself: of what tensor-parallel ranks compute alike), "tensor" (another one on each tensor-parallel rank: of what is cut over them),
        "expert" (on each expert-parallel rank too: inside experts). The numbers are Megatron-LM's. Local. Raises MegaDPError: INVALID."""
        found = ctypes.c_uint64()
        self._call(lib.mdp_grid_seed, whole(seed, "seed", 0, 2**64 - 1), choice(stream, "stream", RANDOM), ctypes.byref(found))
        return found.value
