"""Two threads share the messages that come, of any sender, tag and size; each is received once.

``mprobe`` takes a message out of matching, so that no other thread can get it between learning its
size and receiving it.
"""

import threading

import torch
import torch.distributed as dist
from _launch import launch

PER_SENDER = 4


def main(backend):
    dist.init_process_group(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        collect((world_size - 1) * PER_SENDER)
    else:
        for number in range(PER_SENDER):
            dist.send(torch.full((rank * 1000 + number,), rank), dst=0, tag=number)
    dist.destroy_process_group()


def collect(count):
    import torch_ucx

    turns = threading.Semaphore(count)
    received = []

    def work():
        while turns.acquire(blocking=False):
            message = torch_ucx.mprobe(src=None, tag=torch_ucx.ANY_TAG)
            info = message.info
            tensor = torch.empty(info.numel, dtype=info.dtype)
            message.recv(tensor)
            assert bool((tensor == info.source).all())
            received.append((info.source, info.tag, info.numel))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for source, tag, numel in sorted(received):
        print(f"from rank {source}, tag {tag}: {numel} numbers")


if __name__ == "__main__":
    launch(main, ranks=3)
