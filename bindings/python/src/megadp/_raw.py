# SPDX-License-Identifier: Apache-2.0
"""megadp.h for ctypes. Written by bindings/generate.py; do not edit.

Enumerations are plain integers, structs are ctypes.Structure, handles are pointers to opaque structs. _raw_functions.py has the functions.
Nothing here loads a library.
"""
import ctypes

from ._raw_core import *  # noqa: F403
from ._raw_enums import *  # noqa: F403
from ._raw_layers import *  # noqa: F403

# The type that values of each enumeration are passed as.
ALIASES = {
    "mdp_stream": ctypes.c_void_p,
    "mdp_status": ctypes.c_int32,
    "mdp_backend": ctypes.c_uint32,
    "mdp_dtype": ctypes.c_uint32,
    "mdp_op": ctypes.c_uint32,
    "mdp_param_class": ctypes.c_uint32,
    "mdp_placement": ctypes.c_uint32,
    "mdp_sharding": ctypes.c_uint32,
    "mdp_scaling": ctypes.c_uint32,
    "mdp_rule": ctypes.c_uint32,
    "mdp_norm": ctypes.c_uint32,
    "mdp_missing": ctypes.c_uint32,
    "mdp_random": ctypes.c_uint32,
    "mdp_bucket_state": ctypes.c_uint32,
    "mdp_log_level": ctypes.c_int32,
    "mdp_tp_region": ctypes.c_uint32,
    "mdp_tp_grad": ctypes.c_uint32,
    "mdp_tp_split": ctypes.c_uint32,
    "mdp_edge": ctypes.c_uint32,
    "mdp_cp_form": ctypes.c_uint32,
    "mdp_cp_mask": ctypes.c_uint32,
}
STRUCTS = (
    mdp_unique_id, mdp_error_info, mdp_bootstrap, mdp_comm_config, mdp_grid_config, mdp_tensor, mdp_param, mdp_buffer_config,
    mdp_plan_report, mdp_range, mdp_param_group, mdp_param_state, mdp_optimizer_config, mdp_update, mdp_scaler, mdp_step_config,
    mdp_step_report, mdp_grad_summary, mdp_stats_report, mdp_bucket_report, mdp_checkpoint_part, mdp_checkpoint_tensor,
    mdp_checkpoint_config, mdp_tp_region_config, mdp_tp_linear_config, mdp_tp_embedding_config, mdp_tp_cross_entropy_config,
    mdp_halo_config, mdp_conv_config, mdp_conv_part, mdp_cp_config, mdp_cp_block)
