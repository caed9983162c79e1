"""Jobs of several real processes: what a test uses to start them, and what runs in each of them.

``Job`` (see the fixture ``run_ranks``) starts every rank as a process of its own, which imports the
test's module and calls the functions that the test named, each with its ``Rank``. The job judges
all ranks: exit statuses, a deadline, and what UCX printed.

Importing torch takes longer than most jobs, so ranks are forked from a ``Nursery``: an interpreter
that has imported torch and done nothing else (no thread, no libucp). A job that is about what
happens before that asks for ``fresh`` interpreters.

Ranks agree on things outside the backend with words (``Rank.post``, ``Rank.await_word``), files in
the job's directory: a test of the backend must not order its steps by means of the backend.
"""

import faulthandler
import importlib
import importlib.util
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

UCX_LINE = re.compile(r"^.*UCX +(?:FATAL|ERROR|WARN) .*$", re.MULTILINE)
"""What UCX's logger prints from its level "warn" on."""

DEADLINE_S = 60
"""Bounds a job. One that passes it hangs: its ranks show their stacks and are killed."""

GROUP_TIMEOUT_S = 30
"""Of a job's groups, so that an operation that hangs names itself before the job's deadline."""

_WORD_PAUSE_S = 0.002


# ---- in a rank ---------------------------------------------------------------------------------


class Rank:
    """One process of a job; the argument of the functions that a job runs."""

    def __init__(self, rank, size, directory, init_method):
        self.rank = rank
        self.size = size
        self.directory = Path(directory)
        self.init_method = init_method
        self.results = {}

    def init(self, backend="ucx", *, timeout=GROUP_TIMEOUT_S, name="default", **kwargs):
        """``init_process_group`` the way the job was asked to: "file", "tcp", "env" or "store".

        ``name`` tells repeated calls in one job apart: each gets a store of its own.
        """
        import torch.distributed as dist

        if self.init_method == "file":
            kwargs["init_method"] = f"file://{self.directory}/store-{name}"
        elif self.init_method == "store":
            path = str(self.directory / f"store-{name}")
            kwargs.setdefault("store", dist.FileStore(path, self.size))
        else:
            port = self.agree(f"port of {name}", _free_port)
            if self.init_method == "tcp":
                kwargs["init_method"] = f"tcp://127.0.0.1:{port}"
            else:
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
                os.environ.update(RANK=str(self.rank), WORLD_SIZE=str(self.size))
        if self.init_method != "env":
            kwargs.update(rank=self.rank, world_size=self.size)
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **kwargs)

    def post(self, word, value=None):
        """Tell the other ranks ``word``, with a value that JSON can hold."""
        part = self.directory / f"{self.rank}.part"
        part.write_text(json.dumps(value))
        part.rename(self.directory / f"word-{word}")

    def await_word(self, word, timeout=DEADLINE_S):
        """Sleep until some rank has posted ``word``; returns its value."""
        path = self.directory / f"word-{word}"
        wait_until(path.exists, f"the word {word!r}", timeout)
        return json.loads(path.read_text())

    def agree(self, word, make):
        """The same value on all ranks: rank 0 makes it."""
        if self.rank == 0:
            self.post(word, make())
        return self.await_word(word)

    def meet(self, place):
        """Return when all ranks have come to ``place``, a name used once."""
        self.post(f"{place} {self.rank}")
        for rank in range(self.size):
            self.await_word(f"{place} {rank}")


