// The UCX version that ctest says a test runs with is the one that the loader bound. The other
// tests of the matrix rest on this.

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "torch_ucx/ucp/library.h"

namespace torch_ucx::ucp {
namespace {

TEST(UcxBound, IsTheVersionThatTheTestNames) {
  const char* expected = std::getenv("EXPECTED_UCX_VERSION");
  ASSERT_NE(expected, nullptr) << "run by ctest, which sets EXPECTED_UCX_VERSION";
  std::cout << "bound UCX " << library_version().to_string() << ": " << library_path() << "\n";
  EXPECT_EQ(library_version().to_string(), expected);
}

TEST(UcxBound, IsNotOlderThanSupported) { EXPECT_GE(library_version(), kOldestSupported); }

}  // namespace
}  // namespace torch_ucx::ucp
