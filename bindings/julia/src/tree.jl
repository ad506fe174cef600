# SPDX-License-Identifier: Apache-2.0
# Walking nested models: tuples, named tuples, arrays of layers, and structs as far as Functors.jl is loaded.

"""
    parts(x) -> (children, rebuild) or nothing

The children of a node, as a tuple or named tuple, and a function that makes the node again from new ones; `nothing` for a leaf. Structs are
leaves until an extension fills `struct_parts`.
"""
parts(x::Union{Tuple,NamedTuple}) = (x, identity)
parts(x::Base.RefValue) = isassigned(x) ? ((x = x[],), children -> referring(eltype(x), children.x)) : nothing
parts(::AbstractArray{<:Number}) = nothing
# Of a transposed matrix the matrix: what stands elsewhere too is then the same array, and stays it.
parts(x::Transpose{<:Number,<:AbstractMatrix}) = ((parent = parent(x),), children -> transpose(children.parent))
parts(x::Adjoint{<:Number,<:AbstractMatrix}) = ((parent = parent(x),), children -> adjoint(children.parent))
# Of a diagonal one the diagonal: the rest is no numbers of its own.
parts(x::Diagonal{<:Number}) = ((diag = x.diag,), children -> Diagonal(children.diag))
"Arrays that are nodes. No other package says so, or which of their children are trained, and an array may be the gradient of one."
const Wrapped = Union{Transpose{<:Number,<:AbstractMatrix},Adjoint{<:Number,<:AbstractMatrix},Diagonal{<:Number}}
parts(x::AbstractArray) = (Tuple(x), children -> array_of_kind(x, children))
parts(::Union{Number,AbstractString,Symbol,Nothing,Type}) = nothing
# What a function has captured; a variable that it assigns to is in a Box. Functions in boxes may be in their own, without end.
parts(x::Function) = fieldcount(typeof(x)) == 0 ? nothing : struct_parts[](x)
parts(x::Core.Box) = isdefined(x, :contents) && !(x.contents isa Function) ? ((contents = x.contents,), children -> Core.Box(children.contents)) : nothing
parts(x) = struct_parts[](x)

"An array of the same element type where that can be: a struct's field may be of no other."
array_of_kind(x, children) =
    all(child -> child isa eltype(x), children) ? copyto!(Array{eltype(x)}(undef, size(x)), children) :
    map(identity, reshape(collect(Any, children), size(x)))

referring(::Type{T}, x) where {T} = x isa T ? Ref{T}(x) : Ref(x)

struct_parts_of_none(_) = nothing
const struct_parts = Ref{Any}(struct_parts_of_none)
"Of a node's children those that are trained, by name; an extension asks Optimisers.jl."
const trained_parts = Ref{Any}((x, children) -> children)

"Applies `f(leaf, path, trained)` to all leaves and builds the tree again. A path is a tuple of names and numbers."
function map_leaves(f, x, path = (), trained = true)
    found = parts(x)
    found === nothing && return f(x, path, trained)
    children, rebuild = found
    chosen = keys(x isa Wrapped ? children : trained_parts[](x, children))
    mapped = map(key -> map_leaves(f, children[key], (path..., key), trained && key in chosen), keys(children))
    # A node in which nothing has changed stays the same object: it may be mutable, such as a dropout layer's generator.
    all(((key, new),) -> new === children[key], zip(keys(children), mapped)) && return x
    return rebuild(children isa NamedTuple ? NamedTuple{keys(children)}(mapped) : Tuple(mapped))
end

const Reduced = Union{Number,AbstractArray{<:Number}}

"""
The leaf, if it is none that would be passed over: a Dict with such things in it, which have no order that all ranks share, or a function with arrays
in it while nothing tells what functions have.
"""
function seen_through(leaf, path, things = Reduced)
    leaf isa Function && struct_parts[] === struct_parts_of_none && any(child -> holds(isarray_of(things), child), captured(leaf)) &&
        throw(invalid("$(leaf_at(path)) is a function that has arrays in it, which cannot be seen; they can be with Functors.jl loaded, of version 0.5 or newer"))
    leaf isa AbstractDict && any(child -> holds(x -> x isa things, child), values(leaf)) || return leaf
    throw(invalid("$(leaf_at(path)) is a $(nameof(typeof(leaf))) with $(things == Reduced ? "arrays or numbers" : "arrays"); it must be a NamedTuple or a Tuple"))
end

# Whole numbers are no parameters, but are synchronized.
isarray_of(things) = x -> x isa AbstractArray{<:Number} && (things == Reduced || !(eltype(x) <: Integer)) ||
                          x isa Function && any(child -> holds(isarray_of(things), child), captured(x))
captured(f) = Any[getfield(f, i) for i in 1:fieldcount(typeof(f)) if isdefined(f, i)]

