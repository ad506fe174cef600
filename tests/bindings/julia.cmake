# SPDX-License-Identifier: Apache-2.0
# bindings/julia's own tests, one for each group of runtests.jl: one after another, since ranks are processes that want the machine.
foreach(group mirror bootstrap package digits ranks extensions context readme)
  add_test(NAME bindings.julia.${group} COMMAND ${PROJECT_SOURCE_DIR}/bindings/julia/test/run ${group})
  set_tests_properties(bindings.julia.${group} PROPERTIES ENVIRONMENT "${megadp_bindings_environment}" SKIP_RETURN_CODE 77
                       RESOURCE_LOCK julia TIMEOUT 900 COST 50)
endforeach()
add_test(NAME bindings.julia.hosts COMMAND Python3::Interpreter -B ${CMAKE_CURRENT_SOURCE_DIR}/julia_hosts.py)
set_tests_properties(bindings.julia.hosts PROPERTIES ENVIRONMENT "${megadp_bindings_environment}" RESOURCE_LOCK julia)
