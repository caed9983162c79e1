"""2-D heat equation on 2 x 2 ranks; their borders travel by persistent operations.

Each rank holds a block of the plate and a border one cell wide around it. Every step exchanges the
borders: eight operations, prepared once, started and waited for in two calls. The result is
compared, bit by bit, with the same steps on the whole plate.
"""

import torch
import torch.distributed as dist
from _launch import launch

SIDE, STEPS = 64, 200


def step(field):
    """One Jacobi step on the inner cells."""
    up, down = field[:-2, 1:-1], field[2:, 1:-1]
    left, right = field[1:-1, :-2], field[1:-1, 2:]
    field[1:-1, 1:-1] = ((up + down) + (left + right)) * 0.25


def plate():
    """The whole plate with its fixed border: hot on top, cold elsewhere."""
    field = torch.zeros(SIDE + 2, SIDE + 2, dtype=torch.float64)
    field[0, :] = 100.0
    return field


def main(backend):
    import torch_ucx

    dist.init_process_group(backend)
    row, column = divmod(dist.get_rank(), 2)
    half = SIDE // 2
    rows = slice(row * half, (row + 1) * half + 2)
    columns = slice(column * half, (column + 1) * half + 2)
    block = plate()[rows, columns].clone()

    # (neighbour, cells to send, cells to receive): a row or a column each; columns are strided
    # views, which the backend gathers and scatters.
    sides = []
    if row == 0:
        sides.append((2 + column, block[-2, 1:-1], block[-1, 1:-1]))
    else:
        sides.append((column, block[1, 1:-1], block[0, 1:-1]))
    if column == 0:
        sides.append((2 * row + 1, block[1:-1, -2], block[1:-1, -1]))
    else:
        sides.append((2 * row, block[1:-1, 1], block[1:-1, 0]))
    exchange = [torch_ucx.recv_init(cells, src=rank) for rank, _, cells in sides]
    exchange += [torch_ucx.send_init(cells, dst=rank) for rank, cells, _ in sides]

    for _ in range(STEPS):
        torch_ucx.start_all(exchange)
        torch_ucx.wait_all(exchange)
        step(block)

    whole = plate()
    for _ in range(STEPS):
        step(whole)
    agrees = torch.equal(block[1:-1, 1:-1], whole[rows, columns][1:-1, 1:-1])
    print(f"rank {dist.get_rank()}: {STEPS} steps, equal to the serial result: {agrees}")
    dist.destroy_process_group()


if __name__ == "__main__":
    launch(main, ranks=4)
