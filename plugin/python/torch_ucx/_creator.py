"""Makes the backend object of a group: what torch calls for "ucx", once per group and process."""

import atexit
import logging
import os
import threading

from . import _loader

_logger = logging.getLogger("torch_ucx")
_lock = threading.Lock()
_shutdown_in = 0  # id of the process whose exit hook is registered; guarded by _lock


def create_process_group(dist_backend_opts, pg_options):
    """Make the ``ProcessGroupUCX`` of one group.

    ``dist_backend_opts`` is torch's ``_DistributedBackendOptions`` (store, group_rank,
    group_size, timeout, group_id, global_ranks_in_group); ``pg_options`` is what the user gave to
    ``init_process_group`` or ``new_group``: a ``torch_ucx.Options`` or None.

    Raises ``LoadError`` (an ``ImportError``) when UCX or the compiled module cannot be loaded,
    ``TypeError`` for other ``pg_options``, and what ``ProcessGroupUCX`` raises.
    """
    module = _loader.load().module
    options = _checked_options(module, pg_options)
    _shut_down_at_exit(module)
    size = dist_backend_opts.group_size
    # torch leaves the list empty for the default group, whose ranks are the global ranks.
    global_ranks = list(dist_backend_opts.global_ranks_in_group) or list(range(size))
    return module.create_backend(
        dist_backend_opts.store,
        dist_backend_opts.group_rank,
        size,
        dist_backend_opts.timeout,
        str(dist_backend_opts.group_id),
        global_ranks,
        options,
    )


def _checked_options(module, pg_options):
    if pg_options is None or isinstance(pg_options, module.Options):
        return pg_options
    given = f"{type(pg_options).__module__}.{type(pg_options).__qualname__}"
    if _is_options_of_another_backend(pg_options):
        # torch gives one pg_options to every backend of a group: in "cpu:ucx,cuda:nccl" they
        # are NCCL's, and refusing them would rule that group out.
        _logger.warning(
            "pg_options is a %s, which is for another backend: 'ucx' uses its defaults", given
        )
        return None
    raise TypeError(
        f"pg_options for the backend 'ucx' must be a torch_ucx.Options or None, not a {given}"
    )


def _is_options_of_another_backend(pg_options) -> bool:
    from torch._C._distributed_c10d import Backend

    base = getattr(Backend, "Options", None)
    return base is not None and isinstance(pg_options, base)


def _shut_down_at_exit(module) -> None:
    """Register, once per process, the hook that ends all groups before the interpreter goes.

    Progress and callback threads must be gone by then: a callback thread that wants the GIL of
    an interpreter that is being finalised would never return.
    """
    global _shutdown_in
    with _lock:
        if _shutdown_in == os.getpid():
            return
        _shutdown_in = os.getpid()
        atexit.register(_shut_down_all, module, _shutdown_in)


def _shut_down_all(module, process: int) -> None:
    # A forked child inherits the hook but none of the threads: there is nothing to end in it.
    if os.getpid() != process:
        return
    try:
        module.shutdown_all()
    except Exception as error:  # an exit must not turn into a traceback
        _logger.warning("the groups of 'ucx' did not end cleanly at exit: %s", error)
