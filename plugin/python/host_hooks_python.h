// What a waiting thread of the transport does for Python: lets Ctrl-C through, gives the GIL away.
#pragma once

namespace torch_ucx {

void install_python_hooks() noexcept;

}  // namespace torch_ucx
