"""A message in a group of two of the four ranks, with a tag."""

import torch
import torch.distributed as dist
from _launch import launch


def main(backend):
    dist.init_process_group(backend)
    group = dist.new_group([0, 1])  # called by every rank, also by those that are not in it
    if dist.get_rank() == 0:
        tensor = torch.tensor([10, 20, 30, 40, 50])
        request = dist.isend(tensor, dst=1, tag=100, group=group)
        request.wait()
    elif dist.get_rank() == 1:
        tensor = torch.zeros(5)
        dist.recv(tensor, src=0, tag=100, group=group)
        print(tensor)
    dist.destroy_process_group()


if __name__ == "__main__":
    launch(main, ranks=4)
