# SPDX-License-Identifier: Apache-2.0
# Julia's arrays in the library and back.

"A step of one parameter with this gradient; what its slot held after."
function grad_after(buffer, gradient)
    put!(buffer, 1, gradient)
    sync!(buffer)
    found = copy(grad_view(buffer, 1))
    microbatch!(buffer; last = true)
    return found
end

testcase("a matrix is in the library as it is in Julia, without a copy") do
    values = Float32[1 2 3; 4 5 6]
    buffer = Buffer(world, [Param("w", values)])
    write!(buffer, 1, values)
    view = param_view(buffer, 1)
    @test view isa Matrix{Float32} && view == values
    tensor = Ref(Raw.mdp_tensor())
    MegaDP.check(Raw.mdp_buffer_param_view(buffer, 0, tensor))
    @test [unsafe_load(tensor[].shape, d) for d in 1:2] == [3, 2]
    @test pointer(view) == Ptr{Float32}(tensor[].data)
    view[2, 3] = 7
    @test read!(buffer, 1, zeros(Float32, 2, 3))[2, 3] == 7
    close(buffer)
end

testcase("gradients of any strides arrive where they belong") do
    expected = Float32[1 2 3; 4 5 6]
    wide = zeros(Float32, 4, 9)
    wide[2:3, 1:4:9] = expected
    permuted = PermutedDimsArray(Matrix(transpose(expected)), (2, 1))
    for row_major in (false, true)
        buffer = Buffer(world, [Param("w", (2, 3))]; sharding = :zero0, row_major = row_major)
        for gradient in (expected, transpose(Matrix(transpose(expected))), Matrix(expected')', view(wide, 2:3, 1:4:9), permuted,
                         view(permuted, :, :), reverse(reverse(expected; dims = 1); dims = 1), Float64.(expected), Float16.(expected),
                         Diagonal(Float32[1, 2]) * expected ./ [1, 2])
            @test grad_after(buffer, gradient) == expected
        end
        @test MegaDP.strided(view(wide, 2:3, 1:4:9))[3] == (1, 16)
        @test occursin("i64", caught(() -> put!(buffer, 1, [1 2 3; 4 5 6])).text)  # whole numbers are no gradients
        microbatch!(buffer; last = true)
        close(buffer)
    end
    vector = Buffer(world, [Param("row", (1, 3))]; sharding = :zero0)
    @test grad_after(vector, Float32[7, 8, 9]') == Float32[7 8 9]
    close(vector)
end

testcase("row_major registers sizes as they are, and views are permuted") do
    values = Float32[1 2 3; 4 5 6]
    buffer = Buffer(world, [Param("w", values)]; row_major = true)
    write!(buffer, 1, values)
    tensor = Ref(Raw.mdp_tensor())
    MegaDP.check(Raw.mdp_buffer_param_view(buffer, 0, tensor))
    @test [unsafe_load(tensor[].shape, d) for d in 1:2] == [2, 3]
    @test [unsafe_load(Ptr{Float32}(tensor[].data), k) for k in 1:6] == 1:6
    @test size(param_view(buffer, 1)) == (2, 3) && param_view(buffer, 1) == values
    close(buffer)
end

testcase("other types, no dimensions, no elements, frozen") do
    buffer = Buffer(world, [Param("half", (2, 2); dtype = Float16), Param("brain", (3,); dtype = :bf16), Param("scalar", ()),
                            Param("none", (0, 3)), Param("still", (4,); frozen = true)])
    @test param_view(buffer, 1) isa Matrix{Float16}
    write!(buffer, 2, Float32[1, 2, 3])
    @test read!(buffer, 2, zeros(Float64, 3)) == [1, 2, 3]
    @test size(param_view(buffer, 3)) == ()
    @test size(param_view(buffer, 4)) == (0, 3)
    @test caught(() -> param_view(buffer, 5)).kind == :STATE
    isdefined(Core, :BFloat16) || @test caught(() -> param_view(buffer, 2)).kind == :UNSUPPORTED
    close(buffer)
end

testcase("collectives take dense arrays of all types, also later") do
    for type in (Float32, Float16, Float64, Int64, UInt8)
        @test allreduce!(world, type[1, 2, 3], +) == type[1, 2, 3]
    end
    request = allreduce!(world, ones(Float32, 2, 2), max; async = true)
    wait(request)
    @test isready(request)
    @test bcast!(world, view(Float32[1, 2, 3, 4], 2:3)) == [2, 3]
    @test allgather!(world, Float32[5], zeros(Float32, 1)) == [5]
    @test reduce_scatter!(world, Float32[6], zeros(Float32, 1), +) == [6]
    @test alltoall!(world, Float32[7], zeros(Float32, 1)) == [7]
    @test occursin("dense", caught(() -> allreduce!(world, view(ones(4, 4), 1:2:3, :))).text)
    @test occursin("ComplexF32", replace(caught(() -> allreduce!(world, ones(ComplexF32, 2))).text, "Complex{Float32}" => "ComplexF32"))
    @test occursin("op is *", caught(() -> allreduce!(world, ones(2), *)).text)
    @test caught(() -> allreduce!(world, [1, 2], avg)).kind == :INVALID
end

testcase("an optimizer's state, its pieces, and what a step says") do
    buffer = Buffer(world, [Param("w", (2, 3)), Param("b", (3,); param_group = 2)])
    optimizer = MegaDP.Optimizer(buffer; lr = 0.5, max_grad_norm = 1.0, param_groups = [(weight_decay = 0.1,), (lr = 0.0,)])
    put!(buffer, 1, fill(1, 2, 3) .* 1.0f0)
    put!(buffer, 2, Float32[0, 0, 4])
    sync!(buffer)
    report = step!(optimizer)
    @test report.grad_norm ≈ sqrt(22) && report.clipped && !report.skipped && report.step == 1
    @test report.clip_factor ≈ 1 / (sqrt(22) + 1e-6)
    @test all(param_view(buffer, 2) .== 0) && all(param_view(buffer, 1) .< -0.49)  # the second group has lr 0
    @test MegaDP.state(optimizer, 1, :exp_avg) ≈ fill(0.1f0 / sqrt(22), 6)
    @test [(piece.param, piece.range) for piece in sort(owned(buffer); by = piece -> piece.param)] == [(1, 1:6), (2, 1:3)]
    set_param_group!(optimizer, 2; lr = 1.0)
    foreach(i -> put!(buffer, i, zeros(Float32, size(param_view(buffer, i)))), 1:2)
    ready_at = bucket(buffer, 1).ready_ns
    answer, request = step!(optimizer; lr = 0.0, async = true, loss_scale = 2.0)
    wait(request)
    wait(buffer)
    wait(buffer, 1)
    @test answer.step == 2 && answer.loss_scale == 2 && ready_at > 0
    @test param_view(buffer, 2)[3] < -0.1
    @test stats(buffer).syncs == 2 && bucket(buffer, 1).state == :whole
    close(optimizer)
    close(buffer)
end

testcase("a step without a norm") do
    ends = map(((true, false), (true, true), (false, true))) do (overlap, unchecked)
        buffer = Buffer(world, [Param("w", (2, 3))]; overlap = overlap)
        optimizer = MegaDP.Optimizer(buffer; lr = 0.5)
        put!(buffer, 1, fill(3.0f0, 2, 3))
        report = step!(optimizer; unchecked = unchecked)
        @test report.unchecked == unchecked == isnan(report.grad_norm) && report.step == 1
        put!(buffer, 1, fill(3.0f0, 2, 3))
        @test caught(() -> step!(optimizer; unchecked = true, loss_scale = 2.0)).kind == :INVALID
        values = copy(param_view(buffer, 1))
        close(optimizer)
        close(buffer)
        values
    end
    @test ends[1] == ends[2] == ends[3]
end

testcase("parameters are known by their names too") do
    buffer = Buffer(world, [Param("w", (2, 3)), Param("still", (4,); frozen = true), Param("b", (3,))]; sharding = :zero0, bucket_elements = 1)
    optimizer = MegaDP.Optimizer(buffer; lr = 0.5)
    write!(buffer, "b", Float32[1, 2, 3])
    @test param_view(buffer, 3) == read!(buffer, "b", zeros(3)) == param_view(buffer, SubString("bias", 1, 1)) == [1, 2, 3]
    put!(buffer, "w", ones(2, 3))
    fill!(grad_view(buffer, "b"), 2)
    ready!(buffer, "b")
    sync!(buffer)
    @test grad_norm(buffer; params = ["w"]) == sqrt(6) && grad_norm(buffer; params = [3, "w"]) == sqrt(18)
    scale_grads!(buffer, 0; params = ["b"])
    step!(optimizer)
    wait(buffer, "w")
    @test MegaDP.state(optimizer, "b", :exp_avg) == zeros(3) && MegaDP.steps(optimizer, "w") == 1
    put!(buffer, 1, zeros(2, 3))
    skip!(buffer, "b")
    step!(optimizer)
    @test MegaDP.steps(optimizer, "b") == 1
    set_steps!(optimizer, 100)
    @test [MegaDP.steps(optimizer, i) for i in (1, 3)] == [100, 100]
    set_steps!(optimizer, 9, [9, 8, 7])
    @test [MegaDP.steps(optimizer, i) for i in (1, 3)] == [9, 7]
    @test occursin("at most taken", caught(() -> set_steps!(optimizer, 8, [9, 8, 7])).text)
    @test caught(() -> set_steps!(optimizer, 8, Int[])).kind == caught(() -> set_steps!(optimizer, -1)).kind == :INVALID
    problem = caught(() -> set_steps!(optimizer, 9, [9, 9, -1]))
    @test problem.kind == :INVALID && problem.param == 3 && occursin("steps[3] is -1", problem.text)
    @test startswith(MegaDP.info(optimizer), "{\"rule\":\"AdamW\",\"steps\":9,\"lr\":0.5,")
    count = bucket_count(buffer)
    @test count == maximum(piece -> piece.bucket, owned(buffer)) && all(k -> bucket(buffer, k).state == :whole, 1:count)
    @test caught(() -> bucket(buffer, count + 1)).kind == :INVALID
    close(optimizer)
    close(buffer)
end

"The parameters after steps with these gradients and keywords; each parameter was 8, and each is of its own group."
function after_steps(gradients, steps = [NamedTuple() for _ in gradients];
                     param_groups = [], keywords...)
    buffer = Buffer(world, [Param("p$i", (1,); param_group = i) for i in 1:max(1, length(param_groups))])
    foreach(i -> write!(buffer, i, [8.0]), 1:length(buffer))
    optimizer = MegaDP.Optimizer(buffer; param_groups = param_groups, keywords...)
    for (gradient, step) in zip(gradients, steps)
        foreach(i -> put!(buffer, i, [gradient]), 1:length(buffer))
        step!(optimizer; step...)
    end
    moments = [MegaDP.state(optimizer, 1, name)[1] for name in (:exp_avg, :exp_avg_sq)]
    found = [param_view(buffer, i)[1] for i in 1:length(buffer)]
    close(optimizer)
    close(buffer)
    return found, moments
end

testcase("a number that is given is meant, also 0, and what a group leaves out is the optimizer's") do
    @test after_steps([1.0, 1.0]; lr = 0)[1] == [8]
    @test after_steps([1.0, 1.0, 1.0], [(lr = 0.5,), (lr = 0,), NamedTuple()])[1] ≈ [7.5]
    for (betas, moments) in (((0.9, 0.999), [0.2, 0.004]), ((0.0, 0.5), [2, 2]), ((0.5, 0.0), [1, 4]), ((0, 0), [2, 4]))
        @test after_steps([2.0]; betas = betas)[2] ≈ moments
    end
    groups = [NamedTuple(), (weight_decay = 0,), (weight_decay = 0.25,), (lr = 0,), (lr = 1.0,)]
    @test after_steps([0.0]; param_groups = groups, lr = 0.5, weight_decay = 0.5)[1] == [6, 8, 7, 8, 4]
    @test after_steps([0.0]; lr = 0.5, weight_decay = 0.5)[1] == [6]
    @test after_steps([0.0], [(lr = 1.0,)]; param_groups = groups, lr = 0.5, weight_decay = 0.5)[1] == [4, 8, 6, 8, 4]
end

testcase("a group's values can change, also back to the optimizer's") do
    buffer = Buffer(world, [Param("w", (1,))])
    optimizer = MegaDP.Optimizer(buffer; lr = 0.5, weight_decay = 0.5, param_groups = [(weight_decay = 0,)])
    write!(buffer, 1, [8.0])
    for (values, expected) in (((lr = 1.0,), 4), (NamedTuple(), 3), ((weight_decay = 0,), 3), ((lr = 0,), 3))
        set_param_group!(optimizer, 1; values...)
        put!(buffer, 1, [0.0])
        step!(optimizer)
        @test param_view(buffer, 1) == [expected]
    end
    close(buffer)  # the optimizer keeps what it needs of it
    @test caught(() -> step!(optimizer)).param == 1
    close(optimizer)
end

testcase("reduced gradients are measured, scaled and written") do
    buffer = Buffer(world, [Param("w", (2, 3)), Param("b", (3,)), Param("off", (2,))])
    optimizer = MegaDP.Optimizer(buffer; lr = 0.5, betas = (0.0, 0.5))
    @test caught(() -> grad_norm(buffer)).kind == :STATE
    for number in 1:2
        put!(buffer, 1, fill(2.0f0, 2, 3))
        put!(buffer, 2, Float32[0, 3, 4])
        number == 1 ? put!(buffer, 3, zeros(Float32, 2)) : skip!(buffer, 3)
        sync!(buffer)
        @test grad_norm(buffer) == 7 && grad_norm(buffer; params = [2]) == 5 && grad_norm(buffer; params = Int[]) == 0
        scale_grads!(buffer, 0.5; params = [2])
        @test grad_view(buffer, 2) == [0, 1.5, 2] && grad_norm(buffer; params = (2,)) == 2.5
        grad_view(buffer, 2)[1] = 6
        grads_changed!(buffer)
        @test grad_norm(buffer; params = 2:2) == 6.5
        scale_grads!(buffer, 2)
        @test step!(optimizer).grad_norm == 2 * sqrt(24 + 42.25)
        @test [MegaDP.steps(optimizer, i) for i in 1:3] == [number, number, 1]
        @test caught(() -> scale_grads!(buffer, 1)).kind == caught(() -> grads_changed!(buffer)).kind == :STATE
    end
    foreach(i -> put!(buffer, i, zeros(Float32, size(param_view(buffer, i)))), 1:3)
    sync!(buffer)
    @test occursin("listed already", caught(() -> grad_norm(buffer; params = [1, 1])).text)
    @test occursin("factor is nan", caught(() -> scale_grads!(buffer, NaN)).text)
    close(optimizer)
    close(buffer)
end

testcase("what is dense stays so where its memory is read as another type, and is written in place") do
    numbers = ComplexF32[1 + 2im, 3 + 4im]
    @test MegaDP.allreduce!(world, reinterpret(Float32, numbers), +) == 1:4
    @test bcast!(world, view(reinterpret(Float32, numbers), 2:3)) == [2, 3]
    layer = TpLinear(world, :column, 2 => 4)
    MegaDP.forward!(layer, reinterpret(Float32, numbers), ones(Float32, 2), ones(Float32, 4, 2), Float32[0, 1, 2, 3])
    @test numbers == [2 + 3im, 4 + 5im]
    apart = reinterpret(Float32, view(numbers, 1:2:1))
    problem = caught(() -> MegaDP.forward!(layer, apart, ones(Float32, 2), ones(Float32, 4, 2), zeros(Float32, 4)))
    @test problem.kind == :INVALID && occursin("it is not known here how it lies", problem.text)
    @test caught(() -> allreduce!(world, apart, +)).kind == :INVALID
    close(layer)
end
