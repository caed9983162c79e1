"""The creator that torch calls: what it hands on, what it refuses, and the end of the process."""

import os
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from torch_ucx import _creator, _loader


class Module:
    """Stands for torch_ucx._C where only the hand-over is tested."""

    class Options:
        pass

    def __init__(self):
        self.made = []
        self.shut_down = 0

    def create_backend(self, *arguments):
        self.made.append(arguments)
        return f"backend {len(self.made)}"

    def shutdown_all(self):
        self.shut_down += 1


@pytest.fixture
def module(monkeypatch):
    stand_in = Module()
    loaded = _loader.Loaded((1, 13, 0), "libucp.so.0", stand_in)
    monkeypatch.setattr(_loader, "load", lambda: loaded)
    monkeypatch.setattr(_creator, "_shut_down_at_exit", lambda module: None)
    return stand_in


def opts(ranks=(5, 3), rank=1):
    return SimpleNamespace(
        store="store",
        group_rank=rank,
        group_size=2,
        timeout=timedelta(seconds=7),
        group_id="7",
        global_ranks_in_group=list(ranks),
    )


def test_hands_over_what_torch_gives(module):
    options = Module.Options()
    assert _creator.create_process_group(opts(), options) == "backend 1"
    assert module.made == [("store", 1, 2, timedelta(seconds=7), "7", [5, 3], options)]


def test_default_group_gets_its_ranks(module):
    """torch gives the default group an empty list."""
    _creator.create_process_group(opts(ranks=()), None)
    assert module.made[0][5:] == ([0, 1], None)


@pytest.mark.parametrize("wrong", [{"timeout": 3}, "rdma", 1, Module])
def test_options_of_a_wrong_type(module, wrong):
    with pytest.raises(TypeError) as caught:
        _creator.create_process_group(opts(), wrong)
    assert "must be a torch_ucx.Options or None" in str(caught.value)
    assert f"not a {type(wrong).__module__}.{type(wrong).__qualname__}" in str(caught.value)
    assert module.made == []


def test_options_of_the_other_backend_of_a_mixed_group(module, caplog):
    """torch gives the same pg_options to both backends of "cpu:ucx,cuda:nccl"."""
    theirs = dist.ProcessGroupGloo._Options()
    _creator.create_process_group(opts(), theirs)
    assert module.made[0][6] is None
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "is for another backend" in record.message


def test_options_of_a_real_build():
    """The options class of the compiled module is found as ``torch_ucx.Options``."""
    import torch_ucx

    options = torch_ucx.Options()
    assert isinstance(options, torch_ucx._C.Options)
    assert issubclass(torch_ucx.ProcessGroupUCX, torch_ucx._C.ProcessGroupUCX)


EXIT = """
    import atexit, os, sys, threading
    from torch_ucx import _creator
    class Module:
        def shutdown_all(self):
            assert threading.current_thread() is threading.main_thread()
            print("shutdown_all", flush=True)
            {in_shutdown}
    atexit.register(print, "registered earlier", flush=True)
    module = Module()
    for _ in range(3):
        _creator._shut_down_at_exit(module)
    {then}
"""


def test_groups_are_shut_down_once_at_exit(run_python):
    done = run_python(EXIT.format(in_shutdown="", then=""))
    assert done.stdout.splitlines() == ["shutdown_all", "registered earlier"]


def test_an_exception_that_ends_the_program_still_shuts_down(run_python):
    done = run_python(EXIT.format(in_shutdown="", then="raise SystemExit(3)"), returncode=3)
    assert done.stdout.splitlines() == ["shutdown_all", "registered earlier"]


def test_a_failing_shutdown_is_told_and_does_not_change_the_exit(run_python):
    done = run_python(EXIT.format(in_shutdown="raise RuntimeError('stuck peer')", then=""))
    assert "did not end cleanly at exit: stuck peer" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_shut_down_its_parents_groups(run_python):
    then = """
    if os.fork() == 0:
        sys.exit(0)  # runs the exit hooks that the child inherited
    assert os.wait()[1] == 0
    print("child gone", flush=True)
    """
    done = run_python(EXIT.format(in_shutdown="", then=then))
    lines = done.stdout.splitlines()
    assert lines.count("shutdown_all") == 1
    assert lines[-3:] == ["child gone", "shutdown_all", "registered earlier"]
