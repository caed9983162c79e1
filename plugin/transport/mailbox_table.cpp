#include "plugin/transport/mailbox_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "torch_ucx/transport/tag.h"
#include "torch_ucx/ucp/error.h"

namespace torch_ucx::transport {

MailboxTable::MailboxTable() : entries_(kMaxMailbox + 1) {
  for (std::size_t number = 0; number <= kMaxMailbox; ++number) {
    free_.push_back(static_cast<std::uint16_t>(number));
  }
}

std::uint16_t MailboxTable::open(Group& group, std::uint64_t nonce) {
  if (free_.empty()) {
    throw Error(
        "no mailbox is free for another group: of " + std::to_string(entries_.size()) +
        " this process has " + std::to_string(live_) + " in live groups and " +
        std::to_string(closing_) +
        " in closed groups that other ranks have not closed yet; destroy groups that are no "
        "longer used, on all of their ranks");
  }
  const std::uint16_t number = free_.front();
  free_.pop_front();
  entries_[number] = Entry{Entry::State::live, nonce, &group, 0, {}};
  ++live_;
  return number;
}

void MailboxTable::begin_closing(std::uint16_t number, std::uint32_t own_rank,
                                 std::vector<Entry::Expected> expected) {
  Entry& entry = entries_[number];
  entry.state = Entry::State::closing;
  entry.group = nullptr;
  entry.own_rank = own_rank;
  entry.expected = std::move(expected);
  --live_;
  ++closing_;
}

std::optional<MailboxTable::Entry::Expected> MailboxTable::note_close(std::uint16_t number,
                                                                      std::uint32_t rank) {
  auto& expected = entries_[number].expected;
  const auto found = std::find_if(expected.begin(), expected.end(),
                                  [rank](const auto& entry) { return entry.rank == rank; });
  if (found == expected.end()) return std::nullopt;
  const Entry::Expected entry = *found;
  expected.erase(found);
  return entry;
}

void MailboxTable::note_failed(const Peer& peer) {
  for (Entry& entry : entries_) {
    if (entry.state != Entry::State::closing) continue;
    std::erase_if(entry.expected, [&](const auto& expected) { return expected.peer == &peer; });
  }
}

std::vector<std::uint16_t> MailboxTable::drained_candidates() const {
  std::vector<std::uint16_t> numbers;
  for (const std::uint16_t number : closing()) {
    if (entries_[number].expected.empty()) numbers.push_back(number);
  }
  return numbers;
}

std::vector<std::uint16_t> MailboxTable::closing() const {
  std::vector<std::uint16_t> numbers;
  if (closing_ == 0) return numbers;
  for (std::size_t number = 0; number < entries_.size(); ++number) {
    if (entries_[number].state == Entry::State::closing) {
      numbers.push_back(static_cast<std::uint16_t>(number));
    }
  }
  return numbers;
}

void MailboxTable::release(std::uint16_t number) {
  entries_[number] = Entry{};
  --closing_;
  free_.push_back(number);
}

const MailboxTable::Entry* MailboxTable::find(std::uint16_t number) const {
  return number < entries_.size() ? &entries_[number] : nullptr;
}

}  // namespace torch_ucx::transport
