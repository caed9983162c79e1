"""The backend object behind a process group, for what torch.distributed has no call for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.distributed as dist


def backend_of(group: dist.ProcessGroup | None, needed_by: str):
    """Return the group (the default one for None) and its ``ProcessGroupUCX``.

    Raises ``ValueError``, beginning with ``needed_by``, for a group of another backend, or a mixed
    group whose CPU backend is not "ucx".
    """
    import torch
    import torch.distributed as dist

    from . import _loader

    group = dist.group.WORLD if group is None else group
    if group is None:
        raise ValueError("torch.distributed has no default group: call init_process_group first")
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this rank is not a member of the group")
    backend = group._get_backend(torch.device("cpu"))
    if not isinstance(backend, _loader.load().module.ProcessGroupUCX):
        raise ValueError(
            f"{needed_by} a group whose CPU backend is 'ucx'; this one has "
            f"{type(backend).__name__} (TORCH_DISTRIBUTED_DEBUG=DETAIL wraps backends)"
        )
    return group, backend
