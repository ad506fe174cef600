# SPDX-License-Identifier: Apache-2.0
# What all handles have in common: a pointer that is dropped once, by close or by the collector, and is refused after that.

"""
An object of the library's. `close(handle)` drops it: local, it waits for no other rank, and may be called twice. The collector does the
same, at a time of its own choosing. Any call with a closed handle is a `MegaDPError` of kind `:STATE`.
"""
abstract type Handle end

const Slot = Threads.Atomic{UInt}  # close, from any thread, and the finalizer must not both find the pointer

"The pointer of a handle that is in use."
function live(handle::Handle)
    pointer = handle.slot[]
    pointer == 0 && throw(failure(Raw.MDP_E_STATE, "this $(nameof(typeof(handle))) was closed"))
    return pointer
end

Base.isopen(handle::Handle) = handle.slot[] != 0

function Base.close(handle::Handle)
    pointer = Threads.atomic_xchg!(handle.slot, UInt(0))
    pointer == 0 || destroy(handle, pointer)
    return nothing
end

"Makes a type of handle what the library's functions take as `raw`. What drops it is its method of `destroy`."
macro handle(type, raw)
    quote
        Base.cconvert(::Type{Ptr{Raw.$raw}}, handle::$type) = handle
        Base.unsafe_convert(::Type{Ptr{Raw.$raw}}, handle::$type) = Ptr{Raw.$raw}(live(handle))
    end |> esc
end

"Calls `body` with the handle and closes it in the end, however that comes."
function closing(body, handle)
    try
        return body(handle)
    finally
        close(handle)
    end
end

# A second object with the same pointer would drop it again. Copies of models that have communicators and operators in them, to evaluate, say, use the same
# ones; what is trained cannot be in two places.
Base.deepcopy_internal(handle::Handle, ::IdDict) = handle

not_copied(what) = throw(failure(Raw.MDP_E_UNSUPPORTED, "a $(nameof(typeof(what))) cannot be copied: the copy's parameters would be those of the " *
                                 "original. deepcopy(dp.model) is a copy of a model in memory of its own, read!(buffer, i, array) one of a parameter"))

Base.show(io::IO, handle::Handle) = print(io, nameof(typeof(handle)), isopen(handle) ? "(…)" : "(closed)")