def wait_until(condition, what, timeout=DEADLINE_S):
    """Sleep until ``condition()``; raises ``AssertionError`` naming ``what`` after ``timeout``."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"waited {timeout} s for {what}"
        time.sleep(_WORD_PAUSE_S)


def same(got, expected):
    """Assert equality, showing both."""
    import torch

    if isinstance(expected, torch.Tensor):
        assert got.dtype == expected.dtype, f"got {got.dtype}, expected {expected.dtype}"
        assert got.shape == expected.shape, f"got {got.shape}, expected {expected.shape}"
        if not torch.equal(got, expected):
            wrong = (got != expected).reshape(-1).nonzero().reshape(-1)
            first = int(wrong[0])
            raise AssertionError(
                f"{len(wrong)} of {got.numel()} elements differ, the first at {first}: "
                f"got {got.reshape(-1)[first]}, expected {expected.reshape(-1)[first]}"
            )
    else:
        assert got == expected, f"got {got!r}, expected {expected!r}"


def raised(types, function, *args, **kwargs):
    """Call and return the exception, which must be of ``types``."""
    try:
        function(*args, **kwargs)
    except types as error:
        return error
    raise AssertionError(f"{types} was not raised")


def pattern(count, seed=0):
    """``count`` bytes (uint8) that differ by place and by ``seed``."""
    import torch

    period = (torch.arange(251, dtype=torch.int32) * 7 + seed).to(torch.uint8)
    return period.repeat(count // 251 + 1)[:count].clone()


def backend_of(group=None):
    """The backend object of a group, for CPU tensors."""
    import torch
    import torch.distributed as dist

    return (group or dist.group.WORLD)._get_backend(torch.device("cpu"))


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _main():
    """An interpreter of one rank: ``argv`` is a JSON object, made by ``Job``."""
    sys.exit(_run(json.loads(sys.argv[1])))


def _run(given):
    """All that a rank does; returns its exit status."""
    faulthandler.enable()
    # A shell that starts a job in the background has it ignore Ctrl-C, and ranks inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.dump_traceback_later(max(1, given["deadline"] - 2))
    spec = importlib.util.spec_from_file_location(given["module"], given["file"])
    module = importlib.util.module_from_spec(spec)
    sys.modules[given["module"]] = module  # where pickle looks for the module's classes
    spec.loader.exec_module(module)
    rank = Rank(given["rank"], given["size"], given["directory"], given["init"])
    status = 0
    try:
        if given["group"]:
            rank.init(**given["group"])
        for name in given["functions"]:
            begin = time.monotonic()
            print(f"-- {name}", flush=True)
            getattr(module, name)(rank, **given["arguments"])
            print(f"   {time.monotonic() - begin:.2f} s", flush=True)
        if given["group"]:
            import torch.distributed as dist

            dist.destroy_process_group()
    except Exception:
        traceback.print_exc()
        status = 1
    results = Path(given["directory"]) / f"results-{rank.rank}"
    results.write_text(json.dumps(rank.results))
    faulthandler.cancel_dump_traceback_later()
    return status


def _nurse():
    """The nursery's process: forks a rank for each line of its input, reports each one's end."""
    for name in ("pytest", "torch", "torch.distributed"):  # what every test module imports
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "importing torch has started threads"
    print(f"ready {os.getpid()}", flush=True)
    running = {}
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin.buffer.raw, selectors.EVENT_READ)
    pending = b""
    while True:
        if selector.select(_WORD_PAUSE_S if running else None):
            data = os.read(0, 1 << 16)
            if not data:
                sys.exit(0)
            pending += data
        while b"\n" in pending:
            line, pending = pending.split(b"\n", 1)
            request = json.loads(line)
            child = os.fork()
            if child == 0:
                selector.close()
                _become(request)
                sys.exit(_run(request["given"]))  # ends like any interpreter, exit hooks and all
            running[child] = request
            _write(request["begun"], str(child))
        for child in list(running):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid != 0:
                _write(running.pop(child)["ended"], str(os.waitstatus_to_exitcode(status)))


def _become(request):
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for number, path in ((1, request["stdout"]), (2, request["stderr"])):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)


def _write(path, text):
    part = Path(f"{path}.part")
    part.write_text(text)
    part.rename(path)


# ---- in the test -------------------------------------------------------------------------------


class Nursery:
    """Forks ranks that have imported torch; one for a test run, ended by ``close``."""

    def __init__(self, environment):
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import ranks; ranks._nurse()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_with_this_module(environment),
        )
        assert self._process.stdout.readline().startswith(b"ready "), "the nursery did not start"

    def fork(self, given, env, cwd, stdout, stderr):
        begun, ended = (Path(f"{stdout}-{word}") for word in ("begun", "ended"))
        request = {"given": given, "env": env, "cwd": str(cwd), "begun": str(begun)}
        request |= {"ended": str(ended), "stdout": str(stdout), "stderr": str(stderr)}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        wait_until(begun.exists, "a rank to be forked", 20)
        return ForkedRank(int(begun.read_text()), ended)

    def close(self):
        self._process.stdin.close()
        self._process.wait()


class ForkedRank:
    """What ``Job`` uses of ``subprocess.Popen``, for a process that is the nursery's child."""

    def __init__(self, pid, ended):
        self.pid = pid
        self._ended = ended

    def poll(self):
        return int(self._ended.read_text()) if self._ended.exists() else None

    def wait(self, timeout=20):
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"rank of pid {self.pid}", timeout)
            time.sleep(_WORD_PAUSE_S)
        return self.poll()

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)


