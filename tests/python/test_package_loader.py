"""Loading UCX and the compiled module: which libucp is taken, and what the errors say."""

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

FAKE_LIBUCP = """
void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release)
{{
    *major = {0}; *minor = {1}; *release = {2};
}}
"""

# Choosing a libucp needs no torch: without it these processes take 0.1 s instead of 2 s.
BIND = """
import ctypes, json, logging, sys
sys.modules["torch"] = None
from torch_ucx import _loader
logging.basicConfig(format="%(levelname)s %(message)s", level="INFO")
def bind(hint=""):
    try:
        library, source = _loader.bind_libucp(hint)
        print(json.dumps([*library.version, library.path, source]))
    except ImportError as error:
        assert type(error) is _loader.LoadError
        print(json.dumps(str(error)))
"""


@pytest.fixture
def fake_libucp(compile_library, tmp_path):
    """Make a libucp of a given version: ``fake_libucp("1.12.0", directory, soname)`` -> path."""

    def make(version, directory="fake", soname="libucp.so.0", name=None):
        path = tmp_path / directory / "lib" / (name or soname)
        source = FAKE_LIBUCP.format(*version.split("."))
        return compile_library(path, source, f"-Wl,-soname,{soname}")

    return make


def bound(run_python, code="bind()", env=None, options=()):
    done = run_python(BIND + code, env=env, options=options)
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def real_libucps():
    """The libucp files of this machine: the system's and the wheel's, as far as they are there."""
    found = []
    listed = subprocess.run(
        ["ldconfig", "-p"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": os.environ.get("PATH", "") + ":/sbin:/usr/sbin"},
    ).stdout
    match = re.search(r"libucp\.so\.0 .*=> (\S+)", listed)
    if match:
        found.append(match[1])
    spec = importlib.util.find_spec("libucx")
    for package in spec.submodule_search_locations if spec else ():
        found += map(str, Path(package, "lib").glob("libucp.so.0"))
    return found


# ---- which libucp ----


def test_explicit_file(run_python, fake_libucp):
    path = fake_libucp("1.99.7")
    got, _ = bound(run_python, env={"TORCH_UCX_LIBUCP": str(path)})
    assert got == [1, 99, 7, str(path), "TORCH_UCX_LIBUCP"]


def test_ucx_root_comes_before_the_system(run_python, fake_libucp):
    path = fake_libucp("1.99.1", "root")
    got, _ = bound(run_python, env={"UCX_ROOT": str(path.parent.parent)})
    assert got == [1, 99, 1, str(path), "UCX_ROOT"]


def test_explicit_file_comes_before_ucx_root(run_python, fake_libucp):
    root, explicit = fake_libucp("1.99.1", "root"), fake_libucp("1.99.2", "explicit")
    env = {"UCX_ROOT": str(root.parent.parent), "TORCH_UCX_LIBUCP": str(explicit)}
    got, _ = bound(run_python, env=env)
    assert got[:4] == [1, 99, 2, str(explicit)]


def test_one_that_is_loaded_already_is_kept(run_python, fake_libucp):
    """MPI has loaded its UCX: a second one could not be bound, whatever UCX_ROOT says."""
    loaded, root = fake_libucp("1.50.0", "mpi"), fake_libucp("1.99.0", "root")
    code = f"ctypes.CDLL({str(loaded)!r})\nbind()"
    got, _ = bound(run_python, code, env={"UCX_ROOT": str(root.parent.parent)})
    assert got == [1, 50, 0, str(loaded), "loaded before by this process"]


def test_explicit_file_beside_a_loaded_one(run_python, fake_libucp):
    loaded, explicit = fake_libucp("1.50.0", "mpi"), fake_libucp("1.99.0", "explicit")
    code = f"ctypes.CDLL({str(loaded)!r})\nbind()"
    text, _ = bound(run_python, code, env={"TORCH_UCX_LIBUCP": str(explicit)})
    assert str(loaded) in text and str(explicit) in text
    assert "unset TORCH_UCX_LIBUCP" in text
    got, _ = bound(run_python, code, env={"TORCH_UCX_LIBUCP": str(loaded)})
    assert got[:4] == [1, 50, 0, str(loaded)]


def test_order_of_candidates(run_python, fake_libucp, tmp_path):
    root, hint = fake_libucp("1.20.0", "root"), fake_libucp("1.20.0", "hint")
    wheel = fake_libucp("1.20.0", "site/libucx")
    (tmp_path / "site/libucx/__init__.py").write_text("raise SystemExit('it was run')")
    code = f"""
sys.path.insert(0, {str(tmp_path / "site")!r})
print(json.dumps(list(_loader.candidates({str(hint.parent)!r}))))
"""
    got, _ = bound(run_python, code, env={"UCX_ROOT": str(root.parent.parent)})
    assert [name for _, name in got] == [str(root), "libucp.so.0", str(hint), str(wheel)]


def test_hint_is_used_where_the_system_has_none(run_python, fake_libucp, tmp_path):
    hint = fake_libucp("1.21.0", "hint")
    code = f"""
real = _loader.candidates
_loader.candidates = lambda hint: (c for c in real(hint) if "used to build" in c.source)
bind({str(hint.parent)!r})
"""
    got, _ = bound(run_python, code)
    assert got == [1, 21, 0, str(hint), "the UCX used to build"]


def test_an_old_one_is_passed_over_for_a_newer(run_python, fake_libucp):
    """Ubuntu 22.04 has UCX 1.12: with a newer one at hand, that one is taken, and said."""
    old, new = fake_libucp("1.12.1", "old"), fake_libucp("1.30.0", "new")
    code = f"""
_loader.candidates = lambda hint: iter([
    _loader.Candidate("system", {str(old)!r}), _loader.Candidate("wheel", {str(new)!r})])
bind()
"""
    got, log = bound(run_python, code)
    assert got == [1, 30, 0, str(new), "wheel"]
    assert f"WARNING UCX 1.12.1 at {old} is too old (system): looking further" in log


def test_one_that_crashes_when_loaded_is_passed_over(run_python, compile_library, fake_libucp):
    new = fake_libucp("1.30.0", "new")
    bad = compile_library(
        new.parent.parent / "bad" / "libucp.so.0",
        "#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }",
    )
    code = f"""
_loader.candidates = lambda hint: iter([
    _loader.Candidate("bad", {str(bad)!r}), _loader.Candidate("good", {str(new)!r})])
bind()
"""
    got, _ = bound(run_python, code)
    assert got[3:] == [str(new), "good"]


def test_without_an_interpreter_the_first_is_taken_unseen(run_python, fake_libucp):
    """An embedded Python has no sys.executable to look with."""
    first, second = fake_libucp("1.30.0", "first"), fake_libucp("1.31.0", "second")
    code = f"""
sys.executable = ""
_loader.candidates = lambda hint: iter([
    _loader.Candidate("first", {str(first)!r}), _loader.Candidate("second", {str(second)!r})])
bind()
"""
    got, _ = bound(run_python, code)
    assert got[3:] == [str(first), "first"]


def test_looking_at_one_does_not_load_it(run_python, fake_libucp):
    path = fake_libucp("1.30.0")
    code = f"""
found = _loader.probe({str(path)!r})
print(json.dumps([*found.version, found.path, _loader.mapped_libucp()]))
"""
    got, _ = bound(run_python, code)
    assert got == [1, 30, 0, str(path), []]


# ---- errors ----


@pytest.mark.parametrize("how", ["explicit", "loaded before", "only one found"])
def test_too_old(run_python, fake_libucp, how):
    path = fake_libucp("1.12.0")
    env = {"TORCH_UCX_LIBUCP": str(path)} if how == "explicit" else {}
    code = {
        "explicit": "bind()",
        "loaded before": f"ctypes.CDLL({str(path)!r})\nbind()",
        "only one found": f"""
_loader.candidates = lambda hint: iter([_loader.Candidate("place", {str(path)!r})])
bind()
""",
    }[how]
    text, _ = bound(run_python, code, env=env)
    assert f"needs UCX 1.13 or newer, but found UCX 1.12.0 at {path}" in text
    assert "pip install libucx-cu12" in text


def test_missing(run_python, tmp_path):
    code = f"""
_loader.candidates = lambda hint: iter([
    _loader.Candidate("the system's library path", "libucp-not-there.so.0"),
    _loader.Candidate("the Python package libucx", "/not/there/libucp.so.0")])
_loader._package_directories = lambda package: []
bind({str(tmp_path)!r})
"""
    text, _ = bound(run_python, code, env={"UCX_ROOT": "/not/there/ucx"})
    for part in (
        "UCX was not found",
        "libucp-not-there.so.0: cannot open shared object file",
        "/not/there/libucp.so.0: cannot open shared object file",
        "UCX_ROOT: no libucp.so.0 in /not/there/ucx/lib",
        f"the UCX used to build: no libucp.so.0 in {tmp_path}",
        "the Python package libucx: not installed",
        "TORCH_UCX_LIBUCP: not set",
        "apt install libucx0",
        "pip install libucx-cu12",
    ):
        assert part in text, text


@pytest.mark.parametrize("content", [None, "no library"])
def test_explicit_file_that_cannot_be_loaded(run_python, tmp_path, content):
    path = tmp_path / "libucp.so.0"
    if content is not None:
        path.write_text(content)
    text, _ = bound(run_python, env={"TORCH_UCX_LIBUCP": str(path)})
    assert text.startswith(f"TORCH_UCX_LIBUCP is {str(path)!r}, which ")
    assert ("is not a file" if content is None else "cannot be loaded") in text


def test_explicit_file_that_is_another_library(run_python, compile_library, tmp_path):
    path = compile_library(tmp_path / "libother.so", "int other;")
    text, _ = bound(run_python, env={"TORCH_UCX_LIBUCP": str(path)})
    assert f"{path} has no ucp_get_version: it is not UCX's libucp" in text


def test_renamed_copy_of_another_wheel(run_python, fake_libucp):
    """auditwheel renames what it vendors: the linker would not give such a copy to us."""
    path = fake_libucp("1.30.0", soname="libucp-1a2b3c4d.so.0")
    text, _ = bound(run_python, env={"TORCH_UCX_LIBUCP": str(path)})
    assert str(path) in text and "not under the name libucp.so.0" in text


def test_two_copies_are_told(run_python, fake_libucp):
    one = fake_libucp("1.30.0")
    two = fake_libucp("1.31.0", soname="libucp-1a2b3c4d.so.0")
    code = f"""
ctypes.CDLL({str(one)!r})
_loader._warn_of_several_libucp()
ctypes.CDLL({str(two)!r})
_loader._warn_of_several_libucp()
print(json.dumps(_loader.mapped_libucp()))
"""
    got, log = bound(run_python, code)
    assert sorted(got) == sorted([str(one), str(two)])
    (line,) = (x for x in log.splitlines() if "copies of libucp" in x)
    assert line.startswith("WARNING") and str(one) in line and str(two) in line


@pytest.mark.parametrize("name", ["ucx", "UCX", "cpu:ucx"])
def test_another_minor_of_torch(run_python, name):
    code = """
        import sys, torch, torch_ucx
        from torch_ucx import _build_info as build
        import torch.distributed as dist
        build.TORCH_VERSION = "2.1.9"
        for use in (lambda: dist.init_process_group(
                        sys.argv[1], store=dist.HashStore(), rank=0, world_size=1),
                    torch_ucx.ucx_version, torch_ucx.ucx_library_path, lambda: torch_ucx.Options):
            try:
                use()
            except torch_ucx.LoadError as error:
                assert isinstance(error, ImportError)
                text = str(error)
                assert "was built for torch 2.1.9" in text, text
                assert f"this is torch {torch.__version__}" in text, text
                assert "pip install" in text and "--no-build-isolation" in text, text
            else:
                raise AssertionError("no error")
        assert "libucp" not in open("/proc/self/maps").read()  # refused before UCX is touched
    """
    run_python(code, name)


def test_patch_releases_and_local_versions_of_torch_are_the_same_minor(monkeypatch):
    import torch

    from torch_ucx import _build_info, _loader

    major, minor = torch.__version__.split(".")[:2]
    for version in (f"{major}.{minor}.77", f"{major}.{minor}.0a0+gitabc", f"{major}.{minor}"):
        monkeypatch.setattr(_build_info, "TORCH_VERSION", version)
        _loader._check_torch(_build_info)
    for version in (f"{major}.{minor}1.0", f"{major}.{int(minor) + 1}.0", ""):
        monkeypatch.setattr(_build_info, "TORCH_VERSION", version)
        with pytest.raises(_loader.LoadError):
            _loader._check_torch(_build_info)


def test_another_cxx_abi(monkeypatch):
    import torch

    from torch_ucx import _build_info, _loader

    abi = torch._C._GLIBCXX_USE_CXX11_ABI
    for same in (abi, int(abi), str(int(abi)), ("OFF", "ON")[abi]):
        monkeypatch.setattr(_build_info, "CXX11_ABI", same)
        _loader._check_torch(_build_info)
    monkeypatch.setattr(_build_info, "CXX11_ABI", not abi)
    with pytest.raises(_loader.LoadError, match="_GLIBCXX_USE_CXX11_ABI"):
        _loader._check_torch(_build_info)


def test_source_tree_that_was_not_built(run_python):
    code = """
        import sys
        sys.modules["torch_ucx._build_info"] = None
        import torch_ucx
        assert torch_ucx.__version__ == "0+unbuilt"
        try:
            torch_ucx.ucx_version()
        except torch_ucx.LoadError as error:
            assert "was not built" in str(error) and "pip install" in str(error)
        else:
            raise AssertionError("no error")
    """
    run_python(code)


def test_compiled_module_that_cannot_be_loaded(run_python):
    code = """
        import sys
        sys.modules["torch_ucx._C"] = None
        import torch_ucx
        from torch_ucx import _build_info
        try:
            torch_ucx.ucx_version()
        except torch_ucx.LoadError as error:
            text = str(error)
            assert "compiled module cannot be loaded" in text, text
            assert f"against UCX {_build_info.UCX_VERSION}" in text, text
            assert "libucp.so.0" in text and "pip install" in text, text
        else:
            raise AssertionError("no error")
    """
    run_python(code)


# ---- the real thing: needs the built package and a UCX ----


def test_there_is_a_ucx_to_test_with():
    assert real_libucps(), "neither the system nor the package libucx has a libucp.so.0"


@pytest.mark.parametrize("path", real_libucps())
def test_real_library(run_python, path):
    """The libucp that is asked for is the one that ``_C`` gets, and the only one."""
    code = """
        import ctypes, json, sys, torch_ucx
        version = torch_ucx.ucx_version()
        from torch_ucx import _C, _loader
        # What the linker gives to _C is what a look-up through _C's own handle finds.
        seen = _loader._describe(ctypes.CDLL(_C.__file__))
        print(json.dumps([version, torch_ucx.ucx_library_path(), seen, _loader.mapped_libucp()]))
    """
    done = run_python(code, env={"TORCH_UCX_LIBUCP": path})
    version, bound_path, seen, mapped = json.loads(done.stdout)
    assert tuple(version[:2]) >= (1, 13)
    assert os.path.samefile(bound_path, path) and os.path.isabs(bound_path)
    assert seen == [version, bound_path]
    assert mapped == [bound_path]
    assert done.stderr == ""


def test_version_and_path_are_logged_on_request(run_python):
    code = "import torch_ucx; print(*torch_ucx.ucx_version(), sep='.')\n"
    code += "print(torch_ucx.ucx_library_path())"
    quiet = run_python(code)
    assert quiet.stderr == ""
    for level in ("info", "DEBUG"):
        done = run_python(code, env={"TORCH_UCX_LOG_LEVEL": level})
        version, path = done.stdout.splitlines()
        (line,) = (x for x in done.stderr.splitlines() if x.startswith("[torch_ucx] INFO: "))
        assert f"uses UCX {version} at {path}" in line
    assert run_python(code, env={"TORCH_UCX_LOG_LEVEL": "warn"}).stderr == ""


def test_log_goes_the_way_of_a_program_that_has_set_up_logging(run_python):
    code = """
        import logging
        logging.basicConfig(format="MINE %(name)s %(levelname)s %(message)s")
        import torch_ucx
        torch_ucx.ucx_version()
    """
    lines = run_python(code, env={"TORCH_UCX_LOG_LEVEL": "info"}).stderr.splitlines()
    (line,) = (x for x in lines if "uses UCX" in x)
    assert line.startswith("MINE torch_ucx INFO torch_ucx ")


def test_threads_that_load_at_once_get_the_same(run_python):
    code = """
        import threading, torch_ucx
        from torch_ucx import _loader
        got, start = [], threading.Barrier(8)
        def use():
            start.wait()
            got.append(_loader.load())
        threads = [threading.Thread(target=use) for _ in range(8)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert len(got) == 8 and all(x is got[0] for x in got)
    """
    run_python(code)
