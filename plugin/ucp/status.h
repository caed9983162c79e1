// ucs_status_t as exceptions (control path) and as the three outcomes of an nbx call (data path).
#pragma once

#include <ucp/api/ucp.h>

#include <string>

#include "torch_ucx/ucp/error.h"

namespace torch_ucx::ucp {

// Throws Error "<what>: <UCX's text>" unless status is UCS_OK.
void check(ucs_status_t status, const std::string& what);

// What an nbx call returned, taken apart: done (null), failed (error pointer) or in flight.
struct CallResult {
  void* request = nullptr;       // not null only while the operation is in flight
  ucs_status_t status = UCS_OK;  // UCS_OK, UCS_INPROGRESS or the error

  explicit CallResult(ucs_status_ptr_t pointer) {
    if (pointer == nullptr) return;
    if (UCS_PTR_IS_ERR(pointer)) {
      status = UCS_PTR_STATUS(pointer);
    } else {
      request = pointer;
      status = UCS_INPROGRESS;
    }
  }
  [[nodiscard]] bool in_flight() const { return request != nullptr; }
};

}  // namespace torch_ucx::ucp
