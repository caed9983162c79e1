"""What the ranks of benchmarks/progress.py do: two processes, forked from one that has torch.

The driver names a scenario, and both ranks answer with what they have measured. What they tell each
other meanwhile goes over a file that both have mapped, not over the backend.
"""

import mmap
import os
import time
from datetime import timedelta

from ladder_steps import BlockingStep, spread

BYTES = 64 << 20

BOUND_S = 3
"""A transfer that has not moved unattended by then does not: the computing rank waits for it."""

READY, BEGUN, DONE = range(3)
"""Words of the board: the number of the last transfer that has got so far."""

_PAUSE_S = 0.0002


def run_progress_rank(connection, backend, rank, store_path, environment):
    """One rank of a pair, in a process of its own."""
    os.environ.update(environment)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    board = Board(f"{store_path}-board")
    dist.init_process_group(backend, store=dist.FileStore(store_path, 2), rank=rank, world_size=2)
    scenarios = Scenarios(rank, board)
    scenarios.ping_pong(1)
    if rank == 0:
        connection.send([])
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            break
        connection.send(getattr(scenarios, name)(*arguments))
    dist.destroy_process_group()


class Board:
    """Words that both ranks read and write. A read is no system call, and keeps the GIL."""

    def __init__(self, path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        self._words = memoryview(mmap.mmap(descriptor, mmap.PAGESIZE)).cast("q")
        os.close(descriptor)

    def post(self, word, number):
        self._words[word] = number

    def has(self, word, number):
        return self._words[word] >= number

    def wait(self, word, number):
        while not self.has(word, number):
            time.sleep(_PAUSE_S)


class Scenarios:
    def __init__(self, rank, board):
        import torch

        self.rank = rank
        self.board = board
        self.message = torch.ones(BYTES, dtype=torch.uint8)
        self.matrix = torch.rand(128, 128)
        out, into = (torch.zeros(8, dtype=torch.uint8) for _ in range(2))
        self.small = BlockingStep(rank, out, into)

    def ping_pong(self, count):
        """Microseconds one way, 8 bytes."""
        use_all_cores()
        spread(self.rank)
        self.small.ping_pongs(8, 1)
        begin = time.perf_counter()
        self.small.ping_pongs(8, count)
        return 1e6 * (time.perf_counter() - begin) / count / 2

    def transfer(self, number, place, sender, receiver):
        """The message from rank 0 to 1: (when this rank was through, begin, moved unattended).

        sender: "waits", or computes until rank 1 has the message ("python", "matmul").
        receiver: receives "late", when rank 0 has posted its send; has a receive "posted" and waits
        for it from then on; is "blocked" in its receive by then; has a receive posted and computes
        until rank 0 is through ("python", "matmul"). place: progress_report.PLACES.
        """
        if place == "own core":
            use_core(self.rank)
        elif place == "one core":
            use_core(0)
        else:
            use_all_cores()
            spread(self.rank)
        return self._send(number, sender) if self.rank == 0 else self._receive(number, receiver)

    def _send(self, number, does):
        import torch.distributed as dist

        self.board.wait(READY, number)
        time.sleep(0.005)  # a blocked receiver sleeps by now, and both helpers do
        begin = time.monotonic()
        work = dist.isend(self.message, 1)
        self.board.post(BEGUN, number)
        moved = does == "waits" or self._compute(does, number)
        work.wait()
        end = time.monotonic()
        self.board.post(DONE, number)
        return end, begin, moved

    def _receive(self, number, does):
        import torch.distributed as dist

        work = None if does in ("late", "blocked") else dist.irecv(self.message, 0)
        self.board.post(READY, number)
        moved = True
        if does in ("late", "posted"):
            self.board.wait(BEGUN, number)
        elif does != "blocked":
            moved = self._compute(does, number)
        if work is None:
            dist.recv(self.message, 0)
        else:
            work.wait()
        end = time.monotonic()
        self.board.post(DONE, number)
        return end, None, moved

    def _compute(self, what, number):
        """Until the other rank is through; whether it was within the bound."""
        step = {"python": count_on, "matmul": lambda: self.matrix @ self.matrix}[what]
        limit = time.monotonic() + BOUND_S
        while not self.board.has(DONE, number):
            step()
            if time.monotonic() > limit:
                return False
        return True

    def idle(self, seconds):
        """Share of a core that this process takes: after a message, and blocked in a receive."""
        import torch
        import torch.distributed as dist

        use_all_cores()
        self.small.ping_pongs(8, 1)
        begin = time.process_time()
        time.sleep(seconds)
        idle = time.process_time() - begin
        begin = time.process_time()
        work = dist.irecv(torch.zeros(1), 1 - self.rank, tag=1)
        try:
            work.wait(timedelta(seconds=seconds))
        except dist.DistError:
            blocked = time.process_time() - begin
        else:
            raise RuntimeError("received what nobody has sent")
        return idle / seconds, blocked / seconds


def count_on():
    """Some 20 microseconds of pure Python, which keep the GIL."""
    total = 0
    for i in range(500):
        total += i
    return total


_CORES = os.sched_getaffinity(0)


def use_cores(cores):
    """For all threads of this process."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def use_all_cores():
    use_cores(_CORES)


def use_core(rank):
    use_cores({sorted(_CORES)[rank % len(_CORES)]})
