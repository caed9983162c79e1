// Keeps UCX's log lines back for a scope, where the project says by name what UCX would say in
// general: the destruction of a worker that still has requests, an address that cannot be reached.
#pragma once

#include <cstdint>
#include <string>

namespace torch_ucx::ucp {

class QuietScope {
 public:
  enum class Keep : std::uint8_t { errors, nothing };
  // A log level that the user chose is left alone.
  explicit QuietScope(Keep keep) noexcept;
  QuietScope(const QuietScope&) = delete;
  QuietScope& operator=(const QuietScope&) = delete;
  ~QuietScope();

 private:
  std::string before_;  // the level to restore, empty: nothing to do
};

}  // namespace torch_ucx::ucp
