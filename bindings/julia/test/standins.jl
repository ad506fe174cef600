# SPDX-License-Identifier: Apache-2.0
# The package's extensions, loaded against the stand-ins of test/standins: real packages cannot be had where the tests run.
push!(LOAD_PATH, joinpath(@__DIR__, "standins"))

function load_extensions(names...)
    for name in names
        Base.eval(Main, :(import $name))
        getfield(Main, name).STANDIN || error("$name is not the stand-in")
        include(joinpath(dirname(@__DIR__), "ext", "MegaDP$(name)Ext.jl"))
    end
end
