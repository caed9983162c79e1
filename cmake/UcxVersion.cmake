# torch_ucx_library_version(<libucp> <variable>): the release ("1.13.1") that this libucp says it is, or "" when it cannot
# be loaded.
function(torch_ucx_library_version library variable)
  unset(_ucx_version_ran CACHE)
  unset(_ucx_version_built CACHE)
  try_run(
    _ucx_version_ran _ucx_version_built "${CMAKE_BINARY_DIR}/ucx_version"
    "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/ucx_version.cpp"
    LINK_LIBRARIES ${CMAKE_DL_LIBS}
    RUN_OUTPUT_VARIABLE _ucx_version_output
    ARGS "${library}")
  if(_ucx_version_built AND "${_ucx_version_ran}" STREQUAL "0")
    string(STRIP "${_ucx_version_output}" _ucx_version_output)
    set(${variable} "${_ucx_version_output}" PARENT_SCOPE)
  else()
    message(WARNING "Cannot read the version of ${library}: ${_ucx_version_output}")
    set(${variable} "" PARENT_SCOPE)
  endif()
endfunction()
