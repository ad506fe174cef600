# SPDX-License-Identifier: Apache-2.0
# Checkpoints: all ranks save parameters, optimizer state, arrays and bytes of the caller's; any number of ranks load them.

"""
    CheckpointTensor(array; placement = :unset, shard_dim = nothing, shard_stride = 1)

An array of the caller's in a checkpoint, where ranks are tensor-parallel: `placement` is `:replicated` or `:sharded`, the rest as of
[`Param`](@ref).
"""
struct CheckpointTensor
    array::AbstractArray
    placement::Symbol
    shard_dim::Union{Int,Nothing}
    shard_stride::Int
end
CheckpointTensor(array; placement = :unset, shard_dim = nothing, shard_stride = 1) =
    CheckpointTensor(array, placement, shard_dim, shard_stride)
CheckpointTensor(tensor::CheckpointTensor) = tensor

"""
    save_checkpoint(directory, parts...; tensors = Dict(), shared_data = UInt8[], rank_data = UInt8[], keep = 0, row_major = false, async = false)

Saves a checkpoint in `directory`, under the next free number; it is there as a whole or not at all. `parts` are `Optimizer`s, each with its
`Buffer`; `Buffer`s, whose parameters are saved without an optimizer's state if their `Optimizer` is not there too; and `DataParallel`s. Several
`Optimizer`s of one `Buffer` have different parameter groups.
`tensors` has arrays of the caller's (frozen parameters, say) by name, each an array or a [`CheckpointTensor`](@ref); `row_major` is theirs,
as of [`Buffer`](@ref). All ranks give the same values, or all are refused: what each rank has of its own, such as running means, is given to all by
[`bcast!`](@ref) first, or is a rank's `rank_data`. `shared_data` is any bytes or text, rank 0's counts, `rank_data` that of this rank; [`checkpoint_data`](@ref) gives
them back. So many of the newest checkpoints stay as `keep` says (0: all).

To be called between steps. Collective over the world of the parts; blocking: it waits for files longer than the timeout. Throws
`MegaDPError` on all ranks, and older checkpoints stay: `:INVALID` (names that differ or come twice), `:DESYNC` (names a tensor of
`tensors` that differs, and two ranks), `:STATE`, `:SYSTEM` (names the file), and those of a lost communicator.

With `async` it returns a [`Request`](@ref) when all is copied, and the copy is written while training goes on. One is written at a time:
the next save or load waits for it. Parts that nobody refers to any more are kept until it is written, and so is the process; but if a part is
closed before, there is no checkpoint (`:ABORTED`). A failure whose request nobody has waited for is thrown by the next save, or printed as a
warning when the communicator goes.
"""
function save_checkpoint(directory, parts...; tensors = Dict(), shared_data = UInt8[], rank_data = UInt8[], keep = 0, row_major = false,
                         async = false)
    keep >= 0 || throw(invalid("keep is $keep; it has to be 0 or more"))
    shared, of_rank = bytes_of(shared_data), bytes_of(rank_data)
    arrays = [(String(name), CheckpointTensor(tensor)) for (name, tensor) in pairs(tensors)]
    arrays = [(name, strided(tensor.array) === nothing ? with_array(tensor, collect(tensor.array)) : tensor) for (name, tensor) in arrays]
    GC.@preserve shared of_rank begin
        save(out) = call_checkpoint(config -> Raw.mdp_checkpoint_save(config, out), directory, parts, arrays, row_major;
                                    shared_data = pointer(shared), shared_bytes = length(shared), rank_data = pointer(of_rank),
                                    rank_bytes = length(of_rank), keep = keep)
        async || return check(save(C_NULL))
        request = submit(save)
        see_through(request, parts)
        return request
    end
end

const saves = Dict{Request,Any}()  # under way, and of what
const saves_lock = ReentrantLock()
is_under_way(save) = Raw.mdp_request_peek(save) == Raw.MDP_PENDING

"What the save was begun from is kept until it has ended."
function see_through(request, parts)
    lock(() -> saves[request] = parts, saves_lock)
    @async begin
        while is_under_way(request)
            sleep(SLICE_NS / 1e9)
        end
        lock(() -> delete!(saves, request), saves_lock)
    end
end

function await_saves()
    while any(is_under_way, lock(() -> collect(keys(saves)), saves_lock))
        Libc.systemsleep(SLICE_NS / 1e9)
    end
end

__init__() = atexit(await_saves)  # it runs before what is left is closed

