// The Python module torch_ucx._C: the backend's classes, and the functions that the package calls.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plugin/c10d/work_ucx.h"
#include "plugin/python/host_hooks_python.h"
#include "torch_ucx/build_config.h"
#include "torch_ucx/c10d/process_group_ucx.h"
#include "torch_ucx/ucp/library.h"

namespace torch_ucx {

namespace {

using Options = ProcessGroupUCX::Options;

// Torch's convention, as for its own backends: the time-out given for the group wins over that in
// the options, which the caller may use for other groups and keeps unchanged.
c10::intrusive_ptr<ProcessGroupUCX> create_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                   int group_rank, int group_size,
                                                   std::chrono::milliseconds timeout,
                                                   const std::string& group_name,
                                                   std::vector<std::uint64_t> global_ranks,
                                                   const c10::intrusive_ptr<Options>& options) {
  auto own =
      options == nullptr ? c10::make_intrusive<Options>() : c10::make_intrusive<Options>(*options);
  own->timeout = timeout;
  return c10::make_intrusive<ProcessGroupUCX>(store, group_rank, group_size, own, group_name,
                                              std::move(global_ranks));
}

}  // namespace

}  // namespace torch_ucx

PYBIND11_MODULE(_C, module) {
  using torch_ucx::ProcessGroupUCX;
  using torch_ucx::WorkUCX;
  using ReleaseGil = py::call_guard<py::gil_scoped_release>;

  module.doc() = "Compiled part of torch_ucx.";
  torch_ucx::install_python_hooks();
  py::module_::import("torch._C._distributed_c10d");  // the base classes

  py::class_<ProcessGroupUCX, c10d::Backend, c10::intrusive_ptr<ProcessGroupUCX>> group(
      module, "ProcessGroupUCX", "A process group over UCX; made by torch.distributed.");

  py::class_<ProcessGroupUCX::Options, c10d::Backend::Options,
             c10::intrusive_ptr<ProcessGroupUCX::Options>>
      options(module, "Options",
              "Options of a process group over UCX, for pg_options of init_process_group and "
              "new_group.");
  options
      .def(py::init<std::chrono::milliseconds>(), py::kw_only(),
           py::arg("timeout") = std::chrono::milliseconds(kBackendDefaultTimeout))
      .def("__copy__",
           [](const ProcessGroupUCX::Options& self) {
             return c10::make_intrusive<ProcessGroupUCX::Options>(self);
           })
      .def(
          "__deepcopy__",
          [](const ProcessGroupUCX::Options& self, const py::dict& /*memo*/) {
            return c10::make_intrusive<ProcessGroupUCX::Options>(self);
          },
          py::arg("memo"));
  group.attr("Options") = options;

  py::class_<WorkUCX, c10d::Work, c10::intrusive_ptr<WorkUCX>>(
      module, "WorkUCX", "A pending or finished operation of a ProcessGroupUCX.");
  py::class_<torch_ucx::PointToPointWork, WorkUCX, c10::intrusive_ptr<torch_ucx::PointToPointWork>>(
      module, "PointToPointWork", "A send or a receive.")
      .def_property_readonly("tag", &torch_ucx::PointToPointWork::tag,
                             "Tag of the message; with ANY_TAG known once it has completed.");

  using Milliseconds = std::chrono::milliseconds;
  using Message = ProcessGroupUCX::Message;
  using WaitingMessage = ProcessGroupUCX::WaitingMessage;
  py::class_<WaitingMessage>(module, "WaitingMessage", "What a probe tells of a message.")
      .def_readonly("source", &WaitingMessage::source, "Group rank of the sender.")
      .def_readonly("tag", &WaitingMessage::tag)
      .def_readonly("dtype", &WaitingMessage::dtype, "dtype of the sender's tensor.")
      .def_readonly("bytes", &WaitingMessage::bytes, "Size in bytes.");
  py::class_<Message>(module, "TakenMessage", "A message taken out of matching.")
      .def_property_readonly("info", &Message::info, py::return_value_policy::copy);
  group.def("probe", &ProcessGroupUCX::probe, ReleaseGil(), py::arg("source"), py::arg("tag"))
      .def("wait_probe", &ProcessGroupUCX::waitProbe, ReleaseGil(), py::arg("source"),
           py::arg("tag"), py::arg("timeout") = Milliseconds(0))
      .def("take", &ProcessGroupUCX::take, ReleaseGil(), py::arg("source"), py::arg("tag"),
           py::arg("timeout").none(true) = py::none())
      .def(
          "recv_message",
          [](ProcessGroupUCX& self, const at::Tensor& tensor, const Message& message) {
            std::vector<at::Tensor> tensors{tensor};
            return self.recvMessage(tensors, message);
          },
          ReleaseGil(), py::arg("tensor"), py::arg("message"));
  using torch_ucx::PersistentOperation;
  // start and a wait that finds the operation done are shorter than letting go of the GIL; start
  // never blocks, and wait lets go where it has to wait.
  py::class_<PersistentOperation, PersistentOperation::Pointer>(
      module, "PersistentOperation",
      "A send or receive that is prepared once and started many times; made by send_init and "
      "recv_init.")
      .def("start", &PersistentOperation::start,
           "Post it. Raises DistBackendError while its last start is under way.")
      .def("test", &PersistentOperation::test, ReleaseGil(),
           "Whether it is done; raises what it failed for.")
      .def("wait", &PersistentOperation::wait, py::arg("timeout") = Milliseconds(0),
           "Wait until it is done, at most timeout (a timedelta; by default the group's time-out "
           "after start). Raises what it failed for; then it may be started again.")
      .def_property_readonly("tag", &PersistentOperation::tag, "Tag of the last message.")
      .def("group_source", &PersistentOperation::source, "Group rank of the last sender.");
  module.def("start_all", &PersistentOperation::startAll, py::arg("operations"));
  module.def("wait_all", &PersistentOperation::waitAll, py::arg("operations"),
             py::arg("timeout") = Milliseconds(0));
  group
      .def("send_init", &ProcessGroupUCX::sendInit, ReleaseGil(), py::arg("tensor"), py::arg("dst"),
           py::arg("tag"))
      .def("recv_init", &ProcessGroupUCX::recvInit, ReleaseGil(), py::arg("tensor"), py::arg("src"),
           py::arg("tag"));
  module.attr("ANY_TAG") = ProcessGroupUCX::kAnyTag;
  module.attr("ANY_SOURCE") = ProcessGroupUCX::kAnySource;
  py::class_<torch_ucx::BarrierWork, WorkUCX, c10::intrusive_ptr<torch_ucx::BarrierWork>>(
      module, "BarrierWork", "A barrier.");

  module.def("create_backend", &torch_ucx::create_backend, ReleaseGil(), py::arg("store"),
             py::arg("group_rank"), py::arg("group_size"), py::arg("timeout"),
             py::arg("group_name"), py::arg("global_ranks"),
             py::arg("options").none(true) = py::none());
  module.def("shutdown_all", &ProcessGroupUCX::shutdown_all, ReleaseGil(),
             "Ends all groups that are open; bounded in time.");
  module.def("ucx_version", [] {
    const auto version = torch_ucx::ucp::library_version();
    return std::make_tuple(version.major, version.minor, version.patch);
  });
  module.def("ucx_library_path", &torch_ucx::ucp::library_path);
  module.attr("built_torch_version") = TORCH_UCX_TORCH_VERSION;
}
