# kvant_gpu_driver_environment(<test> [<name>=<value>...])
#
# Puts the simulated driver (tests/gpu/driver) into the search path of a test that ctest knows, <label>.<name>, with more
# variables where they are given, and builds it with the test's program test_<label>_<name>.
include_guard(GLOBAL)
set(KVANT_GPU_DRIVER_DIR ${CMAKE_BINARY_DIR}/tests/gpu/driver)

function(kvant_gpu_driver_environment test)
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT_MODIFICATION
    "LD_LIBRARY_PATH=path_list_prepend:${KVANT_GPU_DRIVER_DIR}")
  foreach(variable IN LISTS ARGN)
    set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT ${variable})
  endforeach()
  string(REPLACE "." "_" program test_${test})
  if(TARGET ${program})
    add_dependencies(${program} kvant_ptx_driver)
  endif()
endfunction()
