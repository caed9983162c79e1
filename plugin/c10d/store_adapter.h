// torch's stores as the KeyValueStore that the rendezvous uses.
//
// Prefix stores are taken apart into the base store and one prefix, so that all groups of a process
// share one connection to a TCP store: its own, because a client of torch's TCPStore serialises on
// one mutex, which the user's store may hold for minutes in a wait(). Other stores are used as they
// are: they block nobody, and a second FileStore object would upset the count by which they delete
// the file.
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "torch_ucx/rendezvous/key_value_store.h"

namespace torch_ucx {

struct AdaptedStore {
  std::shared_ptr<rendezvous::KeyValueStore> store;  // of the base store
  std::string prefix;                                // of all keys of the store given
};

// Throws StoreError when the store cannot be reached.
[[nodiscard]] AdaptedStore adapt_store(const c10::intrusive_ptr<c10d::Store>& store);

}  // namespace torch_ucx
