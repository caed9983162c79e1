// Prints the version of the libucp whose path is given, as the library itself says it. Run at
// configure time.

#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  using GetVersion = void (*)(unsigned*, unsigned*, unsigned*);
  auto get_version = reinterpret_cast<GetVersion>(dlsym(library, "ucp_get_version"));
  if (get_version == nullptr) {
    std::fprintf(stderr, "%s: no ucp_get_version\n", argv[1]);
    return 1;
  }
  unsigned major = 0, minor = 0, release = 0;
  get_version(&major, &minor, &release);
  std::printf("%u.%u.%u\n", major, minor, release);
  return 0;
}
