"""Four ranks in a ring: each sends to the right and receives from the left, in one batch."""

import torch
import torch.distributed as dist
from _launch import launch


def main(backend):
    dist.init_process_group(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    send_tensor = torch.arange(2, dtype=torch.float32) + 2 * rank
    recv_tensor = torch.zeros(2, dtype=torch.float32)
    send_op = dist.P2POp(dist.isend, send_tensor, (rank + 1) % world_size)
    recv_op = dist.P2POp(dist.irecv, recv_tensor, (rank - 1 + world_size) % world_size)
    for request in dist.batch_isend_irecv([send_op, recv_op]):
        request.wait()
    print(f"rank {rank} received {recv_tensor}")
    dist.destroy_process_group()


if __name__ == "__main__":
    launch(main, ranks=4)
