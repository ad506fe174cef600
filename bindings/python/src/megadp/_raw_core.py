# SPDX-License-Identifier: Apache-2.0
"""The types of megadp.h for ctypes. Written by bindings/generate.py; do not edit."""
import ctypes


class mdp_comm(ctypes.Structure):
    """Opaque."""


class mdp_grid(ctypes.Structure):
    """Opaque."""


class mdp_buffer(ctypes.Structure):
    """Opaque."""


class mdp_optimizer(ctypes.Structure):
    """Opaque."""


class mdp_request(ctypes.Structure):
    """Opaque."""


class DLManagedTensorVersioned(ctypes.Structure):
    """Opaque."""


mdp_allgather_start_fn = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)
mdp_allgather_test_fn = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
mdp_allgather_free_fn = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
mdp_interrupted_fn = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
mdp_update_fn = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
mdp_log_fn = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t)


class mdp_unique_id(ctypes.Structure):
    _fields_ = [
        ("bytes", ctypes.c_uint8 * 128),
    ]


class mdp_error_info(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("status", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("bucket", ctypes.c_int32),
        ("param", ctypes.c_int64),
        ("operation", ctypes.c_uint64),
        ("text", ctypes.c_char * 1024),
    ]


class mdp_bootstrap(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("allgather_start", mdp_allgather_start_fn),
        ("allgather_test", mdp_allgather_test_fn),
        ("allgather_free", mdp_allgather_free_fn),
    ]


class mdp_comm_config(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("backend", ctypes.c_uint32),
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("host_threads", ctypes.c_int32),
        ("timeout_ns", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("bootstrap", ctypes.POINTER(mdp_bootstrap)),
        ("interrupted", mdp_interrupted_fn),
        ("interrupted_context", ctypes.c_void_p),
    ]


class mdp_grid_config(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("tp", ctypes.c_int32),
        ("cp", ctypes.c_int32),
        ("ep", ctypes.c_int32),
        ("pp", ctypes.c_int32),
        ("expert_tp", ctypes.c_int32),
        ("instances", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("order", ctypes.c_char_p),
        ("flags", ctypes.c_uint64),
    ]


class mdp_tensor(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("reserved", ctypes.c_uint32),
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
    ]


class mdp_param(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_int32),
        ("uses_per_step", ctypes.c_int32),
        ("param_class", ctypes.c_uint32),
        ("placement", ctypes.c_uint32),
        ("shard_dim", ctypes.c_int32),
        ("shard_stride", ctypes.c_int32),
        ("param_group", ctypes.c_int32),
        ("use_order", ctypes.c_int32),
        ("flags", ctypes.c_uint64),
        ("tie", ctypes.c_char_p),
        ("sharding", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("cost", ctypes.c_double),
    ]


class mdp_buffer_config(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("grad_dtype", ctypes.c_uint32),
        ("sharding", ctypes.c_uint32),
        ("missing", ctypes.c_uint32),
        ("bucket_elements", ctypes.c_uint64),
        ("bucket_count", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("pool_buckets", ctypes.c_uint64),
        ("spill_limit", ctypes.c_uint64),
        ("scaling", ctypes.c_uint32),
        ("wire_dtype", ctypes.c_uint32),
    ]


class mdp_plan_report(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("param_bytes", ctypes.c_uint64),
        ("grad_bytes", ctypes.c_uint64),
        ("grad_shard_bytes", ctypes.c_uint64),
        ("master_bytes", ctypes.c_uint64),
        ("state_bytes", ctypes.c_uint64),
        ("scratch_bytes", ctypes.c_uint64),
        ("padding_elements", ctypes.c_uint64),
        ("buckets", ctypes.c_uint64),
        ("owned_elements", ctypes.c_uint64),
        ("communicator_bytes", ctypes.c_uint64),
        ("spill_bytes", ctypes.c_uint64),
        ("feedback_bytes", ctypes.c_uint64),
        ("average_bytes", ctypes.c_uint64),
    ]


class mdp_range(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("arena", ctypes.c_int64),
        ("bucket", ctypes.c_int64),
        ("param", ctypes.c_int64),
        ("begin", ctypes.c_int64),
        ("end", ctypes.c_int64),
        ("param_begin", ctypes.c_int64),
    ]


class mdp_param_group(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("lr", ctypes.c_double),
        ("weight_decay", ctypes.c_double),
        ("flags", ctypes.c_uint64),
        ("beta1", ctypes.c_double),
        ("beta2", ctypes.c_double),
        ("momentum", ctypes.c_double),
        ("eps", ctypes.c_double),
    ]


class mdp_param_state(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("bytes", ctypes.POINTER(ctypes.c_uint64)),
    ]


class mdp_optimizer_config(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("rule", ctypes.c_uint32),
        ("lr", ctypes.c_double),
        ("beta1", ctypes.c_double),
        ("beta2", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("weight_decay", ctypes.c_double),
        ("max_grad_norm", ctypes.c_double),
        ("param_groups", ctypes.POINTER(mdp_param_group)),
        ("param_group_count", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("max_grad_value", ctypes.c_double),
        ("norm", ctypes.c_uint32),
        ("first_param_group", ctypes.c_uint32),
        ("momentum", ctypes.c_double),
        ("state", ctypes.c_char_p),
        ("param_states", ctypes.POINTER(mdp_param_state)),
        ("param_state_count", ctypes.c_uint64),
        ("average_decay", ctypes.c_double),
        ("state_dtype", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
    ]


class mdp_update(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("optimizer", ctypes.c_uint32),
        ("param", ctypes.c_uint64),
        ("param_begin", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("master", ctypes.POINTER(ctypes.c_float)),
        ("grad", ctypes.POINTER(ctypes.c_float)),
        ("state", ctypes.POINTER(ctypes.POINTER(ctypes.c_float))),
        ("state_count", ctypes.c_uint64),
        ("step", ctypes.c_uint64),
        ("lr", ctypes.c_double),
        ("beta1", ctypes.c_double),
        ("beta2", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("weight_decay", ctypes.c_double),
        ("momentum", ctypes.c_double),
        ("stream", ctypes.c_void_p),
        ("param_states", ctypes.POINTER(ctypes.c_void_p)),
        ("param_state_bytes", ctypes.POINTER(ctypes.c_uint64)),
        ("param_state_count", ctypes.c_uint64),
    ]


class mdp_scaler(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("growth_interval", ctypes.c_uint32),
        ("hysteresis", ctypes.c_uint32),
        ("clean_steps", ctypes.c_uint32),
        ("overflows", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("scale", ctypes.c_double),
        ("growth_factor", ctypes.c_double),
        ("backoff_factor", ctypes.c_double),
        ("min_scale", ctypes.c_double),
        ("flags", ctypes.c_uint64),
    ]


class mdp_step_config(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("lr", ctypes.c_double),
        ("loss_scale", ctypes.c_double),
        ("stream", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("grad_divisor", ctypes.c_double),
    ]


class mdp_step_report(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("grad_norm", ctypes.c_double),
        ("clip_factor", ctypes.c_double),
        ("loss_scale", ctypes.c_double),
        ("step", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    ]


class mdp_grad_summary(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("norm", ctypes.c_double),
        ("inf_norm", ctypes.c_double),
        ("zeros", ctypes.c_uint64),
        ("nonfinite", ctypes.c_uint64),
    ]


class mdp_stats_report(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("comm_ns", ctypes.c_uint64),
        ("exposed_ns", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("buckets", ctypes.c_uint64),
        ("launched_in_backward", ctypes.c_uint64),
        ("syncs", ctypes.c_uint64),
        ("host_syncs", ctypes.c_uint64),
        ("spill_peak_bytes", ctypes.c_uint64),
        ("large_gradients", ctypes.c_uint64),
    ]


class mdp_bucket_report(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("state", ctypes.c_uint32),
        ("ready_ns", ctypes.c_uint64),
        ("reduce_begin_ns", ctypes.c_uint64),
        ("reduce_end_ns", ctypes.c_uint64),
        ("gather_begin_ns", ctypes.c_uint64),
        ("gather_end_ns", ctypes.c_uint64),
        ("sync_ns", ctypes.c_uint64),
    ]


class mdp_checkpoint_part(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("buffer", ctypes.POINTER(mdp_buffer)),
        ("optimizer", ctypes.POINTER(mdp_optimizer)),
    ]


class mdp_checkpoint_tensor(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("placement", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("tensor", ctypes.POINTER(mdp_tensor)),
        ("shard_dim", ctypes.c_int32),
        ("shard_stride", ctypes.c_int32),
    ]


class mdp_checkpoint_config(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("directory", ctypes.c_char_p),
        ("parts", ctypes.POINTER(mdp_checkpoint_part)),
        ("part_count", ctypes.c_uint64),
        ("tensors", ctypes.POINTER(mdp_checkpoint_tensor)),
        ("tensor_count", ctypes.c_uint64),
        ("shared_data", ctypes.c_void_p),
        ("shared_bytes", ctypes.c_uint64),
        ("rank_data", ctypes.c_void_p),
        ("rank_bytes", ctypes.c_uint64),
        ("keep", ctypes.c_uint64),
        ("optional", ctypes.c_char_p),
        ("flags", ctypes.c_uint64),
    ]
