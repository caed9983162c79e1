"""The examples, as a person runs them: alone, and under torchrun."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the tests lie alone, without them")


def run(*command):
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def torchrun(ranks):
    return "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)


def test_all_print_what_they_should():
    done = run(str(EXAMPLES / "run_all.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    listed = {p.name for p in EXAMPLES.glob("*.py")} - {"run_all.py", "_launch.py", "bandwidth.py"}
    for name in listed:
        assert f"examples/{name}" in done.stdout, f"{name} is neither run nor named as left out"
    assert "FAILED" not in done.stdout


def test_an_example_that_prints_something_else_is_a_failure(tmp_path):
    for name in ("run_all.py", "_launch.py", "d2_overlap.py"):
        text = (EXAMPLES / name).read_text()
        if name == "run_all.py":  # the others are missing here, which fails too, and at once
            assert 'all ones: True"' in text
            text = text.replace('all ones: True"', 'all zeros: True"')
        (tmp_path / name).write_text(text)
    done = run(str(tmp_path / "run_all.py"))
    assert done.returncode == 1, done.stdout
    assert "FAILED: examples/d2_overlap.py: printed something else than:" in done.stderr
    assert "FAILED: examples/ring.py: exit status 2" in done.stderr


def test_an_example_under_torchrun():
    done = run(*torchrun(2), str(EXAMPLES / "d4_source_rank.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0", "tensor([10, 20, 30, 40])"]
    done = run(*torchrun(2), str(EXAMPLES / "ring.py"))
    assert done.returncode != 0
    assert "this example is for 4 ranks, not for 2" in done.stderr


def test_a_cpp_program_outside_the_tree(tmp_path):
    """The commands of examples/cpp/CMakeLists.txt, on a copy: nothing of the tree is in reach."""
    source, build = tmp_path / "program", tmp_path / "build"
    shutil.copytree(EXAMPLES / "cpp", source)
    prefix = run("-c", "import torch_ucx; print(torch_ucx.cmake_prefix_path)").stdout.strip()
    for command in (
        ["-S", str(source), "-B", str(build), f"-DCMAKE_PREFIX_PATH={prefix}"],
        ["--build", str(build)],
    ):
        done = subprocess.run(["cmake", *command], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    done = run(*torchrun(4), "--no-python", str(build / "ring"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "rank 0 received 10 numbers from rank 1, 20 numbers from rank 2, 30 numbers from rank 3",
        "passed around by 4 ranks",
    ]
    libraries = subprocess.run(["ldd", str(build / "ring")], capture_output=True, text=True)
    assert "libtorch_ucx.so" in libraries.stdout and "libpython" not in libraries.stdout
    alone = subprocess.run([str(build / "ring")], capture_output=True, text=True)
    assert alone.returncode == 1
    assert "RANK is not set: start this program with torchrun --no-python" in alone.stderr


def test_bandwidth():
    done = run(*torchrun(2), str(EXAMPLES / "bandwidth.py"), "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    first, heads, names, *rows = done.stdout.splitlines()
    assert first.startswith("torch ") and ", torch_ucx " in first and ", UCX " in first, first
    assert "libucp.so" in first, first
    assert "latency one way, us" in heads and "bandwidth, MB/s, 64 in flight" in heads, heads
    assert names.split() == ["bytes", "ucx", "gloo", "ucx", "gloo"]
    numbers = [[float(n) for n in row.split()] for row in rows]
    assert [row[0] for row in numbers][:: len(rows) - 1] == [8, 16 << 20]
    assert all(len(row) == 5 and min(row) > 0 for row in numbers[3:]), rows
