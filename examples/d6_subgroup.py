"""A message in a subgroup of a larger world; recv returns the global rank of the sender."""

import torch
import torch.distributed as dist
from _launch import launch


def main(backend):
    dist.init_process_group(backend)
    group = dist.new_group([0, 1])
    if dist.get_rank() == 0:
        dist.send(torch.tensor([7, 8, 9]), dst=1, group=group)
    elif dist.get_rank() == 1:
        tensor = torch.zeros(3)
        src_rank = dist.recv(tensor, src=0, group=group)
        print(src_rank)
        print(tensor)
    dist.destroy_process_group()


if __name__ == "__main__":
    launch(main, ranks=3)
