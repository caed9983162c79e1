# Finds PyTorch by the directory of the installed package. find_package(Torch) is not used: beside PyTorch's CUDA wheels it
# asks for a CUDA toolkit, of which this project needs nothing.
#
# Looked for in this order:
#   1. -DTORCH_UCX_TORCH_DIR=... or the environment variable TORCH_UCX_TORCH_DIR (the directory .../site-packages/torch)
#   2. the torch that Python_EXECUTABLE would import (without importing it)
#   3. the site-packages directories of its environment, which are right under pip's build isolation too
#
# Defines
#   TorchByPath::torch   C++ interface: headers, libtorch, libtorch_cpu, libc10
#   TorchByPath::python  the same and libtorch_python, for the Python module; with torch's own copy of pybind11
#   TORCH_UCX_TORCH_VERSION ("2.13.0+cpu"), TORCH_UCX_TORCH_CXX11_ABI (0 or 1), TORCH_UCX_TORCH_LIBRARY_DIR

set(TORCH_UCX_TORCH_DIR "" CACHE PATH "Directory of the installed torch package (.../site-packages/torch)")
set(_tbp_minimum "2.6")
set(_tbp_report "")
set(_tbp_candidates "")
set(_tbp_given "")

if(TORCH_UCX_TORCH_DIR)
  set(_tbp_given "-DTORCH_UCX_TORCH_DIR")
  set(_tbp_candidates "${TORCH_UCX_TORCH_DIR}")
elseif(NOT "$ENV{TORCH_UCX_TORCH_DIR}" STREQUAL "")
  set(_tbp_given "the environment variable TORCH_UCX_TORCH_DIR")
  set(_tbp_candidates "$ENV{TORCH_UCX_TORCH_DIR}")
else()
  if(NOT _torch_ucx_torch_site_dirs AND Python_EXECUTABLE)
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -B "${CMAKE_CURRENT_LIST_DIR}/package_dirs.py" torch
      OUTPUT_VARIABLE _torch_ucx_torch_site_dirs
      OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(REPLACE "\n" ";" _torch_ucx_torch_site_dirs "${_torch_ucx_torch_site_dirs}")
  endif()
  foreach(_tbp_dir IN LISTS _torch_ucx_torch_site_dirs)
    list(APPEND _tbp_candidates "${_tbp_dir}/torch")
  endforeach()
endif()

set(_tbp_dir "")
foreach(_tbp_candidate IN LISTS _tbp_candidates)
  if(NOT _tbp_dir)
    if(NOT EXISTS "${_tbp_candidate}/version.py")
      string(APPEND _tbp_report "  ${_tbp_candidate}: no torch here\n")
    elseif(NOT EXISTS "${_tbp_candidate}/lib/libtorch_cpu.so" OR NOT EXISTS "${_tbp_candidate}/lib/libc10.so")
      string(APPEND _tbp_report "  ${_tbp_candidate}: has no lib/libtorch_cpu.so and lib/libc10.so\n")
    elseif(NOT EXISTS "${_tbp_candidate}/include/torch/csrc/distributed/c10d/Backend.hpp")
      string(APPEND _tbp_report "  ${_tbp_candidate}: has no headers of torch.distributed (include/torch/csrc/distributed)\n")
    else()
      file(STRINGS "${_tbp_candidate}/version.py" _tbp_line REGEX "^__version__" LIMIT_COUNT 1)
      string(REGEX MATCH "['\"](([0-9]+\\.[0-9]+)[^'\"]*)['\"]" _tbp_unused "${_tbp_line}")
      set(_tbp_version "${CMAKE_MATCH_1}")
      set(_tbp_minor "${CMAKE_MATCH_2}")
      if(NOT _tbp_version)
        string(APPEND _tbp_report "  ${_tbp_candidate}: cannot read __version__ from version.py\n")
      elseif(_tbp_minor VERSION_LESS _tbp_minimum)
        string(APPEND _tbp_report "  ${_tbp_candidate}: torch ${_tbp_version} is older than ${_tbp_minimum}\n")
      else()
        set(_tbp_dir "${_tbp_candidate}")
      endif()
    endif()
  endif()
endforeach()

if(NOT _tbp_dir)
  if(_tbp_given)
    set(_tbp_how "The directory is given by ${_tbp_given}:\n")
  elseif(Python_EXECUTABLE)
    set(_tbp_how "Looked, for ${Python_EXECUTABLE}, at:\n")
  else()
    set(_tbp_how "No Python interpreter is known to look for it (-DPython_EXECUTABLE=...).\n")
  endif()
  message(
    FATAL_ERROR
      "torch_ucx is built against the PyTorch (${_tbp_minimum} or later) of the Python environment that it is installed into; "
      "no usable one was found. ${_tbp_how}${_tbp_report}"
      "Do one of these:\n"
      "  * install torch into that environment first: pip install torch\n"
      "  * name the directory of an installed one, by the environment variable TORCH_UCX_TORCH_DIR or "
      "-DTORCH_UCX_TORCH_DIR=<...>/site-packages/torch (also for front ends that build in a separate environment)\n"
      "torch is not in the build requirements on purpose: pip would then download the newest one, several GB, and the "
      "result would not fit the installed one.\n")
