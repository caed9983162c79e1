"""Tables of a run of the ladder, and which of the targets it has reached."""

import statistics

from ladder_steps import WINDOW

TITLES = {"ping_pongs": "latency one way, us", "windows": f"{WINDOW} in flight, us a message"}
MB, MB16 = 1 << 20, 16 << 20


class Results:
    """Samples of a setting, in microseconds: ``samples[measure, size, step]``, a list."""

    def __init__(self):
        self.samples = {}

    def add(self, measure, size, step, microseconds):
        self.samples.setdefault((measure, size, step), []).append(microseconds)

    def has(self, step):
        return any(key[2] == step for key in self.samples)

    def median(self, measure, size, step):
        return statistics.median(self.samples[measure, size, step])

    def best(self, measure, size, step):
        return min(self.samples[measure, size, step])


def figure(value):
    """Three digits that count, and no more than that behind the point."""
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 1 else 3}f}"


def print_tables(results, sizes, blocks):
    """For each block of steps and each measure: a row a size, a column a step."""
    for steps in blocks:
        steps = [step for step in steps if results.has(step)]
        widths = [max(len(step), 15) for step in steps]
        for measure, title in TITLES.items():
            head = " ".join(f"{s:>{w}}" for s, w in zip(steps, widths, strict=True))
            print(f"\n{title}\n{'bytes':>9} {head}")
            for size in sizes:
                cells = []
                for step, width in zip(steps, widths, strict=True):
                    median = figure(results.median(measure, size, step))
                    best = figure(results.best(measure, size, step))
                    cells.append(f"{f'{median} ({best})':>{width}}")
                print(f"{size:>9} {' '.join(cells)}")
        print("the same as a rate")
        for size, unit in ((sizes[0], "M/s"), (MB, "GB/s"), (MB16, "GB/s")):
            cells = []
            for step, width in zip(steps, widths, strict=True):
                each = results.median("windows", size, step)
                rate = 1 / each if unit == "M/s" else size / each / 1e3
                cells.append(f"{f'{figure(rate)} {unit}':>{width}}")
            print(f"{size:>9} {' '.join(cells)}")


def targets(results, version):
    """What is aimed at: (reached, text), from medians."""

    def latency(size, step):
        return results.median("ping_pongs", size, step)

    def window(size, step):
        return results.median("windows", size, step)

    def rate(size, step, least):
        ratio = window(size, "raw") / window(size, step)
        return ratio >= least, f"{ratio:.0%} of raw (at least {least:.0%})"

    def at_most(value, limit, text):
        return value <= limit, f"{figure(value)} us (at most {figure(limit)} us: {text})"

    if results.has("ucx_perftest"):
        for name, measure in (("latency", "ping_pongs"), ("64 in flight", "windows")):
            for size in (8, MB):
                raw = results.median(measure, size, "raw")
                ratio = raw / results.median(measure, size, "ucx_perftest")
                text = f"{ratio:.3f} of ucx_perftest's time (0.90 to 1.10)"
                yield 0.9 <= ratio <= 1.1, f"raw, {name}, {size} bytes: {text}"
    raw8 = latency(8, "raw")
    ok, text = at_most(latency(8, "transport"), raw8 + 0.15, "raw + 0.15 us")
    yield ok, f"transport, 8 bytes one way: {text}"
    ok, text = rate(8, "transport", 0.75 if version >= (1, 22) else 0.85)
    yield ok, f"transport, message rate: {text}"
    ok, text = rate(8, "transport persistent", 0.9)
    yield ok, f"transport persistent, message rate: {text}"
    for size in (MB, MB16):
        ok, text = rate(size, "transport", 0.9)
        yield ok, f"transport, bandwidth, {size} bytes: {text}"
    null = latency(8, "null")
    for calls, text in ((null, "null"), (2 * null, "null's send and receive")):
        limit = calls + 1.5 * raw8 + 0.5
        ok, text = at_most(latency(8, "dist.send"), limit, f"{text} + 1.5 raw + 0.5 us")
        yield ok, f"dist.send, 8 bytes one way: {text}"
    for size in (MB, MB16):
        limit = 1.1 * latency(size, "raw") + latency(size, "null")
        ok, text = at_most(latency(size, "dist.send"), limit, "1.1 raw + null")
        yield ok, f"dist.send, {size} bytes one way: {text}"
    for step in ("mpi4py", "mpi4py persistent"):
        if results.has(step):
            ok, text = at_most(latency(8, "persistent"), latency(8, step), step)
            yield ok, f"persistent from Python, 8 bytes one way: {text}"