"""
    load_checkpoint!(directory, parts...; tensors = Dict(), optional = (), params_only = false, load_hyper = false, row_major = false)

Loads the newest checkpoint in `directory`, or the one that is `directory`, into the parts and tensors, which are those of
[`save_checkpoint`](@ref); saved by any number of ranks, with any sharding and buckets. `optional` has patterns (as of fnmatch) of names
that only the checkpoint or only this program may have. With `params_only` not the optimizers' state: moments are zero then, and no step was
taken. With `load_hyper` also learning rates, groups and what else the optimizers were told.

To be called between steps. Collective over the world of the parts; blocking: it waits for files longer than the timeout. Throws
`MegaDPError` on all ranks, and nothing has changed: `:INVALID` (another model), `:UNSUPPORTED` (of a later version), `:SYSTEM`, `:CORRUPT`,
and those of a lost communicator. If data turns out `:CORRUPT`, parameters, views, states and steps are `:STATE` until one has been loaded.
"""
function load_checkpoint!(directory, parts...; tensors = Dict(), optional = (), params_only = false, load_hyper = false, row_major = false)
    patterns = optional isa AbstractString ? [optional] : collect(String, optional)
    for pattern in patterns
        any(in("\n\0"), pattern) && throw(invalid("optional has $(repr(pattern)); a pattern is one line, without a NUL"))
    end
    arrays = [(String(name), CheckpointTensor(tensor)) for (name, tensor) in pairs(tensors)]
    for (name, tensor) in arrays
        strided(tensor.array) === nothing && throw(invalid("tensor '$name' is a $(typeof(tensor.array)), which has no memory to load into"))
    end
    lines = join(patterns, "\n")
    flags = (params_only ? Raw.MDP_CHECKPOINT_PARAMS_ONLY : 0) | (load_hyper ? Raw.MDP_CHECKPOINT_LOAD_HYPER : 0)
    GC.@preserve lines begin
        check(call_checkpoint(Raw.mdp_checkpoint_load, directory, parts, arrays, row_major; optional = pointer(lines), flags = flags), models_told_apart)
    end
end

"The sentence of a load into another model, which may be the same one with a matrix that lies otherwise: the names and sizes in it say so."
models_told_apart(text) = !occursin("this is another model: ", text) ? text :
    text * ". Of a transpose or adjoint 't' the array is called 't.parent', of a Diagonal 't.diag'; a matrix of m x n is saved as [n,m], unless row_major"

"""
    checkpoint_info(directory) -> String

The manifest of the newest checkpoint in `directory`, and its path, as one line of JSON. Local. Throws `MegaDPError`: `:SYSTEM`, `:CORRUPT`,
`:UNSUPPORTED`.
"""
function checkpoint_info(directory)
    path = path_of(directory)
    return text_of((bytes, capacity, needed) -> Raw.mdp_checkpoint_info(path, bytes, capacity, needed))
end

"""
    checkpoint_data(directory, rank = -1) -> Vector{UInt8}

The `rank_data` that rank `rank` gave to the newest checkpoint in `directory`; -1: the `shared_data`. Local. Throws `MegaDPError`:
`:INVALID` (no such rank), `:SYSTEM`, `:CORRUPT`, `:UNSUPPORTED`.
"""
function checkpoint_data(directory, rank::Integer = -1)
    path, bytes = path_of(directory), UInt8[]
    typemin(Int32) <= rank <= typemax(Int32) || throw(invalid("rank is $rank; it has 32 bits"))
    while true  # a newer checkpoint may come between two calls
        needed = Ref{Csize_t}(0)
        status = Raw.mdp_checkpoint_data(path, rank, bytes, length(bytes), needed)
        if needed[] <= length(bytes)
            check(status)
            return resize!(bytes, needed[])
        end
        resize!(bytes, needed[])
    end
end

"""
    verify_checkpoint(directory)

Reads all of the newest checkpoint; `checkpoint_damage` tells every damage. Local. Throws `MegaDPError`: `:CORRUPT` (something is
damaged), `:SYSTEM`, `:UNSUPPORTED`.
"""
verify_checkpoint(directory) = check(Raw.mdp_checkpoint_verify(path_of(directory), C_NULL, 0, C_NULL))

