# SPDX-License-Identifier: Apache-2.0
# Of Raw: the library, and the entry of each of its functions.

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
