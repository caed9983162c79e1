"""Persistent operations: prepared once, started many times."""

import gc
import struct
import threading
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist

from ranks import raised, same, wait_until


def started_many_times(rank):
    import torch_ucx

    peer = 1 - rank.rank
    for dtype, count in ((torch.int64, 1), (torch.float32, 5000), (torch.complex64, 7)):
        out, got = torch.zeros(count, dtype=dtype), torch.zeros(count, dtype=dtype)
        send = torch_ucx.send_init(out, peer, tag=4)
        receive = torch_ucx.recv_init(got, peer, tag=4)
        assert send.test() and receive.test()  # nothing is under way yet
        send.wait()
        for number in range(200):
            out.fill_(number * 2 + rank.rank)
            torch_ucx.start_all([receive, send])
            torch_ucx.wait_all([send, receive])
            same(got, torch.full((count,), number * 2 + peer, dtype=dtype))
            assert receive.test() and receive.group_source() == peer and receive.tag == 4


def match_ordinary_messages(rank):
    """Also of another dtype, from any source, with any tag."""
    import torch_ucx

    if rank.rank == 0:
        send = torch_ucx.send_init(torch.tensor([1, 2, 3]), 1, tag=5)
        for _ in range(3):
            send.start()
            send.wait()
        dist.send(torch.tensor([7.5, 8.5]), 1, tag=6)
        dist.send(torch.tensor([4, 5], dtype=torch.int32), 1, tag=9)
    else:
        got = torch.zeros(3)
        for _ in range(3):
            same(dist.recv(got, 0, tag=5), 0)
            same(got, torch.tensor([1.0, 2.0, 3.0]))
        values = torch.zeros(2, dtype=torch.float64)
        receive = torch_ucx.recv_init(values, tag=torch_ucx.ANY_TAG)
        for tag, expected in ((6, [7.5, 8.5]), (9, [4.0, 5.0])):
            receive.start()
            receive.wait(timedelta(seconds=20))
            same(values, torch.tensor(expected, dtype=torch.float64))
            same((receive.group_source(), receive.tag), (0, tag))


def of_views(rank):
    """Gathered at each start, scattered at each arrival; nothing else is written."""
    import torch_ucx

    peer = 1 - rank.rank
    field = torch.zeros(6, 6)
    exchange = [
        torch_ucx.recv_init(field[:, 5], peer),
        torch_ucx.send_init(field[:, 1], peer),
    ]
    for number in range(5):
        field[:, 1] = torch.arange(6) + 10 * number + rank.rank
        torch_ucx.start_all(exchange)
        torch_ucx.wait_all(exchange)
        same(field[:, 5], torch.arange(6) + 10.0 * number + peer)
        same(field[:, [0, 2, 3, 4]], torch.zeros(6, 4))


def errors(rank):
    import torch_ucx

    peer = 1 - rank.rank
    got = torch.zeros(4)
    receive = torch_ucx.recv_init(got, peer, tag=1)
    receive.start()
    error = raised(dist.DistBackendError, receive.start)
    assert "persistent receive" in str(error) and "still under way" in str(error), error
    error = raised(dist.DistNetworkError, receive.wait, timedelta(seconds=0.2))
    assert "ucx recv" in str(error) and "tag 1, 16 bytes: Timed out after 0." in str(error), error
    raised(dist.DistNetworkError, receive.test)
    receive.start()  # again
    rank.meet("receives are posted")
    if rank.rank == 0:
        dist.send(torch.ones(4), 1, tag=1)
        dist.send(torch.ones(6), 1, tag=2)
    else:
        dist.send(torch.ones(4), 0, tag=1)
    torch_ucx.wait_all([receive], timedelta(seconds=20))
    same(got, torch.ones(4))
    if rank.rank == 1:
        short = torch_ucx.recv_init(got, 0, tag=2)
        good = torch_ucx.recv_init(torch.zeros(1), 0, tag=3)
        torch_ucx.start_all([short, good])
        rank.post("both started")
        error = raised(dist.DistBackendError, torch_ucx.wait_all, [short, good])
        assert "24 bytes, the receive buffer has 16 bytes" in str(error), error
        assert good.test()  # it was waited for all the same
    else:
        rank.await_word("both started")
        dist.send(torch.ones(1), 1, tag=3)

    same(
        str(raised(ValueError, torch_ucx.send_init, got, peer, tag=-1)).split(";")[0],
        "ucx send_init: tag -1 is negative",
    )
    raised(ValueError, torch_ucx.send_init, got, 2)
    raised(ValueError, torch_ucx.recv_init, torch.zeros(1).expand(4), peer)
    raised(ValueError, torch_ucx.send_init, torch.zeros(1, device="meta"), peer)
    error = raised(ValueError, torch_ucx.start_all, [receive, None])
    assert "has an element that is None" in str(error), error
    assert receive.test()  # and nothing was started
    resized = torch.zeros(4)
    send = torch_ucx.send_init(resized, peer)
    resized.resize_(4096)
    assert "resized" in str(raised(ValueError, send.start))

    group = dist.new_group()
    of_group = [
        torch_ucx.send_init(torch.ones(1), peer, group=group),
        torch_ucx.recv_init(torch.zeros(1), peer, group=group),
    ]
    torch_ucx.start_all(of_group)
    torch_ucx.wait_all(of_group)
    dist.destroy_process_group(group)
    for start in (of_group[0].start, lambda: torch_ucx.start_all(of_group)):
        error = raised(dist.DistBackendError, start)
        assert "the group was closed on this rank" in str(error), error


class _Memory(bytearray):
    """A buffer that can be watched."""


class _Watched:
    """Lives as long as the buffer does."""


def lifetimes(rank):
    """The memory stays while UCX has it, and no longer."""
    import torch_ucx

    peer = 1 - rank.rank
    memory = _Memory(struct.pack("f", float(rank.rank)) * (1 << 20))
    memory.watched = watched = _Watched()
    kept = weakref.ref(watched)
    out = torch.frombuffer(memory, dtype=torch.float32)
    del memory, watched
    send = torch_ucx.send_init(out, peer, tag=8)
    send.start()
    del out, send
    gc.collect()
    got = torch.zeros(1 << 20)
    dist.recv(got, peer, tag=8)
    same(got, torch.full((1 << 20,), float(peer)))
    wait_until(lambda: kept() is None, "the release of what was sent", 20)
    rank.meet("received")


def a_waiting_thread_lets_others_run(rank):
    import torch_ucx

    if rank.rank == 0:
        receive = torch_ucx.recv_init(torch.zeros(1), 1, tag=11)
        receive.start()
        beats = []
        stop = threading.Event()

        def beat():
            while not stop.wait(0.01):
                beats.append(1)

        thread = threading.Thread(target=beat)
        thread.start()
        rank.post("waiting")
        receive.wait()
        stop.set()
        thread.join()
        assert len(beats) >= 5
    else:
        rank.await_word("waiting")
        threading.Event().wait(0.5)
        dist.send(torch.zeros(1), 0, tag=11)


PERSISTENT = [
    started_many_times,
    match_ordinary_messages,
    of_views,
    errors,
    lifetimes,
    a_waiting_thread_lets_others_run,
]


def test_persistent_operations(run_ranks, setting):
    run_ranks(PERSISTENT, env=setting, group={})
