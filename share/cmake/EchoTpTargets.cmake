# SPDX-License-Identifier: Apache-2.0
# Flags that every target of the project shares. The only place that knows them.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON) # the preload needs dladdr and friends
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
# The build tree mirrors the installed one, so the command line finds its libraries the same way in both.
set(ECHO_TP_PRIVATE_LIBDIR "lib/echo-tp")

# echotp_target(name): warnings, include root, C++20 also for nvcc.
# CMake 3.25 does not know C++20 for CUDA, and takes an unset CUDA_STANDARD from CXX_STANDARD: -std is passed by hand for
# both languages, and no STANDARD or EXTENSIONS property is ever set (either adds a -std of its own for nvcc).
function(echotp_target name)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/generated")
  set(warnings -Wall -Wextra -Wshadow)
  if(ECHO_TP_WERROR)
    list(APPEND warnings -Werror)
  endif()
  # GCC 12 warns of its own inlined std::string operator+ at -O3 (its bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12
     AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    list(APPEND warnings -Wno-restrict)
  endif()
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:C,CXX>:${warnings};-fstack-protector-strong>
    $<$<COMPILE_LANGUAGE:CXX>:-std=c++20;-Wconversion;-Wno-sign-conversion>
    # No contraction on the host either: the codec must give the same bits on CPU and GPU.
    $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-fmad=false;-lineinfo;--expt-relaxed-constexpr;--threads=2;-Xcompiler=-Wall,-Wextra>)
  if(ECHO_TP_WERROR)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>)
  endif()
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${ECHO_TP_CUDA_ARCHITECTURES}"
                                           CUDA_RUNTIME_LIBRARY Static CUDA_STANDARD_REQUIRED OFF)
endfunction()

# echotp_injected(name): a shared object that is loaded into somebody else's process.
function(echotp_injected name map)
  echotp_target(${name})
  set_target_properties(${name} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/${ECHO_TP_PRIVATE_LIBDIR}"
                        LINK_DEPENDS "${map}" SKIP_BUILD_RPATH ON)
  target_link_options(${name} PRIVATE "LINKER:--version-script=${map}" "LINKER:-z,relro" "LINKER:-z,now" "LINKER:-z,defs"
                      "LINKER:--as-needed" "LINKER:--exclude-libs,ALL" "LINKER:-z,nodelete")
  install(TARGETS ${name} LIBRARY DESTINATION ${ECHO_TP_PRIVATE_LIBDIR})
endfunction()

# echotp_test(name sources...): a doctest binary; every TEST_CASE becomes one ctest test.
function(echotp_test name)
  cmake_parse_arguments(arg "" "LABEL" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  echotp_target(${name})
  target_link_libraries(${name} PRIVATE echotp_test_main ${arg_LINK})
  doctest_discover_tests(${name} TEST_PREFIX "${name}: " PROPERTIES LABELS "${arg_LABEL}" TIMEOUT 120 SKIP_RETURN_CODE 77)
endfunction()
