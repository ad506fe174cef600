# SPDX-License-Identifier: Apache-2.0
# The raw layer equals what the compiler of this build saw: sizes, offsets, values, functions.
using MegaDP: Raw

table = read_json(read(ENV["MEGADP_ABI_JSON"], String))
in_c(field) = get(Dict(:start => "begin", :stop => "end"), field, string(field))

testcase("structs have the sizes and offsets of abi.json") do
    @test length(table["structs"]) > 10
    for (name, expected) in table["structs"]
        type = getfield(Raw, Symbol(name))
        @test sizeof(type) == expected["size"]
        found = Dict(in_c(fieldname(type, i)) => Int(fieldoffset(type, i)) for i in 1:fieldcount(type))
        @test found == expected["fields"]
    end
end

testcase("constants have the values of abi.json") do
    @test length(table["enums"]) > 50
    found = Dict(string(name) => Int(getfield(Raw, name)) for name in names(Raw; all = true) if startswith(string(name), "MDP_"))
    @test found == table["enums"]
end

testcase("every flag of a communicator and a buffer can be given") do
    for (prefix, config, options) in (("MDP_COMM_", MegaDP.comm_config, (device = 0, exact_sums = true, sockets = true, threads_always = true)),
                                      ("MDP_BUFFER_", MegaDP.buffer_config, (overlap = false, high_bandwidth_padding = true,
                                                                             reference_buckets = true, ignore_memory = true, error_feedback = true,
                                                                             check_finite = true, check_large = true)))
        flags = [value for (name, value) in table["enums"] if startswith(name, prefix)]
        @test config().flags == 0
        @test config(; options...).flags == reduce(|, flags)
        @test all(name -> config(; (name => options[name],)...).flags in flags, keys(options))
    end
end

testcase("a communicator's threads can be given") do
    @test MegaDP.comm_config(; host_threads = 3).host_threads == 3
    problem = caught(() -> Comm(; host_threads = -1))
    @test problem.kind == :INVALID && occursin("host_threads is -1", problem.text)
end

testcase("every field of a buffer's configuration can be given") do
    given = MegaDP.buffer_config(; grad_dtype = :same, sharding = :zero2, missing = :skip, bucket_elements = 1, bucket_count = 2,
                                 overlap = false, pool_buckets = 3, spill_limit = 4, scaling = :tokens, wire_dtype = :bf16)
    @test all(field -> getfield(given, field) != 0, fieldnames(typeof(given)))
    @test (given.pool_buckets, given.spill_limit, given.sharding) == (3, 4, Raw.MDP_SHARDING_ZERO_2)
    @test sort(collect(values(MegaDP.SHARDINGS))) == sort([value for (name, value) in table["enums"] if startswith(name, "MDP_SHARDING_")])
end

testcase("types have the sizes of abi.json") do
    for (name, size) in table["types"]
        isdefined(Raw, Symbol(name)) && @test sizeof(getfield(Raw, Symbol(name))) == size
    end
    @test sizeof(Raw.mdp_status) == table["types"]["mdp_status"]
end

testcase("every function of abi.json is there, and no other") do
    @test sort([string(name) for name in Raw.FUNCTIONS]) == sort(table["functions"])
    @test all(name -> isdefined(Raw, name), Raw.FUNCTIONS)
    @test all(!=(C_NULL), Raw.entries)
end

testcase("MEGADP_LIBRARY is the library that is used") do
    haskey(ENV, "MEGADP_LIBRARY") || return Skipped("MEGADP_LIBRARY is not set")
    @test realpath(Raw.loaded_from[]) == realpath(ENV["MEGADP_LIBRARY"])
    script = "try; @eval using MegaDP; catch problem; print(sprint(showerror, problem)); end"
    said = read(setenv(`$(julia_command()) -e $script`, merge(ENV, Dict("MEGADP_LIBRARY" => "/nowhere/libmegadp.so"))), String)
    @test occursin("/nowhere/libmegadp.so", said) && occursin("MEGADP_LIBRARY", said)
end
