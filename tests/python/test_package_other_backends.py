"""Groups of other backends behave as if torch_ucx were not installed, and what about ours.

Every comparison is between processes: one without us, one with.
"""

import json

import pytest
import torch

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
HAS_TRAP = TORCH < (2, 14)  # see torch_ucx/_registration.py

OFF = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

# Makes a group of each kind named on the command line and tells all that torch derives from the
# group's default backend.
OBSERVE = """
import json, sys, warnings
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroupGloo

def gloo(store, rank, size, timeout):
    return ProcessGroupGloo(store, rank, size, timeout=timeout)

def register_second_plugin():
    dist.Backend.register_backend("second", gloo, devices=["cpu", "cuda"])

def attempt(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = repr(function())
        except Exception as error:
            result = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return [result, [str(w.message).split(" (Triggered")[0] for w in caught]]

def look_at(group):
    value = torch.arange(3)
    return {
        "name": attempt(group.name),
        "sequence number": attempt(group._get_sequence_number_for_group),
        "hooks": attempt(group._has_hooks),
        "all_reduce": attempt(lambda: [dist.all_reduce(value, group=group), value.tolist()][1]),
        "barrier": attempt(lambda: dist.barrier(group=group)),
        "backend": attempt(lambda: dist.get_backend(group)),
        "config": attempt(lambda: dist.get_backend_config(group)),
    }

def observe(backends):
    seen = {}
    for backend in backends:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        except Exception as error:
            seen[backend] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            continue
        seen[backend] = look_at(dist.group.WORLD)
        seen[backend]["warnings"] = [str(w.message) for w in caught]
        seen[backend]["new_group"] = look_at(dist.new_group([0], backend="cpu:gloo"))
        dist.destroy_process_group()
    table = dist.Backend._plugins
    seen["table"] = [len(table), bool(table), list(table), list(table.keys()), sorted(table)]
    return seen
"""

BACKENDS = ("gloo", "cpu:gloo", "cpu:gloo,cuda:gloo", "GLOO", "second", "cpu:second", "nonsense")


def observed(run_python, code, backends=BACKENDS, env=None):
    end = f"\nprint('OBSERVED ' + json.dumps(observe({list(backends)!r})))\n"
    done = run_python(OBSERVE + code + end, env=env)
    (line,) = (x for x in done.stdout.splitlines() if x.startswith("OBSERVED "))
    seen = json.loads(line.removeprefix("OBSERVED "))
    if not HAS_TRAP:  # a plain registration: nothing enumerates the table
        seen.pop("table")
    return seen


@pytest.mark.parametrize("second", ["none", "before", "after"])
def test_other_groups_are_what_they_are_without_us(run_python, second):
    """With a second plugin that comes before us, after us, or not at all."""
    register = "register_second_plugin()\n"
    before, after = (register if second == when else "" for when in ("before", "after"))
    with_us = observed(run_python, before + "import torch_ucx\n" + after, env=OFF)
    without = observed(run_python, before + after, env=OFF)
    assert with_us == without
    if second == "none" and TORCH >= (2, 13):  # 2.6 leaves the default undefined by itself
        assert with_us["cpu:gloo"]["sequence number"] == ["0", []]
        assert with_us["cpu:gloo,cuda:gloo"]["name"] == ["'gloo'", []]


def test_autoloaded_is_like_imported(run_python):
    with_us = observed(run_python, "assert 'UCX' in dist.Backend._plugins\n")
    without = observed(run_python, "assert 'UCX' not in dist.Backend._plugins\n", env=OFF)
    assert with_us == without


def test_the_trap_is_real(run_python):
    """What a plain registration does to "cpu:gloo"; if this fails, the mend has lost its reason."""
    code = """
def creator(*arguments): ...
dist.Backend.register_backend("third", creator, extended_api=True, devices=["cpu", "cuda"])
"""
    group = observed(run_python, code, ["cpu:gloo"], env=OFF)["cpu:gloo"]
    if HAS_TRAP:
        assert group["name"] == ["'undefined'", []]
        assert "does not yet support sequence numbers" in group["sequence number"][0]
    else:
        assert group["name"] == ["'gloo'", []]


# A stand-in for our backend, so that these tests are about the default backend alone.
OURS = """
import torch_ucx._creator
def stand_in(opts, options):
    return gloo(opts.store, opts.group_rank, opts.group_size, opts.timeout)
torch_ucx._creator.create_process_group = stand_in
"""


