# SPDX-License-Identifier: Apache-2.0
# Warnings for all of our own code: library, program, examples and tests. Other people's headers are system headers and exempt. nvcc hands
# on those that its own generated code bears.
set(host_only $<COMPILE_LANGUAGE:C,CXX>)
add_compile_options("$<${host_only}:-Wall;-Wextra;-Wshadow;-Wconversion;-Wpointer-arith;-Wundef;-Wvla;-Wformat=2;-Wcast-align;-Wimplicit-fallthrough>"
                    $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>
                    $<$<COMPILE_LANGUAGE:CXX>:-Wextra-semi> $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wsuggest-override>
                    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wredundant-move> $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes>
                    $<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes> $<$<COMPILE_LANGUAGE:C>:-Wold-style-definition>
                    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
if(MEGADP_WERROR)
  add_compile_options($<${host_only}:-Werror> "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>")
endif()
