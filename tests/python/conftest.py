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

from ranks import Job

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


LIBUCP = {"ucx-default": None, "ucx-wheel": "wheel"}
"""The two UCX versions: that which torch_ucx finds by itself, and that of PyPI's wheel."""


def pytest_configure(config):
    config.addinivalue_line("markers", "nightly: long form, run by ci/nightly only")


def pytest_generate_tests(metafunc):
    """Run a test that takes ``libucp`` once for each UCX version.

    Where TORCH_UCX_LIBUCP is set for the whole run, that version is the only one.
    """
    if "libucp" in metafunc.fixturenames:
        chosen = ["ucx-chosen"] if os.environ.get("TORCH_UCX_LIBUCP") else list(LIBUCP)
        metafunc.parametrize("libucp", chosen, indirect=True)


@pytest.fixture
def libucp(request):
    """The environment that chooses a UCX version; a test that takes it runs once for each."""
    if request.param == "ucx-chosen":
        return {"TORCH_UCX_LIBUCP": os.environ["TORCH_UCX_LIBUCP"]}
    if LIBUCP[request.param] is None:
        return {}
    return {"TORCH_UCX_LIBUCP": _libucp_of_the_wheel()}


@pytest.fixture(params=list(TRANSPORTS))
def transport(request):
    """The environment that chooses transports; a test that takes it runs once for each."""
    tls = TRANSPORTS[request.param]
    return {} if tls is None else {"UCX_TLS": tls}


@pytest.fixture
def both_libucp():
    """Environments for the two UCX versions, for a test that uses both at once."""
    return {}, {"TORCH_UCX_LIBUCP": _libucp_of_the_wheel()}


@pytest.fixture
def start_ranks(tmp_path):
    """Start a ``ranks.Job``: ``start_ranks(functions, size=2, **options of Job)``.

    The job gets the environment of the test run less all settings of UCX, of torch_ucx (but for
    TORCH_UCX_LIBUCP) and of launchers. Whatever still runs when the test ends is killed.
    """
    jobs = []
    numbers = itertools.count()

    def start(functions, size=2, **options):
        environment = {
            name: value
            for name, value in os.environ.items()
            if name == "TORCH_UCX_LIBUCP"
            or not (
                name.startswith(("UCX_", "TORCH_UCX_"))
                or name in _SETTINGS
                or name in _OF_LAUNCHERS
            )
        }
        directory = tmp_path / f"job-{next(numbers)}"
        directory.mkdir()
        jobs.append(Job(directory, functions, size, environment=environment, **options))
        return jobs[-1]

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
