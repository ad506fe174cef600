# SPDX-License-Identifier: Apache-2.0
# Gradients without a copy, whatever is sharded: memory that is lent to write them into, and what this rank owns of the reduced ones.

"""
    acquire_grad(buffer, i) -> (array, first)
    acquire_grad(f, buffer, i)

The memory where the gradient of parameter `i` goes, whatever `sharding` is, lent until [`ready!`](@ref) or [`release_grad!`](@ref). Where
`first` is true every element is to be written, and after a release it is as if nothing had been; otherwise it is to be added to, and what was
added stays after a release, also where `f` throws: then the step's gradients are to be thrown away. The array has the
parameter's size and the gradient's element type: Float32 with `:zero2`, half-width gradients and `uses` above 1. It is not to be touched
after it was given back. With a function, calls `f(array, first)`, and then `ready!`, or `release_grad!` if `f` throws. Local; waits as
`put!`; any thread. Throws as `put!`, and `MegaDPError` `:STATE` (lent already), `:UNSUPPORTED` (bf16, in a Julia without that type).
"""
function acquire_grad(buffer::Buffer, i::Which)
    number = number_of(buffer, i)
    first, lent = Ref{Int32}(0), Ref(false)
    try
        array = kept_view(buffer, number) do tensor
            check(Raw.mdp_grad_acquire(buffer, number, tensor, first, stream_for(buffer)))
            lent[] = true
        end
        return array, first[] != 0
    catch
        lent[] && Raw.mdp_grad_release(buffer, number)
        rethrow()
    end
end

function acquire_grad(f, buffer::Buffer, i::Which)
    array, first = acquire_grad(buffer, i)
    try
        f(array, first)
    catch
        release_grad!(buffer, i)
        rethrow()
    end
    return ready!(buffer, i)
end

"""
    release_grad!(buffer, i)

Gives back what `acquire_grad` lent: nothing has come. Local, does not block, any thread. Throws `MegaDPError`: `:INVALID`, `:STATE` (it is
not lent).
"""
release_grad!(buffer::Buffer, i::Which) = check(Raw.mdp_grad_release(buffer, number_of(buffer, i)))

"""
    owned_grad(buffer, i) -> Vector

What this rank owns of the reduced gradient of parameter `i`, as a view: it may be written until the step, `grads_changed!` follows. Empty
where this rank owns nothing of it; where it begins is told by [`owned`](@ref). Of the gradient's element type, with `:zero2` Float32. Between
`sync!` and the step. Local. Throws `MegaDPError`: `:INVALID`, `:STATE` (the wrong moment; frozen), `:UNSUPPORTED` (bf16, in a Julia without
that type).
"""
owned_grad(buffer::Buffer, i::Which) = view_of(Raw.mdp_grad_owned, buffer, i)

"""
An array over memory of the buffer's, of parameter `number`, which `fill` says. A lease on the parameter keeps it, as that keeps all of the
buffer: also what DLPack does not lend, the pool, what lies outside of it, and sums.
"""
function kept_view(fill, buffer, number)
    tensor = Ref(Raw.mdp_tensor())
    check(Raw.mdp_buffer_param_view(buffer, number, tensor))
    lease = Ref{Ptr{Raw.DLManagedTensorVersioned}}(C_NULL)
    check(Raw.mdp_buffer_to_dlpack(buffer, tensor, lease))
    managed = lease[]
    try
        fill(tensor)
        return GC.@preserve buffer wrap(tensor[], buffer.row_major, _ -> give_back(managed))
    catch
        give_back(managed)
        rethrow()
    end
end

"Counts what was put so far as all of a gradient: more was promised than came."
function nothing_more!(buffer, i)
    check(Raw.mdp_grad_acquire(buffer, number_of(buffer, i), Ref(Raw.mdp_tensor()), Ref{Int32}(0), stream_for(buffer)))
    ready!(buffer, i)
end
