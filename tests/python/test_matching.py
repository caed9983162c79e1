"""Matching beyond the exact one: dtypes that differ, any source, any tag, views, probes.

M3, M4, M9 and S6 of the behaviours, and torch_ucx.probe and its kin.
"""

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torch_ucx
from ranks import backend_of, pattern, raised, same

# ---- dtypes that differ ------------------------------------------------------------------------

# What is sent, what it is received into, what the receiver has then.
CONVERSIONS = (
    (torch.tensor([1, -2, 3, -4, 5]), torch.int32, torch.tensor([1, -2, 3, -4, 5])),
    (torch.tensor([1, 2, 3, 4, 5]), torch.float32, torch.tensor([1.0, 2, 3, 4, 5])),
    (torch.arange(16, dtype=torch.float16), torch.float32, torch.arange(16.0)),
    (torch.arange(16.0) / 4, torch.bfloat16, torch.arange(16.0) / 4),
    (torch.tensor([1.9, -1.9, 0.0]), torch.int64, torch.tensor([1, -1, 0])),
    (torch.tensor([0, 3, 1]), torch.bool, torch.tensor([False, True, True])),
    (torch.arange(100_000), torch.float32, torch.arange(100_000.0)),
)


def ordered(rank, early, send, receive):
    """``send`` on rank 0 and ``receive`` on rank 1, well before the receive or after it was begun.

    Both return when the receive has ended; rank 1 with what it returned.
    """
    ordered.count = getattr(ordered, "count", 0) + 1
    begun, received = f"begun {ordered.count}", f"received {ordered.count}"
    if rank.rank == 0:
        if not early:
            rank.await_word(begun)
            time.sleep(0.01)
        send()
        if early:
            time.sleep(0.01)
            rank.post(begun)
        rank.await_word(received)
        return None
    if early:
        rank.await_word(begun)
    else:
        rank.post(begun)
    result = receive()
    rank.post(received)
    return result


def values_are_converted(rank):
    """M9: as many elements of another size."""
    for early in (True, False):
        for number, (value, dtype, expected) in enumerate(CONVERSIONS):
            for source in (0, None):
                got = torch.zeros(value.shape, dtype=dtype)
                works = []
                ordered(
                    rank,
                    early,
                    lambda value=value, tag=number, works=works: works.append(
                        dist.isend(value, 1, tag=tag)
                    ),
                    lambda got=got, source=source, tag=number: same(
                        dist.recv(got, source, tag=tag), 0
                    ),
                )
                for work in works:
                    work.wait()
                if rank.rank == 1:
                    same(got, expected.to(dtype))


def bytes_of_equal_size_are_taken_as_they_are(rank):
    """M9: uint8[20] to float32[5]."""
    for early in (True, False):
        got = torch.zeros(5)
        ordered(
            rank,
            early,
            lambda: dist.send(pattern(20), 1),
            lambda got=got: dist.recv(got, 0),
        )
        if rank.rank == 1:
            same(got.view(torch.uint8), pattern(20))


def neither_is_an_error_and_the_next_message_is_intact(rank):
    """M9: int64[5] to float32[7]."""
    for early in (True, False):
        for source in (0, None):
            got = torch.full((7,), 9.0)
            error = ordered(
                rank,
                early,
                lambda: dist.send(torch.arange(5), 1, tag=3),
                lambda got=got, source=source: raised(RuntimeError, dist.recv, got, source, tag=3),
            )
            if rank.rank == 0:
                dist.send(torch.arange(7.0), 1, tag=3)
            else:
                text = str(error)
                for part in ("rank 0", "tag 3", "Long of 40 bytes", "Float of 28 bytes"):
                    assert part in text, text
                same(got, torch.full((7,), 9.0))
                same(dist.recv(got, source, tag=3), 0)
                same(got, torch.arange(7.0))


def own_dtype_comes_first_then_the_oldest(rank):
    if rank.rank == 0:
        dist.send(torch.tensor([1, 1]), 1, tag=4)
        dist.send(torch.tensor([2, 2], dtype=torch.int16), 1, tag=4)
        dist.send(torch.tensor([3.0, 3.0]), 1, tag=4)
        rank.post("three sent")
    else:
        rank.await_word("three sent")
        for expected in (3.0, 1.0, 2.0):
            got = torch.zeros(2)
            dist.recv(got, 0, tag=4)
            same(got, torch.full((2,), expected))


def completes_while_nobody_waits_and_with_a_future(rank):
    if rank.rank == 0:
        rank.await_word("two receives posted")
        dist.send(torch.tensor([7, 8]), 1, tag=5)
        dist.send(torch.tensor([7, 8]), 1, tag=6)
    else:
        one, two = torch.zeros(2), torch.zeros(2)
        polled = dist.irecv(one, 0, tag=5)
        then = dist.irecv(two, 0, tag=6).get_future().then(lambda f: f.value()[0] + 1)
        rank.post("two receives posted")
        while not polled.is_completed():
            time.sleep(0.001)
        same(one, torch.tensor([7.0, 8.0]))
        same(then.wait(), torch.tensor([8.0, 9.0]))


