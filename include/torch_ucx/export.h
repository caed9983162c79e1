// TORCH_UCX_API marks what libtorch_ucx exports; everything else in it is hidden.
#pragma once

#if defined(__GNUC__)
#define TORCH_UCX_API __attribute__((visibility("default")))
#else
#define TORCH_UCX_API
#endif
