# SPDX-License-Identifier: Apache-2.0
# Context parallelism in a world of one rank: parts, views of any strides, what is refused. programs/context_parallel.jl has the numbers.

testcase("parts of a sequence") do
    @test cp_part(3, 1, 12) == [5:8] && cp_part(3, 1, 12; causal = true) == [3:4, 9:10] && cp_part(1, 0, 7; causal = true) == [1:7]
    @test occursin("12 or 18 would do", caught(() -> cp_part(3, 1, 15; causal = true)).text)
    @test occursin("rank is 3", caught(() -> cp_part(3, 3, 12)).text)
end

testcase("a tensor of any strides is wrapped as it lies") do
    dense = reshape(collect(1f0:720f0), 6, 5, 4, 6)
    for array in (dense, view(dense, 2:4, :, 2:3, 3:3), view(dense, 6:-2:1, :, 4:-1:1, 1:2:6), PermutedDimsArray(dense, (3, 1, 4, 2)),
                  view(dense, 3:3, 1:2:5, 2:2, 6:-1:2), PermutedDimsArray(view(dense, 5:-3:1, 2:4, :, 1:1), (4, 3, 2, 1)), view(dense, 1:1, 1:1, 1:1, 1:1),
                  view(dense, :, 1:3:4, 1:3:4, 2:3:5), view(dense, 1:5, 2:1, :, :), collect(1f0:3f0))
        borrowed = MegaDP.borrow(array, false)
        GC.@preserve borrowed dense begin
            wrapped = MegaDP.wrap_strided(borrowed.tensor)
            @test wrapped == array && size(wrapped) == size(array)
            before = copy(array)
            wrapped .*= -1
            @test array == -before  # the same memory
        end
    end
    heads = view(dense, :, 2:4, 2:3, 1:1)
    @test MegaDP.wrap_strided(MegaDP.borrow(heads, false).tensor) isa StridedArray  # what BLAS takes
end

testcase("arguments of attention that cannot be meant are named") do
    array(sizes...) = zeros(Float32, sizes...)
    q = array(4, 3, 5, 1)
    forward(out, lse) = MegaDP.forward!(CpAttention(world), out, lse, q, q, q)
    for (made, told) in ((() -> CpAttention(world; form = :tree), "form is :tree"),
                         (() -> CpAttention(world; bounds = [1, 5])(q, q, q), "bounds[1] is 1"),
                         (() -> CpAttention(world; bounds = Int[])(q, q, q), "the length of bounds is 0"),
                         (() -> CpAttention(world)(q, array(4, 2, 5, 1), array(4, 2, 5, 1)), "k has 2 heads and q 3"),
                         (() -> CpAttention(world)(zeros(4, 3, 5, 1), q, q), "q.dtype is f64"),
                         (() -> CpAttention(world)(array(2), q, q), "q has size (2,); it must be (head_dim, heads, positions, batch)"),
                         (() -> CpAttention(world)(q, array(4, 3, 6, 1), q), "k has size (4, 3, 6, 1) and q (4, 3, 5, 1)"),
                         (() -> forward(array(4, 3, 5, 2), array(3, 5, 1)), "out has size (4, 3, 5, 2); it must be that of q, (4, 3, 5, 1)"), (() -> forward(array(4, 3, 5, 1), array(3, 5)), "lse has size (3, 5)"),
                         (() -> forward(q, array(3, 5, 1)), "are the same memory"),
                         (() -> forward(array(4, 3, 5, 1), Diagonal(array(3))), "lse is a Diagonal"))
        problem = caught(made)
        @test (problem.kind, told) == (:INVALID, occursin(told, problem.text) ? told : problem.text)
    end
    @test_throws DivideError CpAttention(block -> 1 ÷ 0, world)(q, q, q)
    @test caught(() -> CpAttention(block -> barrier(world), world)(q, q, q)).kind == :STATE
    @test CpAttention(world)(q, q, q) == q && sprint(show, CpAttention(world; causal = true)) == "CpAttention(:auto, causal)"
end

testcase("every flag and form of attention can be given") do
    forms = [getfield(Raw, name) for name in names(Raw; all = true) if occursin(r"^MDP_CP_(?!MASK_|CAUSAL$)", string(name))]
    @test sort(collect(values(MegaDP.CP_FORMS))) == sort(forms) && MegaDP.cp_flags(true) == Raw.MDP_CP_CAUSAL && MegaDP.cp_flags(false) == 0
end
