# SPDX-License-Identifier: Apache-2.0
# Walking nested models: tuples, named tuples, arrays of layers, and structs as far as Functors.jl is loaded.

"""
    parts(x) -> (children, rebuild) or nothing

The children of a node, as a tuple or named tuple, and a function that makes the node again from new ones; `nothing` for a leaf. Structs are
leaves until an extension fills `struct_parts`.
"""
parts(x::Union{Tuple,NamedTuple}) = (x, identity)
parts(::AbstractArray{<:Number}) = nothing
parts(x::AbstractArray) = (Tuple(x), children -> reshape(collect(Any, children), size(x)))
parts(::Union{Number,AbstractString,Symbol,Function,Nothing,Type}) = nothing
parts(x) = struct_parts[](x)

struct_parts_of_none(_) = nothing
const struct_parts = Ref{Any}(struct_parts_of_none)
"Of a node's children those that are trained, by name; an extension asks Optimisers.jl."
const trained_parts = Ref{Any}((x, children) -> children)

"Applies `f(leaf, path, trained)` to all leaves and builds the tree again. A path is a tuple of names and numbers."
function map_leaves(f, x, path = (), trained = true)
    found = parts(x)
    found === nothing && return f(x, path, trained)
    children, rebuild = found
    chosen = keys(trained_parts[](x, children))
    mapped = map(key -> map_leaves(f, children[key], (path..., key), trained && key in chosen), keys(children))
    # A node in which nothing has changed stays the same object: it may be mutable, such as a dropout layer's generator.
    all(((key, new),) -> new === children[key], zip(keys(children), mapped)) && return x
    return rebuild(children isa NamedTuple ? NamedTuple{keys(children)}(mapped) : Tuple(mapped))
end

"What stands at one name or number of a gradient, `nothing` where it has nothing there. Extensions add types of their own."
child(tree::NamedTuple, key) = key isa Symbol && haskey(tree, key) ? tree[key] : nothing
child(tree::Union{Tuple,AbstractArray}, key) = key isa Integer && checkbounds_of(tree, key) ? tree[key] : nothing
child(tree::AbstractDict, key) = get(tree, key, nothing)
child(::Nothing, _) = nothing
child(tree, key) = key isa Symbol && hasproperty(tree, key) ? getproperty(tree, key) : nothing
checkbounds_of(tree, key) = firstindex(tree) <= key <= lastindex(tree)

"A gradient that is computed when it is asked for, computed. An extension adds thunks."
plain(x) = x
at(tree, path) = foldl((node, key) -> child(plain(node), key), path; init = tree) |> plain

"A parameter's name: its path, as one would write it."
name_of(path) = isempty(path) ? "parameter" : join(path, ".")
