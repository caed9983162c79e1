// Notices the death of processes on this host: one pidfd for each, all in one epoll descriptor that
// the helper thread polls. A pidfd speaks within milliseconds, also for zombies, and without any
// message from or to the peer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/transport/host_identity.h"

namespace torch_ucx::transport {

class PeerWatch {
 public:
  PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;
  ~PeerWatch();

  // Readable when a watched process has died.
  [[nodiscard]] int fd() const noexcept { return epoll_fd_; }

  // One watched process; closing it (destruction) ends the watch.
  class Token {
   public:
    Token() = default;
    Token(int epoll_fd, int fd) : epoll_fd_(epoll_fd), fd_(fd) {}
    Token(const Token&) = delete;
    Token& operator=(const Token&) = delete;
    Token(Token&& other) noexcept;
    Token& operator=(Token&& other) noexcept;
    ~Token();
    explicit operator bool() const noexcept { return fd_ >= 0; }
    [[nodiscard]] int fd() const noexcept { return fd_; }

   private:
    int epoll_fd_ = -1;
    int fd_ = -1;
  };

  enum class Start : std::uint8_t { watching, dead, impossible };

  // Watches the process that `host` names, if its pid means the same process here. cookie comes
  // back from dead(). dead: it does not exist any more. impossible: other host or pid namespace, or
  // a kernel without pidfd (before 5.3); others must notice then.
  [[nodiscard]] Start start(const HostIdentity& self, const HostIdentity& host, void* cookie,
                            Token& token);

  // Cookies of the processes that have died since (level-triggered: until their token is closed).
  [[nodiscard]] std::vector<void*> dead() const;

 private:
  int epoll_fd_;
};

}  // namespace torch_ucx::transport
