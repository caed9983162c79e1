"""The latency ladder: what each layer between UCX and Python costs, in one run.

    python benchmarks/ladder.py PROGRAMS [--repeats 9] [--newer-ucx LIBDIR] [--mpiexec PATH]

PROGRAMS is the directory of transport_ladder and c10d_ladder; ci/bench-ladder builds them and runs
this. For each setting (UCX version, UCX_TLS) the processes of all steps are started, then measured
in turns, round by round, then ended.
"""

import argparse
import contextlib
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from ladder_pairs import MpiPair, ProgramPair, TorchPair
from ladder_perftest import Perftest
from ladder_report import Results, print_tables, targets

COUNTS = {8: (2000, 100), 4096: (1000, 100), 65536: (500, 20), 1 << 20: (60, 2), 16 << 20: (5, 1)}
"""Ping-pongs and windows by size, as in benchmarks/ladder.cpp."""

CPP_STEPS = ("raw", "transport", "transport persistent", "Backend", "c10d::ProcessGroup")
PYTHON_STEPS = ("pg.send", "dist.send", "dist.isend", "persistent", "null")
OTHERS = ("gloo", "mpi4py", "mpi4py persistent")
BLOCKS = (("ucx_perftest", *CPP_STEPS), (*PYTHON_STEPS, *OTHERS))
"""Columns of the tables."""

SHARED_MEMORY, TCP = "posix,sysv,cma,self", "tcp,self"
"""What UCX_TLS is set to."""


class Ucx:
    """A UCX: where its libraries are ("" for where the programs find one), its ucx_perftest."""

    def __init__(self, libdir, perftest):
        self.perftest = perftest
        self.environment = {}
        if libdir:
            paths = [libdir, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
            self.environment["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
            self.environment["TORCH_UCX_LIBUCP"] = f"{libdir}/libucp.so.0"
        self.version = self._ask("import torch_ucx; print(*torch_ucx.ucx_version())")
        if perftest and self._perftest_version() != self.version[:2]:
            print(f"ucx_perftest is left out: {perftest} is not of UCX {self.name}")
            self.perftest = None

    @property
    def name(self):
        return ".".join(map(str, self.version))

    def _ask(self, code):
        answer = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **self.environment},
            check=True,
            capture_output=True,
            text=True,
        )
        return tuple(map(int, answer.stdout.split()))

    def _perftest_version(self):
        """Of the libucp that it loads: it shows none of its own."""
        listed = subprocess.run(
            ["ldd", self.perftest],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
        )
        for line in listed.stdout.splitlines():
            if "libucp.so" in line and "=> /" in line:
                path = line.split("=>")[1].split("(")[0].strip()
                code = (
                    "import ctypes as c; v = [c.c_uint() for _ in 'abc'];"
                    f"c.CDLL({path!r}).ucp_get_version(*map(c.byref, v));"
                    "print(*(x.value for x in v))"
                )
                return self._ask(code)[:2]
        return None


class OtherLoad:
    """What others take of the cores meanwhile: with more than a few percent times mean little."""

    def __init__(self):
        self._begin = self._now()

    @staticmethod
    def _now():
        """Seconds: clock, the cores' busy time, that of this process and its ended children."""
        with open("/proc/stat") as file:
            user, nice, system, _, _, _, _, steal, *_ = map(int, file.readline().split()[1:])
        busy = (user + nice + system + steal) / os.sysconf("SC_CLK_TCK")
        used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return time.monotonic(), busy, sum(u.ru_utime + u.ru_stime for u in used)

    def share(self):
        clock, busy, own = (n - b for n, b in zip(self._now(), self._begin, strict=True))
        return max(0.0, (busy - own) / (clock * os.cpu_count()))


def prepare_process():
    """Make this process one that ranks can be forked from."""
    # Of the person who runs this; what is measured sets its own.
    for name in [name for name in os.environ if name.startswith(("UCX_", "TORCH_UCX_"))]:
        del os.environ[name]
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch  # noqa: F401  # once, here


def run_setting(ucx, tls, given):
    """Measure one setting and print its tables; returns the lines of its targets."""
    shared_memory = tls == SHARED_MEMORY
    environment = {**ucx.environment, "UCX_TLS": tls}
    print(f"\n== UCX {ucx.name}, UCX_TLS={tls}", flush=True)
    results = Results()
    begin, load = time.monotonic(), OtherLoad()
    with contextlib.ExitStack() as stack:
        pairs = []

        def add(pair):
            stack.callback(pair.close)
            pairs.append(pair)
            return pair

        for program, steps in (("transport_ladder", CPP_STEPS[:3]), ("c10d_ladder", CPP_STEPS[3:])):
            add(ProgramPair(given.programs / program, steps, environment))
        add(TorchPair("ucx", environment))
        add(TorchPair("fake", {}))
        if shared_memory:  # these do not depend on UCX's settings
            add(TorchPair("gloo", {}))
            if given.mpiexec:
                library = add(MpiPair(given.mpiexec)).library
                print(f"   mpi4py: {library}", flush=True)
        perftest = None
        if ucx.perftest:
            # As the transport chooses (plugin/transport/error_mode.h), and the raw loop with it.
            settings = {**environment, **({"UCX_MM_ERROR_HANDLING": "y"} if shared_memory else {})}
            perftest = Perftest(ucx.perftest, settings, ucx.version < (1, 22) or not shared_memory)
        for pair in pairs:  # first contact, and the first use of the memory
            for step in pair.steps:
                for size in (min(COUNTS), max(COUNTS)):
                    pair.microseconds(step, "ping_pongs", size, *COUNTS[size])
        for _ in range(given.repeats):
            if perftest:
                for (measure, size), microseconds in perftest.run(COUNTS).items():
                    results.add(measure, size, "ucx_perftest", microseconds)
            for size, counts in COUNTS.items():
                for measure in ("ping_pongs", "windows"):
                    for pair in pairs:
                        for step in pair.steps:
                            microseconds = pair.microseconds(step, measure, size, *counts)
                            results.add(measure, size, step, microseconds)
    took = f"{given.repeats} rounds, {time.monotonic() - begin:.0f} s"
    print(f"   {took}; others took {load.share():.0%} of the cores", flush=True)
    print_tables(results, list(COUNTS), BLOCKS)
    print("\ntargets", flush=True)
    lines = []
    for reached, text in targets(results, ucx.version):
        lines.append(f"{'reached' if reached else 'missed ':7}  {text}")
        print(lines[-1], flush=True)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--newer-ucx", default="", help="directory of a second libucp")
    parser.add_argument("--mpiexec", default="", help="for mpi4py")
    given = parser.parse_args()
    prepare_process()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"

    versions = [Ucx("", shutil.which("ucx_perftest"))]
    if given.newer_ucx:
        perftest = Path(given.newer_ucx).parent / "bin" / "ucx_perftest"
        versions.append(Ucx(given.newer_ucx, str(perftest) if perftest.exists() else None))
    reached = missed = 0
    for ucx in versions:
        for tls in (SHARED_MEMORY, TCP):
            lines = run_setting(ucx, tls, given)
            reached += sum(line.startswith("reached") for line in lines)
            missed += sum(line.startswith("missed") for line in lines)
    print(f"\n{reached} targets reached, {missed} missed")


if __name__ == "__main__":
    main()
