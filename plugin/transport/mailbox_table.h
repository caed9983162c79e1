// The numbers by which messages find their group in this process.
//
//   free -> live (a group owns it) -> closing (the group is closed; peers that were attached may
//   still send) -> free, once every one of them has said close or is dead.
//
// Free numbers are handed out first in, first out, so that a number rests as long as possible.
// Guarded by the engine's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace torch_ucx::transport {

class Group;
struct Peer;

class MailboxTable {
 public:
  struct Entry {
    enum class State : std::uint8_t { free, live, closing };
    State state = State::free;
    std::uint64_t nonce = 0;
    Group* group = nullptr;  // live only
    // closing: the peers whose close is still to come, by rank in the closed group, with the
    // mailbox and nonce of their own membership (to acknowledge it).
    struct Expected {
      std::uint32_t rank;
      Peer* peer;
      std::uint16_t mailbox;
      std::uint64_t nonce;
    };
    std::uint32_t own_rank = 0;  // closing: this process's rank in the closed group
    std::vector<Expected> expected;
  };

  MailboxTable();

  // Number for a new group. Throws Error, with the counts, when all are live or closing.
  [[nodiscard]] std::uint16_t open(Group& group, std::uint64_t nonce);

  // The group is closed; expected: the attached peers that have not said close yet.
  void begin_closing(std::uint16_t number, std::uint32_t own_rank,
                     std::vector<Entry::Expected> expected);

  // A close came for a closing mailbox: what was expected of that rank, if anything still was.
  [[nodiscard]] std::optional<Entry::Expected> note_close(std::uint16_t number, std::uint32_t rank);

  // Nothing more comes from a failed peer.
  void note_failed(const Peer& peer);

  // Closing mailboxes of which nothing more can come: drain each, then release() it.
  [[nodiscard]] std::vector<std::uint16_t> drained_candidates() const;
  [[nodiscard]] std::vector<std::uint16_t> closing() const;
  void release(std::uint16_t number);

  // The entry, or null for a number that does not exist.
  [[nodiscard]] const Entry* find(std::uint16_t number) const;

  [[nodiscard]] std::size_t live_count() const { return live_; }
  [[nodiscard]] std::size_t closing_count() const { return closing_; }

 private:
  std::vector<Entry> entries_;
  std::deque<std::uint16_t> free_;
  std::size_t live_ = 0;
  std::size_t closing_ = 0;
};

}  // namespace torch_ucx::transport