def test_dtypes(run_ranks, setting):
    checks = [
        values_are_converted,
        bytes_of_equal_size_are_taken_as_they_are,
        neither_is_an_error_and_the_next_message_is_intact,
        own_dtype_comes_first_then_the_oldest,
        completes_while_nobody_waits_and_with_a_future,
    ]
    run_ranks(checks, env=setting, group={})


def one_warning_for_each_pair(rank):
    for _ in range(3):
        if rank.rank == 0:
            dist.send(torch.tensor([1, 2]), 1, tag=8)
        else:
            dist.recv(torch.zeros(2), 0, tag=8)


def test_conversion_is_warned_of_once(start_ranks):
    job = start_ranks(one_warning_for_each_pair, 2, group={})
    job.finish()
    text = (
        'ucx recv on rank 1 of group "0" from rank 0, tag 8: the message is Long, the receive '
        "buffer is Float: the values are converted"
    )
    same(job.output(1).count(text), 1)


# ---- any source --------------------------------------------------------------------------------


def three_hundred_from_any_source(rank):
    """M3."""
    if rank.rank != 0:
        for i in range(100):
            dist.send(torch.tensor([rank.rank, i]), 0, tag=1)
        return
    following = {1: 0, 2: 0, 3: 0}
    for _ in range(300):
        got = torch.zeros(2, dtype=torch.int64)
        source = dist.recv(got, torch_ucx.ANY_SOURCE, tag=1)
        same(int(got[0]), source)
        same(int(got[1]), following[source])
        following[source] += 1


def posted_first_from_two_senders(rank):
    """M4."""
    if rank.rank == 0:
        got = [torch.zeros(1, dtype=torch.int64) for _ in range(6)]
        works = [dist.irecv(tensor, None, tag=2) for tensor in got]
        raised(RuntimeError, works[0].source_rank)  # not known yet
        rank.post("six posted")
        sources = []
        for tensor, work in zip(got, works, strict=True):
            work.wait()
            same(int(tensor), work.source_rank())
            sources.append(work.source_rank())
        same(sorted(sources), [1, 1, 1, 2, 2, 2])
    elif rank.rank in (1, 2):
        rank.await_word("six posted")
        for _ in range(3):
            dist.send(torch.tensor([rank.rank]), 0, tag=2)


def any_source_in_a_subgroup_tells_global_ranks(rank):
    group = dist.new_group([1, 3])
    if rank.rank == 1:
        got = torch.zeros(1, dtype=torch.int64)
        same(dist.recv(got, None, group=group), 3)
        same(int(got), 33)
    elif rank.rank == 3:
        dist.send(torch.tensor([33]), 1, group=group)


def big_messages_and_oneself(rank):
    count = 300_000
    if rank.rank == 0:
        mine = dist.isend(torch.full((count,), 0.0), 0, tag=7)
        sources = set()
        for _ in range(4):
            got = torch.full((count,), -1.0)
            work = dist.irecv(got, None, tag=7)
            work.wait()
            same(got, torch.full((count,), float(work.source_rank())))
            sources.add(work.source_rank())
        same(sources, {0, 1, 2, 3})
        mine.wait()
    else:
        dist.send(torch.full((count,), float(rank.rank)), 0, tag=7)


def any_tag_tells_the_tag(rank):
    if rank.rank == 1:
        for tag in (0, 5, 2**31 - 1):
            dist.send(torch.tensor([tag]), 0, tag=tag)
            rank.await_word(f"got tag {tag}")
    elif rank.rank == 0:
        for source in (1, None, 1):
            got = torch.zeros(1, dtype=torch.int64)
            work = dist.irecv(got, source, tag=torch_ucx.ANY_TAG)
            work.wait()
            same(int(got), work.tag)
            same(work.source_rank(), 1)
            rank.post(f"got tag {work.tag}")


def test_any_source(run_ranks, setting):
    checks = [
        three_hundred_from_any_source,
        posted_first_from_two_senders,
        any_source_in_a_subgroup_tells_global_ranks,
        big_messages_and_oneself,
        any_tag_tells_the_tag,
    ]
    run_ranks(checks, 4, env=setting, group={})


# ---- views -------------------------------------------------------------------------------------


def views_are_received_by_logical_index(rank):
    """S6; nothing outside the view is written."""
    value = torch.arange(12.0).view(3, 4)
    views = (
        lambda base: base.view(-1)[:12].view(4, 3).t(),
        lambda base: base[2:5, 3:7],
        lambda base: base[1:7:2, ::2],
        lambda base: base.view(-1)[1::5][:12].view(3, 4),
        lambda base: base.permute(1, 0)[4:7, 2:6],
    )
    for number, view in enumerate(views):
        for source in (0, None):
            if rank.rank == 0:
                dist.send(value, 1, tag=number)
            else:
                base = torch.full((8, 8), -1.0)
                same(dist.recv(view(base), source, tag=number), 0)
                same(view(base).contiguous(), value)
                view(base).fill_(-1.0)
                same(base, torch.full((8, 8), -1.0))
    if rank.rank == 0:
        dist.send(torch.arange(6).view(2, 3), 1, tag=8)
        dist.send(torch.ones(3).expand(4, 3), 1, tag=9)
    else:
        base = torch.zeros(3, 2)
        dist.recv(base.t(), 0, tag=8)  # of another dtype too
        same(base, torch.arange(6.0).view(2, 3).t().contiguous())
        got = torch.zeros(4, 3)
        dist.recv(got, 0, tag=9)
        same(got, torch.ones(4, 3))


