#include "plugin/python/host_hooks_python.h"

#include <pybind11/pybind11.h>
#include <unistd.h>

#include "plugin/transport/host_hooks.h"

namespace torch_ucx {

namespace {

namespace py = pybind11;

bool interpreter_lives() noexcept {
  if (Py_IsInitialized() == 0) return false;
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() == 0;
#else
  return _Py_IsFinalizing() == 0;
#endif
}

// Python runs signal handlers in its main thread only: others need not take the GIL for it.
bool in_main_thread() noexcept { return ::getpid() == ::gettid(); }

// Throws what the handler raised: KeyboardInterrupt, for Ctrl-C.
void check_interrupt() {
  if (!in_main_thread() || !interpreter_lives()) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

void* begin_blocking() {
  // A thread that gives the GIL away while the interpreter is being finalised never gets it back.
  if (!interpreter_lives() || PyGILState_Check() == 0) return nullptr;
  return PyEval_SaveThread();
}

void end_blocking(void* thread_state) {
  // To ask for the GIL now would end the thread by unwinding it, which C++ answers with an abort.
  while (!interpreter_lives()) ::pause();
  PyEval_RestoreThread(static_cast<PyThreadState*>(thread_state));
}

constexpr transport::HostHooks kHooks{&check_interrupt, &begin_blocking, &end_blocking};

}  // namespace

void install_python_hooks() noexcept { transport::install_host_hooks(&kHooks); }

}  // namespace torch_ucx
