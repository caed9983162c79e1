"""Probes: what message waits, before a receive is posted; MPI's Probe and Mprobe.

Ranks are global ranks, as in ``torch.distributed``; a group of another backend, or a mixed group
whose CPU backend is not "ucx", is refused with a ``ValueError``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


@dataclass(frozen=True)
class MessageInfo:
    """A message that waits to be received."""

    source: int
    """Global rank of the sender."""
    tag: int
    dtype: torch.dtype
    """dtype of the sender's tensor (complex tensors travel as their real and imaginary parts)."""
    bytes: int
    """Size in bytes."""

    @property
    def numel(self) -> int:
        """Number of elements of the sender's dtype."""
        return self.bytes // self.dtype.itemsize


class Message:
    """A message that ``mprobe`` took out of matching: only its own ``recv`` gets it now.

    One that is dropped without being received is discarded; its sender completes.
    """

    def __init__(self, backend, taken, info: MessageInfo):
        self._backend = backend
        self._taken = taken
        self.info = info

    def __repr__(self) -> str:
        return f"Message({self.info})"

    def irecv(self, tensor: torch.Tensor):
        """Receive it into ``tensor``, without waiting; returns the Work. Only once."""
        if tensor.is_complex():
            import torch

            tensor = torch.view_as_real(tensor)
        return self._backend.recv_message(tensor, self._taken)

    def recv(self, tensor: torch.Tensor) -> int:
        """Receive it into ``tensor``; returns the global rank of the sender. Only once."""
        self.irecv(tensor).wait()
        return self.info.source


def _arguments(src: int | None, tag: int, group):
    import torch.distributed as dist

    from . import _loader
    from ._backend import backend_of

    group, backend = backend_of(group, "probes need")
    module = _loader.load().module
    source = module.ANY_SOURCE if src is None else dist.get_group_rank(group, src)
    return group, backend, source, tag


def _info(group, waiting) -> MessageInfo:
    import torch.distributed as dist

    return MessageInfo(
        source=dist.get_global_rank(group, waiting.source),
        tag=waiting.tag,
        dtype=waiting.dtype,
        bytes=waiting.bytes,
    )


def _timeout(timeout: timedelta | None) -> timedelta:
    if timeout is None:
        return timedelta(0)  # the group's
    if timeout <= timedelta(0):
        raise ValueError(f"timeout is {timeout}: it must be positive, or None for the group's")
    return timeout


def _timed_out(src: int | None, tag: int):
    import torch.distributed as dist

    source = "any rank" if src is None else f"rank {src}"
    raise dist.DistNetworkError(f"ucx probe from {source}, tag {tag}: Timed out ")


def probe(
    src: int | None = None,
    tag: int = 0,
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
) -> MessageInfo:
    """Wait until a message comes that a receive with this source and tag would get; tell of it.

    The message stays where it is. ``src``: global rank, None for any; ``tag``: 0 to 2^31-1 or
    ``ANY_TAG``; ``timeout``: None for the group's. Raises ``DistNetworkError`` at the time-out,
    ``ValueError`` for a bad argument.
    """
    group, backend, source, tag = _arguments(src, tag, group)
    found = backend.wait_probe(source, tag, _timeout(timeout))
    return _info(group, found) if found is not None else _timed_out(src, tag)


def iprobe(
    src: int | None = None, tag: int = 0, group: dist.ProcessGroup | None = None
) -> MessageInfo | None:
    """Like ``probe`` without waiting: None when no such message waits."""
    group, backend, source, tag = _arguments(src, tag, group)
    found = backend.probe(source, tag)
    return None if found is None else _info(group, found)


def mprobe(
    src: int | None = None,
    tag: int = 0,
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
) -> Message:
    """Wait for a message and take it out of matching, for threads that share a source and tag.

    Arguments and errors as for ``probe``. The message's ``info`` tells its size, its ``recv`` or
    ``irecv`` receives it.
    """
    group, backend, source, tag = _arguments(src, tag, group)
    taken = backend.take(source, tag, _timeout(timeout))
    if taken is None:
        _timed_out(src, tag)
    return Message(backend, taken, _info(group, taken.info))


def improbe(
    src: int | None = None, tag: int = 0, group: dist.ProcessGroup | None = None
) -> Message | None:
    """Like ``mprobe`` without waiting: None when no such message waits."""
    group, backend, source, tag = _arguments(src, tag, group)
    taken = backend.take(source, tag)
    return None if taken is None else Message(backend, taken, _info(group, taken.info))
