# SPDX-License-Identifier: Apache-2.0
"""Enumerations and types of megadp_layers.h for ctypes. Written by bindings/generate.py; do not edit."""
import ctypes

from ._raw_core import *  # noqa: F403

MDP_TP_REGION_UNSET = 0
MDP_TP_COPY = 1
MDP_TP_REDUCE = 2
MDP_TP_SCATTER = 3
MDP_TP_GATHER = 4
MDP_TP_REDUCE_SCATTER = 5
MDP_TP_EXCHANGE = 6
MDP_TP_GRAD_UNSET = 0
MDP_TP_GRAD_PARTIAL = 1
MDP_TP_GRAD_REPLICATED = 2
MDP_TP_SPLIT_UNSET = 0
MDP_TP_COLUMN = 1
MDP_TP_ROW = 2
MDP_TP_LINEAR_BIAS = 1
MDP_TP_LINEAR_TRANSPOSED = 2
MDP_TP_LINEAR_SEQUENCE = 4
MDP_TP_LINEAR_GATHER_OUTPUT = 8
MDP_TP_LINEAR_WHOLE_INPUT = 16
MDP_TP_LINEAR_CHECK_REPLICATED = 32
MDP_TP_REGION_CHECK_REPLICATED = 1
MDP_TP_EMBEDDING_SEQUENCE = 1
MDP_TP_EMBEDDING_CHECK_REPLICATED = 2
MDP_TP_CROSS_ENTROPY_IGNORE = 1
MDP_TP_CROSS_ENTROPY_CHECK_REPLICATED = 2
MDP_EDGE_KEEP = 0
MDP_EDGE_ZERO = 1
MDP_EDGE_PERIODIC = 2
MDP_EDGE_REFLECT = 3
MDP_HALO_FACES = 1
MDP_HALO_BACKWARD = 1
MDP_CP_AUTO = 0
MDP_CP_RING = 1
MDP_CP_ALL_TO_ALL = 2
MDP_CP_MASK_NONE = 0
MDP_CP_MASK_CAUSAL = 1
MDP_CP_CAUSAL = 1


class mdp_tp_linear(ctypes.Structure):
    """Opaque."""


class mdp_tp_saved(ctypes.Structure):
    """Opaque."""


class mdp_halo(ctypes.Structure):
    """Opaque."""


mdp_cp_attention_fn = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)


class mdp_tp_region_config(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("region", ctypes.c_uint32),
        ("grad", ctypes.c_uint32),
        ("dim", ctypes.c_int32),
        ("to_dim", ctypes.c_int32),
        ("reserved", ctypes.c_uint32),
        ("parts", ctypes.POINTER(ctypes.c_uint64)),
        ("to_parts", ctypes.POINTER(ctypes.c_uint64)),
        ("flags", ctypes.c_uint64),
    ]


class mdp_tp_linear_config(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("split", ctypes.c_uint32),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("blocks", ctypes.POINTER(ctypes.c_int64)),
        ("block_count", ctypes.c_uint64),
        ("buffer", ctypes.POINTER(mdp_buffer)),
        ("weight", ctypes.c_uint64),
        ("bias", ctypes.c_uint64),
        ("dtype", ctypes.c_uint32),
        ("grad", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
    ]


class mdp_tp_embedding_config(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("grad", ctypes.c_uint32),
        ("rows", ctypes.c_int64),
        ("flags", ctypes.c_uint64),
    ]


class mdp_tp_cross_entropy_config(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("classes", ctypes.c_int64),
        ("ignore_index", ctypes.c_int64),
        ("label_smoothing", ctypes.c_double),
        ("z_loss", ctypes.c_double),
        ("flags", ctypes.c_uint64),
    ]


class mdp_halo_config(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        ("ndim", ctypes.c_int32),
        ("fields", ctypes.c_uint32),
        ("grid", ctypes.POINTER(ctypes.c_int64)),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("low", ctypes.POINTER(ctypes.c_int64)),
        ("high", ctypes.POINTER(ctypes.c_int64)),
        ("edges", ctypes.POINTER(ctypes.c_uint32)),
        ("flags", ctypes.c_uint64),
        ("arrays", ctypes.c_uint64),
        ("staggered", ctypes.POINTER(ctypes.c_int64)),
    ]


class mdp_conv_config(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("kernel", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("dilation", ctypes.c_int64),
        ("padding_low", ctypes.c_int64),
        ("padding_high", ctypes.c_int64),
    ]


class mdp_conv_part(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("low", ctypes.c_int64),
        ("high", ctypes.c_int64),
        ("output_begin", ctypes.c_int64),
        ("output_size", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("inside_begin", ctypes.c_int64),
        ("inside_size", ctypes.c_int64),
        ("whole_output", ctypes.c_int64),
    ]


class mdp_cp_config(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("form", ctypes.c_uint32),
        ("bounds", ctypes.POINTER(ctypes.c_int64)),
        ("bound_count", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    ]


class mdp_cp_block(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("mask", ctypes.c_uint32),
        ("q_begin", ctypes.c_int64),
        ("k_begin", ctypes.c_int64),
        ("head_begin", ctypes.c_int64),
        ("q", ctypes.POINTER(mdp_tensor)),
        ("k", ctypes.POINTER(mdp_tensor)),
        ("v", ctypes.POINTER(mdp_tensor)),
        ("out", ctypes.POINTER(mdp_tensor)),
        ("lse", ctypes.POINTER(mdp_tensor)),
        ("grad_out", ctypes.POINTER(mdp_tensor)),
        ("grad_q", ctypes.POINTER(mdp_tensor)),
        ("grad_k", ctypes.POINTER(mdp_tensor)),
        ("grad_v", ctypes.POINTER(mdp_tensor)),
        ("q_bounds", ctypes.POINTER(ctypes.c_int64)),
        ("k_bounds", ctypes.POINTER(ctypes.c_int64)),
        ("bound_count", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
    ]
