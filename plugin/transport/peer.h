// One remote engine: the endpoint to it, who it is, and whether it still lives. Shared by all
// groups of this engine. Guarded by the engine's lock; lives as long as the engine.
#pragma once

#include <string>

#include "plugin/transport/address_blob.h"
#include "plugin/transport/peer_watch.h"
#include "plugin/ucp/endpoint.h"

namespace torch_ucx::transport {

class Engine;

struct Peer {
  Engine* engine = nullptr;
  EngineId id{};
  HostIdentity host;
  ucp::LibraryVersion ucx;
  ucp::Endpoint endpoint;
  PeerWatch::Token watch;
  bool heard = false;  // it has sent something: the connection works
  bool failed = false;
  std::string failure;  // why, once failed
};

}  // namespace torch_ucx::transport
