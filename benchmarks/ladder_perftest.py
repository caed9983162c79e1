"""UCX's own benchmark, ucx_perftest, with the messages of the ladder."""

import os
import socket
import subprocess
import tempfile
import time

from ladder_steps import WINDOW

TIMEOUT_S = 120
"""Bounds a run of all sizes."""


class Perftest:
    """Runs a ucx_perftest, which must belong to the UCX in ``environment``.

    ``error_handling``: endpoints in the transport's error mode "peer", else "none".
    """

    def __init__(self, program, environment, error_handling):
        # The raw loop's worker: may be slept on, and used by one thread at a time.
        mode = ["-I", "-M", "serialized", *(["-e"] if error_handling else [])]
        self._command = [program, *mode]
        self._environment = {**os.environ, **environment}

    def run(self, counts):
        """Microseconds a message by (measure, size).

        ``counts``: by size, how many ping-pongs and windows. A latency is half a ping-pong here
        too. Its bandwidth test keeps 64 messages under way without an answer to wait for.
        """
        lines = {}
        for size, (ping_pongs, windows) in counts.items():
            # It is started anew each time: its memory has to be warmed up as well.
            messages, few = WINDOW * windows, min(WINDOW, ping_pongs)
            lines["ping_pongs", size] = f"-t tag_lat -n {ping_pongs} -w {few}"
            lines["windows", size] = f"-t tag_bw -O {WINDOW} -n {messages} -w {WINDOW}"
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as batch:
            for (measure, size), line in lines.items():
                batch.write(f"{measure}-{size} {line} -s {size}\n")
            batch.flush()
            output = self._run_pair([*self._command, "-b", batch.name, "-p", str(_free_port())])
        times = {}
        for line in output.splitlines():
            name, *numbers = line.split(",")
            if len(numbers) >= 4 and numbers[0].strip().isdigit():
                measure, size = name.split("-")
                times[measure, int(size)] = float(numbers[3])  # overall_lat
        if times.keys() != lines.keys():
            raise RuntimeError(
                f"{' '.join(self._command)} printed what is not understood:\n{output}"
            )
        return times

    def _run_pair(self, command):
        options = {"env": self._environment, "stdin": subprocess.DEVNULL, "text": True}
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        server = subprocess.Popen(["taskset", "-c", _core(0), *command], **options)
        try:
            client = ["taskset", "-c", _core(1), *command, "127.0.0.1", "-f", "-v"]
            end = time.monotonic() + TIMEOUT_S
            while True:  # until the server listens
                done = subprocess.run(client, timeout=TIMEOUT_S, **options)
                if done.returncode == 0:
                    server.communicate(timeout=20)
                    return done.stdout
                if time.monotonic() > end or server.poll() is not None:
                    raise RuntimeError(f"{' '.join(client)} failed:\n{done.stdout}")
                time.sleep(0.02)
        finally:
            if server.poll() is None:
                server.kill()
            server.wait()


def _core(rank):
    cores = sorted(os.sched_getaffinity(0))
    return str(cores[rank % len(cores)])


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
