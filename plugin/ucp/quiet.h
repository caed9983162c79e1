// Keeps UCX's warnings back for a scope (errors still show): for the destruction of a worker that
// still has requests, which has been reported by name already.
#pragma once

#include <string>

namespace torch_ucx::ucp {

class QuietScope {
 public:
  // wanted: false makes the scope do nothing. A log level that the user chose is left alone.
  explicit QuietScope(bool wanted) noexcept;
  QuietScope(const QuietScope&) = delete;
  QuietScope& operator=(const QuietScope&) = delete;
  ~QuietScope();

 private:
  std::string before_;  // the level to restore, empty: nothing to do
};

}  // namespace torch_ucx::ucp
