# SPDX-License-Identifier: Apache-2.0
# Checkpoints in a world of one rank; programs/checkpoint.jl has those of several.

"A job of a parameter w, whose values are given, and b."
function checkpoint_job(w = zeros(2, 3); names = ("w", "b"), keywords...)
    buffer = Buffer(world, [Param(names[1], (2, 3)), Param(names[2], (2,))])
    write!(buffer, 1, w)
    return buffer, MegaDP.Optimizer(buffer; keywords...)
end

testcase("a checkpoint has parameters, state, steps, arrays and bytes") do
    mktempdir() do folder
        w, wide = Float32[1 2 3; 4 5 6], zeros(4, 6)
        buffer, optimizer = checkpoint_job(w; lr = 0.5)
        set_steps!(optimizer, 5)
        MegaDP.state(optimizer, "b", :exp_avg) .= 0.75
        wide[1:2, 1:2:5] = w
        tensors = Dict("view" => view(wide, 1:2, 1:2:5), "lazy" => 1.0:3.0, "whole" => CheckpointTensor([7, 8]))
        save_checkpoint(folder, optimizer; tensors = tensors, shared_data = "all", rank_data = UInt8[0, 9])
        @test checkpoint_data(folder) == codeunits("all") && checkpoint_data(folder, 0) == [0, 9]
        @test caught(() -> checkpoint_data(folder, 1)).kind == :INVALID
        @test read_json(checkpoint_info(folder))["path"] == joinpath(folder, "checkpoint-000001")
        verify_checkpoint(folder)
        model = joinpath(folder, "model.safetensors")
        export_checkpoint(folder, model)
        @test caught(() -> export_checkpoint(folder, model)).kind == :INVALID
        @test caught(() -> export_checkpoint(folder, model; most_bytes = -1)).kind == :INVALID
        other, adamw = checkpoint_job(; lr = 0.25)
        load_checkpoint!(model, other, adamw; params_only = true, optional = ("view", "lazy", "whole"))
        @test param_view(other, 1) == w
        for (keywords, lr, taken, moment) in (((), 0.25, 5, 0.75), ((params_only = true,), 0.25, 0, 0),
                                              ((load_hyper = true,), 0.5, 5, 0.75))
            other, adamw = checkpoint_job(; lr = 0.25)
            into = Dict("view" => zeros(2, 3), "lazy" => view(zeros(6), 6:-2:1), "whole" => [0, 0])
            load_checkpoint!(folder, other, adamw; tensors = into, keywords...)
            @test param_view(other, 1) == into["view"] == w && into["lazy"] == 1:3 && into["whole"] == [7, 8]
            @test read_json(MegaDP.info(adamw))["lr"] == lr && MegaDP.steps(adamw, "b") == taken
            @test MegaDP.state(adamw, "b", :exp_avg) == [moment, moment]
            foreach(close, (adamw, other))
        end
        @test isempty(checkpoint_damage(folder))
        rm(joinpath(folder, "checkpoint-000001", "rank-00000.safetensors"))
        damage = checkpoint_damage(folder)
        @test length(damage) > 1 && all(line -> occursin("rank-00000.safetensors", line), damage)
        foreach(close, (optimizer, buffer))
    end
end

testcase("a model that has a matrix where the checkpoint has a transpose is told how those are called") do
    mktempdir() do folder
        dp = DataParallel(world, (t = transpose(ones(Float32, 2, 3)),))
        save_checkpoint(folder, dp)
        other = DataParallel(world, (t = zeros(Float32, 3, 2),))
        problem = caught(() -> load_checkpoint!(folder, other))
        @test problem.kind == :INVALID && startswith(problem.text, "this is another model: 't' is here, f32[2,3], and not in ")
        @test occursin("'t.parent'", problem.text) && occursin("m x n is saved as [n,m]", problem.text)
        foreach(close, (dp, other))
    end
end

testcase("a checkpoint is written while training goes on") do
    mktempdir() do folder
        buffer, optimizer = checkpoint_job(ones(2, 3))
        request = save_checkpoint(folder, optimizer; async = true)
        write!(buffer, 1, zeros(2, 3))
        wait(request)
        load_checkpoint!(folder, optimizer)
        @test param_view(buffer, 1) == ones(2, 3)
        @test caught(() -> wait(save_checkpoint("/dev/null", buffer; async = true))).kind == :SYSTEM
        save_checkpoint("/dev/null", buffer; async = true)
        problem = caught(() -> save_checkpoint(folder, buffer))
        @test problem.kind == :SYSTEM && occursin("the save before this one", problem.text)
        foreach(close, (optimizer, buffer))
    end
end

testcase("the end of the program waits for the last checkpoint, of what nobody refers to any more") do
    mktempdir() do folder
        source = """
            using MegaDP
            function train()
                dp = DataParallel(Comm(), (w = zeros(Float32, 3_000_000),))
                save_checkpoint(ARGS[1], dp; async = true)
                return nothing
            end
            train()
            GC.gc()
            """
        run(`$(julia_command()) -e $source $folder`)
        @test length(readdir(folder)) == 1 && checkpoint_damage(folder) == String[]
    end
end

testcase("what of a checkpoint is refused, and which ones are kept") do
    mktempdir() do folder
        buffer, optimizer = checkpoint_job()
        second = MegaDP.Optimizer(buffer)
        save(; keywords...) = save_checkpoint(folder, buffer; keywords...)
        save_tensor(; how...) = save(; tensors = Dict("x" => CheckpointTensor([1.0]; how...)))
        for (word, body) in (("parts is empty", () -> save_checkpoint(folder)), ("Comm", () -> save_checkpoint(folder, world)),
                             ("so has that of config.parts[0]", () -> save_checkpoint(folder, optimizer, second)), ("keep", () -> save(; keep = -1)),
                             ("Float32", () -> save(; rank_data = Float32[1])), ("NUL", () -> save_checkpoint("a\0b", buffer)),
                             ("'w'", () -> save(; tensors = Dict("w" => [1.0]))),
                             ("placement", () -> save_tensor(; placement = :partial_sum)),
                             ("shard_dim", () -> save_tensor(; placement = :sharded, shard_dim = 2)),
                             ("no memory", () -> load_checkpoint!(folder, buffer; tensors = Dict("x" => 1:3))),
                             ("one line", () -> load_checkpoint!(folder, buffer; optional = ("*\n",))))
            problem = caught(body)
            @test problem.kind == :INVALID && (word, occursin(word, problem.text)) == (word, true)
        end
        @test isempty(readdir(folder))
        @test caught(() -> checkpoint_info(folder)).kind == caught(() -> checkpoint_data(folder)).kind == :SYSTEM
        for _ in 1:3
            save_checkpoint(folder, buffer; keep = 2)
        end
        @test length(filter(name -> startswith(name, "checkpoint-"), readdir(folder))) == 2
        other, adamw = checkpoint_job(ones(2, 3); names = ("w", "c"))
        for optional in ((), "c", ("b",))
            @test caught(() -> load_checkpoint!(folder, other; optional = optional)).kind == :INVALID
        end
        @test param_view(other, 1) == ones(2, 3)
        load_checkpoint!(folder, other; optional = ("b", "c"))
        @test param_view(other, 1) == zeros(2, 3)
        close(optimizer)
        @test caught(() -> save_checkpoint(folder, optimizer)).kind == :STATE
        foreach(close, (adamw, other, second, buffer))
    end
end
