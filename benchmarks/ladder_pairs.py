"""Pairs of processes that stay alive for a run of the ladder and measure what they are told to.

A pair has ``steps`` (names), ``microseconds(step, measure, size, ping_pongs, windows)`` of one
message, and ``close()``. Only one of them is busy at a time: the others sleep on their pipes.
"""

import contextlib
import json
import multiprocessing
import os
import selectors
import subprocess
import sys
import tempfile
from multiprocessing.connection import Listener
from pathlib import Path

from ladder_steps import WINDOW, run_torch_rank

ANSWER_S = 120
"""Bounds one measurement. A pair that passes it hangs."""

NAMES = {"ping_pongs": "latency", "windows": "window"}
"""Of the measures, in the C++ programs."""

START_S = 60
"""Bounds the start of a pair."""


def _messages(measure, ping_pongs, windows):
    """What to count to, and how many messages that is."""
    return (ping_pongs, 2 * ping_pongs) if measure == "ping_pongs" else (windows, WINDOW * windows)


class ProgramPair:
    """A C++ program (benchmarks/ladder.cpp), which forks its other rank and knows the counts."""

    def __init__(self, program, steps, environment):
        self.steps = steps
        self._process = subprocess.Popen(
            [program, "--commands"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def microseconds(self, step, measure, size, ping_pongs, windows):
        name = f"{NAMES[measure]}/{step}/{size}"
        with contextlib.suppress(BrokenPipeError):  # then there is no answer
            self._process.stdin.write(f"^{name}/\n".encode())
            self._process.stdin.flush()
        if not self._selector.select(ANSWER_S):
            raise RuntimeError(f"{name} hangs")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{name}: the program has ended")
        answer = json.loads(line)
        assert answer["name"] == name, f"asked for {name}, got {answer['name']}"
        return answer["us"]

    def close(self):
        with contextlib.suppress(BrokenPipeError):  # it has ended, and the caller knows
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _ConnectedPair:
    """Ranks that run ``ladder_steps.serve``; ``_connections`` by rank."""

    _connections = ()
    _divisor = 1  # of the counts

    def _recv(self, limit_s, what, rank=0):
        if not self._connections[rank].poll(limit_s):
            raise RuntimeError(f"{what} hangs")
        return self._connections[rank].recv()

    def microseconds(self, step, measure, size, ping_pongs, windows):
        counts = (max(1, count // self._divisor) for count in (ping_pongs, windows))
        count, messages = _messages(measure, *counts)
        for connection in self._connections:
            connection.send((step, measure, size, count))
        return 1e6 * self._recv(ANSWER_S, f"{step}, {measure}, {size} bytes") / messages


class TorchPair(_ConnectedPair):
    """Ranks forked from this process, which has imported torch and done nothing with it.

    They inherit the pipes of the pairs made before them: pairs are closed in reverse order, or
    those would not see the end of theirs. ``run`` is what runs in a rank.
    """

    def __init__(self, backend, environment, run=run_torch_rank):
        context = multiprocessing.get_context("fork")
        self._directory = tempfile.TemporaryDirectory()
        self._processes = []
        self._connections = []
        if backend == "gloo":
            self._divisor = 20  # it takes so much longer
        for rank in range(1 if backend == "fake" else 2):
            ours, theirs = context.Pipe()
            self._connections.append(ours)
            store = os.path.join(self._directory.name, "store")
            arguments = (theirs, backend, rank, store, environment)
            process = context.Process(
                target=_run_without, args=(list(self._connections), run, arguments), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
        self.steps = self._recv(START_S, f"the start of {backend}")

    def close(self):
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(30)
            if process.is_alive():
                process.kill()
                process.join()
        self._directory.cleanup()


def _run_without(connections, run, arguments):
    for connection in connections:  # the driver's ends, which keep a pipe open
        connection.close()
    run(*arguments)


class MpiPair(_ConnectedPair):
    """mpi4py under mpiexec."""

    def __init__(self, mpiexec):
        self._directory = tempfile.TemporaryDirectory()
        address = os.path.join(self._directory.name, "socket")
        self._connections = [None, None]
        with Listener(address, "AF_UNIX") as listener:
            listener._listener._socket.settimeout(START_S)
            program = Path(__file__).with_name("ladder_mpi.py")
            self._process = subprocess.Popen(
                [mpiexec, "-n", "2", sys.executable, str(program), address],
                stdin=subprocess.DEVNULL,
                # Open MPI asks for these where it runs as root, as in a container.
                env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1"}
                | {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
            )
            for _ in range(2):
                connection = listener.accept()
                rank, self.library = connection.recv()
                self._connections[rank] = connection
        self.steps = self._recv(START_S, "the start of mpi4py")

    def close(self):
        for connection in self._connections:
            connection.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._directory.cleanup()
