# SPDX-License-Identifier: Apache-2.0
# Parameters that share memory without being the same array, such as a matrix and a view of it: each would get memory of its own.

"""
Where an array's elements are: the addresses of the first and the last, and the array whose elements they are. Of one without strides those of its
parent; `nothing` where that cannot be told.
"""
function memory_of(array::AbstractArray)
    (isempty(array) || !isbitstype(eltype(array))) && return nothing
    found = strided(array)
    found === nothing && return parent(array) === array ? nothing : memory_of(parent(array))
    _, address, steps = found
    spans = sizeof(eltype(array)) .* (size(array) .- 1) .* steps
    return (first = reduce(+, min.(spans, 0); init = Int(address)), last = reduce(+, max.(spans, 0); init = Int(address)), array = array)
end
memory_of(_) = nothing

function addresses(array)
    _, address, steps = strided(array)
    return (reduce(+, sizeof(eltype(array)) .* (Tuple(place) .- 1) .* steps; init = Int(address)) for place in CartesianIndices(size(array)))
end

"Throws where two of the parameters share memory; `names` are theirs."
function refuse_shared(arrays, names)
    found = [(memory = memory, name = name) for (memory, name) in zip(map(memory_of, arrays), names) if memory !== nothing]
    sort!(found; by = one -> one.memory.first)
    reach = accumulate(max, [one.memory.last for one in found])
    meets_next(k) = k in 1:length(found)-1 && found[k+1].memory.first <= reach[k]
    # Rows of a matrix lie between each other and are apart: what overlaps is looked at element by element.
    owner = Dict{Int,String}()
    for k in filter(k -> meets_next(k - 1) || meets_next(k), eachindex(found)), address in addresses(found[k].memory.array)
        other = get!(owner, address, found[k].name)
        other == found[k].name ||
            throw(invalid("parameters '$other' and '$(found[k].name)' share memory, but are not the same array, so that they would be trained apart " *
                          "from each other. Keep one of them in the model, and make the other of it where it is used; only an array itself and " *
                          "its transpose or adjoint can stand at several places"))
    end
end