def _with_this_module(environment):
    path = [str(Path(__file__).parent), *filter(None, [environment.get("PYTHONPATH")])]
    return {"OMP_NUM_THREADS": "1", **environment, "PYTHONPATH": os.pathsep.join(path)}


class Job:
    """Several ranks under way. ``finish()`` waits for them and judges them.

    The fixture ``run_ranks`` is the short form; a test uses this class where it acts on ranks while
    they run.
    """

    def __init__(
        self,
        directory,
        functions,
        size=2,
        *,
        init="file",
        group=None,
        arguments=None,
        env=None,
        rank_env=None,
        environment,
        nursery,
        fresh=False,
        deadline=DEADLINE_S,
    ):
        functions = [functions] if callable(functions) else list(functions)
        file = Path(functions[0].__code__.co_filename)
        self.directory = Path(directory)
        self.deadline = deadline
        self._end = time.monotonic() + deadline
        self._processes = []
        base = {**_with_this_module(environment), **(env or {})}
        for rank in range(size):
            given = {
                "module": file.stem,
                "file": str(file),
                "functions": [f.__name__ for f in functions],
                "arguments": arguments or {},
                "rank": rank,
                "size": size,
                "directory": str(self.directory),
                "init": init,
                "group": {"backend": "ucx", **group} if group is not None else None,
                "deadline": deadline,
            }
            ranks_env = {**base, **(rank_env or {}).get(rank, {})}
            out, err = (self.directory / f"{name}-{rank}" for name in ("stdout", "stderr"))
            out.touch()
            err.touch()
            if not fresh:
                self._processes.append(nursery.fork(given, ranks_env, self.directory, out, err))
                continue
            with open(out, "ab") as stdout, open(err, "ab") as stderr:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", "import ranks; ranks._main()", json.dumps(given)],
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=stderr,
                        env=ranks_env,
                        cwd=self.directory,
                        start_new_session=True,
                    )
                )

    def signal(self, rank, number):
        self._processes[rank].send_signal(number)

    def status(self, rank):
        """The exit status of a rank that has ended, else None."""
        return self._processes[rank].poll()

    def await_word(self, word):
        """As ``Rank.await_word``; fails at once when the job has ended without it."""
        path = self.directory / f"word-{word}"

        def there():
            ended = all(p.poll() is not None for p in self._processes)
            assert path.exists() or not ended, f"no word {word!r}\n{self.report()}"
            return path.exists()

        wait_until(there, f"the word {word!r}\n{self.report()}", self.deadline)
        return json.loads(path.read_text())

    def post(self, word, value=None):
        Rank("test", 0, self.directory, None).post(word, value)

    def end(self):
        """Wait for all ranks, killing them at the deadline; returns their exit statuses."""
        for process in self._processes:
            try:
                process.wait(max(0.0, self._end - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
        statuses = [process.poll() for process in self._processes]
        self.kill()
        return [
            f"still running after {self.deadline} s" if status is None else status
            for status in statuses
        ]

    def kill(self):
        """End what is left of the ranks, and what they have started."""
        for process in self._processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # its own session's
            except ProcessLookupError:
                pass
            process.wait()

    def finish(self, *, statuses=None, ucx_lines=None):
        """Wait and judge; returns the ranks' results, in order.

        ``statuses``: what each rank must end with (a list; all 0 by default; None for any).
        ``ucx_lines``: a regular expression for warnings of UCX that the test expects.
        """
        got = self.end()
        expected = statuses if statuses is not None else [0] * len(got)
        wrong = [g for g, e in zip(got, expected, strict=True) if e is not None and g != e]
        assert not wrong, f"exit statuses {got}, expected {expected}\n{self.report()}"
        for rank in range(len(got)):
            for line in UCX_LINE.findall(self.output(rank)):
                known = ucx_lines is not None and re.search(ucx_lines, line)
                assert known, f"rank {rank}: UCX printed: {line}\n{self.report()}"
        return [self.results(rank) for rank in range(len(got))]

    def stdout(self, rank):
        return (self.directory / f"stdout-{rank}").read_text(errors="replace")

    def stderr(self, rank):
        return (self.directory / f"stderr-{rank}").read_text(errors="replace")

    def output(self, rank):
        return self.stdout(rank) + self.stderr(rank)

    def results(self, rank):
        path = self.directory / f"results-{rank}"
        return json.loads(path.read_text()) if path.exists() else None

    def report(self):
        parts = []
        for rank, process in enumerate(self._processes):
            parts.append(f"===== rank {rank}, exit status {process.poll()}")
            parts.append(self.output(rank)[-6000:])
        return "\n".join(parts)
