# SPDX-License-Identifier: Apache-2.0
# Tensor parallelism in a world of one rank: what is refused. programs/tensor_parallel.jl has the numbers.

testcase("arguments of layers and operators that cannot be meant are named") do
    for (made, told) in ((() -> TpLinear(world, :diagonal, 2 => 3), "split is :diagonal"),
                         (() -> TpLinear(world, :row, 2 => 3), "config.grad"),
                         (() -> TpLinear(world, :column, 2 => 3; dtype = Float64), "dtype is Float64; a TpLinear computes with Float32, or BFloat16"),
                         (() -> TpLinear(world, :column, 2 => 3; dtype = Float16), "dtype is Float16"),
                         (() -> TpLinear(world, :column, 2 => 3; weight = 1), "a buffer, which is not given"),
                         (() -> TpRegion(world, :sum), "region is :sum"), (() -> TpRegion(world, :copy; grad = :some), "grad is :some"),
                         (() -> TpRegion(world, :gather; grad = :partial), "dim is not given"),
                         (() -> TpRegion(world, :exchange; dim = 1), "to_dim is not given"),
                         (() -> TpRegion(world, :scatter; dim = 1, parts = [1, 2]), "parts has 2 numbers"),
                         (() -> TpRegion(world, :scatter; dim = 3)(ones(2, 2)), "dim is 3; the array has 2 dimensions"),
                         (() -> TpRegion(world, :reduce)(ones(2)), "config.grad"))
        problem = caught(made)
        @test (problem.kind, told) == (:INVALID, occursin(told, problem.text) ? told : problem.text)
    end
    buffer = Buffer(world, [Param("w", (3, 2))])
    @test occursin("bias is true", caught(() -> TpLinear(world, :column, 2 => 3; buffer = buffer, weight = 1)).text)
    @test occursin("weight is not given", caught(() -> TpLinear(world, :column, 2 => 3; buffer = buffer)).text)
    @test occursin("'v'", caught(() -> TpLinear(world, :column, 2 => 3; buffer = buffer, weight = "v", bias = false)).text)
    close(buffer)
end

testcase("a layer says what is wrong with its arrays, and that it is closed") do
    layer = TpLinear(world, :column, 2 => 3)
    weight, bias = Float32[1 2; 3 4; 5 6], Float32[1, 2, 3]
    @test layer(Float32[1, 10], weight, bias) == [22, 45, 68]
    @test occursin("bias is NULL", caught(() -> layer(ones(Float32, 2), weight)).text)
    @test occursin("weight has shape", caught(() -> layer(ones(Float32, 2), permutedims(weight), bias)).text)
    @test occursin("input has shape", caught(() -> layer(ones(Float32, 3), weight, bias)).text)
    @test occursin("input.dtype", caught(() -> layer(ones(2), weight, bias)).text)
    @test layer(Diagonal(Float32[1, 2]), weight, bias) == weight * Diagonal([1, 2]) .+ bias  # an array without strides
    @test occursin("y is a Diagonal", caught(() -> MegaDP.forward!(layer, Diagonal(ones(Float32, 3)), ones(Float32, 2, 3), weight, bias)).text)
    @test occursin("grad_input is a Diagonal", caught(() -> MegaDP.backward!(layer, ones(Float32, 3, 2), ones(Float32, 2, 2); weight = weight,
                                                                             grad_input = Diagonal(ones(Float32, 2)))).text)
    close(layer)
    @test caught(() -> layer(ones(Float32, 2), weight, bias)).kind == :STATE
end

testcase("arguments of embeddings, losses and seeds that cannot be meant are named") do
    weight, logits, grid = ones(Float32, 3, 4), zeros(Float32, 3, 2), Grid(world)
    for (made, told) in ((() -> TpEmbedding(world, 4; grad = :some), "grad is :some"),
                         (() -> TpEmbedding(world, 4)([1], weight), "config.grad"),
                         (() -> TpEmbedding(world, 5; grad = :partial)([1], weight), "this rank's part of 5 rows"),
                         (() -> TpEmbedding(world, 4; grad = :partial)([1, 5], weight), "ids[1] is 4"),
                         (() -> TpEmbedding(world, 4; grad = :partial)([1.0], weight), "ids has elements of Float64"),
                         (() -> TpEmbedding(world, 4; sequence = true)(fill(1), weight), "ids have no dimensions"),
                         (() -> TpCrossEntropy(world)(logits, [1, 4]), "targets[1] is 3"),
                         (() -> TpCrossEntropy(world)(logits, [1]), "logits has shape"),
                         (() -> TpCrossEntropy(world; classes = 4)(logits, [1, 2]), "config.classes is 4"),
                         (() -> TpCrossEntropy(world; label_smoothing = 1)(logits, [1, 2]), "config.label_smoothing is 1"),
                         (() -> random_seed(grid, 5, :all), "random is :all"))
        problem = caught(made)
        @test (problem.kind, told) == (:INVALID, occursin(told, problem.text) ? told : problem.text)
    end
    close(grid)
end

testcase("every flag of embeddings and losses can be given") do
    flags(prefix) = sort([getfield(Raw, name) for name in names(Raw; all = true) if startswith(string(name), prefix)])
    given(make) = sort([make((i == k for k in 1:2)...) for i in 1:2])
    @test given(MegaDP.embedding_flags) == flags("MDP_TP_EMBEDDING_") && MegaDP.embedding_flags(false, false) == 0
    @test given(MegaDP.cross_entropy_flags) == flags("MDP_TP_CROSS_ENTROPY_") && MegaDP.cross_entropy_flags(false, false) == 0
end

testcase("every flag of a layer can be given") do
    flags = [getfield(Raw, name) for name in names(Raw; all = true) if startswith(string(name), "MDP_TP_LINEAR_")]
    @test MegaDP.linear_flags(true, true, true, true, true, true) == reduce(|, flags)
    given = [MegaDP.linear_flags((i == k for k in 1:6)...) for i in 1:6]
    @test sort(given) == sort(flags) && MegaDP.linear_flags(fill(false, 6)...) == 0
end
