"""Latency and bandwidth between two ranks, backends side by side.

    python examples/bandwidth.py [--backends ucx,gloo] [--seconds 6]

Latency is half the time of a ping-pong. Bandwidth is that of 64 messages in flight, answered by
one. Both are medians over batches; the backends take turns batch by batch, so that whatever else
the machine does meets all of them alike.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from _launch import start

SIZES = [8, 64, 512, 4096, 32768, 262144, 1 << 20, 4 << 20, 16 << 20]
WINDOW = 64
LEAST_BATCHES = 3
BATCH_S = 0.01
"""About how long a batch lasts: many times the resolution of the clock, and short beside noise."""


def ping_pong(rank, group, buffer, count):
    """Seconds one way."""
    begin = time.perf_counter()
    for _ in range(count):
        if rank == 0:
            dist.send(buffer, 1, group=group)
            dist.recv(buffer, 1, group=group)
        else:
            dist.recv(buffer, 0, group=group)
            dist.send(buffer, 0, group=group)
    return (time.perf_counter() - begin) / (2 * count)


def window(rank, group, buffer, count):
    """Seconds for each message of a window."""
    answer = torch.zeros(1)
    begin = time.perf_counter()
    for _ in range(count):
        if rank == 0:
            works = [dist.isend(buffer, 1, group=group) for _ in range(WINDOW)]
            for work in works:
                work.wait()
            dist.recv(answer, 1, group=group)
        else:
            works = [dist.irecv(buffer, 0, group=group) for _ in range(WINDOW)]
            for work in works:
                work.wait()
            dist.send(answer, 0, group=group)
    return (time.perf_counter() - begin) / (WINDOW * count)


def measure(rank, groups, measurement, buffer, seconds):
    """Medians by backend, on rank 0, which also says what is next; a count of zero ends it."""
    backends = list(groups)
    order = torch.zeros(2, dtype=torch.int64)

    def batch(backend, count):
        dist.send(torch.tensor([backends.index(backend), count]), 1)
        return measurement(rank, groups[backend], buffer, count)

    if rank != 0:
        while True:
            dist.recv(order, 0)
            index, count = order.tolist()
            if count == 0:
                return {}
            measurement(rank, groups[backends[index]], buffer, count)

    messages = 2 if measurement is ping_pong else WINDOW
    counts = {}
    for backend in backends:
        batch(backend, 1)  # first contact, and the first use of the memory
        seconds_each = batch(backend, 1)
        counts[backend] = max(1, min(500, int(BATCH_S / (seconds_each * messages))))
    samples = {backend: [] for backend in backends}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[backends[0]]) < LEAST_BATCHES:
        for backend in backends:
            samples[backend].append(batch(backend, counts[backend]))
    dist.send(torch.tensor([0, 0]), 1)
    return {backend: statistics.median(values) for backend, values in samples.items()}


def header(backends):
    import torch_ucx

    text = f"torch {torch.__version__}, torch_ucx {torch_ucx.__version__}"
    if "ucx" in backends:
        version = ".".join(map(str, torch_ucx.ucx_version()))
        text += f", UCX {version} ({torch_ucx.ucx_library_path()})"
    return text


def main(backends, seconds):
    dist.init_process_group(backends[0])
    rank = dist.get_rank()
    groups = {backend: dist.new_group(backend=backend) for backend in backends}
    if rank == 0:
        print(header(backends))
        print(f"{'':>10}  {'latency one way, us':^{11 * len(backends)}}", end="")
        print(f"  {f'bandwidth, MB/s, {WINDOW} in flight':^{11 * len(backends)}}")
        names = "".join(f"{backend:>11}" for backend in backends)
        print(f"{'bytes':>10}  {names}  {names}", flush=True)
    for size in SIZES:
        buffer = torch.zeros(size, dtype=torch.uint8)
        share = seconds / len(SIZES) / 2
        latency = measure(rank, groups, ping_pong, buffer, share)
        each = measure(rank, groups, window, buffer, share)
        if rank == 0:
            times = "".join(f"{latency[b] * 1e6:>11.2f}" for b in backends)
            rates = "".join(f"{size / each[b] / 1e6:>11.1f}" for b in backends)
            print(f"{size:>10}  {times}  {rates}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", default="ucx,gloo", help="comma-separated (%(default)s)")
    parser.add_argument("--seconds", type=float, default=6, help="about, in all (%(default)s)")
    given = parser.parse_args()
    start(main, 2, given.backends.split(","), given.seconds)
