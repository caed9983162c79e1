"""Loads UCX and the compiled module, once, at first use, and says precisely why if it cannot.

In this order: (1) the running torch must be the minor version that ``_C`` was built against,
because the classes that ``_C`` derives from change their layout between minors; (2) libucp is
chosen and loaded by path; (3) ``_C`` is imported. ``_C`` needs "libucp.so.0" by SONAME, which the
dynamic linker satisfies with the one that is already in the process: (2) decides what it gets.

Where libucp is taken from, in order:

1. the file that ``TORCH_UCX_LIBUCP`` names: that one, or an error;
2. the libucp that the process has loaded already (MPI, ucxx, ...): there can be only one;
3. ``$UCX_ROOT/lib`` (or ``lib64``);
4. the system's library path: before the wheel, because the system's UCX knows the system's
   InfiniBand and the wheel's does not;
5. the directory of the libucp that was used to build;
6. the PyPI package ``libucx`` (libucx-cu12 and its like).

A libucp older than 1.13 is passed over for a later one in the list. It is looked at in a process
of its own (some 20 ms) where there is a choice, because UCX cannot be unloaded again: libucs
stays behind and breaks the loading of any other UCX.

This file imports only the standard library and can be run by itself, which is what that separate
process does: ``python _loader.py NAME`` prints the version and the path of that libucp.
"""

import ctypes
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

SONAME = "libucp.so.0"
MINIMUM_UCX = (1, 13)
"""Oldest UCX (major, minor) with the calls that the plugin makes."""

_PROBE_TIMEOUT_S = 30
"""Bounds a look at one libucp in another process; when it passes, that libucp is passed over."""

_HOW_TO_GET_UCX = """\
To get UCX, do one of:
  - apt install libucx0          (Debian, Ubuntu; on others the package is called ucx)
  - pip install libucx-cu12      (no root needed; without InfiniBand)
  - set UCX_ROOT to the prefix of a UCX of your own, or TORCH_UCX_LIBUCP to its libucp.so.0"""

_REBUILD = "pip install --force-reinstall --no-deps --no-build-isolation <torch_ucx's source>"

_logger = logging.getLogger("torch_ucx")
_lock = threading.Lock()
_loaded = None  # a Loaded once load() has succeeded; guarded by _lock when written


class LoadError(ImportError):
    """UCX or torch_ucx's compiled module cannot be loaded; the text says why and what to do."""


class Candidate(NamedTuple):
    """A libucp that may be there: where the name comes from, and what to give to dlopen."""

    source: str
    name: str


class Library(NamedTuple):
    """A libucp: its version, and the path of its file with symbolic links resolved."""

    version: tuple[int, int, int]
    path: str


class Loaded(NamedTuple):
    """What ``load`` returns: the libucp in use and the module ``torch_ucx._C``."""

    version: tuple[int, int, int]
    path: str
    module: object


def load() -> Loaded:
    """Load UCX and ``_C`` unless that is done; thread-safe. Raises ``LoadError``.

    A failure is not remembered, so that a program can mend its environment and try again.
    """
    global _loaded
    if _loaded is not None:
        return _loaded
    with _lock:
        if _loaded is None:
            _follow_log_level()
            build = _build_info()
            _check_torch(build)
            library, source = bind_libucp(getattr(build, "UCX_LIBRARY_HINT", ""))
            module = _import_module(build, library)
            _logger.info(
                "torch_ucx %s uses UCX %s at %s (%s); built against UCX %s and torch %s",
                build.VERSION,
                _dotted(library.version),
                library.path,
                source,
                build.UCX_VERSION,
                build.TORCH_VERSION,
            )
            _warn_of_several_libucp()
            _loaded = Loaded(library.version, library.path, module)
        return _loaded


