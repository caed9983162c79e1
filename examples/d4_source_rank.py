"""recv returns the rank of the sender."""

import torch
import torch.distributed as dist
from _launch import launch


def main(backend):
    dist.init_process_group(backend)
    if dist.get_rank() == 0:
        dist.send(torch.tensor([10, 20, 30, 40]), dst=1)
    else:
        res_long = torch.zeros(4, dtype=torch.int64)
        src_rank = dist.recv(res_long, src=0)
        print(src_rank)
        print(res_long)
    dist.destroy_process_group()


if __name__ == "__main__":
    launch(main, ranks=2)