def what_overlaps_itself_is_refused(rank):
    for view in (
        torch.zeros(1).expand(5),
        torch.zeros(3, 1).expand(3, 4),
        torch.zeros(10).as_strided((4, 4), (1, 1)),
    ):
        error = raised(ValueError, dist.irecv, view, 1 - rank.rank)
        assert "share memory" in str(error), error
    # Nothing was posted: messages go where they should.
    if rank.rank == 0:
        dist.send(torch.ones(5), 1)
    else:
        got = torch.zeros(5)
        dist.recv(got, 0)
        same(got, torch.ones(5))


def test_views(run_ranks, few_settings):
    run_ranks(
        [views_are_received_by_logical_index, what_overlaps_itself_is_refused],
        env=few_settings,
        group={},
    )


# ---- probes ------------------------------------------------------------------------------------


def probe_tells_and_leaves(rank):
    if rank.rank == 0:
        rank.await_word("nothing there")
        dist.send(torch.arange(9, dtype=torch.int16), 1, tag=6)
        return
    same(torch_ucx.iprobe(0, 6), None)
    error = raised(RuntimeError, torch_ucx.probe, 0, 6, timeout=timedelta(milliseconds=50))
    assert " Timed out " in str(error), error
    rank.post("nothing there")
    for source in (0, None):
        for tag in (6, torch_ucx.ANY_TAG):
            found = torch_ucx.probe(source, tag)
            same((found.source, found.tag, found.dtype), (0, 6, torch.int16))
            same((found.bytes, found.numel), (18, 9))
    got = torch.zeros(9, dtype=torch.int16)
    dist.recv(got, 0, tag=6)
    same(got, torch.arange(9, dtype=torch.int16))
    same(torch_ucx.iprobe(0, 6), None)


def threads_receive_messages_of_unknown_size(rank):
    count = 60
    if rank.rank == 0:
        for i in range(1, count + 1):
            dist.send(torch.full((i * 200,), float(i)), 1, tag=2)
        return
    seen = []

    def receiver():
        for _ in range(count // 3):
            message = torch_ucx.mprobe(tag=2)
            got = torch.empty(message.info.numel, dtype=message.info.dtype)
            same(message.recv(got), 0)
            value = int(got[0])
            same(got, torch.full((value * 200,), float(value)))
            seen.append(value)

    threads = [threading.Thread(target=receiver) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(sorted(seen), list(range(1, count + 1)))


def taken_message_is_out_of_matching(rank):
    if rank.rank == 0:
        for i in range(3):
            dist.send(torch.tensor([i]), 1, tag=3)
        return
    message = torch_ucx.mprobe(0, 3)
    got = torch.zeros(1, dtype=torch.int64)
    dist.recv(got, 0, tag=3)
    same(int(got), 1)
    into = torch.zeros(1)
    same(message.recv(into), 0)  # converted as any other
    same(into, torch.tensor([0.0]))
    raised(ValueError, message.recv, into)  # only once
    dropped = torch_ucx.mprobe(0, 3)
    del dropped
    same(torch_ucx.improbe(0, 3), None)


def probes_refuse_bad_arguments(rank):
    raised(ValueError, torch_ucx.iprobe, 0, -5)
    raised(ValueError, torch_ucx.iprobe, 7, 0)
    raised(ValueError, torch_ucx.probe, 0, 0, timeout=timedelta(0))
    gloo = dist.new_group(backend="gloo")
    error = raised(ValueError, torch_ucx.iprobe, 0, 0, gloo)
    assert "ucx" in str(error), error
    assert backend_of().name() == "ucx"


def test_probes(run_ranks, few_settings):
    checks = [
        probe_tells_and_leaves,
        threads_receive_messages_of_unknown_size,
        taken_message_is_out_of_matching,
        probes_refuse_bad_arguments,
    ]
    run_ranks(checks, env=few_settings, group={})


@pytest.mark.parametrize("early", [True, False])
def test_other_messages_do_not_hide_one(run_ranks, early):
    run_ranks(among_ten_thousand, group={}, arguments={"early": early})


def among_ten_thousand(rank, early):
    if rank.rank == 0:
        for i in range(10_000):
            dist.isend(torch.tensor([i]), 1, tag=100 + i % 5)
        if not early:
            rank.await_word("receive posted")
        dist.send(torch.tensor([42]), 1, tag=1)
        rank.post("sent")
    else:
        got = torch.zeros(1)
        if early:
            rank.await_word("sent")
        work = dist.irecv(got, 0, tag=1)
        rank.post("receive posted")
        work.wait()
        same(got, torch.tensor([42.0]))
        for i in range(10_000):
            into = torch.zeros(1, dtype=torch.int64)
            dist.recv(into, None, tag=100 + i % 5)
            same(int(into), i)