def bind_libucp(hint: str = "") -> tuple[Library, str]:
    """Load a libucp and return it, with the name of the source it came from.

    ``hint`` is a directory to look in after the system's ("" for none). Raises ``LoadError``.
    """
    present = _open(SONAME, os.RTLD_NOLOAD)
    explicit = os.environ.get("TORCH_UCX_LIBUCP", "")
    if explicit:
        candidate = Candidate("TORCH_UCX_LIBUCP", os.path.abspath(explicit))
        if not os.path.isfile(candidate.name):
            raise LoadError(
                f"TORCH_UCX_LIBUCP is {explicit!r}, which is not a file.\n"
                "Set it to the file libucp.so.0 of the UCX to use, or unset it to search for one."
            )
        if isinstance(present, ctypes.CDLL):
            _check_is_the_one_present(candidate.name, _describe(present).path)
        return _bind(candidate), candidate.source

    if isinstance(present, ctypes.CDLL):
        return _checked(_describe(present), "loaded before"), "loaded before by this process"

    tried = []
    remaining = list(candidates(hint))
    while remaining:
        candidate = remaining.pop(0)
        if remaining:  # there is a choice: do not load what turns out to be of no use
            found = probe(candidate.name)
            if isinstance(found, str):
                tried.append(f"{candidate.source}: {candidate.name}: {found}")
                continue
            if found is not None and found.version[:2] < MINIMUM_UCX:
                text = f"UCX {_dotted(found.version)} at {found.path} is too old"
                _logger.warning("%s (%s): looking further", text, candidate.source)
                tried.append(f"{candidate.source}: {text}")
                continue
        try:
            return _bind(candidate), candidate.source
        except OSError as error:
            tried.append(f"{candidate.source}: {candidate.name}: {error}")
    looked_at = "\n".join(f"  - {line}" for line in tried)
    raise LoadError(
        f"UCX was not found: the backend 'ucx' needs {SONAME} of UCX "
        f"{_dotted(MINIMUM_UCX)} or newer. Looked at:\n"
        f"{looked_at}\n{_missing_sources(hint)}{_HOW_TO_GET_UCX}"
    )


def candidates(hint: str) -> Iterator[Candidate]:
    """The places that may have a libucp, in the order in which they are preferred.

    Of the system's library path nobody knows without trying; the others are given only if the
    file is there.
    """
    root = os.environ.get("UCX_ROOT", "")
    if root:
        for directory in ("lib", "lib64"):
            yield from _if_file("UCX_ROOT", os.path.join(os.path.abspath(root), directory))
    yield Candidate("the system's library path", SONAME)
    if hint:
        yield from _if_file("the UCX used to build", hint)
    for package in _package_directories("libucx"):
        yield from _if_file("the Python package libucx", os.path.join(package, "lib"))