"""
    checkpoint_damage(directory)

Reads all of the newest checkpoint: a sentence for each damage, or why it cannot be read; none if it is whole. Local.
"""
function checkpoint_damage(directory)
    text = zeros(UInt8, 1 << 20)  # what does not fit is cut off
    status = Raw.mdp_checkpoint_verify(path_of(directory), text, length(text), C_NULL)
    text[1] == 0 && check(status)
    return String.(split(String(text[1:(findfirst(iszero, text) - 1)]), '\n'; keepempty = false))
end

"""
    export_checkpoint(directory, path; most_bytes = 0)

Writes the newest checkpoint's parameters and arrays, whole and under their names, as an ordinary safetensors file; with more than
`most_bytes` of data (0: any) as several with an index. Nothing is written over. `load_checkpoint!` takes it with `params_only`. Local.
Throws `MegaDPError`: `:INVALID` (`path`, or it is there), `:SYSTEM`, `:CORRUPT`, `:UNSUPPORTED`.
"""
function export_checkpoint(directory, path; most_bytes::Integer = 0)
    0 <= most_bytes <= typemax(UInt64) || throw(invalid("most_bytes is $most_bytes; it must be at least 0, of 64 bits"))
    check(Raw.mdp_checkpoint_export(path_of(directory), path_of(path), most_bytes))
end

with_array(tensor, array) = CheckpointTensor(array, tensor.placement, tensor.shard_dim, tensor.shard_stride)

bytes_of(data::Union{AbstractString,AbstractVector{UInt8}}) = Vector{UInt8}(data)
bytes_of(data) = throw(invalid("data of a checkpoint is a $(typeof(data)); it has to be text or a vector of UInt8"))

function path_of(directory)
    path = String(directory)
    '\0' in path && throw(invalid("directory is $(repr(path)), with a NUL in it"))
    return path
end

part_of(optimizer::Optimizer) = (optimizer.buffer, optimizer)
part_of(buffer::Buffer) = (buffer, nothing)
part_of(dp::DataParallel) = (dp.buffer, dp.optimizer)
part_of(other) = throw(invalid("a $(typeof(other)) is no part of a checkpoint; these are Optimizers, Buffers and DataParallels"))

"Each optimizer once, with its buffer; a buffer by itself once, where none of its optimizers is among the parts."
function parts_of(given)
    listed = unique(map(part_of, collect(given)))
    return Tuple{Buffer,Union{Optimizer,Nothing}}[(buffer, optimizer) for (buffer, optimizer) in listed
                                                  if optimizer !== nothing || !any(part -> part[1] === buffer && part[2] !== nothing, listed)]
end

raw_part((buffer, optimizer)) =
    Raw.mdp_checkpoint_part(; buffer = Ptr{Raw.mdp_buffer}(live(buffer)),
                            optimizer = optimizer === nothing ? C_NULL : Ptr{Raw.mdp_optimizer}(live(optimizer)))

function raw_checkpoint_tensor(name, about, borrowed, row_major)
    '\0' in name && throw(invalid("a tensor has a name with a NUL in it: $(repr(name))"))
    is_sharded, n = about.placement == :sharded, ndims(about.array)
    dim = something(about.shard_dim, 1)
    1 <= dim <= max(n, 1) || throw(invalid("tensor '$name': shard_dim is $dim, of $n dimensions"))
    return Raw.mdp_checkpoint_tensor(; placement = choose(PLACEMENTS, "placement", about.placement), name = pointer(name),
                                     tensor = Ptr{Raw.mdp_tensor}(pointer_from_objref(borrowed)),
                                     shard_dim = is_sharded ? (row_major ? dim - 1 : n - dim) : 0,
                                     shard_stride = is_sharded ? about.shard_stride : 0)
end

function call_checkpoint(call, directory, given, arrays, row_major; keywords...)
    path, parts = path_of(directory), parts_of(given)
    borrowed = [borrow(about.array, row_major) for (_, about) in arrays]
    GC.@preserve path parts arrays borrowed begin
        raw_parts = Raw.mdp_checkpoint_part[raw_part(part) for part in parts]
        raw_tensors = Raw.mdp_checkpoint_tensor[raw_checkpoint_tensor(name, about, one, row_major)
                                                for ((name, about), one) in zip(arrays, borrowed)]
        GC.@preserve raw_parts raw_tensors begin
            config = Ref(Raw.mdp_checkpoint_config(; directory = pointer(path), parts = pointer(raw_parts), part_count = length(parts),
                                                   tensors = pointer(raw_tensors), tensor_count = length(arrays), keywords...))
            return call(config)
        end
    end
end
