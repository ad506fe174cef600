# SPDX-License-Identifier: Apache-2.0
"""Writes the raw layer of the Julia binding: structs as immutable bits, constants, and one function for each of the header's."""

OUTPUT = "julia/src/raw.jl"

NUMBERS = {"int32_t": "Int32", "uint32_t": "UInt32", "int64_t": "Int64", "uint64_t": "UInt64", "uint8_t": "UInt8", "size_t": "Csize_t",
           "double": "Cdouble", "char": "UInt8", "void": "Cvoid"}
RENAMED = {"begin": "start", "end": "stop"}  # words of Julia that the header has as names

# By their names, since the header says in words only who waits. What is not here must not wait.
WAITING = frozenset(f"mdp_{name}" for name in (
    "comm_create", "comm_split", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier", "reduce_scatter_v",
    "all_gather_v", "all_to_all_v", "send", "recv", "send_recv", "grid_create",
    "grid_comm", "buffer_register", "buffer_broadcast", "buffer_verify", "param_wait", "param_read", "param_write", "grad_put", "grad_sync",
    "optimizer_create", "optimizer_step", "optimizer_state", "request_wait"))

HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
# Written by bindings/generate.py from include/megadp.h; not to be edited.

"""
What megadp.h declares, under its own names. Handles and pointers are taken as they are in C (a `Ref` where C writes through a pointer), and
every function returns what C returns. A function given to `mdp_log_set` must not be Julia code: it may be called while this thread has
told the collector that it runs none. `begin` and `end`, words of Julia, are called `start` and `stop`.
"""
module Raw

import Libdl

"""
`ccall`, for functions that may wait for another rank: meanwhile the collector of another Julia thread need not wait for this one.
Nothing but the call stands between the two marks: Julia's memory must not be touched there.
"""
macro waiting(entry, result, types, arguments...)
    kept = [gensym(:kept) for _ in arguments]
    plain = [gensym(:plain) for _ in arguments]
    keep = [:($k = Base.cconvert($t, $(esc(a)))) for (k, t, a) in zip(kept, types.args, arguments)]
    lower = [:($p = Base.unsafe_convert($t, $k)) for (p, t, k) in zip(plain, types.args, kept)]
    quote
        entry = $entry
        $(keep...)
        GC.@preserve $(kept...) begin
            $(lower...)
            state = ccall(:jl_gc_safe_enter, Int8, ())
            result = ccall(entry, $result, $types, $(plain...))
            ccall(:jl_gc_safe_leave, Cvoid, (Int8,), state)
            result
        end
    end
end

'''

TAIL = '''
const entries = Vector{Ptr{Cvoid}}(undef, length(FUNCTIONS))
const loaded_from = Ref("")

"The libraries that `open_library` tries: MEGADP_LIBRARY alone where it is set, else the loader's, else that of a build in this tree."
function candidates()
    chosen = get(ENV, "MEGADP_LIBRARY", "")
    isempty(chosen) || return [chosen]
    return ["libmegadp.so.0", normpath(joinpath(@__DIR__, "..", "..", "..", "build", "lib", "libmegadp.so"))]
end

function open_library()
    problems = String[]
    for path in candidates()
        try
            # Not Julia's RTLD_DEEPBIND: the UCX that the library loads replaces functions of libc.
            handle = Libdl.dlopen(path, Libdl.RTLD_NOW | Libdl.RTLD_LOCAL)
            loaded_from[] = Libdl.dlpath(handle)
            return handle
        catch problem
            push!(problems, sprint(showerror, problem))
        end
    end
    error("MegaDP finds no libmegadp; MEGADP_LIBRARY may say where it is. Tried: ", join(problems, "; "))
end

function __init__()
    handle = open_library()
    for (i, name) in enumerate(FUNCTIONS)
        entry = Libdl.dlsym(handle, name; throw_error = false)
        entry === nothing && error("MegaDP: $(loaded_from[]) has no $name: it is older than this package")
        entries[i] = entry
    end
end

end
'''


def julia_type(header, type_):
    """A type as ccall takes it."""
    if type_.length:
        return f"NTuple{{{type_.length}, {NUMBERS[type_.base]}}}"
    if type_.base in header.callbacks:
        return "Ptr{Cvoid}"
    pointers = type_.pointers
    base = type_.base
    if base in header.aliases and header.aliases[base].pointers:
        pointers += header.aliases[base].pointers
        base = header.aliases[base].base
    text = NUMBERS.get(base, base)
    for _ in range(pointers):
        text = f"Ptr{{{text}}}"
    return text


def argument_type(header, type_):
    return "Cstring" if type_.base == "char" and type_.pointers == 1 and type_.const else julia_type(header, type_)


def structs(header):
    for name, fields in header.structs.items():
        yield f"struct {name}"
        named = [(RENAMED.get(f.name, f.name), julia_type(header, f.type)) for f in fields]
        yield from (f"    {field}::{type_}" for field, type_ in named)
        yield "end"
        if named[0][0] == "struct_size" and not any("NTuple" in type_ for _, type_ in named):
            zeros = ", ".join(f"{field} = {'C_NULL' if 'Ptr' in type_ else '0'}" for field, type_ in named[1:])
            values = ", ".join(field for field, _ in named[1:])
            yield f"{name}(; {zeros}) ="
            yield f"    {name}(sizeof({name}), {values})"
        yield ""


def constants(header):
    for alias, values in header.enums:
        wanted = NUMBERS[header.aliases[alias].base] if alias else "Int"
        yield from (f"const {name} = {wanted}({value})" for name, value in values)
        yield ""


def function(header, number, declared):
    names = [RENAMED.get(param.name, param.name) for param in declared.params]
    types = [argument_type(header, param.type) for param in declared.params]
    result = argument_type(header, declared.result)
    tuple_ = "(" + ", ".join(types) + ("," if len(types) == 1 else "") + ")"
    call = "@waiting" if declared.name in WAITING else "ccall"
    yield f"{declared.name}({', '.join(names)}) ="
    yield f"    {call}({', '.join([f'entries[{number}]', result, tuple_, *names])})"


def emit(header):
    declared = {f.name for f in header.functions}
    if not WAITING <= declared:
        raise ValueError(f"raw_julia.py: no such functions any more: {sorted(WAITING - declared)}")
    lines = [f"mutable struct {name} end" for name in header.handles] + [""]
    lines += [f"const {name} = {julia_type(header, type_)}" for name, type_ in header.aliases.items()] + [""]
    lines += [*structs(header), *constants(header)]
    lines += ["const FUNCTIONS = ("] + [f"    :{f.name}," for f in header.functions] + [")", ""]
    for number, declaration in enumerate(header.functions, 1):
        lines += function(header, number, declaration)
    return HEAD + "\n".join(lines) + TAIL