endif()

get_filename_component(_tbp_dir "${_tbp_dir}" ABSOLUTE)
set(_tbp_lib "${_tbp_dir}/lib")
set(TORCH_UCX_TORCH_VERSION "${_tbp_version}")
set(TORCH_UCX_TORCH_LIBRARY_DIR "${_tbp_lib}")

# The C++ ABI, from the mangled name of a function that takes a std::string: it is in libc10 of every version.
file(STRINGS "${_tbp_lib}/libc10.so" _tbp_symbol REGEX "^_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_string"
     LIMIT_COUNT 1)
if(_tbp_symbol)
  set(TORCH_UCX_TORCH_CXX11_ABI 1)
else()
  file(STRINGS "${_tbp_lib}/libc10.so" _tbp_symbol REGEX "^_ZN3c106detail14torchCheckFailEPKcS2_jRKSs" LIMIT_COUNT 1)
  if(_tbp_symbol)
    set(TORCH_UCX_TORCH_CXX11_ABI 0)
  else()
    message(WARNING "Cannot read the C++ ABI of ${_tbp_lib}/libc10.so; taking the C++11 one, as all of PyTorch since 2.7")
    set(TORCH_UCX_TORCH_CXX11_ABI 1)
  endif()
endif()

if(NOT TARGET TorchByPath::torch)
  add_library(TorchByPath::headers INTERFACE IMPORTED)
  set_target_properties(
    TorchByPath::headers
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_tbp_dir}/include;${_tbp_dir}/include/torch/csrc/api/include"
               INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=${TORCH_UCX_TORCH_CXX11_ABI}")

  foreach(_tbp_name c10 torch_cpu torch torch_python)
    if(EXISTS "${_tbp_lib}/lib${_tbp_name}.so")
      add_library(TorchByPath::lib${_tbp_name} SHARED IMPORTED)
      set_target_properties(TorchByPath::lib${_tbp_name} PROPERTIES IMPORTED_LOCATION "${_tbp_lib}/lib${_tbp_name}.so"
                                                                    IMPORTED_SONAME "lib${_tbp_name}.so")
    endif()
  endforeach()

  # --allow-shlib-undefined: a CUDA build's libtorch_cpu needs libcudart and others, which lie in other packages or not on
  # the building machine at all; they are the loader's affair, also for an executable.
  add_library(TorchByPath::torch INTERFACE IMPORTED)
  set_target_properties(
    TorchByPath::torch
    PROPERTIES INTERFACE_LINK_LIBRARIES "TorchByPath::headers;TorchByPath::libtorch;TorchByPath::libtorch_cpu;TorchByPath::libc10"
               INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined")

  if(TARGET TorchByPath::libtorch_python)
    add_library(TorchByPath::python INTERFACE IMPORTED)
    set_target_properties(TorchByPath::python PROPERTIES INTERFACE_LINK_LIBRARIES
                                                         "TorchByPath::torch;TorchByPath::libtorch_python")
    # Torch up to about 2.8 carries a pybind11 that shares types only among modules whose compiler says the same name and
    # ABI number. Take torch's own, from the key in its library, or c10d's classes would be unknown to our module.
    file(STRINGS "${_tbp_lib}/libtorch_python.so" _tbp_key REGEX "__pybind11_internals_v[0-9]+_.*_cxxabi[0-9]+"
         LIMIT_COUNT 1)
    if(_tbp_key MATCHES "__pybind11_internals_v[0-9]+(_[a-z]+)(_libstdcpp|_libcpp)(_cxxabi[0-9]+)")
      set_target_properties(
        TorchByPath::python
        PROPERTIES
          INTERFACE_COMPILE_DEFINITIONS
          "PYBIND11_COMPILER_TYPE=\"${CMAKE_MATCH_1}\";PYBIND11_STDLIB=\"${CMAKE_MATCH_2}\";PYBIND11_BUILD_ABI=\"${CMAKE_MATCH_3}\"")
    endif()
  endif()
endif()

message(STATUS "torch ${TORCH_UCX_TORCH_VERSION} (C++11 ABI ${TORCH_UCX_TORCH_CXX11_ABI}): ${_tbp_dir}")
