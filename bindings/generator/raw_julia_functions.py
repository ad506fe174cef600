# SPDX-License-Identifier: Apache-2.0
"""Writes the functions of the raw layer of the Julia binding: one for each of the header's."""
from raw_julia_types import HEAD, RENAMED, argument_type

OUTPUT = "julia/src/raw_functions.jl"

# By their names, since the header says in words only who waits. What is not here must not wait.
WAITING = frozenset(f"mdp_{name}" for name in (
    "comm_create", "comm_split", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier", "reduce_scatter_v",
    "all_gather_v", "all_to_all_v", "send", "recv", "send_recv", "grid_create", "grid_comm", "buffer_register", "buffer_broadcast",
    "buffer_verify", "buffer_use_order", "param_wait", "param_read", "param_write", "grad_put", "grad_acquire", "grad_sync",
    "grad_norm", "grad_summarize", "grad_tokens", "microbatch_begin", "buffer_zero_grad", "optimizer_create", "optimizer_set_scaler",
    "optimizer_scaler", "optimizer_step", "optimizer_step_many", "optimizer_step_begin", "optimizer_step_next", "optimizer_step_finish",
    "optimizer_swap_average", "optimizer_state", "optimizer_steps", "optimizer_set_steps", "optimizer_info", "tp_region_fwd",
    "tp_region_bwd", "tp_linear_create", "tp_linear_fwd", "tp_linear_bwd", "tp_embedding_fwd", "tp_embedding_bwd",
    "tp_cross_entropy_fwd", "halo_create", "halo_start", "halo_finish", "cp_attention_fwd", "cp_attention_bwd", "checkpoint_save",
    "checkpoint_load", "checkpoint_info", "checkpoint_data", "checkpoint_verify", "checkpoint_export", "request_wait"))


def function(header, number, declared):
    names = [RENAMED.get(param.name, param.name) for param in declared.params]
    types = [argument_type(header, param.type) for param in declared.params]
    result = argument_type(header, declared.result)
    tuple_ = "(" + ", ".join(types) + ("," if len(types) == 1 else "") + ")"
    call = "@waiting" if declared.name in WAITING else "ccall"
    yield f"{declared.name}({', '.join(names)}) ="
    yield f"    {call}({', '.join([f'entries[{number}]', result, tuple_, *names])})"


def gives_request(declared):
    return any(param.type.base == "mdp_request" and param.type.pointers == 2 for param in declared.params)


def emit(header):
    declared = {f.name for f in header.functions}
    if not WAITING <= declared:
        raise ValueError(f"raw_julia_functions.py: no such functions any more: {sorted(WAITING - declared)}")
    # What gives a request waits where none is asked for.
    if missing := {f.name for f in header.functions if gives_request(f)} - WAITING:
        raise ValueError(f"raw_julia_functions.py: they give a request, and are not in WAITING: {sorted(missing)}")
    lines = ["const FUNCTIONS = ("] + [f"    :{f.name}," for f in header.functions] + [")", ""]
    for number, declaration in enumerate(header.functions, 1):
        lines += function(header, number, declaration)
    return HEAD + "\n".join(lines) + "\n"
