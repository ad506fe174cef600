# SPDX-License-Identifier: Apache-2.0
# bindings/julia's own tests, one for each group of runtests.jl: one after another, since ranks are processes that want the machine.
foreach(group mirror package ranks)
  add_test(NAME bindings.julia.${group} COMMAND ${PROJECT_SOURCE_DIR}/bindings/julia/test/run ${group})
  set_tests_properties(bindings.julia.${group} PROPERTIES ENVIRONMENT "${megadp_bindings_environment}" SKIP_RETURN_CODE 77
                       RESOURCE_LOCK julia)
endforeach()
