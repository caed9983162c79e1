"""Print the site-packages directories that may hold an installed package, most specific first.

Run by CMake (TorchByPath.cmake, FindUCX.cmake). It imports only the standard library: under pip's
build isolation `import torch` fails, while sysconfig and site still point at the environment that
pip installs into. One directory a line. With a package name as argument, the directory that holds
the importable package of that name comes first.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig


def candidates(package: str | None) -> list[str]:
    dirs: list[str] = []
    if package:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            spec = None
        if spec is not None and spec.origin and os.path.basename(spec.origin) == "__init__.py":
            dirs.append(os.path.dirname(os.path.dirname(spec.origin)))
    dirs += [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    # Also those of a virtual environment's base where it was made with --system-site-packages, and
    # Debian's dist-packages.
    dirs += site.getsitepackages()
    # A front end that builds in an environment of its own (python -m build, uv) runs inside the
    # user's.
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = os.environ.get(variable)
        if prefix:
            dirs.append(os.path.join(prefix, "lib", version, "site-packages"))
    if sys.prefix == sys.base_prefix:
        dirs.append(site.getusersitepackages())
    return list(dict.fromkeys(os.path.abspath(d) for d in dirs if d))


if __name__ == "__main__":
    print("\n".join(candidates(sys.argv[1] if len(sys.argv) > 1 else None)))
