"""The steps of the ladder with mpi4py; mpiexec runs it, benchmarks/ladder.py says what to measure.

python benchmarks/ladder_mpi.py ADDRESS    (of the driver's socket)
"""

import sys
from multiprocessing.connection import Client

import numpy
from ladder_steps import MOST_BYTES, WINDOW, Step, serve, started
from mpi4py import MPI


class PlainStep(Step):
    """Send and Recv; windows of Isend and Irecv."""

    def sender(self, array):
        send, other = MPI.COMM_WORLD.Send, self.other
        return lambda: send(array, other)

    def receiver(self, array):
        receive, other = MPI.COMM_WORLD.Recv, self.other
        return lambda: receive(array, other)

    def windows(self, size, count):
        world, other, answer = MPI.COMM_WORLD, self.other, self.answer()
        call = world.Isend if self.rank == 0 else world.Irecv
        buffer = (self.out if self.rank == 0 else self.into)[:size]
        for _ in range(count):
            MPI.Request.Waitall([call(buffer, other) for _ in range(WINDOW)])
            answer()


class PersistentStep(Step):
    """Send_init and Recv_init; windows by Startall and Waitall."""

    def __init__(self, rank, out, into):
        super().__init__(rank, out, into)
        self._requests = []

    def _init(self, make, array):
        self._requests.append(make(array, self.other))
        return self._requests[-1]

    def _free(self):
        for request in self._requests:
            request.Free()
        self._requests.clear()

    def sender(self, array):
        request = self._init(MPI.COMM_WORLD.Send_init, array)
        return started(request.Start, request.Wait)

    def receiver(self, array):
        request = self._init(MPI.COMM_WORLD.Recv_init, array)
        return started(request.Start, request.Wait)

    def ping_pongs(self, size, count):
        super().ping_pongs(size, count)
        self._free()

    def windows(self, size, count):
        world, answer = MPI.COMM_WORLD, self.answer()
        make = world.Send_init if self.rank == 0 else world.Recv_init
        buffer = (self.out if self.rank == 0 else self.into)[:size]
        requests = [self._init(make, buffer) for _ in range(WINDOW)]
        for _ in range(count):
            MPI.Prequest.Startall(requests)
            MPI.Request.Waitall(requests)
            answer()
        self._free()


def main():
    rank = MPI.COMM_WORLD.Get_rank()
    out, into = (numpy.zeros(MOST_BYTES, dtype=numpy.uint8) for _ in range(2))
    out[:] = into[:] = 1  # zeros() alone is memory that does not exist yet
    with Client(sys.argv[1], "AF_UNIX") as connection:
        connection.send((rank, " ".join(MPI.Get_library_version().split()[:3])))
        steps = {"mpi4py": PlainStep(rank, out, into)}
        steps["mpi4py persistent"] = PersistentStep(rank, out, into)
        serve(connection, rank, steps)


main()
