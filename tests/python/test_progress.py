"""Who makes progress: TORCH_UCX_PROGRESS, hosts with more ranks than cores, ranks on one core."""

import os
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import test_completion
from ranks import pattern, raised, same, wait_until

BIG = 16 << 20


# ---- all progress by the helper thread ---------------------------------------------------------


def everything_completes(rank):
    """What holds by default holds with a thread that makes all progress."""
    for check in test_completion.COMPLETION:
        check(rank)


def test_progress_by_a_thread(run_ranks, few_settings):
    run_ranks(everything_completes, env={**few_settings, "TORCH_UCX_PROGRESS": "thread"}, group={})


# ---- only by callers ---------------------------------------------------------------------------


def nothing_moves_unattended(rank):
    """A message that needs both sides waits until both call; asking is_completed() is a call."""
    rank.meet("caller")
    if rank.rank == 0:
        work = dist.isend(pattern(BIG, 1), 1)
        rank.post("sent")
        end = time.monotonic() + 0.3
        while time.monotonic() < end:  # the receiver is away
            assert not work.is_completed()
        rank.post("receiver may go on")
        wait_until(work.is_completed, "is_completed()", 20)
    else:
        got = torch.zeros(BIG, dtype=torch.uint8)
        work = dist.irecv(got, 0)
        rank.await_word("sent")
        rank.await_word("receiver may go on")
        wait_until(work.is_completed, "is_completed()", 20)
        same(got, pattern(BIG, 1))


def waits_work(rank):
    other = 1 - rank.rank
    for size in (8, 5000, BIG):
        got = torch.zeros(size, dtype=torch.uint8)
        works = [dist.isend(pattern(size, rank.rank), other), dist.irecv(got, other)]
        for work in works:
            work.wait()
        same(got, pattern(size, other))
    dist.barrier()
    # Values of another dtype are found by who waits.
    works = [dist.isend(torch.arange(5), other), dist.irecv(floats := torch.zeros(5), other)]
    for work in works:
        work.wait()
    same(floats, torch.arange(5).float())


def time_outs_and_threads_work(rank):
    other = 1 - rank.rank
    error = raised(
        dist.DistError, dist.irecv(torch.zeros(1), other, tag=9).wait, timedelta(seconds=0.5)
    )
    assert "Timed out after 0.5" in str(error), error
    # Of two threads that wait, one makes progress for both.
    got = [torch.zeros(1), torch.zeros(1)]
    threads = [
        threading.Thread(target=dist.recv, args=(got[tag], other), kwargs={"tag": tag})
        for tag in range(2)
    ]
    for thread in threads:
        thread.start()
    for tag in reversed(range(2)):
        dist.send(torch.full((1,), float(tag)), other, tag=tag)
    for thread in threads:
        thread.join()
    same(torch.cat(got), torch.tensor([0.0, 1.0]))


def a_deadline_passes_unattended(rank):
    """Futures fail in time although nobody waits."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    work = dist.irecv(torch.zeros(1), 1 - rank.rank, group=group, tag=3)
    future = work.get_future()
    wait_until(future.done, "the future", 20)
    assert "Timed out after" in str(raised(RuntimeError, future.wait))


def test_progress_by_callers(run_ranks, few_settings):
    checks = [
        waits_work,
        nothing_moves_unattended,
        time_outs_and_threads_work,
        a_deadline_passes_unattended,
    ]
    run_ranks(checks, env={**few_settings, "TORCH_UCX_PROGRESS": "caller"}, group={})


def refused(rank):
    error = raised(ValueError, rank.init)
    assert "TORCH_UCX_PROGRESS=both: allowed is auto, caller or thread" in str(error), error


def test_a_wrong_mode_is_refused(run_ranks):
    run_ranks(refused, env={"TORCH_UCX_PROGRESS": "both"})


# ---- more ranks than cores ---------------------------------------------------------------------


def ring_and_pairs(rank, rounds, one_core):
    """A token goes round, then every rank talks to both its neighbours."""
    if one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rank.init(timeout=60)
    after, before = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    token = torch.zeros(4, dtype=torch.int64)
    for number in range(rounds):
        if rank.rank == 0:
            dist.send(torch.tensor([number, 0, 0, 0]), after)
            dist.recv(token, before)
            same(token, torch.tensor([number, rank.size - 1, 0, 0]))
        else:
            dist.recv(token, before)
            token[1] += 1
            dist.send(token, after)
    size = 300_000
    for number in range(rounds // 10):
        got = torch.zeros(size, dtype=torch.uint8)
        works = [dist.irecv(got, before), dist.isend(pattern(size, rank.rank + number), after)]
        for work in works:
            work.wait()
        same(got, pattern(size, before + number))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("one_core", [False, True], ids=["all-cores", "one-core"])
@pytest.mark.parametrize("mode", ["auto", "caller", "thread"])
def test_more_ranks_than_cores(run_ranks, few_settings, mode, one_core):
    run_ranks(
        ring_and_pairs,
        8,
        env={**few_settings, "TORCH_UCX_PROGRESS": mode},
        arguments={"rounds": 50, "one_core": one_core},
        deadline=120,
    )


def helper_alone_on_the_core(rank):
    """The sender computes, and shares its one core with the helper and with the receiver."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rank.init()
    test_completion.receiver_completes_while_the_sender_computes(rank)
    dist.destroy_process_group()


def test_unattended_on_one_core(run_ranks, few_settings):
    run_ranks(helper_alone_on_the_core, env=few_settings)
