"""Time-outs: when they fire, what they say, and that nothing is written to memory afterwards."""

import gc
import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from ranks import backend_of, pattern, raised, same

BIG = 64 << 20

HANG_S = 20
"""What takes longer than this after a time-out of a second or two is a hang."""


def elapsed(function):
    begin = time.monotonic()
    result = function()
    return time.monotonic() - begin, result


def a_wait_of_its_own_time_out(rank):
    """T2: shorter than the group's; T3: what the text names."""
    peer = 1 - rank.rank
    work = dist.irecv(torch.zeros(3), peer, tag=5)
    seconds, error = elapsed(lambda: raised(dist.DistError, work.wait, timedelta(seconds=1)))
    assert 0.9 <= seconds < HANG_S, seconds
    begin = f'ucx recv on rank {rank.rank} of group "0" from rank {peer}, tag 5, 12 bytes: '
    text = str(error)
    assert text.startswith(begin), text
    told = float(text.removeprefix(begin + "Timed out after ").split()[0])
    assert 0.9 <= told < HANG_S, text
    # torch makes this Python class of c10d::TimeoutError; its tests look for the text.
    assert type(error) is dist.DistNetworkError and isinstance(error, RuntimeError)
    assert " Timed out " in text
    # Failed for good, and said again.
    assert work.is_completed() and not work.is_success()
    same(str(raised(dist.DistError, work.wait)), text)
    rank.meet("T2")


def groups_time_out(rank):
    """T2 through the backend object: torch itself passes it to gloo and nccl only, up to 2.13."""
    peer = 1 - rank.rank
    group = dist.new_group(timeout=timedelta(seconds=60))
    backend_of(group).set_timeout(timedelta(seconds=2))
    seconds, error = elapsed(
        lambda: raised(dist.DistError, dist.recv, torch.zeros(1), peer, group=group)
    )
    assert 1.9 <= seconds < HANG_S, seconds
    assert "Timed out after 2." in str(error), error
    # A wait may be longer than the group's: the operation's own deadline still holds.
    work = dist.irecv(torch.zeros(1), peer, group=group, tag=1)
    seconds, error = elapsed(lambda: raised(dist.DistError, work.wait, timedelta(seconds=60)))
    assert 1.9 <= seconds < HANG_S, seconds
    raised(ValueError, backend_of(group).set_timeout, timedelta(0))
    raised(ValueError, backend_of(group).set_timeout, timedelta(seconds=-1))
    # What is posted after a change has the new one.
    backend_of(group).set_timeout(timedelta(seconds=30))
    rank.meet("T2 long again")
    got = torch.zeros(1)
    work = dist.irecv(got, peer, group=group, tag=2)
    time.sleep(0.1)
    dist.send(torch.ones(1), peer, group=group, tag=2)
    work.wait()
    same(got, torch.ones(1))
    # A barrier that a rank does not come to.
    if rank.rank == 0:
        backend_of(group).set_timeout(timedelta(seconds=1))
        error = raised(dist.DistError, dist.barrier, group)
        assert "barrier" in str(error) and "Timed out after" in str(error), error
    rank.meet("T2 barrier")
    dist.destroy_process_group(group)


def torch_passes_time_outs_on_where_it_does(rank):
    """F3: dist.set_timeout or its older name."""
    import torch.distributed.distributed_c10d as c10d

    change = getattr(dist, "set_timeout", None)
    if change is None:
        # Up to 2.13 it warns, naming no backend of its own, and changes nothing.
        c10d._set_pg_timeout(timedelta(seconds=17), dist.group.WORLD)
        return
    group = dist.new_group(timeout=timedelta(seconds=60))
    change(timedelta(seconds=1), group)
    seconds, _ = elapsed(
        lambda: raised(dist.DistError, dist.recv, torch.zeros(1), 1 - rank.rank, group=group)
    )
    assert seconds < HANG_S
    dist.destroy_process_group(group)


def no_wait_outlasts_an_absent_peer(rank):
    """Sends time out as well, named with the reason known so far."""
    if rank.rank == 0:
        group = dist.new_group(timeout=timedelta(seconds=2))
        work = dist.isend(torch.zeros(BIG, dtype=torch.uint8), 1, group=group, tag=9)
        text = str(raised(dist.DistError, work.wait))
        assert f"to rank 1, tag 9, {BIG} bytes: Timed out after 2." in text, text
        rank.post("T1 timed out")
    else:
        group = dist.new_group(timeout=timedelta(seconds=2))
        rank.await_word("T1 timed out")
    dist.destroy_process_group(group)


def test_time_outs(run_ranks, few_settings):
    checks = [
        a_wait_of_its_own_time_out,
        groups_time_out,
        torch_passes_time_outs_on_where_it_does,
        no_wait_outlasts_an_absent_peer,
    ]
    run_ranks(checks, env=few_settings, group={"timeout": 60})


def big_send_that_nobody_takes(rank):
    """T1: the wait, destroy and the exit of the process are bounded."""
    rank.init(timeout=60)
    # Both have contact.
    dist.isend(torch.zeros(1), 1 - rank.rank)
    dist.recv(torch.zeros(1), 1 - rank.rank)
    if rank.rank == 0:
        work = dist.isend(pattern(BIG), 1)
        seconds, error = elapsed(lambda: raised(dist.DistError, work.wait, timedelta(seconds=2)))
        assert 1.9 <= seconds < HANG_S, seconds
        assert f"{BIG} bytes: Timed out after 2." in str(error), error
    rank.meet("T1")
    if rank.rank == 0:
        seconds, _ = elapsed(dist.destroy_process_group)
        assert seconds < HANG_S, seconds
    # Rank 1 leaves it to the exit.


