// How an operation ended. Plain data: the text of an error is built only when somebody asks.
#pragma once

#include <cstdint>

#include "torch_ucx/transport/tag.h"

namespace torch_ucx::transport {

enum class Failure : std::uint8_t {
  none,
  interrupted,   // a receive that was waited for when the wait was interrupted (Ctrl-C)
  timed_out,     // deadline reached
  truncated,     // the message is longer than the receive buffer
  too_short,     // the message is shorter than the receive buffer
  wrong_class,   // only a message of another class came, which the receive does not take
  peer_failed,   // the peer's process died or its connection broke
  peer_left,     // the peer closed its side of the group in order
  unreachable,   // the peer could not be found, or contact was refused; the reason is kept
  group_closed,  // this side closed the group
  forked,        // the engine belongs to the parent of this forked process
  ucx,           // anything else that UCX reported: ucx_status
};

struct Outcome {
  Failure failure = Failure::none;
  // UCX had not let go of the buffer when the operation failed: it may still be read (send) or
  // written (receive). The operation keeps the buffer alive until UCX does.
  bool buffer_in_use = false;
  bool converted = false;           // the message was of another class: its values were converted
  std::int8_t ucx_status = 0;       // ucs_status_t behind the failure, 0 where there is none
  MessageClass message_class = 0;   // receives: class of the message that came
  std::uint32_t user_tag = 0;       // receives: tag of the message that came
  std::int32_t source_rank = -1;    // receives: group rank of the sender, -1 while unknown
  std::uint64_t message_bytes = 0;  // receives: the sender's size; sends: the bytes sent

  [[nodiscard]] bool ok() const { return failure == Failure::none; }
};

}  // namespace torch_ucx::transport
