# SPDX-License-Identifier: Apache-2.0
# The README's first example, as printed; and every public name has a docstring.

testcase("the README's first example does what it says") do
    text = read(joinpath(PACKAGE, "README.md"), String)
    example = match(r"```julia\n(.*?)```"s, text)[1]
    says = match(r"It prints `(.*?)`", text)[1]
    command = match(r"```sh\nmegadp (run .*?) -- julia --project=bindings/julia first.jl\n```"s, text)[1]
    mktempdir() do folder
        script = joinpath(folder, "first.jl")
        write(script, example)
        output = read(`$(ENV["MEGADP_PROGRAM"]) $(split(command)) -- $(julia_command()) $script`, String)
        @test chomp(output) == says
        @test chomp(read(`$(julia_command()) $script`, String)) == replace(says, "[0] " => "")
    end
end

for (what, section) in (("layers", "## Tensor and sequence parallelism"), ("halos of arrays", "## Halos of arrays cut over ranks"),
                        ("attention over a sequence", "## Attention over a sequence that is cut"))
testcase("the README's $what cut over two ranks do what it says") do
    text = split(read(joinpath(PACKAGE, "README.md"), String), section)[2]
    example = match(r"```julia\n(.*?)```"s, text)[1]
    says = match(r"As two ranks it prints `(.*?)`", text)[1]
    mktempdir() do folder
        script = joinpath(folder, "layers.jl")
        write(script, example)
        @test chomp(read(`$(ENV["MEGADP_PROGRAM"]) run -n 2 -- $(julia_command()) $script`, String)) == says
    end
end
end

testcase("every public name says what it does") do
    for name in names(MegaDP)
        binding = Base.Docs.Binding(MegaDP, name)
        @test (name, haskey(Base.Docs.meta(MegaDP), binding)) == (name, true)
    end
    for (extended, name) in ((Base, :split), (Base, :put!), (Base, :wait), (Base, :read!))
        @test haskey(Base.Docs.meta(MegaDP), Base.Docs.Binding(extended, name))
    end
end
