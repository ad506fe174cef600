# SPDX-License-Identifier: Apache-2.0
# The Python binding's tests, each file a test of its own. bindings/python/tests/run.py chooses the interpreter.
set(python_tests mirror options bootstrap arrays groups steps rules small_state caller muon averages scaler reduced checkpoint failures process readme tp halo cp types
    training jax jax_cp jax_elementwise jax_tp jax_whole wheel torch torch_checkpoint torch_cp torch_ddp torch_gather torch_page torch_spatial torch_tp torch_tp_habits torch_training torch_writes)
foreach(name ${python_tests})
  add_test(NAME bindings.python.${name} COMMAND Python3::Interpreter -B ${PROJECT_SOURCE_DIR}/bindings/python/tests/run.py ${name})
  set_tests_properties(bindings.python.${name} PROPERTIES ENVIRONMENT "${megadp_bindings_environment}" SKIP_RETURN_CODE 77)
endforeach()
# XLA compiles for minutes on a busy machine.
foreach(name jax jax_cp jax_elementwise jax_tp jax_whole)
  set_tests_properties(bindings.python.${name} PROPERTIES TIMEOUT 900 COST 40)
endforeach()
