# SPDX-License-Identifier: Apache-2.0
# Any number of ranks: loads the checkpoint that is there, or saves one after two steps; then takes a step.
# tests/bindings/checkpoints.py runs it on other languages' checkpoints too.
include("rank.jl")

function taken!(buffer, optimizer, number)
    for (i, size) in ((2, 7), (1, 15))
        put!(buffer, i, Float32[number + k for k in 0:size-1])
    end
    step!(optimizer)
end

values_of(buffer) = vcat(param_view(buffer, 1), param_view(buffer, 2))

function main(comm, folder)
    buffer = Buffer(comm, [Param("w", (15,)), Param("b", (7,))])
    optimizer = MegaDP.Optimizer(buffer; lr = 0.125, weight_decay = 0.25)
    frozen = [0.0 0.0; 0.0 0.0]
    loads = any(name -> startswith(name, "checkpoint-"), readdir(folder))
    barrier(comm)
    if loads
        load_checkpoint!(folder, optimizer; tensors = Dict("frozen" => frozen), row_major = true)
    else
        foreach(number -> taken!(buffer, optimizer, number), 1:2)
        frozen .= [1 2; 3 4]
        save_checkpoint(folder, optimizer; tensors = Dict("frozen" => frozen), row_major = true, shared_data = "all")
    end
    report(comm, "loaded", values_of(buffer))
    report(comm, "frozen", vec(permutedims(frozen)))
    report(comm, "steps", MegaDP.steps(optimizer, 1))
    report(comm, "data", String(checkpoint_data(folder)))
    taken!(buffer, optimizer, 3)
    report(comm, "stepped", values_of(buffer))
    barrier(comm)
end

comm = Comm()
main(comm, ARGS[1])
close(comm)
