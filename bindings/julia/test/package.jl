# SPDX-License-Identifier: Apache-2.0
# The package in a world of one rank: arrays and strides, errors, lifetimes.
using LinearAlgebra, SparseArrays
using MegaDP: Raw
import Pkg

testcase("Project.toml is one that this Julia's Pkg takes") do
    @test Pkg.project().name == "MegaDP"
end

const world = Comm()

include("arrays.jl")
include("zero2.jl")
include("rules.jl")
include("pieces.jl")
include("checkpoint.jl")
include("failures.jl")
include("lifetimes.jl")
include("tp.jl")
include("halo.jl")
include("cp.jl")
include("trees.jl")
close(world)
