# SPDX-License-Identifier: Apache-2.0
# bindings/rust by cargo, one stage of rust.py each. They share cargo's folder, which one cargo at a time may use; the first run compiles
# some hundred crates.
foreach(stage raw library candle burn new_crate bundled package style)
  add_test(NAME bindings.rust.${stage} COMMAND Python3::Interpreter -B ${CMAKE_CURRENT_SOURCE_DIR}/rust.py ${stage})
  set_tests_properties(bindings.rust.${stage} PROPERTIES ENVIRONMENT "${megadp_bindings_environment}" SKIP_RETURN_CODE 77
                                                         RESOURCE_LOCK megadp_cargo TIMEOUT 900 COST 60 PROCESSORS 2)
endforeach()
