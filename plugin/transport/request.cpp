#include "plugin/transport/request.h"

#include <ucp/api/ucp.h>

#include <cstdio>

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

void Request::dispose() noexcept { group_->dispose(*this); }

std::string Request::describe() const {
  const bool sends = kind_ == Kind::send;
  const bool from_any = peer_ == kAnySource && outcome_.source_rank < 0;
  const int rank = peer_ == kAnySource ? outcome_.source_rank : peer_;
  const std::string peer = from_any ? "any rank" : "rank " + std::to_string(rank);
  const std::string tag = any_tag_ && outcome_.source_rank < 0
                              ? "any tag"
                              : "tag " + std::to_string(any_tag_ ? outcome_.user_tag : user_tag_);
  std::string text = std::string("ucx ") + (sends ? "send" : "recv") + " on rank " +
                     std::to_string(group_->rank()) + " of group \"" + group_->name() + "\" " +
                     (sends ? "to " : "from ") + peer + ", " + tag + ", " + counted(bytes_) + ": ";
  const std::string reason = from_any ? "" : group_->peer_reason(rank);
  const std::string because = reason.empty() ? "" : ": " + reason;
  switch (outcome_.failure) {
    case Failure::none:
      text += "completed";
      break;
    case Failure::interrupted:
      text += "withdrawn, because the wait for it was interrupted";
      break;
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
    case Failure::wrong_class:
      text += "the message is " + class_name(outcome_.message_class) + " of " +
              counted(outcome_.message_bytes) + ", the receive buffer is " + class_name(class_) +
              " of " + counted(bytes_) + ": neither sizes nor element counts agree";
      break;
    case Failure::peer_failed:
      if (from_any) {
        text += "all other ranks have failed";
        break;
      }
      text += peer + " failed" + because;
      if (reason.empty() && outcome_.ucx_status != 0) {
        text +=
            std::string(": ") + ucs_status_string(static_cast<ucs_status_t>(outcome_.ucx_status));
      }
      break;
    case Failure::peer_left:
      if (from_any) {
        text += "all other ranks have closed their side of the group, or have failed";
        break;
      }
      text += peer + (sends ? " did not take the message" : " sends nothing more") + because;
      break;
    case Failure::unreachable:
      text += "no contact with " + peer + because;
      break;
    case Failure::group_closed:
      text += "the group was closed on this rank";
      break;
    case Failure::forked:
      text += "this process was forked";
      break;
    case Failure::ucx:
      text +=
          std::string("UCX: ") + ucs_status_string(static_cast<ucs_status_t>(outcome_.ucx_status));
      break;
  }
  if (outcome_.buffer_in_use) {
    text +=
        sends ? "; UCX may still read the buffer, which is kept until it has finished"
              : "; a message had already been matched: UCX may still write to the buffer, which is "
                "kept until it has finished";
  }
  return text;
}

}  // namespace torch_ucx::transport
