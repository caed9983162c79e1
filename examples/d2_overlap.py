"""Computing while a message is under way."""

import torch
import torch.distributed as dist
from _launch import launch


def main(backend):
    dist.init_process_group(backend)
    if dist.get_rank() == 0:
        tensor = torch.ones(1000000)
        request = dist.isend(tensor, dst=1)
        print((torch.sum(tensor) * 2).item())
        request.wait()
    else:
        tensor = torch.zeros(1000000)
        request = dist.irecv(tensor, src=0)
        request.wait()
        print("all ones:", torch.equal(tensor, torch.ones(1000000)))
    dist.destroy_process_group()


if __name__ == "__main__":
    launch(main, ranks=2)
