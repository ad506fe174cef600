# SPDX-License-Identifier: Apache-2.0
# The languages of bindings/swig, a test each. bindings/swig/tests/run.py makes a language's module where it has changed.
set(swig_tests mirror java go lua ruby perl tcl csharp r node foreign)
foreach(name ${swig_tests})
  add_test(NAME bindings.swig.${name} COMMAND Python3::Interpreter -B ${PROJECT_SOURCE_DIR}/bindings/swig/tests/run.py ${name})
  set_tests_properties(bindings.swig.${name} PROPERTIES ENVIRONMENT "${megadp_bindings_environment}" SKIP_RETURN_CODE 77)
endforeach()
