"""Importing torch with torch_ucx installed: registered, cheap, silent, and never in the way."""

import json
from importlib.metadata import entry_points

import pytest

STATE = """
    import json, os, sys, threading
    import torch
    maps = open("/proc/self/maps").read()
    print(json.dumps({
        "libraries": sorted({n for n in ("libucp", "libucs", "libuct", "libucm", "torch_ucx/_C",
                                         "libtorch_ucx") if n in maps}),
        "modules": sorted(m for m in sys.modules if m.startswith("torch_ucx")),
        "python threads": threading.active_count(),
        "system threads": len(os.listdir("/proc/self/task")),
        "ucx": "UCX" in torch.distributed.Backend._plugins,
        "defaults": torch.distributed.Backend.default_device_backend_map,
    }))
"""


def test_both_entry_points_name_the_hook():
    (autoload,) = (e for e in entry_points(group="torch.backends") if "torch_ucx" in e.value)
    assert autoload.value == "torch_ucx:_autoload"
    # torch 2.14 looks for the entry whose name is the backend's.
    (by_name,) = entry_points(group="torch.distributed.backends", name="ucx")
    assert by_name.value == "torch_ucx:_autoload"


def test_import_torch_starts_nothing_and_loads_nothing(run_python):
    with_us = json.loads(run_python(STATE, options=("-W", "error")).stdout)
    without = json.loads(run_python(STATE, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}).stdout)

    assert (with_us["ucx"], without["ucx"]) == (True, False)
    assert with_us["libraries"] == []
    assert with_us["modules"] == ["torch_ucx", "torch_ucx._build_info", "torch_ucx._registration"]
    for unchanged in ("python threads", "system threads", "defaults"):
        assert with_us[unchanged] == without[unchanged], unchanged


def test_import_is_silent(run_python):
    done = run_python("import torch, torch_ucx", options=("-W", "always"))
    assert (done.stdout, done.stderr) == ("", "")


def test_import_adds_no_module_but_its_own(run_python):
    """Cheap, by count and not by the clock: all that we import, torch has imported already."""
    code = """
        import sys, torch
        before = set(sys.modules)
        import torch_ucx
        print(*sorted(set(sys.modules) - before))
    """
    added = run_python(code, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}).stdout.split()
    assert added == ["torch_ucx", "torch_ucx._build_info", "torch_ucx._registration"]


@pytest.mark.parametrize("autoload", ["0", "1"])
@pytest.mark.parametrize("imports", ["torch_ucx", "torch_ucx, torch", "torch, torch_ucx"])
def test_explicit_import_registers_in_any_order(run_python, imports, autoload):
    code = f"""
        import {imports}
        import torch.distributed as dist
        assert dist.is_backend_available("ucx")
        assert dist.Backend._plugins["UCX"].extended_api is True
        assert dist.Backend.backend_capability["ucx"] == ["cpu", "cuda"]
        assert dist.Backend.UCX == dist.Backend("UCX") == dist.Backend("ucx") == "ucx"
    """
    run_python(code, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}, options=("-W", "error"))


def test_registering_again_changes_nothing(run_python):
    code = """
        import torch, torch_ucx
        import torch.distributed as dist
        def state():
            return (dist.Backend._plugins, dist.Backend._plugins["UCX"],
                    list(dist.Backend.backend_list),
                    dist.distributed_c10d._new_process_group_helper)
        before = state()
        torch_ucx._autoload()
        torch_ucx._autoload()
        after = state()
        assert after == before and after[0] is before[0]
        assert dist.Backend.backend_list.count("ucx") == 1
    """
    assert run_python(code, options=("-W", "error")).stderr == ""


def test_the_ucx_of_another_package_is_left_alone(run_python):
    code = """
        import torch
        import torch.distributed as dist
        def theirs(*arguments): ...
        dist.Backend.register_backend("ucx", theirs, devices=["cpu"])
        import torch_ucx
        assert dist.Backend._plugins["UCX"].creator_fn is theirs
    """
    done = run_python(code, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert "another package has registered a backend 'ucx'" in done.stderr


def test_a_default_of_fake_does_not_become_ours(run_python):
    code = """
        import torch
        import torch.distributed as dist
        dist.Backend.default_device_backend_map["cpu"] = "fake"
        before = list(dist.Backend.default_device_backend_map.items())
        import torch_ucx
        assert list(dist.Backend.default_device_backend_map.items()) == before
    """
    run_python(code, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})


def test_any_source(run_python):
    code = """
        import torch, torch_ucx
        assert torch_ucx.ANY_SOURCE is None
        assert torch.distributed.ANY_SOURCE is None
    """
    run_python(code)


def test_any_source_of_torch_itself_is_kept(run_python):
    code = """
        import torch
        torch.distributed.ANY_SOURCE = -1
        import torch_ucx
        assert torch.distributed.ANY_SOURCE == -1
    """
    run_python(code, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})


def test_a_failure_to_register_does_not_break_the_import(run_python):
    code = """
        import torch
        def broken(*arguments, **keywords):
            raise AssertionError("not today")
        torch.distributed.Backend.register_backend = broken
        import torch_ucx
        torch_ucx._autoload()
    """
    done = run_python(code, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert "'ucx' could not be registered with torch: AssertionError: not today" in done.stderr


def test_import_without_torch(run_python):
    code = """
        import sys
        sys.modules["torch"] = None  # importing it raises ImportError
        import torch_ucx
        print(torch_ucx.__version__)
    """
    done = run_python(code)
    assert done.stdout.strip() not in ("", "0+unbuilt")
    assert done.stderr == ""


def test_version_is_that_of_the_installed_package():
    from importlib.metadata import version

    import torch_ucx

    assert torch_ucx.__version__ == version("torch_ucx")


def test_unknown_attribute():
    import torch_ucx

    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        torch_ucx.nothing  # noqa: B018
    assert {"Options", "ProcessGroupUCX", "WorkUCX", "LoadError"} <= set(dir(torch_ucx))
