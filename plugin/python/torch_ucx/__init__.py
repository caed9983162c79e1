"""torch_ucx: the PyTorch distributed backend "ucx", over UCX.

PyTorch imports this module at the end of ``import torch`` (entry point ``torch.backends``; torch
2.14 also has ``torch.distributed.backends``), so that ``dist.init_process_group("ucx")`` works
without an import of its own. Importing it therefore does next to nothing: it registers a creator
by name, starts no thread, loads neither libucp nor the compiled module ``_C``, and never raises.
Both are loaded at first use: by the first group that is made, or by the functions below.

Where the autoload is switched off (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``), ``import torch_ucx``
registers the backend.

What groups of other backends see of us, and what could not be mended, is in ``_registration``.

Point-to-point beyond ``torch.distributed``: ``ANY_TAG``, and ``probe``, ``iprobe``, ``mprobe``,
``improbe`` (see ``_probe``), and operations that are prepared once and started many times:
``send_init``, ``recv_init``, ``start_all``, ``wait_all`` (see ``_persistent``).

Loaded at first use, as attributes of this module: ``Options`` (what ``pg_options`` takes),
``ProcessGroupUCX``, ``WorkUCX``, and ``LoadError`` (an ``ImportError``), which is raised when UCX
or the compiled module cannot be loaded.
"""

try:
    from ._build_info import VERSION as __version__
except ImportError:  # a source tree that was never built: importing it must not fail
    __version__ = "0+unbuilt"

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "__version__",
    "cmake_prefix_path",
    "improbe",
    "iprobe",
    "mprobe",
    "probe",
    "recv_init",
    "send_init",
    "start_all",
    "ucx_library_path",
    "ucx_version",
    "wait_all",
]

ANY_SOURCE = None
"""The ``src`` of a receive from any rank; ``torch.distributed`` spells it None, this names it."""

ANY_TAG = -(2**31)
"""The ``tag`` of a receive or probe that takes any tag; the Work's ``tag`` tells which came."""

cmake_prefix_path = __path__[0]
"""``CMAKE_PREFIX_PATH`` for C++ programs: ``find_package(torch_ucx)`` looks there."""

_FROM_C = ("Options", "PersistentOperation", "ProcessGroupUCX", "WorkUCX")
_FROM_PROBE = ("Message", "MessageInfo", "improbe", "iprobe", "mprobe", "probe")
_FROM_PERSISTENT = ("recv_init", "send_init", "start_all", "wait_all")


def _autoload() -> None:
    """Register the backend "ucx" with torch: the entry point, called while torch is imported.

    Does nothing when called again. Never raises: an exception here would break ``import torch``
    for people who do not even use us, so a failure is logged and "ucx" stays unknown to torch.
    """
    try:
        from . import _registration

        _registration.register()
    except Exception as error:
        import logging

        logging.getLogger(__name__).warning(
            "the backend 'ucx' could not be registered with torch: %s: %s",
            type(error).__name__,
            error,
        )


def ucx_version() -> tuple[int, int, int]:
    """Version of the libucp that this process uses: (major, minor, release).

    Loads it if nothing has done so yet. Raises ``LoadError`` (an ``ImportError``) that says what
    was looked for, what was found and what to do.
    """
    from . import _loader

    return _loader.load().version


def ucx_library_path() -> str:
    """Absolute path of the libucp file that this process uses, symbolic links resolved.

    Loads it if nothing has done so yet; raises like ``ucx_version``.
    """
    from . import _loader

    return _loader.load().path


def __getattr__(name: str):
    """Load what needs the compiled module when it is first asked for (PEP 562)."""
    if name in _FROM_C:
        from . import _loader

        return getattr(_loader.load().module, name)
    if name in _FROM_PROBE:
        from . import _probe

        return getattr(_probe, name)
    if name in _FROM_PERSISTENT:
        from . import _persistent

        return getattr(_persistent, name)
    if name == "LoadError":
        from ._loader import LoadError

        return LoadError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FROM_C, *_FROM_PROBE, *_FROM_PERSISTENT, "LoadError"})


def _import_torch() -> None:
    # With torch under way (autoload) this is a look into sys.modules. Without, torch's own
    # autoload finds this half-imported module, which is why _autoload is defined above.
    try:
        import torch  # noqa: F401
    except Exception:  # no torch, or a broken one: its own import says so better than we could
        return
    _autoload()


_import_torch()
