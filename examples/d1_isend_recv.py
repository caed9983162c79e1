"""isend on one rank, recv on the other, which receives the integers as floats."""

import torch
import torch.distributed as dist
from _launch import launch


def main(backend):
    dist.init_process_group(backend)
    if dist.get_rank() == 0:
        tensor = torch.tensor([1, 2, 3, 4, 5])
        request = dist.isend(tensor, dst=1)
        request.wait()
    else:
        tensor = torch.zeros(5)
        dist.recv(tensor, src=0, tag=0)
        print(tensor)
    dist.destroy_process_group()


if __name__ == "__main__":
    launch(main, ranks=2)
