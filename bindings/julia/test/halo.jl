# SPDX-License-Identifier: Apache-2.0
# Halos in a world of one rank: edges, what is refused, what is kept; and how convolutions are cut. programs/halo.jl has the neighbours.

testcase("halos of one rank: every edge, as the whole array has it") do
    part = Float64[10i + j for i in 1:3, j in 1:4]
    for (edges, rows, columns) in (((:periodic, :reflect), [3, 1, 2, 3, 1], [2, 1, 2, 3, 4, 3]), (:periodic, [3, 1, 2, 3, 1], [4, 1, 2, 3, 4, 1]))
        Halo(world; grid = 1, size = size(part), edges = edges) do halo
            padded = fill(NaN, 5, 6)
            padded[2:4, 2:5] = part
            update_halo!(padded; halo = halo)
            @test padded == part[rows, columns] == halo(part)
            @test MegaDP.place(halo) == (place = (0, 0), part = (1:3, 1:4), whole = (3, 4))
        end
    end
    kept = fill(5.0, 5, 6)
    Halo(halo -> exchange!(halo, kept), world; grid = 1, size = (3, 4))
    @test all(==(5), kept)
    Halo(world; grid = 1, size = (3, 4), low = (1, 0), high = 2, edges = :zero, type = Float32, fields = 2) do halo
        first_field, second = fill(1f0, 6, 6), PermutedDimsArray(fill(2f0, 6, 6), (2, 1))
        exchange!(halo, first_field, second)
        @test sum(first_field) == 12 && sum(second) == 24 && second[2:4, 1:4] == fill(2, 3, 4)
    end
end

testcase("an array that was started is kept until it is finished") do
    halo = Halo(world; grid = 1, size = (3,), edges = :periodic)
    finalized = Ref(false)
    function begin_one()
        field = Float64[0, 1, 2, 3, 0]
        finalizer(_ -> finalized[] = true, field)
        start!(halo, field)
        return WeakRef(field)
    end
    weak = begin_one()
    GC.gc()
    @test !finalized[]
    @test caught(() -> start!(halo, zeros(5))).kind == :STATE
    finish!(halo)
    @test weak.value == [3, 1, 2, 3, 1]
    @test caught(() -> finish!(halo)).kind == :STATE
    gradient = [10.0, 1, 2, 3, 20]
    MegaDP.backward!(halo, gradient)
    @test gradient == [0, 21, 2, 13, 0]
    close(halo)
    @test caught(() -> exchange!(halo, zeros(5))).kind == :STATE
end

testcase("an array that an interrupt leaves started is kept until it is finished") do
    halo = Halo(world; grid = 1, size = (3,), edges = :periodic)
    finalized = Ref(false)
    @noinline function begin_one()
        field = Float64[0, 1, 2, 3, 0]
        finalizer(_ -> finalized[] = true, field)
        MegaDP.Raw.interruption[] = InterruptException()  # as a Ctrl-C that comes while the library starts, and is thrown when that has returned
        thrown = try
            start!(halo, field)
        catch problem
            problem
        end
        @test thrown isa InterruptException
        return WeakRef(field)
    end
    weak = begin_one()
    GC.gc()
    @test !finalized[]
    @test caught(() -> start!(halo, zeros(5))).kind == :STATE
    GC.gc()
    @test !finalized[]
    finish!(halo)
    @test weak.value == [3, 1, 2, 3, 1] && isempty(halo.lent)
    close(halo)
end

testcase("arrays of the library's keep their memory") do
    halo = Halo(world; grid = 1, size = (2, 3), edges = :periodic, arrays = 2)
    one, two = MegaDP.array(halo), MegaDP.array(halo, 2)
    @test size(one) == (4, 5) && all(iszero, one) && pointer(one) != pointer(two)
    two[2:3, 2:4] = [1 2 3; 4 5 6]
    exchange!(halo, two)
    @test two[[1, 4], 1] == [6, 3] && all(iszero, one)
    @test occursin("i is 3; this halo has 2 arrays", caught(() -> MegaDP.array(halo, 3)).text) && caught(() -> MegaDP.array(halo, 0)).kind == :INVALID
    close(halo)
    one = nothing
    GC.gc()
    @test two[2:3, 2:4] == [1 2 3; 4 5 6] && caught(() -> MegaDP.array(halo)).kind == :STATE
end

testcase("arguments of halos and convolutions that cannot be meant are named") do
    halo = Halo(world; grid = 1, size = (3, 4))
    for (made, told) in ((() -> Halo(world; grid = (1, 2), size = (3, 4)), "grid is (1, 2), which is not"),
                         (() -> Halo(world; grid = (0, 1), size = (3, 4)), "grid[1] is 0"), (() -> Halo(world; grid = 3, size = (5,)), "grid is (3,), which"),
                         (() -> Halo(world; grid = 1, size = (3, -4)), "size[2] is -4"),
                         (() -> Halo(world; grid = 1, size = (3, 4, 5), high = (0, -2, 0)), "high[2] is -2"),
                         (() -> Halo(world; grid = (1, 1, 1), size = (3, 4)), "grid has 3 numbers; size has 2"),
                         (() -> Halo(world; grid = 1, size = (3, 4), staggered = [(1, 0), (0, 1)]), "0 or 1, for each of 1 fields"),
                         (() -> Halo(world; grid = 1, size = (3, 4), staggered = [(2, 0)]), "staggered is [(2, 0)]; it must have 2 numbers, 0 or 1"),
                         (() -> Halo(world; grid = 1, size = (3, 4), low = (-1, 0)), "low[1] is -1"),
                         (() -> Halo(world; grid = 1, size = (3, 4), edges = (:keep, :open)), "edges is :open"),
                         (() -> Halo(world; grid = 1, size = (3, 4), type = Int32), "arrays of Int32"),
                         (() -> Halo(world; grid = 1, size = (3, 2), low = (0, 2), edges = :reflect), "along dimension 2 is 2 wide"),
                         (() -> Halo(world; grid = 1, size = (0, 2), edges = :periodic), "no elements along dimension 1, whose edges"),
                         (() -> exchange!(halo, zeros(3, 4)), "fields[1] has size (3, 4); this rank's part with its halo has (5, 6)"),
                         (() -> exchange!(halo), "count is 0"),
                         (() -> exchange!(halo, zeros(5, 6), zeros(5, 6)), "count is 2"),
                         (() -> exchange!(halo, zeros(Float32, 5, 6)), "fields[1].dtype is f32"),
                         (() -> exchange!(halo, Diagonal(zeros(5))), "field 1 is a Diagonal"),
                         (() -> halo(zeros(5, 6)), "this rank's part has (3, 4)"),
                         (() -> conv_split([4, 4], 2; kernel = 3), "part is 2"), (() -> conv_split([4, -4], 0; kernel = 3), "parts[2] is -4"), (() -> conv_split([2], 0; kernel = 3), "the window of config"))
        problem = caught(made)
        @test (problem.kind, told) == (:INVALID, occursin(told, problem.text) ? told : problem.text)
    end
    close(halo)
end

testcase("convolutions that are cut") do
    split(part) = conv_split([4, 3], part; kernel = 3, stride = 2, padding = (1, 0))
    @test split(0) == (low = 1, high = 0, output = 1:2, first = 1, inside = 2:2, whole_output = 3)
    @test split(1) == (low = 1, high = 0, output = 3:3, first = 1, inside = 1:0, whole_output = 3)
    @test conv_split([8], 0; kernel = 3, dilation = 2, padding = 2).output == 1:8
end
