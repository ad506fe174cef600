# SPDX-License-Identifier: Apache-2.0
# Update rules against the formulas of src/base/adam.h, sgd.h and lion.h; several optimizers in a step; loss scalers.
include("formulas.jl")

function check_rule(optimizer, rule, values, param)
    w, state = emulated(rule, values, param)
    @test param_view(optimizer.buffer, param) == w
    for (name, expected) in zip(kept_by(rule), state)
        @test (rule, name, MegaDP.state(optimizer, param, name)) == (rule, name, expected)
    end
    for name in (:exp_avg, :exp_avg_sq, :momentum_buffer)
        name in kept_by(rule) || @test caught(() -> MegaDP.state(optimizer, param, name)).kind == :INVALID
    end
end

testcase("every rule is its formula bit by bit, with the optimizer's values and a group's") do
    for rule in ALL_RULES
        buffer = two_groups(world)
        optimizer = Optimizer(buffer; rule = rule, said_of(rule, FIRST)..., param_groups = [NamedTuple(), said_of(rule, SECOND)])
        for t in 1:TRAINED
            put_gradients(buffer, t)
            @test step!(optimizer).step == t
        end
        check_rule(optimizer, rule, FIRST, 1)
        check_rule(optimizer, rule, SECOND, 2)
        close(buffer)
    end
end

testcase("several optimizers take one step") do
    for (one, other) in zip(ALL_RULES, circshift(collect(ALL_RULES), 2))
        buffer = two_groups(world)
        optimizers = (Optimizer(buffer; rule = one, said_of(one, FIRST)..., first_param_group = 1),
                      Optimizer(buffer; rule = other, said_of(other, FIRST)..., first_param_group = 2))
        set_param_group!(optimizers[2], 2; said_of(other, SECOND)...)
        for t in 1:TRAINED
            put_gradients(buffer, t)
            report, request = step_many!(optimizers; async = true)
            wait(request)
            @test report.step == t
        end
        check_rule(optimizers[1], one, FIRST, 1)
        check_rule(optimizers[2], other, SECOND, 2)
        @test stats(buffer).syncs == TRAINED && MegaDP.steps(optimizers[2], 2) == TRAINED
        close(buffer)
    end
end

testcase("several optimizers of one buffer are saved and loaded together") do
    mktempdir() do folder
        make() = (buffer = two_groups(world);
                  [Optimizer(buffer; rule = rule, said_of(rule, FIRST)..., first_param_group = k) for (k, rule) in ((1, :adam), (2, :lion))])
        optimizers = make()
        for t in 1:TRAINED
            t == TRAINED ÷ 2 && (save_checkpoint(folder, optimizers...); optimizers = make(); load_checkpoint!(folder, optimizers...))
            put_gradients(optimizers[1].buffer, t)
            step_many!(optimizers)
        end
        check_rule(optimizers[1], :adam, FIRST, 1)
        check_rule(optimizers[2], :lion, FIRST, 2)
    end
end

testcase("a model's parameters in groups, with an optimizer each") do
    model = (w = ones(Float32, 2), table = ones(Float32, 2))
    dp = DataParallel(world, model; param_group = name -> name == "table" ? 2 : 1, first_param_group = 1, rule = :lion, lr = 0.25)
    sgd = Optimizer(dp.buffer; rule = :sgd, lr = 0.125, first_param_group = 2)
    @test step!(dp, (w = fill(3.0, 2), table = fill(3.0, 2)); others = [sgd]).grad_norm == 6
    @test dp.model.w == fill(0.75, 2) && dp.model.table == fill(0.625, 2)
    problem = caught(() -> step!(dp, (w = ones(2), table = ones(2))))
    @test problem.kind == :INVALID && occursin("'table' is in parameter group 1", problem.text)
    @test step!(dp, (w = ones(2), table = ones(2)); others = (sgd,)).step == 2
    close(dp)
end

testcase("averages take the place of parameters for a block") do
    buffer = Buffer(world, [Param("w", (4,); dtype = Float32)])
    optimizer = Optimizer(buffer; rule = :sgd, lr = 1, average_decay = 0.75)
    for _ in 1:2
        put!(buffer, 1, fill(-4f0, 4))
        step!(optimizer)
    end
    @test all(==(2.75f0), MegaDP.state(optimizer, 1, :average))
    found = averaged(optimizer) do
        @test caught(() -> put!(buffer, 1, ones(Float32, 4))).kind == :STATE
        copy(param_view(buffer, 1))
    end
    @test found == fill(2.75f0, 4) && param_view(buffer, 1) == fill(8f0, 4)
    @test_throws ErrorException averaged(() -> error("mine"), optimizer)
    @test param_view(buffer, 1) == fill(8f0, 4)
    @test caught(() -> averaged(() -> nothing, Optimizer(buffer))).kind == :STATE
    close(buffer)
