# Shared by the scripts in ci/; sourced, not run. Defines paths, pinned versions and functions; changes nothing by itself.
#
# Everything that the scripts make lies in .venv/ (Python packages) and build/ (compiled); remove both to start from nothing.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"
# One build directory for the installed package and the tests: torch's headers make each file of c10d slow to compile.
BUILD="$ROOT/build/ci"
cd "$ROOT"

# Pinned, so that a run is the same everywhere and later. A bare "torch" would be the newest one, a download of several GB.
# May be several words: TORCH_UCX_TORCH_SPEC="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu".
TORCH_SPEC="${TORCH_UCX_TORCH_SPEC:-torch==2.13.0}"
PYTHON_PACKAGES=("scikit-build-core==1.1.2" "cmake>=3.24" "ninja" "pytest" "numpy" "expecttest")
LINT_PACKAGES=("clang-format==14.0.6" "ruff==0.17.6")
# For ci/bench-ladder only, which does without them where it must.
MPI_PACKAGES=("mpi4py==4.1.2" "mpich==5.0.2")
# The two UCX versions of the tests, where the system has none that is new enough to be the older one.
UCX_NEWER_SPEC="libucx-cu12==1.22.0"
UCX_OLDER_SPEC="libucx-cu12==1.15.0.post2"
UCX_MINIMUM="1.13"

# Variables TORCH_UCX_* that reach a process are options of the backend, and all others of that name go to UCX.
unset TORCH_UCX_TORCH_SPEC
TORCH_UCX_PYTHON_GIVEN="${TORCH_UCX_PYTHON:-}"
unset TORCH_UCX_PYTHON

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 DEBIAN_FRONTEND=noninteractive
JOBS="$(nproc)"
read -r -a CXX_COMMAND <<<"${CXX:-c++}"

say() { printf '\n== %s\n' "$*"; }
note() { printf '   %s\n' "$*"; }
die() {
  printf '\nERROR: %s\n' "$1" >&2
  shift
  local line
  for line in "$@"; do printf '       %s\n' "$line" >&2; done
  exit 1
}

# as_root COMMAND...: runs it as root, directly or through a sudo that asks nothing; can_be_root tells whether that works.
can_be_root() { [ "$(id -u)" -eq 0 ] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }; }
as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n --preserve-env=DEBIAN_FRONTEND "$@"; fi; }
has_apt() { command -v apt-get >/dev/null && can_be_root; }

# version_at_least HAVE WANTED
version_at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

# The UCX that a compiler finds without being told: its version ("1.13"), or nothing. The same places as cmake/FindUCX.cmake.
system_ucx_version() {
  local directory header
  for directory in "$(pkg-config --variable=includedir ucx 2>/dev/null || true)" /usr/include /usr/local/include; do
    header="$directory/ucp/api/ucp_version.h"
    if [ -n "$directory" ] && [ -f "$header" ]; then
      sed -n 's/^#define UCP_API_MAJOR[[:space:]]*\([0-9]*\).*/\1/p; s/^#define UCP_API_MINOR[[:space:]]*\([0-9]*\).*/\1/p' \
        "$header" | paste -sd .
      return
    fi
  done
}
usable_system_ucx() {
  local version
  version="$(system_ucx_version)"
  [ -n "$version" ] && version_at_least "$version" "$UCX_MINIMUM"
}

# Where the C++ compiler finds GoogleTest; succeeds if it does.
has_gtest() {
  [ -n "${GTest_ROOT:-}" ] || echo '#include <gtest/gtest.h>' | "${CXX_COMMAND[@]}" -E -x c++ - >/dev/null 2>&1
}

# Sets, once .venv is there: PYTHON, UCX_ROOT (exported, only where the system's UCX is not used) and ALT_UCX_LIBDIR (the
# directory of the newer libucp).
use_venv() {
  PYTHON="$VENV/bin/python"
  export VIRTUAL_ENV="$VENV" PATH="$VENV/bin:$PATH"
  ALT_UCX_LIBDIR="$("$PYTHON" -c 'import importlib.util as u; print(list(u.find_spec("libucx").submodule_search_locations)[0])')/lib"
  if [ -z "${UCX_ROOT:-}" ] && [ -d "$VENV/ucx-older/libucx" ]; then
    export UCX_ROOT="$VENV/ucx-older/libucx"
  fi
}
