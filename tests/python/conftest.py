"""What the Python tests share. They test the installed package torch_ucx, never the source tree."""

import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ranks import Job, Nursery

PROCESS_TIMEOUT_S = 120
"""Bounds a test's child process; one that passes it hangs, and fails its test."""

# Settings of the person or script that runs the tests which would decide a test's outcome.
_SETTINGS = (
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_UCX_LIBUCP",
    "TORCH_UCX_LOG_LEVEL",
    "UCX_ROOT",
)

# torchrun and schedulers set these; a job of a test is none of theirs.
_OF_LAUNCHERS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
)


@pytest.fixture
def run_python(tmp_path):
    """Run Python code in a process of its own; returns its ``subprocess.CompletedProcess``.

    ``run_python(code, *arguments, env={}, options=(), returncode=0)``: ``code`` may be indented;
    ``env`` is added to the environment, less the settings in ``_SETTINGS``; ``options`` go to the
    interpreter; an exit status other than ``returncode`` fails the test (None takes any).
    """

    def run(code, *arguments, env=None, options=(), returncode=0):
        environment = {k: v for k, v in os.environ.items() if k not in _SETTINGS}
        environment.update(env or {})
        done = subprocess.run(
            [sys.executable, *options, "-c", textwrap.dedent(code), *map(str, arguments)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PROCESS_TIMEOUT_S,
        )
        if returncode is not None:
            assert done.returncode == returncode, f"{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture
def compile_library(tmp_path):
    """Compile C text into a shared library: ``compile_library(path, source, *flags)``."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    assert compiler, "these tests need a C compiler (cc, gcc or clang)"

    def compile_(path, source, *flags):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = tmp_path / "source.c"
        text.write_text(source)
        command = [compiler, "-shared", "-fPIC", str(text), "-o", str(path), *flags]
        subprocess.run(command, check=True, capture_output=True, timeout=PROCESS_TIMEOUT_S)
        return path

    return compile_


# ---- jobs of several ranks ---------------------------------------------------------------------

TRANSPORTS = {"default": None, "tcp": "tcp,self", "shm": "posix,sysv,cma,self"}
"""UCX_TLS by the name of the choice."""


def _libucp_of_the_wheel():
    spec = importlib.util.find_spec("libucx")
    assert spec is not None, "these tests need the Python package libucx-cu12, a second UCX"
    return str(Path(next(iter(spec.submodule_search_locations))) / "lib" / "libucp.so.0")


def _libucp_environments():
    """The UCX versions by name: that which torch_ucx finds by itself, and that of PyPI's wheel.

    Where TORCH_UCX_LIBUCP is set for the whole run, that version is the only one.
    """
    chosen = os.environ.get("TORCH_UCX_LIBUCP")
    if chosen:
        return {"ucx-chosen": {"TORCH_UCX_LIBUCP": chosen}}
    return {"ucx-found": {}, "ucx-wheel": {"TORCH_UCX_LIBUCP": _libucp_of_the_wheel()}}


def _settings():
    """Environments by name: each UCX version with each choice of transports."""
    return {
        f"{tls_name}-{libucp_name}": {**({} if tls is None else {"UCX_TLS": tls}), **libucp}
        for libucp_name, libucp in _libucp_environments().items()
        for tls_name, tls in TRANSPORTS.items()
    }


_FEW = ("tcp-ucx-found", "default-ucx-wheel", "tcp-ucx-chosen")
"""Enough where a test is about what lies above UCX; the nightly run has all."""


def pytest_configure(config):
    config.addinivalue_line("markers", "nightly: long form, run by ci/nightly only")


def pytest_generate_tests(metafunc):
    names = list(_settings())
    if "setting" in metafunc.fixturenames:
        metafunc.parametrize("setting", names, indirect=True)
    if "few_settings" in metafunc.fixturenames:
        few = [
            pytest.param(name, marks=[] if name in _FEW else [pytest.mark.nightly])
            for name in names
        ]
        metafunc.parametrize("few_settings", few, indirect=True)
    if "libucp" in metafunc.fixturenames:
        metafunc.parametrize("libucp", list(_libucp_environments()), indirect=True)


@pytest.fixture
def setting(request):
    """An environment: the test runs on each UCX version over each choice of transports."""
    return _settings()[request.param]


@pytest.fixture
def few_settings(request):
    """An environment: as ``setting`` in the nightly run, else one over tcp and one by default."""
    return _settings()[request.param]


@pytest.fixture
def libucp(request):
    """The environment that chooses a UCX version; a test that takes it runs once for each."""
    return _libucp_environments()[request.param]


@pytest.fixture
def both_libucp():
    """Environments for the two UCX versions, for a test that uses both at once."""
    # An empty value is none: the run's own choice is taken back.
    return {"TORCH_UCX_LIBUCP": ""}, {"TORCH_UCX_LIBUCP": _libucp_of_the_wheel()}


def _clean_environment():
    """That of the test run less the settings of UCX, of torch_ucx and of launchers."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "TORCH_UCX_LIBUCP"
        or not (
            name.startswith(("UCX_", "TORCH_UCX_")) or name in _SETTINGS or name in _OF_LAUNCHERS
        )
    }


@pytest.fixture(scope="session")
def nursery():
    nursery = Nursery(_clean_environment())
    yield nursery
    nursery.close()


@pytest.fixture
def start_ranks(tmp_path, nursery):
    """Start a ``ranks.Job``: ``start_ranks(functions, size=2, **options of Job)``.

    The job gets the environment of the test run less all settings of UCX, of torch_ucx (but for
    TORCH_UCX_LIBUCP) and of launchers. Whatever still runs when the test ends is killed.
    """
    jobs = []
    numbers = itertools.count()

    def start(functions, size=2, **options):
        directory = tmp_path / f"job-{next(numbers)}"
        directory.mkdir()
        environment = _clean_environment()
        job = Job(directory, functions, size, environment=environment, nursery=nursery, **options)
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        job.kill()


@pytest.fixture
def run_ranks(start_ranks):
    """Run a job to its end and judge it: ``run_ranks(functions, size=2, ...)``.

    Options are those of ``ranks.Job`` and of ``Job.finish``; returns the ranks' results.
    With ``group={...}`` (arguments of ``Rank.init``, perhaps none) every rank makes the default
    group before the functions and destroys it after them.
    """

    def run(functions, size=2, *, statuses=None, ucx_lines=None, **options):
        job = start_ranks(functions, size, **options)
        return job.finish(statuses=statuses, ucx_lines=ucx_lines)

    return run
