"""Two ranks send; the third receives from whichever comes first."""

import torch
import torch.distributed as dist
from _launch import launch


def main(backend):
    dist.init_process_group(backend)
    rank = dist.get_rank()
    if rank < 2:
        dist.send(torch.full((3,), float(rank)), dst=2)
    else:
        res = torch.full((3,), -1.0)
        src_rank = dist.recv(res, src=dist.ANY_SOURCE)
        expected = torch.full((3,), float(src_rank))
        print("the message is of the rank returned:", torch.equal(res, expected))
    dist.barrier()  # the receiver stays until both have sent
    dist.destroy_process_group()  # the other message is never received, which is no error


if __name__ == "__main__":
    launch(main, ranks=3)
