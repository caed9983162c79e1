"""Persistent operations: prepared once, started many times; MPI's Send_init and Recv_init.

For halo exchanges and pipelines: a start costs no more than UCX's own call. They match ordinary
sends and receives. Ranks are global ranks, as in ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    # As torch.distributed does: complex numbers travel as their parts.
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def send_init(tensor: torch.Tensor, dst: int, tag: int = 0, group: dist.ProcessGroup | None = None):
    """Prepare a send of ``tensor`` to ``dst`` (global rank); returns a ``PersistentOperation``.

    Each ``start()`` sends what the tensor holds then; until it is done, leave the tensor alone.
    The tensor must not be resized. ``tag``: 0 to 2^31-1. Raises ``ValueError`` for an argument
    that is not allowed.
    """
    import torch.distributed as dist

    from ._backend import backend_of

    group, backend = backend_of(group, "persistent operations need")
    return backend.send_init(_plain(tensor), dist.get_group_rank(group, dst), tag)


def recv_init(
    tensor: torch.Tensor,
    src: int | None = None,
    tag: int = 0,
    group: dist.ProcessGroup | None = None,
):
    """Prepare a receive into ``tensor`` from ``src`` (global rank, None for any).

    ``tag``: 0 to 2^31-1, or ``ANY_TAG``. Else as ``send_init``.
    """
    import torch.distributed as dist

    from . import _loader
    from ._backend import backend_of

    group, backend = backend_of(group, "persistent operations need")
    any_source = _loader.load().module.ANY_SOURCE
    source = any_source if src is None else dist.get_group_rank(group, src)
    return backend.recv_init(_plain(tensor), source, tag)


def start_all(operations: Sequence) -> None:
    """Start all of them, in order, in one call. Nothing is started when one still is under way."""
    from . import _loader

    _loader.load().module.start_all(operations)


def wait_all(operations: Sequence, timeout: timedelta = timedelta(0)) -> None:
    """Wait until all are done, ``timeout`` (by default the group's) for them as a whole.

    Then raises the first failure, if there was one.
    """
    from . import _loader

    _loader.load().module.wait_all(operations, timeout)
