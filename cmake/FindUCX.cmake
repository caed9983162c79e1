# Finds UCX (libucp, libucs and their headers), version 1.13 or later.
#
# Looked for in this order; the first place that has a usable one wins, one that is too old is passed over:
#   1. -DUCX_ROOT=... or the environment variable UCX_ROOT (a prefix with include/ and lib/); then nothing else is tried
#   2. pkg-config's "ucx" (an HPC site's module, the distribution's package)
#   3. the compiler's default directories
#   4. PyPI's wheel (libucx-cu12, libucx-cu13) in the Python environment: site-packages/libucx/{include,lib};
#      needs Python_EXECUTABLE or _torch_ucx_site_dirs (a list of site-packages directories)
#
# Defines the imported targets UCX::ucp and UCX::ucs and the variables
#   UCX_FOUND, UCX_VERSION (release of the library, e.g. 1.13.1; the headers' major.minor where the library cannot be
#   loaded), UCX_API_VERSION (of the headers, e.g. 1.13), UCX_INCLUDE_DIR, UCX_LIBRARY_DIR, UCX_UCP_LIBRARY,
#   UCX_UCS_LIBRARY, UCX_SOURCE (which of the places above), UCX_IS_SYSTEM (the dynamic loader finds it by itself)
#
# Stops with an error that says what was found and what to do, unless QUIET or not REQUIRED.

set(_ucx_minimum "1.13")
if(UCX_FIND_VERSION)
  set(_ucx_minimum "${UCX_FIND_VERSION}")
endif()
set(_ucx_report "")
set(UCX_FOUND FALSE)

# Tries one pair of directories; "include" or "lib" may be empty for the compiler's default ones. In the caller's scope.
macro(_ucx_try source include_dirs library_dirs only_these)
  if(NOT UCX_FOUND)
    if(${only_these})
      set(_ucx_no_default NO_DEFAULT_PATH)
    else()
      # Not CMAKE_PREFIX_PATH: scikit-build-core puts PyPI's wheel of UCX there, which comes last.
      set(_ucx_no_default NO_PACKAGE_ROOT_PATH NO_CMAKE_PATH NO_CMAKE_ENVIRONMENT_PATH NO_SYSTEM_ENVIRONMENT_PATH)
    endif()
    unset(_ucx_header_dir)
    unset(_ucx_ucp)
    unset(_ucx_ucs)
    find_path(_ucx_header_dir NAMES ucp/api/ucp_version.h PATHS ${include_dirs} ${_ucx_no_default} NO_CACHE)
    string(REGEX REPLACE "/$" "" _ucx_header_dir "${_ucx_header_dir}")
    find_library(_ucx_ucp NAMES ucp libucp.so.0 PATHS ${library_dirs} ${_ucx_no_default} NO_CACHE)
    find_library(_ucx_ucs NAMES ucs libucs.so.0 PATHS ${library_dirs} ${_ucx_no_default} NO_CACHE)
    set(_ucx_where "${include_dirs} ${library_dirs}")
    string(STRIP "${_ucx_where}" _ucx_where)
    if(NOT _ucx_where)
      set(_ucx_where "the compiler's default directories")
    endif()
    if(NOT _ucx_header_dir)
      string(APPEND _ucx_report "  ${source}: no header ucp/api/ucp_version.h in ${_ucx_where}\n")
    elseif(NOT _ucx_ucp OR NOT _ucx_ucs)
      string(APPEND _ucx_report
             "  ${source}: headers in ${_ucx_header_dir}, but no libucp.so and libucs.so in ${_ucx_where}\n")
    else()
      file(STRINGS "${_ucx_header_dir}/ucp/api/ucp_version.h" _ucx_lines REGEX "#define[ \t]+UCP_API_(MAJOR|MINOR)")
      string(REGEX MATCH "UCP_API_MAJOR[ \t]+([0-9]+)" _ucx_unused "${_ucx_lines}")
      set(_ucx_major "${CMAKE_MATCH_1}")
      string(REGEX MATCH "UCP_API_MINOR[ \t]+([0-9]+)" _ucx_unused "${_ucx_lines}")
      set(_ucx_minor "${CMAKE_MATCH_1}")
      if("${_ucx_major}" STREQUAL "" OR "${_ucx_minor}" STREQUAL "")
        string(APPEND _ucx_report "  ${source}: cannot read a version from ${_ucx_header_dir}/ucp/api/ucp_version.h\n")
      elseif("${_ucx_major}.${_ucx_minor}" VERSION_LESS "${_ucx_minimum}")
        string(APPEND _ucx_report "  ${source}: UCX ${_ucx_major}.${_ucx_minor} in ${_ucx_header_dir} is too old\n")
      else()
        set(UCX_FOUND TRUE)
        set(UCX_SOURCE "${source}")
        set(UCX_API_VERSION "${_ucx_major}.${_ucx_minor}")
        set(UCX_INCLUDE_DIR "${_ucx_header_dir}")
        set(UCX_UCP_LIBRARY "${_ucx_ucp}")
        set(UCX_UCS_LIBRARY "${_ucx_ucs}")
      endif()
    endif()
  endif()
endmacro()

if(NOT UCX_ROOT AND DEFINED ENV{UCX_ROOT})
  set(UCX_ROOT "$ENV{UCX_ROOT}")
endif()

if(UCX_ROOT)
  _ucx_try("UCX_ROOT" "${UCX_ROOT}/include"
           "${UCX_ROOT}/lib;${UCX_ROOT}/lib64;${UCX_ROOT}/lib/${CMAKE_LIBRARY_ARCHITECTURE}" TRUE)
