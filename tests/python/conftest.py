"""What the Python tests share. They test the installed package torch_ucx, never the source tree."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

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