"Refuses a tree in which no array and no number was seen, but structs were, which would be passed over."
function refuse_unseen(tree, seen)
    !seen && struct_parts[] === struct_parts_of_none && holds(has_fields, tree) || return nothing
    throw(invalid("no array or number can be seen in the tree, a $(nameof(typeof(tree))); structs can be with Functors.jl loaded"))
end
has_fields(leaf) = !(leaf isa Union{Number,AbstractArray,AbstractString,Symbol,Function,Type,AbstractDict}) && fieldcount(typeof(leaf)) > 0

"What stands at one name or number of a gradient, `nothing` where it has nothing there. Extensions add types of their own."
child(tree::NamedTuple, key) = key isa Symbol && haskey(tree, key) ? tree[key] : nothing
child(tree::Union{Tuple,AbstractArray}, key) = key isa Integer && checkbounds_of(tree, key) ? tree[key] : nothing
# A gradient of a transposed matrix is an array of that shape, or has a `parent`; of a diagonal one an array too, or has a `diag`.
child(tree::AbstractMatrix{<:Number}, key::Symbol) = key == :parent ? transpose(tree) : key == :diag ? diag(tree) : nothing
child(tree::Diagonal{<:Number}, key::Symbol) = key == :parent ? transpose(tree) : key == :diag ? tree.diag : nothing
child(tree::AbstractDict, key) = get(tree, key, nothing)
child(::Nothing, _) = nothing
child(tree, key) = key isa Symbol && hasproperty(tree, key) ? getproperty(tree, key) : nothing
checkbounds_of(tree, key) = firstindex(tree) <= key <= lastindex(tree)

"A gradient that is computed when it is asked for, computed; that of something mutable, which comes in a Ref. An extension adds thunks."
plain(x) = x
plain(x::Base.RefValue) = plain(x[])
at(tree, path) = foldl((node, key) -> child(plain(node), key), path; init = tree) |> plain

"Whether a gradient says that there is none. An extension adds zeros of other types."
absent(x) = x === nothing

"The names or numbers under which a gradient has children; `nothing` for a leaf. An extension adds tangents."
entries(x::Union{Tuple,NamedTuple,AbstractDict}) = keys(x)
entries(::AbstractArray{<:Number}) = nothing
entries(x::AbstractArray) = eachindex(x)
entries(::Union{Number,AbstractString,Symbol}) = nothing
entries(x) = isempty(propertynames(x)) ? nothing : propertynames(x)

"""
    compare(isparameter, tree, grads)

Throws a `MegaDPError` of kind `:INVALID` that names the place where a gradient is of another shape than what it is the gradient of: a name
or number that is not there, a leaf in the place of a node or the other way round, an array of another size. Where nothing is a parameter
anything may be; a gradient may lack names, and have those of fields that are no children.
"""
function compare(isparameter, x, gradient, path = ())
    gradient = plain(gradient)
    absent(gradient) && return nothing
    found = parts(x)
    if found === nothing || x isa Wrapped && gradient isa AbstractArray
        return holds(isparameter, x) ? compare_arrays(x, gradient, path) : nothing
    end
    children, given = found[1], entries(gradient)
    if given === nothing || x isa Union{Tuple,AbstractArray} && length(given) != length(children)
        holds(isparameter, x) || return nothing
        has = given === nothing ? "is of type $(nameof(typeof(gradient)))" : "has $(length(given)) entries"
        throw(invalid("the gradient of $(place_of(path)) $has; the model has $(described(x, children)) there"))
    end
    for key in given
        key in keys(children) || key isa Symbol && hasproperty(x, key) ||
            throw(invalid("there is a gradient of '$(name_of((path..., key)))', which the model does not have: $(place_of(path)) has " *
                          described(x, children)))
    end
    foreach(key -> compare(isparameter, children[key], child(gradient, key), (path..., key)), keys(children))
end

function compare_arrays(x, gradient, path)
    gradient isa AbstractArray ||
        throw(invalid("the gradient of $(place_of(path)) is of type $(nameof(typeof(gradient))); the model has an array of size $(size(x)) there"))
    size(gradient) == size(x) || throw(invalid("the gradient of $(place_of(path)) has size $(size(gradient)); the parameter has $(size(x))"))
    return nothing
end

holds(isparameter, x) = (found = parts(x); found === nothing ? isparameter(x) : any(child -> holds(isparameter, child), values(found[1])))
place_of(path) = isempty(path) ? "the model" : "'$(name_of(path))'"
leaf_at(path) = isempty(path) ? "the tree" : "'$(name_of(path))'"
described(x, children) = "$(length(children)) entries in its $(nameof(typeof(x))) ($(join(keys(children), ", ")))"

"A parameter's name: its path, as one would write it."
name_of(path) = isempty(path) ? "parameter" : join(path, ".")