def probe(name: str) -> Library | str | None:
    """Look at a libucp in a process of its own, so that this one stays free to take another.

    Returns the library; or, as a string, why it cannot be loaded; or None when no such process
    could be run (an embedded interpreter), so that nothing is known.
    """
    if not sys.executable or not os.path.isfile(__file__):
        return None
    command = [sys.executable, "-I", "-S", __file__, name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"loading it took more than {_PROBE_TIMEOUT_S} s"
    except OSError:
        return None
    # "torch_ucx" marks our line: a library may print, and an embedding program is no Python.
    line = re.search(r"^torch_ucx (\d+) (\d+) (\d+) (.+)$", done.stdout, re.MULTILINE)
    if line:
        return Library((int(line[1]), int(line[2]), int(line[3])), line[4])
    error = re.search(r"^torch_ucx error (.+)$", done.stdout, re.MULTILINE)
    if error:
        return error[1]
    return f"loading it crashed ({done.returncode})" if done.returncode < 0 else None


def mapped_libucp() -> list[str]:
    """Paths of all libucp files in this process, those with a wheel's mangled name included."""
    pattern = re.compile(r"libucp(-[0-9a-f]+)?\.so(\.|$)")
    paths = {path for _, _, path in _mappings() if pattern.match(os.path.basename(path))}
    return sorted(paths)


def _build_info():
    try:
        from torch_ucx import _build_info
    except ImportError as error:
        raise LoadError(
            f"torch_ucx in {os.path.dirname(os.path.abspath(__file__))} was not built: it has no "
            "_build_info. If that is the source tree, install it (pip install "
            "--no-build-isolation .) and start from another directory."
        ) from error
    return _build_info


def _check_torch(build) -> None:
    """Raise unless the running torch has the minor version and the C++ ABI of the build."""
    import torch

    built, running = str(build.TORCH_VERSION), str(torch.__version__)
    if _minor(built) != _minor(running):
        raise LoadError(
            f"torch_ucx {build.VERSION} was built for torch {built}, but this is torch {running} "
            f"(in {os.path.dirname(torch.__file__)}).\n"
            "PyTorch's C++ classes change between minor versions, so torch_ucx must be built for "
            "the one that it runs with. Rebuild it in this environment:\n"
            f"  {_REBUILD}"
        )
    built_abi = str(getattr(build, "CXX11_ABI", "")).lower()
    running_abi = getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", None)
    if not built_abi or running_abi is None:
        return
    if (built_abi in ("1", "true", "on", "yes")) != bool(running_abi):
        raise LoadError(
            f"torch_ucx {build.VERSION} was built with _GLIBCXX_USE_CXX11_ABI={built_abi}, but "
            f"this torch {running} with {int(running_abi)}. Rebuild it in this environment:\n"
            f"  {_REBUILD}"
        )


def _import_module(build, library: Library):
    try:
        from torch_ucx import _C
    except ImportError as error:
        raise LoadError(
            f"torch_ucx's compiled module cannot be loaded: {error}\n"
            f"torch_ucx {build.VERSION} was built for torch {build.TORCH_VERSION} against UCX "
            f"{build.UCX_VERSION}; it was given UCX {_dotted(library.version)} at {library.path}."
            f"\nIf a symbol of UCX is missing, set TORCH_UCX_LIBUCP to the libucp.so.0 of UCX "
            f"{build.UCX_VERSION} or newer; otherwise rebuild it in this environment:\n"
            f"  {_REBUILD}"
        ) from error
    return _C


def _bind(candidate: Candidate) -> Library:
    """Load a candidate and make sure that ``_C`` will get just this one.

    RTLD_LOCAL suffices: the linker matches ``_C``'s needs with loaded libraries by SONAME,
    whatever their scope. Raises ``OSError`` (of dlopen) when it cannot be loaded and was not
    asked for by name, else ``LoadError``.
    """
    opened = _open(candidate.name)
    if isinstance(opened, OSError):
        if candidate.source != "TORCH_UCX_LIBUCP":
            raise opened
        raise LoadError(
            f"TORCH_UCX_LIBUCP is {candidate.name!r}, which cannot be loaded: {opened}\n"
            "Set it to the file libucp.so.0 of the UCX to use, or unset it to search for one."
        ) from opened
    library = _checked(_describe(opened), candidate.source)
    present = _open(SONAME, os.RTLD_NOLOAD)
    if isinstance(present, OSError) or _describe(present).path != library.path:
        raise LoadError(
            f"{library.path} ({candidate.source}) is a libucp, but not under the name {SONAME} "
            "(its SONAME): a renamed copy from another Python package cannot be used."
        )
    return library


def _check_is_the_one_present(wanted: str, present: str) -> None:
    if not os.path.exists(present) or not os.path.samefile(wanted, present):
        raise LoadError(
            f"TORCH_UCX_LIBUCP is {wanted!r}, but this process has already loaded {present} "
            "(with MPI or another package), and it can use only one.\n"
            "Use torch_ucx before whatever loads the other one, give both the same UCX, or unset "
            "TORCH_UCX_LIBUCP."
        )


def _checked(library: Library, source: str) -> Library:
    if library.version[:2] < MINIMUM_UCX:
        raise LoadError(
            f"the backend 'ucx' needs UCX {_dotted(MINIMUM_UCX)} or newer, but found UCX "
            f"{_dotted(library.version)} at {library.path} ({source}).\n{_HOW_TO_GET_UCX}"
        )
    return library


def _missing_sources(hint: str) -> str:
    """The lines of an error text for the places that had nothing to look at."""
    lines = []
    root = os.environ.get("UCX_ROOT", "")
    if not root:
        lines.append("UCX_ROOT: not set")
    elif not any(c.source == "UCX_ROOT" for c in candidates("")):
        lines.append(f"UCX_ROOT: no {SONAME} in {root}/lib or {root}/lib64")
    if hint and not os.path.isfile(os.path.join(hint, SONAME)):
        lines.append(f"the UCX used to build: no {SONAME} in {hint}")
    if not _package_directories("libucx"):
        lines.append("the Python package libucx: not installed")
    lines.append("TORCH_UCX_LIBUCP: not set")
    return "".join(f"  - {line}\n" for line in lines)


def _if_file(source: str, directory: str) -> Iterator[Candidate]:
    path = os.path.join(directory, SONAME)
    if os.path.isfile(path):
        yield Candidate(source, path)


def _package_directories(package: str) -> list[str]:
    """Directories of a Python package, found without importing (and thus running) it."""
    import importlib.util

    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return list(spec.submodule_search_locations or []) if spec else []


def _open(name: str, flags: int = 0) -> ctypes.CDLL | OSError:
    try:
        return ctypes.CDLL(name, mode=os.RTLD_LOCAL | os.RTLD_NOW | flags)
    except OSError as error:
        return error


def _describe(library: ctypes.CDLL) -> Library:
    """Version and path of a loaded libucp. Raises ``LoadError`` if it is no libucp."""
    try:
        get_version = library.ucp_get_version
    except AttributeError:
        raise LoadError(f"{library._name} has no ucp_get_version: it is not UCX's libucp") from None
    numbers = [ctypes.c_uint() for _ in range(3)]
    get_version.restype = None
    get_version(*(ctypes.byref(number) for number in numbers))
    major, minor, release = (number.value for number in numbers)
    return Library((major, minor, release), _file_of(get_version) or library._name)


def _file_of(function) -> str:
    """Path of the file that a loaded C function comes from, or "" if it cannot be told."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    for begin, end, path in _mappings():
        if begin <= address < end:
            return path
    return ""


def _mappings() -> Iterator[tuple[int, int, str]]:
    """The mapped files of this process: first address, address after the last, path."""
    try:
        with open("/proc/self/maps") as maps:
            lines = maps.read().splitlines()
    except OSError:  # no /proc: paths are then those that dlopen was given
        return
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/"):
            begin, _, end = fields[0].partition("-")
            yield int(begin, 16), int(end, 16), fields[5]


def _warn_of_several_libucp() -> None:
    paths = mapped_libucp()
    if len(paths) > 1:
        _logger.warning(
            "this process has %d copies of libucp, which may disturb each other (memory hooks, "
            "signal handlers, settings): %s",
            len(paths),
            ", ".join(paths),
        )


def _follow_log_level() -> None:
    """With TORCH_UCX_LOG_LEVEL at info or below, let Python's messages reach stderr as well."""
    level = os.environ.get("TORCH_UCX_LOG_LEVEL", "").strip().lower()
    if level not in ("info", "debug"):
        return
    _logger.setLevel(logging.INFO if level == "info" else logging.DEBUG)
    if not _logger.hasHandlers():  # a program that has set up logging gets them its own way
        handler = logging.StreamHandler(sys.stderr)
        # The form of the C++ layers' lines.
        handler.setFormatter(logging.Formatter("[torch_ucx] %(levelname)s: %(message)s"))
        _logger.addHandler(handler)


def _minor(version: str) -> tuple[int, int] | str:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else version


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in version)


def _main(name: str) -> None:
    opened = _open(name)
    try:
        library = None if isinstance(opened, OSError) else _describe(opened)
    except LoadError as error:
        opened = error
        library = None
    if library is None:
        print("torch_ucx error", " ".join(str(opened).split()))
    else:
        print("torch_ucx", *library.version, library.path)


if __name__ == "__main__":
    _main(sys.argv[1])
