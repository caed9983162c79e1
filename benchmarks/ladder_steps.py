"""The steps of the ladder in Python: ways to move messages between two processes.

A step has ``ping_pongs(size, count)`` and ``windows(size, count)``, as in ``step.h``: a window is
64 messages from rank 0 to rank 1 that one small message answers. Both ranks call the same.
"""

import os
import time

WINDOW = 64
ANSWER = 8
MOST_BYTES = 16 << 20


def serve(connection, rank, steps):
    """Measure what the driver asks for; rank 0 answers with seconds."""
    if rank == 0:
        connection.send(list(steps))
    while True:
        try:
            name, measure, size, count = connection.recv()
        except EOFError:
            return
        step = steps[name]
        spread(rank)
        step.ping_pongs(size, 1)  # both ranks are there, and the caches warm
        begin = time.perf_counter()
        getattr(step, measure)(size, count)
        seconds = time.perf_counter() - begin
        if rank == 0:
            connection.send(seconds)


def spread(rank):
    """Move to a core of this rank's own, and let the scheduler go on from there.

    Two ranks that spin on one core get nowhere until the scheduler parts them, which takes long.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[rank % len(cores)]})
    os.sched_setaffinity(0, cores)


class Step:
    """Buffers, and the loop of ping-pongs for calls that return when the message is done."""

    def __init__(self, rank, out, into):
        self.rank = rank
        self.other = 1 - rank
        self.out = out
        self.into = into

    def ping_pongs(self, size, count):
        send, receive = self.sender(self.out[:size]), self.receiver(self.into[:size])
        if self.rank == 0:
            for _ in range(count):
                send()
                receive()
        else:
            for _ in range(count):
                receive()
                send()

    def answer(self):
        """The call that ends a window on this rank."""
        if self.rank == 0:
            return self.receiver(self.into[:ANSWER])
        return self.sender(self.out[:ANSWER])

    def works(self, size, count, post, wait):
        """Windows of operations that are posted first and waited for then."""
        buffer = (self.out if self.rank == 0 else self.into)[:size]
        answer = self.answer()
        for _ in range(count):
            for work in [post(buffer) for _ in range(WINDOW)]:
                wait(work)
            answer()


class GroupStep(Step):
    """The process group's own methods."""

    def __init__(self, rank, out, into, group):
        super().__init__(rank, out, into)
        self.group = group

    def sender(self, tensor):
        group, other, tensors = self.group, self.other, [tensor]
        return lambda: group.send(tensors, other, 0).wait()

    def receiver(self, tensor):
        group, other, tensors = self.group, self.other, [tensor]
        return lambda: group.recv(tensors, other, 0).wait()

    def windows(self, size, count):
        call, other = (self.group.send if self.rank == 0 else self.group.recv), self.other
        self.works(size, count, lambda t: call([t], other, 0), lambda work: work.wait())


class BlockingStep(Step):
    """dist.send and dist.recv; a window is 64 calls, one after the other."""

    def sender(self, tensor):
        import torch.distributed as dist

        send, other = dist.send, self.other
        return lambda: send(tensor, other)

    def receiver(self, tensor):
        import torch.distributed as dist

        recv, other = dist.recv, self.other
        return lambda: recv(tensor, other)

    def windows(self, size, count):
        if self.rank == 0:
            call = self.sender(self.out[:size])
        else:
            call = self.receiver(self.into[:size])
        answer = self.answer()
        for _ in range(count):
            for _ in range(WINDOW):
                call()
            answer()


class WorkStep(Step):
    """dist.isend and dist.irecv, and wait() of what they return."""

    def sender(self, tensor):
        import torch.distributed as dist

        isend, other = dist.isend, self.other
        return lambda: isend(tensor, other).wait()

    def receiver(self, tensor):
        import torch.distributed as dist

        irecv, other = dist.irecv, self.other
        return lambda: irecv(tensor, other).wait()

    def windows(self, size, count):
        import torch.distributed as dist

        call, other = (dist.isend if self.rank == 0 else dist.irecv), self.other
        self.works(size, count, lambda t: call(t, other), lambda work: work.wait())


class NullStep(Step):
    """Of a backend that moves nothing: what torch and Python take for the calls.

    The loops of rank 0. Half a ping-pong is half a send and a receive: those of the two ranks can
    overlap but for that. A window has the sends.
    """

    def ping_pongs(self, size, count):
        import torch.distributed as dist

        send, recv, other = dist.send, dist.recv, self.other
        out, into = self.out[:size], self.into[:size]
        for _ in range(count):
            send(out, other)
            recv(into, other)

    def windows(self, size, count):
        import torch.distributed as dist

        isend, other, out = dist.isend, self.other, self.out[:size]
        for _ in range(count):
            for work in [isend(out, other) for _ in range(WINDOW)]:
                work.wait()


class PersistentStep(Step):
    """torch_ucx's persistent operations; windows are started and waited for in one call each."""

    def sender(self, tensor):
        import torch_ucx

        operation = torch_ucx.send_init(tensor, self.other)
        return started(operation.start, operation.wait)

    def receiver(self, tensor):
        import torch_ucx

        operation = torch_ucx.recv_init(tensor, self.other)
        return started(operation.start, operation.wait)

    def windows(self, size, count):
        import torch_ucx

        if self.rank == 0:
            operations = [torch_ucx.send_init(self.out[:size], 1) for _ in range(WINDOW)]
        else:
            operations = [torch_ucx.recv_init(self.into[:size], 0) for _ in range(WINDOW)]
        start_all, wait_all, answer = torch_ucx.start_all, torch_ucx.wait_all, self.answer()
        for _ in range(count):
            start_all(operations)
            wait_all(operations)
            answer()


def started(start, wait):
    """The call that a persistent operation makes of a message."""

    def call():
        start()
        wait()

    return call


def run_torch_rank(connection, backend, rank, store_path, environment):
    """One rank of a pair that uses torch, in a process of its own."""
    os.environ.update(environment)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    out, into = (torch.zeros(MOST_BYTES, dtype=torch.uint8) for _ in range(2))
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        store = FakeStore()
    else:
        store = dist.FileStore(store_path, 2)
    dist.init_process_group(backend, store=store, rank=rank, world_size=2)
    if backend == "ucx":
        steps = {
            "pg.send": GroupStep(rank, out, into, dist.group.WORLD),
            "dist.send": BlockingStep(rank, out, into),
            "dist.isend": WorkStep(rank, out, into),
            "persistent": PersistentStep(rank, out, into),
        }
    elif backend == "fake":
        steps = {"null": NullStep(rank, out, into)}
    else:
        steps = {backend: BlockingStep(rank, out, into)}
    serve(connection, rank, steps)
    dist.destroy_process_group()