@pytest.mark.parametrize("second", ["none", "before", "after"])
def test_our_mixed_groups_have_a_default_backend(run_python, second):
    before, after = (
        "register_second_plugin()\n" if second == when else "" for when in ("before", "after")
    )
    strings = ["ucx", "UCX", "cpu:ucx", "cpu:UCX", "cpu:gloo,cuda:ucx", "cpu:ucx,cuda:ucx"]
    seen = observed(run_python, before + OURS + after, strings, env=OFF)
    for string in strings:
        assert seen[string]["name"] == ["'custom'", []], string
        assert seen[string]["hooks"] == ["False", []], string
        assert seen[string]["all_reduce"] == ["[0, 1, 2]", []], string
        assert seen[string]["barrier"][1] == [], string


def test_our_mixed_groups_beside_nccl_keep_nccl():
    from torch_ucx._registration import _is_mixed_with_ucx

    assert _is_mixed_with_ucx("cpu:gloo,cuda:ucx")
    assert _is_mixed_with_ucx("cuda:UCX")
    for string in ("ucx", "gloo", "cpu:gloo", "cpu:ucx,cuda:nccl", "cpu:ucxx", "undefined", ""):
        assert not _is_mixed_with_ucx(string), string


def test_not_mended_sequence_number_of_our_groups(run_python):
    """torch up to 2.13 refuses the name "custom" before it asks the backend."""
    seen = observed(run_python, OURS, ["ucx", "cpu:gloo,cuda:ucx"], env=OFF)
    for string in ("ucx", "cpu:gloo,cuda:ucx"):
        assert seen[string]["name"] == ["'custom'", []]
        number = seen[string]["sequence number"][0]
        if HAS_TRAP:
            assert "custom does not yet support sequence numbers" in number, number


def test_not_mended_two_third_party_backends_in_one_group(run_python):
    """torch keeps one backend of type CUSTOM in a group: both devices get the first one."""
    code = """
        import torch, torch_ucx._creator
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import ProcessGroupGloo
        made = {}
        def maker(name):
            def make(store, rank, size, timeout):
                made[name] = ProcessGroupGloo(store, rank, size, timeout=timeout)
                return made[name]
            return make
        dist.Backend.register_backend("other", maker("other"), devices=["cpu", "cuda"])
        torch_ucx._creator.create_process_group = lambda opts, _: maker("ucx")(
            opts.store, opts.group_rank, opts.group_size, opts.timeout)
        dist.init_process_group("cpu:ucx,cuda:other", store=dist.HashStore(), rank=0, world_size=1)
        assert sorted(made) == ["other", "ucx"]
        for device in ("cpu", "cuda"):
            assert dist.group.WORLD._get_backend(torch.device(device)) is made["ucx"]
    """
    run_python(code)


def test_the_table_of_plugins_is_a_dict_for_others(run_python):
    """What other code may do with Backend._plugins, mock.patch.dict included, does not lose us."""
    code = f"""
        import torch, torch_ucx
        import torch.distributed as dist
        from unittest import mock
        table = dist.Backend._plugins
        ours = table["UCX"]
        assert table.get("UCX") is ours and "UCX" in table and "ucx" not in table
        assert table.get("NOTHING") is None and table.get("NOTHING", 1) == 1
        if {HAS_TRAP}:
            assert isinstance(table, dict) and table == {{}} and not table and not list(table)
            try:
                table["NOTHING"]
            except KeyError as error:
                assert error.args == ("NOTHING",)
            else:
                raise AssertionError("no KeyError")
        with mock.patch.dict(table, {{"THIRD": 3}}):
            assert table["THIRD"] == 3 and "UCX" in table
        assert "THIRD" not in table and table["UCX"] is ours
        table["UCX"] = "replaced"
        assert table["UCX"] == table.get("UCX") == "replaced" and list(table) == ["UCX"]
    """
    run_python(code)


@pytest.mark.parametrize(
    "change",
    [
        "c10d.Backend._plugins = collections.OrderedDict()",
        "del c10d._new_process_group_helper",
        "c10d._new_process_group_helper = lambda *, unheard_of: None",
        "torch.__version__ = 'unheard of'",
    ],
)
def test_other_internals_of_torch_get_the_plain_registration(run_python, change):
    code = f"""
        import collections, torch
        import torch.distributed as dist
        import torch.distributed.distributed_c10d as c10d
        {change}
        helper = getattr(c10d, "_new_process_group_helper", None)
        import torch_ucx
        from torch_ucx import _registration
        assert c10d.Backend._plugins["UCX"].creator_fn is _registration._create
        if "_plugins" in {change!r} or "version" in {change!r}:
            assert list(c10d.Backend._plugins) == ["UCX"]
        if "_plugins" not in {change!r}:
            assert getattr(c10d, "_new_process_group_helper", None) is helper
    """
    done = run_python(code, env=OFF, options=("-W", "error"))
    assert done.stderr == ""