end

testcase("optimizers that do not fit together, values that a rule has not, and zeros are refused") do
    buffer, elsewhere = two_groups(world), Buffer(world, [Param("w", (2,); param_group = 2)])
    first, second = [Optimizer(buffer; rule = rule, first_param_group = k) for (k, rule) in ((1, :adamw), (2, :sgd))]
    clips = Optimizer(buffer; first_param_group = 2, max_grad_norm = 1)
    both = Optimizer(buffer; param_groups = [NamedTuple(), NamedTuple()])
    put_gradients(buffer, 1)
    for (told, optimizers, keywords) in (("give at least one", [], NamedTuple()), ("'v' is in parameter group 1", [first], NamedTuple()),
                                         ("optimizers[2] is of another Buffer", [first, Optimizer(elsewhere; first_param_group = 2)], NamedTuple()),
                                         ("which both", [first, both], NamedTuple()), ("clips otherwise", [first, clips], NamedTuple()),
                                         ("config.lr is 0.5", [first, second], (lr = 0.5,)))
        problem = caught(() -> step_many!(optimizers; keywords...))
        @test problem.kind == :INVALID && occursin(told, problem.text)
    end
    @test occursin("mdp_optimizer_step_many", caught(() -> step!(first)).text)
    @test step_many!([first, second]).step == 1
    for (told, keywords) in (("rule is :adagrad", (rule = :adagrad,)), ("eps is 0", (param_groups = [(eps = 0,)],)), ("AdamW has none", (momentum = 0.9,)),
                             ("SGD has none", (rule = :sgd, betas = (0, 0))), ("Lion has none", (rule = :lion, eps = 1e-8)),
                             ("config.momentum is 1", (rule = :sgd_momentum, momentum = 1)), ("betas is (0.9,)", (betas = (0.9,),)),
                             ("first_param_group is 0", (first_param_group = 0,)))
        problem = caught(() -> Optimizer(elsewhere; keywords...))
        @test problem.kind == :INVALID && occursin(told, problem.text)
    end
    for name in (:scale, :growth_factor, :backoff_factor, :growth_interval, :hysteresis, :min_scale)
        problem = caught(() -> set_scaler!(first; (name => 0,)...))
        @test problem.kind == :INVALID && occursin("$name is 0", problem.text)
    end
    @test occursin("growth_interval is -1", caught(() -> set_scaler!(first; growth_interval = -1)).text)
    @test occursin("below scaler.min_scale", caught(() -> set_scaler!(first; scale = 0.5)).text)
    @test caught(() -> MegaDP.scaler(first)).kind == caught(() -> MegaDP.scale(first)).kind == :STATE
    close(elsewhere)
    close(buffer)
end

testcase("a scaler follows overflows") do
    for checked in (false, true)
        dp = DataParallel(world, (w = zeros(Float32, 4),); rule = :sgd, lr = 1, check_finite = checked)
        given = Scaler(scale = 1024, growth_interval = 3, hysteresis = 2)
        set_scaler!(dp.optimizer, given)
        scale, used, taken = MegaDP.scale(dp.optimizer), 1024, 0
        for (kind, expected) in zip(PATTERN, SCALES)
            @test scale == [used]
            report = step!(dp, (w = fill(kind == 'x' ? Inf32 : 0.25f0 * scale[1], 4),))
            taken += kind == '.'
            @test (report.skipped, report.loss_scale, report.step) == (kind == 'x', used, taken)
            @test MegaDP.scaler(dp.optimizer).scale == expected
            used = expected
        end
        @test dp.model.w == fill(-0.25f0 * taken, 4)
        @test MegaDP.scaler(dp.optimizer) == Scaler(scale = 512, growth_interval = 3, hysteresis = 2, overflows = 1)
        problem = caught(() -> step!(dp, (w = ones(4),); loss_scale = 2))
        @test problem.kind == :INVALID && occursin("config.loss_scale is 2", problem.text)
        set_scaler!(dp.optimizer; scale = 8, constant = true)
        @test step!(dp, (w = fill(NaN, 4),)).skipped && MegaDP.scaler(dp.optimizer) == Scaler(scale = 8, constant = true)
        set_scaler!(dp.optimizer, nothing)
        @test caught(() -> step!(dp, (w = fill(NaN, 4),))).kind == :NUMERIC
        close(dp)
    end
end
