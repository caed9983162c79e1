"""Registers the backend "ucx" with torch.distributed, unseen by the groups of other backends.

Runs while torch is being imported, so it costs a millisecond or so, loads no library and changes no
default: "cpu" and "cuda" keep the backends that torch gives them.

The trap. Up to torch 2.13, a group made from a string with devices ("cpu:gloo",
"cpu:gloo,cuda:gloo") takes its default backend from the first entry of the table of third-party
backends, ``Backend._plugins``. In 2.13 it is gloo when the table is empty, but stays UNDEFINED
with any entry at all (in 2.6 it is UNDEFINED either way), and then
``_get_sequence_number_for_group`` of that group raises and its hooks are not found. Being
installed would thus break gloo groups of people who never asked for us. The mend: our entry is
not stored in that table but answered by it (``_PluginTable``): ``"UCX" in table`` and
``table["UCX"]`` find it, while its length, its keys and everything else that enumerates the table
are exactly what they would be without us, also when other plugins register before or after.

For groups of our own made from such a string ("cpu:ucx", "cpu:gloo,cuda:ucx") torch up to 2.13
never finds the default either (it compares the upper-case key with lower-case names), so the
function that makes groups is wrapped, and the default becomes CUSTOM, which is what it is for
"ucx" alone; with NCCL in the string it stays NCCL. torch 2.14 does all of this right: there, and
wherever torch's internals are not what is described here, the registration is the plain one.

What cannot be mended from outside (each is shown by a test):

- A group of ours calls itself "custom" (``pg.name()``), and up to torch 2.13
  ``pg._get_sequence_number_for_group()`` refuses that name before it asks the backend.
- Another third-party backend that is registered has the effect above on "cpu:gloo", as it has
  without us.
- torch keeps one backend of type CUSTOM in a group: in "cpu:ucx,cuda:other", where "other" is a
  third-party backend too, both devices get the first one.
- Code that lists ``Backend._plugins`` does not see "UCX"; ``Backend.backend_list`` has "ucx".
"""

import functools
import inspect
import logging
import re
import sys

NAME = "ucx"
DEVICES = ("cpu", "cuda")

_KEY = NAME.upper()
_TRAP_ENDS_AT = (2, 14)
"""First torch (major, minor) that finds a group's default backend without ``_plugins``."""

_logger = logging.getLogger("torch_ucx")


def _create(dist_backend_opts, pg_options):
    """The creator that torch calls for each group; all loading happens behind this line."""
    from . import _creator

    return _creator.create_process_group(dist_backend_opts, pg_options)


class _PluginTable(dict):
    """``Backend._plugins`` with entries that are answered but not listed.

    ``in``, ``[]`` and ``get`` know the unlisted entries; iteration, ``len``, truth, ``keys``,
    ``copy``, ``clear`` and ``update`` are those of the dict with the listed ones. A listed entry
    of the same key takes precedence, so that registering "ucx" again works as it does in a dict.
    """

    def __init__(self, listed: dict, unlisted: dict):
        super().__init__(listed)
        self._unlisted = unlisted

    def __contains__(self, key) -> bool:
        return super().__contains__(key) or key in self._unlisted

    def __missing__(self, key):
        return self._unlisted[key]

    def get(self, key, default=None):
        return super().get(key, self._unlisted.get(key, default))


def register() -> None:
    """Make "ucx" known to torch.distributed and name ``torch.distributed.ANY_SOURCE``.

    A second call does nothing, and so does a torch built without its distributed package.
    Somebody else's "ucx" is left alone, with a warning in the log.
    """
    import torch

    # In every torch so far torch.distributed is imported by `import torch`, before the autoload:
    # this line costs a look-up. (torch 2.14 would also ask for us later, by our entry point.)
    import torch.distributed as dist

    if not dist.is_available():
        return
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    backend = c10d.Backend

    if not hasattr(dist, "ANY_SOURCE"):
        dist.ANY_SOURCE = None  # the documented examples use it; None is what recv takes

    if _KEY in backend._plugins:
        if backend._plugins[_KEY].creator_fn is not _create:
            _logger.warning("another package has registered a backend 'ucx'; torch_ucx leaves it")
        return

    defaults = dict(backend.default_device_backend_map)
    backend.register_backend(NAME, _create, extended_api=True, devices=list(DEVICES))
    if backend.default_device_backend_map != defaults:  # a "fake" default would become ours
        backend.default_device_backend_map.clear()
        backend.default_device_backend_map.update(defaults)

    if _torch_version(torch) < _TRAP_ENDS_AT:
        _leave_other_groups_alone(backend)
        _find_own_default_backend(c10d)


def _torch_version(torch) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    # An unreadable version is taken for a new one: the plain registration is always valid.
    return (int(match[1]), int(match[2])) if match else (sys.maxsize, 0)


def _leave_other_groups_alone(backend) -> None:
    """Take our entry out of the listed plugins; keep the plain registration if that fails."""
    listed = backend._plugins
    # Not a plain dict: another package had the same thought, or torch changed. A table that we do
    # not know is not ours to replace.
    if type(listed) is not dict or _KEY not in listed:
        _logger.debug("Backend._plugins is a %s: 'ucx' stays listed in it", type(listed).__name__)
        return
    others = {key: entry for key, entry in listed.items() if key != _KEY}
    backend._plugins = _PluginTable(others, {_KEY: listed[_KEY]})


def _find_own_default_backend(c10d) -> None:
    """Wrap the function that makes groups, to name the default backend of our mixed groups."""
    make_group = getattr(c10d, "_new_process_group_helper", None)
    try:
        position = list(inspect.signature(make_group).parameters).index("backend")
    except (TypeError, ValueError):
        _logger.debug("torch makes groups in a way unknown to torch_ucx: left as it is")
        return

    @functools.wraps(make_group)
    def new_process_group_helper(*args, **kwargs):
        made = make_group(*args, **kwargs)
        backend = kwargs["backend"] if "backend" in kwargs else args[position]
        if _is_mixed_with_ucx(str(backend)):
            group = made[0]
            # Ranks that are not in the group get a marker instead of a group.
            if isinstance(group, c10d.ProcessGroup):
                group._set_default_backend(c10d.ProcessGroup.BackendType.CUSTOM)
        return made

    c10d._new_process_group_helper = new_process_group_helper


def _is_mixed_with_ucx(backend: str) -> bool:
    """Whether a string such as "cpu:gloo,cuda:ucx" names us and leaves the default to us."""
    if ":" not in backend:
        return False
    names = {pair.rpartition(":")[2] for pair in backend.lower().split(",")}
    return NAME in names and "nccl" not in names
