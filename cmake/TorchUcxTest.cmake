# torch_ucx_add_test(<name> <source>... [LIBS <target>...] [ARGS <argument>...] [TIMEOUT <seconds>] [ENVIRONMENT <var=value>...]
#                    [LABELS <label>...] [UCX_MATRIX] [TRANSPORTS] [UCX_WARNINGS_EXPECTED])
#
# Builds one GoogleTest program and registers it with ctest:
#   UCX_MATRIX   once per UCX version: the one built against and, with TORCH_UCX_ALT_UCX_LIBDIR, that one
#   TRANSPORTS   once per transport: shm (UCX_TLS=posix,sysv,cma,self) and tcp (UCX_TLS=tcp,self)
# under the names <name>[.<transport>][.ucx-<version>]. A test that uses UCX at all should say both.
#
# A test fails when it exits non-zero, after TIMEOUT seconds (default 120), or when a warning or error of UCX appears in its
# output. UCX_WARNINGS_EXPECTED takes the last away from a test that provokes them: say beside it which ones, and look for
# the others in the test itself.
#
# The test sees EXPECTED_UCX_VERSION, the release of the libucp it must be bound to, where UCX_MATRIX is given.

find_package(GTest QUIET)
if(NOT GTest_FOUND)
  message(
    FATAL_ERROR
      "The C++ tests need GoogleTest, which is not installed. Debian, Ubuntu: apt-get install libgtest-dev. Elsewhere: build "
      "it from source and give -DGTest_ROOT=<prefix>. Without the C++ tests: -DTORCH_UCX_BUILD_TESTS=OFF.\n")
endif()

# One entry a UCX version: "<version>|<directory for LD_LIBRARY_PATH, or empty>".
set(_torch_ucx_test_matrix "")
if(UCX_IS_SYSTEM)
  list(APPEND _torch_ucx_test_matrix "${UCX_VERSION}|")
else()
  list(APPEND _torch_ucx_test_matrix "${UCX_VERSION}|${UCX_LIBRARY_DIR}")
endif()
if(TORCH_UCX_ALT_UCX_LIBDIR)
  if(NOT EXISTS "${TORCH_UCX_ALT_UCX_LIBDIR}/libucp.so.0")
    message(FATAL_ERROR "TORCH_UCX_ALT_UCX_LIBDIR is ${TORCH_UCX_ALT_UCX_LIBDIR}, which has no libucp.so.0.")
  endif()
  include(UcxVersion)
  torch_ucx_library_version("${TORCH_UCX_ALT_UCX_LIBDIR}/libucp.so.0" _alt_version)
  if(NOT _alt_version)
    message(FATAL_ERROR "TORCH_UCX_ALT_UCX_LIBDIR: ${TORCH_UCX_ALT_UCX_LIBDIR}/libucp.so.0 cannot be loaded.")
  elseif(_alt_version VERSION_LESS UCX_API_VERSION)
    message(FATAL_ERROR "TORCH_UCX_ALT_UCX_LIBDIR is UCX ${_alt_version}, older than the headers built against "
                        "(${UCX_API_VERSION}): build against the older of the two and give the newer one here.")
  elseif(_alt_version STREQUAL UCX_VERSION)
    message(WARNING "TORCH_UCX_ALT_UCX_LIBDIR is UCX ${_alt_version}, the version built against: tests run with it alone.")
  else()
    list(APPEND _torch_ucx_test_matrix "${_alt_version}|${TORCH_UCX_ALT_UCX_LIBDIR}")
  endif()
endif()
list(TRANSFORM _torch_ucx_test_matrix REPLACE "\\|.*" "" OUTPUT_VARIABLE _torch_ucx_test_versions)
list(JOIN _torch_ucx_test_versions ", " _torch_ucx_test_versions)
message(STATUS "UCX versions tested: ${_torch_ucx_test_versions}")

function(torch_ucx_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "UCX_MATRIX;TRANSPORTS;UCX_WARNINGS_EXPECTED" "TIMEOUT"
                        "LIBS;ARGS;ENVIRONMENT;LABELS")
  if(NOT arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "torch_ucx_add_test(${name}): no sources")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${arg_LIBS} torch_ucx_options GTest::gtest GTest::gtest_main Threads::Threads)

  set(matrix "none|")
  if(arg_UCX_MATRIX)
    set(matrix "${_torch_ucx_test_matrix}")
  endif()
  set(transports none)
  if(arg_TRANSPORTS)
    set(transports shm tcp)
  endif()

  foreach(entry IN LISTS matrix)
    string(REGEX MATCH "^([^|]*)\\|(.*)$" unused "${entry}")
    set(version "${CMAKE_MATCH_1}")
    set(libdir "${CMAKE_MATCH_2}")
    foreach(transport IN LISTS transports)
      set(test "${name}")
      set(environment "${arg_ENVIRONMENT}")
      set(modification "")
      if(transport STREQUAL "shm")
        list(APPEND environment "UCX_TLS=posix,sysv,cma,self")
      elseif(transport STREQUAL "tcp")
        list(APPEND environment "UCX_TLS=tcp,self")
      endif()
      if(NOT transport STREQUAL "none")
        string(APPEND test ".${transport}")
      endif()
      if(NOT version STREQUAL "none")
        string(APPEND test ".ucx-${version}")
        list(APPEND environment "EXPECTED_UCX_VERSION=${version}")
        if(libdir)
          set(modification "LD_LIBRARY_PATH=path_list_prepend:${libdir}")
        endif()
      endif()
      add_test(NAME ${test} COMMAND ${name} ${arg_ARGS})
      set_tests_properties(${test} PROPERTIES TIMEOUT ${arg_TIMEOUT} ENVIRONMENT "${environment}"
                                              ENVIRONMENT_MODIFICATION "${modification}" LABELS "${arg_LABELS}")
      if(NOT arg_UCX_WARNINGS_EXPECTED)
        # UCX's log lines: "[time] [host:pid:thread] file.c:line UCX  WARN  text"
        set_property(TEST ${test} PROPERTY FAIL_REGULAR_EXPRESSION "UCX +(FATAL|ERROR|WARN) ")
      endif()
    endforeach()
  endforeach()
endfunction()
