"""Runs the examples, shows what they print, and compares it with what they should print.

    python examples/run_all.py [--backend ucx]

Ends with status 1 if one fails or prints something else. The ranks of an example print in no fixed
order, so lines are compared as a set. What this version cannot run is named, with the reason.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

DEADLINE_S = 60
"""Bounds one example; one that passes it hangs."""

TYPED_MATCHING = "typed matching: a receive whose dtype is not that of the message"
ANY_SOURCE = "receives from any source"

SUPPORTED = frozenset({TYPED_MATCHING, ANY_SOURCE})
"""Which of the features that examples need this version of the backend has."""

# The program, the feature it needs (if any), and what it prints.
EXAMPLES = (
    ("d1_isend_recv.py", TYPED_MATCHING, "tensor([1., 2., 3., 4., 5.])"),
    ("d2_overlap.py", None, "2000000.0\nall ones: True"),
    ("d3_group_and_tag.py", TYPED_MATCHING, "tensor([10., 20., 30., 40., 50.])"),
    ("d4_source_rank.py", None, "0\ntensor([10, 20, 30, 40])"),
    ("d5_any_source.py", ANY_SOURCE, "the message is of the rank returned: True"),
    ("d6_subgroup.py", TYPED_MATCHING, "0\ntensor([7., 8., 9.])"),
    (
        "ring.py",
        None,
        "rank 0 received tensor([6., 7.])\n"
        "rank 1 received tensor([0., 1.])\n"
        "rank 2 received tensor([2., 3.])\n"
        "rank 3 received tensor([4., 5.])",
    ),
    (
        "halo_exchange.py",
        None,
        "\n".join(f"rank {rank}: 200 steps, equal to the serial result: True" for rank in range(4)),
    ),
    (
        "unknown_sizes.py",
        ANY_SOURCE,
        "\n".join(
            f"from rank {rank}, tag {tag}: {rank * 1000 + tag} numbers"
            for rank in (1, 2)
            for tag in range(4)
        ),
    ),
)

CONVERSION = re.compile(r"^\[torch_ucx\] warning: ucx recv .*: the values are converted$")
"""The backend's remark on a message that it has converted, on stderr."""


def run(name, needs, expected, backend):
    """Run one example; returns what is wrong with it, or ""."""
    program = Path(__file__).with_name(name)
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, str(program), "--backend", backend],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            # Buffered, each rank writes whole lines.
            env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
        )
    except subprocess.TimeoutExpired as error:
        for output in filter(None, (error.stdout, error.stderr)):
            print(output.decode(errors="replace") if isinstance(output, bytes) else output)
        return f"still running after {DEADLINE_S} s"
    for line in done.stdout.splitlines():
        print(f"    {line}")
    for line in done.stderr.splitlines():
        print(f"    (stderr) {line}")
    if done.returncode != 0:
        return f"exit status {done.returncode}"
    if Counter(done.stdout.splitlines()) != Counter(expected.splitlines()):
        return "printed something else than:\n" + expected
    remarks = done.stderr.splitlines()
    if needs == TYPED_MATCHING:
        remarks = [line for line in remarks if not CONVERSION.search(line)]
    if remarks:
        return "printed on stderr: " + remarks[0]
    print(f"    -- as expected, {time.monotonic() - begin:.1f} s")
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="ucx", help="a backend of torch.distributed")
    backend = parser.parse_args().backend
    wrong, left_out = {}, {}
    for name, needs, expected in EXAMPLES:
        if needs is not None and needs not in SUPPORTED:
            left_out[name] = needs
            continue
        print(f"examples/{name}", flush=True)
        problem = run(name, needs, expected, backend)
        if problem:
            wrong[name] = problem
            print(f"    -- FAILED: {problem}", flush=True)
    if left_out:
        print("\nNot run, because this version does not support what they need:")
        for name, needs in left_out.items():
            print(f"    examples/{name}: {needs}")
    ran = len(EXAMPLES) - len(left_out)
    print(f"\n{ran - len(wrong)} of {ran} examples as expected, {len(left_out)} not run.")
    for name, problem in wrong.items():
        print(f"FAILED: examples/{name}: {problem}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
