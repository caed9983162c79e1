"""How progress behaves: on hosts with too few cores, while nobody waits, and while nothing moves.

    python benchmarks/progress.py OVERSUBSCRIPTION [--repeats 5] [--newer-ucx LIBDIR]

OVERSUBSCRIPTION is that program; ci/bench-progress builds it and runs this.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import subprocess
import time
from pathlib import Path

import progress_report as report
from ladder import SHARED_MEMORY, TCP, OtherLoad, Ucx, prepare_process
from ladder_pairs import TorchPair
from ladder_report import Results
from progress_ranks import run_progress_rank

RANKS = (2, 4, 8)
CORES = ("all", "one")
MODES = ("auto", "caller", "thread")
"""Of TORCH_UCX_PROGRESS; the first is the default."""

PING_PONGS = 2000
IDLE_S = 5

PROGRAM_S = 120
"""Bounds a run of the program."""

ANSWER_S = 60
"""Bounds a scenario."""


class Setting:
    """A UCX and its transports; ``pairs`` by mode, once started."""

    def __init__(self, ucx, tls):
        self.name = f"UCX {ucx.name}, {'shared memory' if tls == SHARED_MEMORY else 'tcp'}"
        self.environment = {**ucx.environment, "UCX_TLS": tls}
        self.pairs = {}


class ProgressPair(TorchPair):
    """Two ranks of progress_ranks.py."""

    def __init__(self, environment):
        self._transfers = 0
        super().__init__("ucx", environment, run_progress_rank)

    def tell(self, scenario, *arguments):
        for connection in self._connections:
            connection.send((scenario, arguments))

    def answers(self, scenario):
        return [self._recv(ANSWER_S, scenario, rank) for rank in range(2)]

    def ask(self, scenario, *arguments):
        self.tell(scenario, *arguments)
        return self.answers(scenario)

    def transfer(self, place, sender, receiver):
        """Milliseconds until rank 1 has the message (and, where it computed, rank 0 knows).

        Infinite: it did not within the bound while a rank computed.
        """
        self._transfers += 1
        sent, received = self.ask("transfer", self._transfers, place, sender, receiver)
        (sent_at, begin, _), (received_at, _, _) = sent, received
        if not (sent[2] and received[2]):
            return math.inf
        computed = receiver in report.COMPUTATIONS
        return 1e3 * ((max(sent_at, received_at) if computed else received_at) - begin)


def measure_hosts(settings, program, repeats):
    """By (setting, (ranks, cores), measure): microseconds."""
    results = Results()
    for setting, ranks, cores in itertools.product(settings, RANKS, CORES):
        done = subprocess.run(
            [program, str(ranks), cores, str(repeats)],
            env={**os.environ, **setting.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=PROGRAM_S,
        )
        for line in map(json.loads, done.stdout.splitlines()):
            results.add(setting.name, (ranks, cores), line["measure"], line["us"])
    return results


def measure_transfers(settings, repeats):
    """By (setting, (place, title), column): milliseconds.

    On one core once: what it shows is plain, and takes seconds.
    """
    results = Results()
    for repeat in range(repeats):
        for setting, place in itertools.product(settings, report.PLACES):
            if place == "one core" and repeat > 0:
                continue
            for row in report.transfers(place):
                for column, who in row.ranks.items():
                    milliseconds = setting.pairs[MODES[0]].transfer(place, *who)
                    results.add(setting.name, (place, row.title), column, milliseconds)
    return results


def measure_modes(settings, repeats):
    """By (setting, mode, column): microseconds of a ping-pong, milliseconds of transfers."""
    results = Results()
    stuck = set()  # what does not move takes seconds: once is enough
    for _ in range(repeats):
        for setting, mode in itertools.product(settings, MODES):
            pair = setting.pairs[mode]
            microseconds = pair.ask("ping_pong", PING_PONGS)[0]
            results.add(setting.name, mode, "ping-pong", microseconds)
            if (setting, mode) in stuck:
                continue
            for column, sender in (("attended", "waits"), ("unattended", "python")):
                milliseconds = pair.transfer("own core", sender, "blocked")
                results.add(setting.name, mode, column, milliseconds)
                if milliseconds == math.inf:
                    stuck.add((setting, mode))
    return results


def measure_idling(settings):
    """By (setting, mode, "idle" or "blocked"): share of a core, by ranks.

    All pairs at the same time.
    """
    results = Results()
    pairs = [(s.name, mode, s.pairs[mode]) for s in settings for mode in MODES]
    for _, _, pair in pairs:
        pair.tell("idle", IDLE_S)
    for name, mode, pair in pairs:
        for answer in pair.answers("idle"):
            for column, share in zip(("idle", "blocked"), answer, strict=True):
                results.add(name, mode, column, share)
    return results


@contextlib.contextmanager
def load_shown():
    """Says at the end how long it took, and what others took of the cores meanwhile."""
    begin, load = time.monotonic(), OtherLoad()
    yield
    took = f"{time.monotonic() - begin:.0f} s"
    print(f"\n   {took}; others took {load.share():.0%} of the cores", flush=True)


@contextlib.contextmanager
def started_pairs(settings):
    """One for each mode of each setting; all of them sleep but for the one that measures."""
    with contextlib.ExitStack() as stack:
        for setting in settings:
            for mode in MODES:
                pair = ProgressPair({**setting.environment, "TORCH_UCX_PROGRESS": mode})
                stack.callback(pair.close)
                setting.pairs[mode] = pair
                pair.transfer("own core", "waits", "blocked")  # first use of the memory
        yield


def title(number, text):
    print(f"\n== {number}. {text}", flush=True)


def run(settings, given):
    names = [setting.name for setting in settings]
    targets = report.Targets()
    print(f"Medians (and best) of repeats: {given.repeats}; cores: {os.cpu_count()}")
    with load_shown():
        title(1, "Ranks on few cores: 8 bytes one way, and an exchange of all ranks, us")
        results = measure_hosts(settings, given.oversubscription, given.repeats)
        rows = list(itertools.product(RANKS, CORES))
        for name in names:
            report.print_hosts(results, name, rows, os.cpu_count())
    with load_shown():
        with started_pairs(settings):
            title(2, "Unattended transfers: 64 MB from isend to the receiver's return, ms;")
            print(f"   as a multiple of the time when both wait (at most {report.RATIO})")
            results = measure_transfers(settings, given.repeats)
            for name, place in itertools.product(names, report.PLACES):
                report.print_transfers(results, name, place, targets)
            title(3, f"Idling: of a core, over {IDLE_S} s (less than {report.IDLE:.0%})")
            report.print_idling(measure_idling(settings), names, MODES, targets)
            title(4, "Modes of TORCH_UCX_PROGRESS: 8-byte dist.send and recv; the sender of 64 MB")
            print("   computes in pure Python, each rank on a core of its own")
            report.print_modes(measure_modes(settings, given.repeats), names, MODES)
    print(f"\n{targets.reached} targets reached, {targets.missed} missed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("oversubscription", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--newer-ucx", default="", help="directory of a second libucp")
    given = parser.parse_args()
    prepare_process()
    versions = [Ucx("", None), *([Ucx(given.newer_ucx, None)] if given.newer_ucx else [])]
    settings = [Setting(ucx, tls) for ucx in versions for tls in (SHARED_MEMORY, TCP)]
    run(settings, given)


if __name__ == "__main__":
    main()
