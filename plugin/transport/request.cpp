#include "plugin/transport/request.h"

#include <cstdio>

#include <ucp/api/ucp.h>

#include "plugin/transport/group.h"

namespace torch_ucx::transport {

namespace {

std::string seconds(Clock::duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f s",
                std::chrono::duration_cast<std::chrono::duration<double>>(duration).count());
  return text;
}

std::string counted(std::uint64_t bytes) { return std::to_string(bytes) + " bytes"; }

}  // namespace

std::string Request::describe() const {
  const bool sends = kind_ == Kind::send;
  const std::string peer = "rank " + std::to_string(peer_);
  std::string text = std::string("ucx ") + (sends ? "send" : "recv") + " on rank " +
                     std::to_string(group_->rank()) + " of group \"" + group_->name() + "\" " +
                     (sends ? "to " : "from ") + peer + ", tag " + std::to_string(user_tag_) + ", " +
                     counted(bytes_) + ": ";
  const std::string reason = group_->peer_reason(peer_);
  const std::string because = reason.empty() ? "" : ": " + reason;
  switch (outcome_.failure) {
    case Failure::none: text += "completed"; break;
    case Failure::timed_out:
      text += "Timed out after " + seconds(done_at_ - posted_at_);
      if (!reason.empty()) text += "; " + peer + ": " + reason;
      break;
    case Failure::truncated:
      text += "the message has " + counted(outcome_.message_bytes) + ", the receive buffer has " +
              counted(bytes_) + ": the buffer is too small";
      break;
    case Failure::too_short:
      text += "the message has " + counted(outcome_.message_bytes) + ", the receive buffer has " +
              counted(bytes_) + ": the message is too short";
      break;
    case Failure::peer_failed:
      text += peer + " failed" + because;
      if (reason.empty() && outcome_.ucx_status != 0) {
        text += std::string(": ") + ucs_status_string(static_cast<ucs_status_t>(outcome_.ucx_status));
      }
      break;
    case Failure::peer_left:
      text += peer + (sends ? " did not take the message" : " sends nothing more") + because;
      break;
    case Failure::unreachable: text += "no contact with " + peer + because; break;
    case Failure::group_closed: text += "the group was closed on this rank"; break;
    case Failure::forked: text += "this process was forked"; break;
    case Failure::ucx:
      text += std::string("UCX: ") + ucs_status_string(static_cast<ucs_status_t>(outcome_.ucx_status));
      break;
  }
  if (outcome_.buffer_in_use) {
    text += sends ? "; UCX may still read the buffer, which is kept until it has finished"
                  : "; a message had already been matched: UCX may still write to the buffer, which is "
                    "kept until it has finished";
  }
  return text;
}

}  // namespace torch_ucx::transport
