"""The tables of benchmarks/progress.py, and which of the targets a run has reached."""

import math
from dataclasses import dataclass

from ladder_report import figure
from progress_ranks import BOUND_S

RATIO = 1.5
"""Target: what an unattended transfer takes, as a multiple of an attended one."""

IDLE = 0.02
"""Target: of a core."""

COMPUTATIONS = {"python": "pure Python", "matmul": "torch.matmul"}


@dataclass
class Transfer:
    """A row of the table of transfers: what rank 0 and rank 1 do, by column."""

    title: str
    ranks: dict


def _sender_computes(title, receiver):
    ranks = {"attended": ("waits", receiver)}
    return Transfer(title, ranks | {what: (what, receiver) for what in COMPUTATIONS})


TRANSFERS = (
    _sender_computes("sender computes, recv called after isend", "late"),
    _sender_computes("sender computes, irecv posted before isend", "posted"),
    _sender_computes("sender computes, receiver blocked in recv", "blocked"),
    Transfer(
        "receiver computes, irecv posted, sender waits",
        {"attended": ("waits", "posted")} | {what: ("waits", what) for what in COMPUTATIONS},
    ),
)


PLACES = {
    "own core": "each rank on a core of its own",
    "all cores": "both on all cores",
    "one core": "both on one core, once; no target",
}
"""Where the ranks of a transfer run."""


def transfers(place):
    """The rows of a place: on one core only what shows whether a waiting thread gets its share."""
    return TRANSFERS[2:3] if place == "one core" else TRANSFERS


class Targets:
    """Counts them as they are printed."""

    def __init__(self):
        self.reached = 0
        self.missed = 0

    def judge(self, reached):
        self.reached += reached
        self.missed += not reached
        return "reached" if reached else "MISSED"


def cell(results, *key):
    """Median and best."""
    return f"{figure(results.median(*key))} ({figure(results.best(*key))})"


def ratio(results, setting, row, column, base):
    return results.median(setting, row, column) / results.median(setting, row, base)


def print_hosts(results, setting, rows, cores):
    print(f"\n{setting}")
    titles = ("pairs, raw", "pairs, transport", "/raw", "ring, a hop", "exchange")
    print(f"  ranks  cores {titles[0]:>20} {titles[1]:>20} {titles[2]:>9}", end="")
    print(f" {titles[3]:>20} {titles[4]:>20}")
    for row in rows:
        ranks, which = row
        each = [cell(results, setting, row, m) for m in ("raw pairs", "pairs", "ring", "exchange")]
        times = f"{ratio(results, setting, row, 'pairs', 'raw pairs'):.2g}"
        print(f"{ranks:7}  {cores if which == 'all' else 1:5} {each[0]:>20} {each[1]:>20}", end="")
        print(f" {times:>9} {each[2]:>20} {each[3]:>20}")


def print_transfers(results, setting, place, targets):
    print(f"\n{setting}; {PLACES[place]}")
    heads = "".join(f" {title:>36}" for title in COMPUTATIONS.values())
    print(f"  {'':46} {'both wait':>14}{heads}")
    judged = targets if place != "one core" else None
    for row in transfers(place):
        key = (place, row.title)
        print(f"  {row.title:46} {cell(results, setting, key, 'attended'):>14}", end="")
        for column in COMPUTATIONS:
            print(f" {unattended(results, setting, key, column, judged):>36}", end="")
        print()


def unattended(results, setting, key, column, targets=None):
    """The cell of a transfer that a rank does not attend, with its ratio."""
    samples = results.samples[setting, key, column]
    stuck = samples.count(math.inf)
    times = ratio(results, setting, key, column, "attended")
    verdict = f" {targets.judge(times <= RATIO and not stuck)}" if targets else ""
    if times == math.inf:
        return f"{stuck} of {len(samples)} not within {BOUND_S} s{verdict}"
    late = f", {stuck} over {BOUND_S} s" if stuck else ""
    return f"{cell(results, setting, key, column)}{late} x{times:.2f}{verdict}"


def print_modes(results, settings, modes):
    print(f"  {'':26} {'mode':8} {'ping-pong, us':>16} {'64 MB attended, ms':>20}   unattended, ms")
    for setting in settings:
        for mode in modes:
            key = (setting, mode)
            print(f"  {setting:26} {mode:8} {cell(results, *key, 'ping-pong'):>16}", end="")
            print(f" {cell(results, *key, 'attended'):>20}", end="")
            stuck = mode == "caller" and math.inf in results.samples[(*key, "unattended")]
            text = "does not move unattended" if stuck else unattended(results, *key, "unattended")
            print(f"   {text}")


def print_idling(results, settings, modes, targets):
    print(f"  {'':26} {'mode':8} {'idle':>18} {'blocked in recv':>18}")
    for setting in settings:
        for mode in modes:
            print(f"  {setting:26} {mode:8}", end="")
            for column in ("idle", "blocked"):
                share = max(results.samples[setting, mode, column])  # of the ranks
                # The target is the default mode's.
                verdict = targets.judge(share < IDLE) if mode == modes[0] else ""
                print(f" {f'{100 * share:.2f} % {verdict:7}':>18}", end="")
            print()
