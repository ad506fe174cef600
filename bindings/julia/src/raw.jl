# SPDX-License-Identifier: Apache-2.0
"""
What megadp.h declares, under its own names. Handles and pointers are taken as they are in C (a `Ref` where C writes through a pointer), and
every function returns what C returns. A function given to `mdp_log_set` must not be Julia code: it may be called while this thread has
told the collector that it runs none. `begin` and `end`, words of Julia, are called `start` and `stop`.
"""
module Raw

import Libdl

include("raw_waiting.jl")
include("raw_types.jl")      # written by bindings/generate.py
include("raw_layers.jl")     # likewise
include("raw_functions.jl")  # likewise
include("raw_loading.jl")

end
