# Device code of plugins and of the core. KVANT_CUDA = AUTO builds it where nvcc is, ON insists, OFF leaves it out. nvcc
# compiles kernels alone, so CUDA is no language of the project and nothing of the CUDA run-time is linked. It is looked
# for where the toolkit installs it too, which is not in PATH.
include_guard(GLOBAL)

if(NOT DEFINED KVANT_CUDA)
  set(KVANT_CUDA AUTO CACHE STRING "Build GPU code: AUTO, ON or OFF")
endif()
set_property(CACHE KVANT_CUDA PROPERTY STRINGS AUTO ON OFF)

set(KVANT_CUDA_ARCHITECTURES "80;90;100;120" CACHE STRING "Compute capabilities that plugins carry cubins for")
set(KVANT_CUDA_IMAGES "" CACHE PATH "Another build of these sources, whose images are taken instead of compiling them again")
set(KVANT_CUDA_MODULE_DIR ${CMAKE_CURRENT_LIST_DIR})

set(KVANT_HAVE_NVCC OFF)
if(NOT KVANT_CUDA STREQUAL "OFF")
  find_program(KVANT_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(KVANT_NVCC)
    set(KVANT_HAVE_NVCC ON)
    message(STATUS "GPU code: ${KVANT_NVCC}, architectures ${KVANT_CUDA_ARCHITECTURES}")
  elseif(KVANT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "KVANT_CUDA=ON, and no nvcc in PATH or /usr/local/cuda/bin")
  else()
    message(STATUS "GPU code: not built, no nvcc in PATH or /usr/local/cuda/bin")
  endif()
else()
  message(STATUS "GPU code: not built, KVANT_CUDA=OFF")
endif()

function(kvant_cuda_copy from to)
  add_custom_command(OUTPUT ${to} COMMAND ${CMAKE_COMMAND} -E copy ${from} ${to} DEPENDS ${from} VERBATIM)
endfunction()

# kvant_cuda_images(<target> <name> <file.cu>)
#
# Compiles <file.cu> to the two images of kvant.gpu/1 and links them into <target>, between these symbols:
#
#     kvant_<name>_fatbin, kvant_<name>_fatbin_end    cubins of all KVANT_CUDA_ARCHITECTURES
#     kvant_<name>_ptx, kvant_<name>_ptx_end          PTX of the first of them, text in a zstd frame
#
# and defines KVANT_HAVE_GPU=1 and KVANT_GPU_ARCHITECTURES (80, 90, ...) for its sources. PTX of every architecture is
# left beside them as gpu/<name>.compute_<architecture>.ptx, for tests; the property KVANT_GPU_PTX of <target> lists it.
# Registers that spill, and local memory, are errors.
#
# Where <target> is an object library, whoever links its objects links the images too: the property KVANT_GPU_OBJECT of
# <target> names the object file.
function(kvant_cuda_images target name file)
  set(dir ${CMAKE_CURRENT_BINARY_DIR}/gpu)
  file(RELATIVE_PATH inside ${CMAKE_BINARY_DIR} ${dir})
  set(made ${KVANT_CUDA_IMAGES}/${inside})
  file(MAKE_DIRECTORY ${dir})
  cmake_path(ABSOLUTE_PATH file)
  # No contraction here either: what promises the same bytes rounds every operation, and says so by intrinsics too.
  set(flags -O3 -std=c++17 -fmad=false -I${CMAKE_CURRENT_SOURCE_DIR} -Xptxas -warn-spills,-warn-lmem-usage,-Werror)
  set(includes "-I$<JOIN:$<TARGET_PROPERTY:kvant::headers,INTERFACE_INCLUDE_DIRECTORIES>,;-I>")
  if(KVANT_WERROR)
    list(APPEND flags --Werror all-warnings)
  endif()
  set(targets)
  set(ptx)
  foreach(architecture IN LISTS KVANT_CUDA_ARCHITECTURES)
    list(APPEND targets -gencode arch=compute_${architecture},code=sm_${architecture})
    set(text ${dir}/${name}.compute_${architecture}.ptx)
    list(APPEND ptx ${text})
    if(KVANT_CUDA_IMAGES)
      kvant_cuda_copy(${made}/${name}.compute_${architecture}.ptx ${text})
      continue()
    endif()
    add_custom_command(OUTPUT ${text}
      COMMAND ${KVANT_NVCC} -ptx -arch=compute_${architecture} ${flags} "${includes}" -MD -MF ${text}.d -o ${text} ${file}
      DEPENDS ${file} DEPFILE ${text}.d COMMAND_EXPAND_LISTS VERBATIM
      COMMENT "PTX of ${name}, compute_${architecture}")
  endforeach()
  set(fatbin ${dir}/${name}.fatbin)
  if(KVANT_CUDA_IMAGES)
    kvant_cuda_copy(${made}/${name}.fatbin ${fatbin})
  else()
    add_custom_command(OUTPUT ${fatbin}
      COMMAND ${KVANT_NVCC} -fatbin --threads 2 --compress-mode=size ${targets} ${flags} "${includes}" -MD -MF ${fatbin}.d
        -o ${fatbin} ${file}
      DEPENDS ${file} DEPFILE ${fatbin}.d COMMAND_EXPAND_LISTS VERBATIM
      COMMENT "Cubins of ${name}")
  endif()

  list(GET ptx 0 first_ptx)
  set(packed ${dir}/${name}.ptx.zst)
  add_custom_command(OUTPUT ${packed}
    COMMAND ${CMAKE_COMMAND} -DIN=${first_ptx} -DOUT=${packed} -P ${KVANT_CUDA_MODULE_DIR}/zstd.cmake
    DEPENDS ${first_ptx} ${KVANT_CUDA_MODULE_DIR}/zstd.cmake VERBATIM)

  # Assembled by a command of its own: a project that builds one plugin need not enable a language for it.
  set(text ".section .rodata,\"a\",@progbits\n")
  foreach(image fatbin ptx)
    set(symbol kvant_${name}_${image})
    set(data ${fatbin})
    if(image STREQUAL "ptx")
      set(data ${packed})
    endif()
    string(APPEND text ".balign 64\n.globl ${symbol}, ${symbol}_end\n.hidden ${symbol}, ${symbol}_end\n"
      "${symbol}:\n.incbin \"${data}\"\n${symbol}_end:\n.byte 0\n")
  endforeach()
  string(APPEND text ".section .note.GNU-stack,\"\",%progbits\n")
  set(source ${dir}/${name}_images.S)
  file(CONFIGURE OUTPUT ${source} CONTENT "${text}" @ONLY)
  set(object ${dir}/${name}_images.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_C_COMPILER} ${CMAKE_C_COMPILER_ARG1} -c -o ${object} ${source}
    DEPENDS ${source} ${fatbin} ${packed} VERBATIM)
  add_custom_target(${target}_ptx DEPENDS ${ptx} ${object})
  add_dependencies(${target} ${target}_ptx)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "OBJECT_LIBRARY")
    set_property(TARGET ${target} PROPERTY KVANT_GPU_OBJECT ${object})
  else()
    target_sources(${target} PRIVATE ${object})
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  endif()
  list(JOIN KVANT_CUDA_ARCHITECTURES ", " architectures)
  target_compile_definitions(${target} PRIVATE KVANT_HAVE_GPU=1 "KVANT_GPU_ARCHITECTURES=${architectures}")
  set_property(TARGET ${target} PROPERTY KVANT_GPU_PTX "${ptx}")
endfunction()