def test_a_send_that_nobody_takes(run_ranks, setting):
    run_ranks(big_send_that_nobody_takes, env=setting)


def sends_left_behind_are_named(rank):
    """A send that nobody takes is named when its group ends, and the end is bounded."""
    rank.init(timeout=60)
    dist.isend(torch.zeros(1), 1 - rank.rank)
    dist.recv(torch.zeros(1), 1 - rank.rank)
    if rank.rank == 0:
        dist.isend(pattern(BIG), 1, tag=3)
        seconds, _ = elapsed(dist.destroy_process_group)
        assert seconds < HANG_S, seconds
        rank.post("left behind")
    else:
        rank.await_word("left behind")


def test_sends_left_behind_are_named(start_ranks, few_settings):
    job = start_ranks(sends_left_behind_are_named, env={**few_settings, "TORCH_UCX_LINGER_S": "1"})
    job.finish()
    (line,) = (x for x in job.stderr(0).splitlines() if "before these sends were taken" in x)
    assert line.startswith("[torch_ucx] "), line
    assert f"{BIG} bytes to rank 1 with tag 3" in line, line
    assert "before these sends were taken" not in job.stderr(1)


# ---- in mid-transfer ---------------------------------------------------------------------------


def time_outs_in_mid_transfer(rank, milliseconds):
    """T4: completes or raises, and no memory of a freed tensor is written later."""
    counts = {"completed": 0, "timed out": 0}
    message = pattern(BIG, 3)
    for number, limit in enumerate(milliseconds):
        rank.meet(f"T4 {number}")
        if rank.rank == 0:
            work = dist.isend(message, 1, tag=number)
            rank.await_word(f"T4 judged {number}")
            try:
                work.wait(timedelta(milliseconds=200))
            except dist.DistError as error:
                assert "Timed out" in str(error), error
            continue
        got = torch.zeros(BIG, dtype=torch.uint8)
        work = dist.irecv(got, 0, tag=number)
        try:
            work.wait(timedelta(milliseconds=limit))
            same(got, message)
            counts["completed"] += 1
        except dist.DistError as error:
            assert f"tag {number}, {BIG} bytes: Timed out after" in str(error), error
            counts["timed out"] += 1
        # Whatever the allocator hands out now is not UCX's any more, or UCX keeps its own.
        del got, work
        gc.collect()
        later = torch.full((BIG,), 0xA5, dtype=torch.uint8)
        time.sleep(0.05)
        wrong = int((later != 0xA5).sum())
        assert wrong == 0, f"{wrong} bytes were written after the time-out of {limit} ms"
        rank.post(f"T4 judged {number}")
        del later
    rank.results.update(counts)
    # The group still works.
    dist.isend(torch.ones(3), 1 - rank.rank, tag=2**31 - 1)
    got = torch.zeros(3)
    dist.recv(got, 1 - rank.rank, tag=2**31 - 1)
    same(got, torch.ones(3))


def sweep(run_ranks, env, milliseconds, deadline):
    _, counts = run_ranks(
        time_outs_in_mid_transfer,
        env={**env, "MALLOC_MMAP_THRESHOLD_": str(1 << 30)},  # so that memory is used again
        group={},
        fresh=True,  # the C library reads that variable at its start
        arguments={"milliseconds": milliseconds},
        deadline=deadline,
    )
    assert counts["completed"] + counts["timed out"] == len(milliseconds)
    return counts


def test_time_outs_in_mid_transfer(run_ranks, few_settings):
    limits = [1, 2, 3, 5, 8, 12, 16, 20, 25, 30, 40, 60]
    counts = sweep(run_ranks, few_settings, limits, 60)
    assert counts["timed out"] > 0, counts


@pytest.mark.nightly
def test_time_outs_in_mid_transfer_long(run_ranks, setting):
    counts = sweep(run_ranks, setting, list(range(1, 201)), 500)
    assert counts["timed out"] > 0, counts


# ---- first contact -----------------------------------------------------------------------------


def the_other_rank_never_comes(rank):
    rank.init(timeout=2, name="alone")
    if rank.rank == 0:
        error = raised(dist.DistError, dist.recv, torch.zeros(1), 1)
        assert "Timed out after 2." in str(error), error
        assert "rank 1: its address has not appeared in the store" in str(error), error
        error = raised(dist.DistError, dist.send, torch.zeros(1), 1)
        assert "its address has not appeared in the store" in str(error), error
        rank.post("enough")
    seconds, _ = elapsed(dist.destroy_process_group)
    assert seconds < HANG_S


def alone(rank):
    """The job has one process, in a world of two."""
    rank.size = 2
    the_other_rank_never_comes(rank)


def test_the_other_rank_never_comes(run_ranks, libucp):
    run_ranks(alone, 1, env=libucp)


def idle_processes_use_no_cpu(rank, seconds):
    """C9: idle, and blocked in a receive."""

    def cpu():
        times = os.times()
        return times.user + times.system

    rank.meet("C9")
    dist.isend(torch.zeros(1), 1 - rank.rank)
    dist.recv(torch.zeros(1), 1 - rank.rank)
    begin = cpu()
    time.sleep(seconds)
    idle = cpu() - begin
    begin = cpu()
    work = dist.irecv(torch.zeros(1), 1 - rank.rank, tag=1)
    raised(dist.DistError, work.wait, timedelta(seconds=seconds))
    blocked = cpu() - begin
    assert idle < 0.02 * seconds and blocked < 0.02 * seconds, (idle, blocked)
    rank.meet("C9 end")


@pytest.mark.nightly
def test_idle_processes_use_no_cpu(run_ranks, setting):
    run_ranks(
        idle_processes_use_no_cpu,
        env=setting,
        group={"timeout": 120},
        arguments={"seconds": 30},
        deadline=120,
    )
