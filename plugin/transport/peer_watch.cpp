#include "plugin/transport/peer_watch.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "torch_ucx/ucp/error.h"

namespace torch_ucx::transport {

PeerWatch::PeerWatch() : epoll_fd_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_fd_ < 0) throw Error("epoll_create1 failed: no descriptors left?");
}

PeerWatch::~PeerWatch() { ::close(epoll_fd_); }

PeerWatch::Token::Token(Token&& other) noexcept
    : epoll_fd_(other.epoll_fd_), fd_(std::exchange(other.fd_, -1)) {}

PeerWatch::Token& PeerWatch::Token::operator=(Token&& other) noexcept {
  std::swap(epoll_fd_, other.epoll_fd_);
  std::swap(fd_, other.fd_);
  return *this;
}

PeerWatch::Token::~Token() {
  if (fd_ < 0) return;
  // Closing alone does not end the watch while a forked child has the descriptor open too: the
  // death would be reported again and again.
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd_, nullptr);
  ::close(fd_);
}

PeerWatch::Start PeerWatch::start(const HostIdentity& self, const HostIdentity& host, void* cookie,
                                  Token& token) {
  if (!self.same_pid_space(host)) return Start::impossible;
  Token opened(epoll_fd_,
               static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(host.pid), 0)));
  // The start time is read after the pidfd is open: the descriptor then names the process that the
  // start time belongs to, even if pids are reused.
  if (start_time_of(host.pid) != host.start_time) return Start::dead;
  if (!opened) return Start::impossible;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = cookie;
  token = std::move(opened);
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, token.fd(), &event) != 0) {
    token = Token();
    return Start::impossible;
  }
  return Start::watching;
}

std::vector<void*> PeerWatch::dead() const {
  std::array<epoll_event, 64> events{};
  const int count = ::epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), 0);
  std::vector<void*> cookies;
  for (int i = 0; i < count; ++i) cookies.push_back(events[static_cast<std::size_t>(i)].data.ptr);
  return cookies;
}

}  // namespace torch_ucx::transport