else()
  find_package(PkgConfig QUIET)
  if(PKG_CONFIG_FOUND)
    # Not pkg_get_variable: it also looks below CMAKE_PREFIX_PATH, where scikit-build-core puts PyPI's wheel of UCX, whose
    # .pc file names directories that exist nowhere.
    foreach(_ucx_name include lib)
      execute_process(
        COMMAND "${PKG_CONFIG_EXECUTABLE}" --variable=${_ucx_name}dir ucx
        OUTPUT_VARIABLE _ucx_pc_${_ucx_name}
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    endforeach()
    if(_ucx_pc_include AND _ucx_pc_lib)
      _ucx_try("pkg-config" "${_ucx_pc_include}" "${_ucx_pc_lib}" TRUE)
    else()
      string(APPEND _ucx_report "  pkg-config: knows no package \"ucx\"\n")
    endif()
  else()
    string(APPEND _ucx_report "  pkg-config: is not installed\n")
  endif()
  _ucx_try("system" "" "" FALSE)
  if(NOT UCX_FOUND)
    if(NOT _torch_ucx_site_dirs AND Python_EXECUTABLE)
      execute_process(
        COMMAND "${Python_EXECUTABLE}" -B "${CMAKE_CURRENT_LIST_DIR}/package_dirs.py" libucx
        OUTPUT_VARIABLE _torch_ucx_site_dirs
        OUTPUT_STRIP_TRAILING_WHITESPACE)
      string(REPLACE "\n" ";" _torch_ucx_site_dirs "${_torch_ucx_site_dirs}")
    endif()
    if(NOT _torch_ucx_site_dirs)
      string(APPEND _ucx_report "  PyPI wheel: not looked for, no Python interpreter is known\n")
    endif()
    foreach(_ucx_site IN LISTS _torch_ucx_site_dirs)
      _ucx_try("PyPI wheel" "${_ucx_site}/libucx/include" "${_ucx_site}/libucx/lib" TRUE)
    endforeach()
  endif()
endif()

if(UCX_FOUND)
  cmake_path(GET UCX_UCP_LIBRARY PARENT_PATH UCX_LIBRARY_DIR)
  set(UCX_IS_SYSTEM FALSE)
  file(REAL_PATH "${UCX_LIBRARY_DIR}" _ucx_real_dir)
  foreach(_ucx_dir IN LISTS CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES ITEMS /usr/lib /lib)
    if(EXISTS "${_ucx_dir}")
      file(REAL_PATH "${_ucx_dir}" _ucx_dir)
      if(_ucx_dir STREQUAL _ucx_real_dir)
        set(UCX_IS_SYSTEM TRUE)
      endif()
    endif()
  endforeach()

  # The library's own word on its release; a libucp that does not load is used all the same (cross builds).
  if(NOT _ucx_version_of STREQUAL UCX_UCP_LIBRARY OR NOT _ucx_version_is)
    set(_ucx_version_is "")
    include("${CMAKE_CURRENT_LIST_DIR}/UcxVersion.cmake")
    torch_ucx_library_version("${UCX_UCP_LIBRARY}" _ucx_version_is)
    set(_ucx_version_of "${UCX_UCP_LIBRARY}" CACHE INTERNAL "libucp whose release was read")
    set(_ucx_version_is "${_ucx_version_is}" CACHE INTERNAL "release of that libucp")
  endif()
  if(_ucx_version_is)
    set(UCX_VERSION "${_ucx_version_is}")
  else()
    set(UCX_VERSION "${UCX_API_VERSION}")
  endif()

  # IMPORTED_LINK_DEPENDENT_LIBRARIES: the linker finds libuct and libucm, which libucp needs, beside it.
  foreach(_ucx_name ucs ucp)
    string(TOUPPER "UCX_${_ucx_name}_LIBRARY" _ucx_variable)
    if(NOT TARGET UCX::${_ucx_name})
      add_library(UCX::${_ucx_name} SHARED IMPORTED)
      set_target_properties(
        UCX::${_ucx_name}
        PROPERTIES IMPORTED_LOCATION "${${_ucx_variable}}" IMPORTED_SONAME "lib${_ucx_name}.so.0"
                   INTERFACE_INCLUDE_DIRECTORIES "${UCX_INCLUDE_DIR}")
      if(NOT UCX_IS_SYSTEM)
        target_link_options(UCX::${_ucx_name} INTERFACE "LINKER:-rpath-link,${UCX_LIBRARY_DIR}")
      endif()
    endif()
  endforeach()
  set_property(TARGET UCX::ucp PROPERTY INTERFACE_LINK_LIBRARIES UCX::ucs)
  if(NOT UCX_FIND_QUIETLY)
    message(STATUS "UCX ${UCX_VERSION} (headers ${UCX_API_VERSION}) from ${UCX_SOURCE}: ${UCX_UCP_LIBRARY}")
  endif()
elseif(UCX_FIND_REQUIRED)
  message(
    FATAL_ERROR
      "torch_ucx needs UCX ${_ucx_minimum} or later, headers and libraries. Looked at:\n${_ucx_report}"
      "Do one of these:\n"
      "  * Debian, Ubuntu: apt-get install libucx-dev (Ubuntu 22.04's 1.12 is too old)\n"
      "  * without root:   pip install libucx-cu12   (UCX from PyPI, found in the same Python environment)\n"
      "  * an HPC site's:  module load ucx, or -DUCX_ROOT=<prefix>, or the environment variable UCX_ROOT=<prefix>\n")
endif()
