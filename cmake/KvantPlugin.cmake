# kvant_add_plugin(NAME <name> SOURCES <c files> [CPU <c files>] [CUDA <cu file>] [STATIC])
#
# Builds the codec plugin kvant_<name>.so (target kvant_plugin_<name>): hidden visibility, one exported symbol, no
# undefined symbol, nothing of the core linked; `cmake --install` puts it into lib/kvant. With STATIC it builds a static library instead whose query function is
# called kvant_plugin_query_<name>, for applications that register it with kvant_plugin_register().
#
# CPU files are compiled once per instruction set, see kvant/kit/isa.h. The CUDA file becomes device images inside the
# plugin where nvcc is, and KVANT_HAVE_GPU is defined then; see KvantCuda.cmake.
#
# Works the same inside this tree and, through find_package(kvant), outside of it.

include_guard(GLOBAL)
include(CheckCCompilerFlag)
include(${CMAKE_CURRENT_LIST_DIR}/KvantCuda.cmake)

set(KVANT_PLUGIN_MODULE_DIR ${CMAKE_CURRENT_LIST_DIR})
if(NOT DEFINED KVANT_PLUGIN_INSTALL_DIR)
  set(KVANT_PLUGIN_INSTALL_DIR ${CMAKE_INSTALL_LIBDIR}/kvant)
endif()

# Codecs promise the same bytes everywhere: no contraction, no reassociation. errno and trapping are not looked at, which
# lets loops with sqrt and float-to-int conversions vectorise without changing a result.
set(KVANT_CODEC_FLAGS -ffp-contract=off -fno-math-errno -fno-trapping-math -fvisibility=hidden)

# Sets <out> to "suffix|flag|flag..." entries that this compiler builds for this target.
function(kvant_cpu_levels out)
  set(levels)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
    check_c_compiler_flag(-march=x86-64-v2 KVANT_COMPILER_HAS_X86_64_V2)
    check_c_compiler_flag(-march=x86-64-v3 KVANT_COMPILER_HAS_X86_64_V3)
    check_c_compiler_flag("-march=x86-64-v4 -mavx512vnni" KVANT_COMPILER_HAS_X86_64_V4)
    if(KVANT_COMPILER_HAS_X86_64_V2)
      list(APPEND levels "v2|-march=x86-64-v2")
    endif()
    if(KVANT_COMPILER_HAS_X86_64_V3)
      list(APPEND levels "v3|-march=x86-64-v3")
    endif()
    if(KVANT_COMPILER_HAS_X86_64_V4)
      list(APPEND levels "v4|-march=x86-64-v4|-mavx512vnni|-mprefer-vector-width=512")
    endif()
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    list(APPEND levels "neon|")
  endif()
  set(${out} "${levels}" PARENT_SCOPE)
endfunction()

function(kvant_add_plugin)
  cmake_parse_arguments(ARG "STATIC" "NAME;CUDA" "SOURCES;CPU" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kvant_add_plugin: unknown argument ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT ARG_NAME MATCHES "^[a-z][a-z0-9_]*$")
    message(FATAL_ERROR "kvant_add_plugin: NAME must match [a-z][a-z0-9_]*, not \"${ARG_NAME}\"")
  endif()
  if(NOT ARG_SOURCES)
    message(FATAL_ERROR "kvant_add_plugin(${ARG_NAME}): SOURCES is empty")
  endif()

  set(target kvant_plugin_${ARG_NAME})
  if(ARG_STATIC)
    set(target kvant_plugin_${ARG_NAME}_static)
    add_library(${target} STATIC ${ARG_SOURCES})
    target_compile_definitions(${target} PRIVATE kvant_plugin_query=kvant_plugin_query_${ARG_NAME})
  else()
    add_library(${target} MODULE ${ARG_SOURCES})
    set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME kvant_${ARG_NAME})
    target_link_options(${target} PRIVATE
      -Wl,--version-script=${KVANT_PLUGIN_MODULE_DIR}/plugin.map
      -Wl,-z,now -Wl,-z,relro -Wl,-z,nodelete -Wl,--as-needed)
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${KVANT_PLUGIN_MODULE_DIR}/plugin.map)
    # clang's sanitizer run-times live in the executable, so that its plugins have undefined symbols by design.
    if(NOT (CMAKE_C_COMPILER_ID MATCHES "Clang" AND CMAKE_C_FLAGS MATCHES "-fsanitize"))
      target_link_options(${target} PRIVATE -Wl,-z,defs)
    endif()
    install(TARGETS ${target} LIBRARY DESTINATION ${KVANT_PLUGIN_INSTALL_DIR})
    if(TARGET kvant_plugins)
      add_dependencies(kvant_plugins ${target})
    endif()
  endif()
  set_target_properties(${target} PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS ON
    POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE ${KVANT_CODEC_FLAGS})
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE kvant::headers)

  if(ARG_CUDA AND KVANT_HAVE_NVCC)
    kvant_cuda_images(${target} ${ARG_NAME} ${ARG_CUDA})
  endif()

  if(ARG_CPU)
    kvant_cpu_levels(levels)
    # Vectorised also in builds that are otherwise for debugging. Sanitizers take many times as long to compile what -O3
    # unrolls, and look at the same accesses without it.
    set(optimise -O3)
    if(CMAKE_C_FLAGS MATCHES "-fsanitize")
      set(optimise -O1)
    endif()
    foreach(level IN LISTS levels)
      string(REPLACE "|" ";" flags "${level}")
      list(POP_FRONT flags suffix)
      string(TOUPPER ${suffix} upper)
      add_library(${target}_${suffix} OBJECT ${ARG_CPU})
      set_target_properties(${target}_${suffix} PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS ON
        POSITION_INDEPENDENT_CODE ON)
      target_compile_options(${target}_${suffix} PRIVATE ${KVANT_CODEC_FLAGS} ${optimise} ${flags})
      target_compile_definitions(${target}_${suffix} PRIVATE KVANT_CPU_SUFFIX=${suffix})
      target_include_directories(${target}_${suffix} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
      target_link_libraries(${target}_${suffix} PRIVATE kvant::headers)
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${suffix}>)
      target_compile_definitions(${target} PRIVATE KVANT_HAVE_${upper}=1)
    endforeach()
  endif()
endfunction()
