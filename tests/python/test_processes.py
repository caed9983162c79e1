"""Processes that die, leave early, come late, or are signalled."""

import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from ranks import pattern, raised, same, wait_until

BIG = 64 << 20

FAR_S = 300
"""The time-out of groups here: an error that comes for another reason comes before the deadline."""


def touch(rank, others):
    """Contact with each of ``others`` in both directions."""
    works = []
    for other in others:
        works += [dist.isend(torch.zeros(1), other, tag=99)]
        works += [dist.irecv(torch.zeros(1), other, tag=99)]
    for work in works:
        work.wait()


# ---- P1 ----------------------------------------------------------------------------------------

SURVIVOR, LIVING, IN_RECV, NOT_TAKING, IN_TRANSFER, SENDING, UNKNOWN = range(7)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def peers_are_killed(rank):
    """P1, all the situations in one job: one survivor, one living peer, five that are killed."""
    rank.init(timeout=FAR_S)
    me = rank.rank
    if me != UNKNOWN:
        touch(rank, [SURVIVOR] if me != SURVIVOR else range(1, UNKNOWN))
    rank.meet("P1")
    if me == SURVIVOR:
        survive(rank)
    elif me == LIVING:
        rank.await_word("P1 survivor saw them die")
        dist.send(torch.full((3,), 5.0), SURVIVOR, tag=1)
        rank.await_word("P1 over")
    elif me in (IN_RECV, NOT_TAKING, UNKNOWN):
        rank.await_word("P1 posted")
        die()
    elif me == IN_TRANSFER:
        works = [dist.irecv(torch.zeros(BIG, dtype=torch.uint8), SURVIVOR, tag=n) for n in range(4)]
        works[0].wait()
        die()
    elif me == SENDING:
        message = pattern(BIG)
        works = [dist.isend(message, SURVIVOR, tag=n) for n in range(4)]
        works[0].wait()
        die()


def survive(rank):
    got = torch.zeros(3)
    living = dist.irecv(got, LIVING, tag=1)
    message = pattern(BIG)
    buffers = [torch.zeros(BIG, dtype=torch.uint8) for _ in range(5)]
    doomed = {
        IN_RECV: [dist.irecv(torch.zeros(1), IN_RECV)],
        NOT_TAKING: [dist.isend(message, NOT_TAKING)],
        UNKNOWN: [dist.irecv(torch.zeros(1), UNKNOWN)],
        # The last of each is never matched: the others may all have gone through before the death.
        IN_TRANSFER: [dist.isend(message, IN_TRANSFER, tag=n) for n in range(5)],
        SENDING: [dist.irecv(b, SENDING, tag=n) for n, b in enumerate(buffers)],
    }
    rank.post("P1 posted")
    for peer, works in doomed.items():
        failures = []
        for work in works:
            try:
                work.wait()
            except dist.DistNetworkError as error:
                failures.append(str(error))
        assert failures, f"nothing failed that involves rank {peer}"
        for text in failures:
            role = "from" if peer in (IN_RECV, UNKNOWN, SENDING) else "to"
            assert f"{role} rank {peer}, tag " in text, text
            assert f"rank {peer} failed: " in text or f"no contact with rank {peer}" in text, text
            assert "Timed out" not in text, text
    # Later operations fail at once.
    for peer in doomed:
        error = raised(dist.DistNetworkError, dist.send, torch.zeros(1), peer, tag=3)
        assert f"rank {peer}" in str(error), error
        error = raised(dist.DistNetworkError, dist.recv, torch.zeros(1), peer, tag=3)
        assert f"rank {peer}" in str(error), error
    # The living one is not disturbed.
    assert not living.is_completed()
    rank.post("P1 survivor saw them die")
    living.wait()
    same(got, torch.full((3,), 5.0))
    dist.destroy_process_group()
    rank.post("P1 over")


def test_killed_peers(run_ranks, setting):
    dead = -signal.SIGKILL
    run_ranks(
        peers_are_killed,
        7,
        env=setting,
        statuses=[0, 0, dead, dead, dead, dead, dead],
        ucx_lines=PEER_DIED,
    )


PEER_DIED = "|".join(
    (
        r"Connection reset by peer",
        r"Broken pipe",
        r"connect\(.*\) failed: Connection refused",
        r"process_vm_(readv|writev).*(No such process|failed)",
        r"try to increase \"net.core.somaxconn\"",  # follows on a refused connection
        r"recv\(.*\) failed",
        r"send\(.*\) failed",
        # Of the survivor's own sends, which without error handling (UCX 1.22 over shared memory)
        # never end in UCX, when its worker is destroyed at last.
        r"error during flush: ",
        r"tag_send .* was not returned to mpool ucp_requests",
        r"destroying inuse region",
    )
)
"""What UCX itself says of a peer that dies in the midst of a transfer."""


# ---- P2, P3 ------------------------------------------------------------------------------------


def sends_and_ends(rank, size, destroy):
    """P2: isend without a wait, then the end of the program; the peer receives a second later."""
    rank.init()
    if rank.rank == 0:
        dist.isend(pattern(size, 2), 1)
        if destroy:
            dist.destroy_process_group()
    else:
        time.sleep(1)
        got = torch.zeros(size, dtype=torch.uint8)
        dist.recv(got, 0)
        same(got, pattern(size, 2))


@pytest.mark.parametrize(("size", "destroy"), [(8, False), (BIG, False), (BIG, True)])
def test_sends_are_delivered_although_the_sender_ends(run_ranks, few_settings, size, destroy):
    run_ranks(
        sends_and_ends,
        env=few_settings,
        arguments={"size": size, "destroy": destroy},
    )


def comes_and_goes(rank, rounds=20):
    """P3: init, ping-pong, destroy, with one rank late."""
    for number in range(rounds):
        if rank.rank == number % 2:
            time.sleep(0.02)
        rank.init(name=f"round {number}".replace(" ", "-"))
        got = torch.zeros(1, dtype=torch.int64)
        for _ in range(2):
            if rank.rank == 0:
                dist.send(torch.tensor([number]), 1)
                dist.recv(got, 1)
            else:
                dist.recv(got, 0)
                dist.send(got, 0)
            same(int(got), number)
        dist.destroy_process_group()


@pytest.mark.parametrize("init", ["env", "file"])
def test_init_and_destroy_many_times(run_ranks, libucp, init):
    run_ranks(comes_and_goes, init=init, env=libucp)


def ends_without_destroying(rank):
    """Groups that are left to the end of the program, and one whose variable is dropped."""
    rank.init()
    other = dist.new_group()
    got = torch.zeros(1)
    for group in (dist.group.WORLD, other):
        works = [dist.isend(torch.ones(1), 1 - rank.rank, group=group)]
        works += [dist.irecv(got, 1 - rank.rank, group=group)]
        for work in works:
            work.wait()
    dist.irecv(torch.zeros(1), 1 - rank.rank)  # never received


def aborts(rank):
    """abort() gives up at once, and all ends may follow each other."""
    rank.init(name="aborted")
    from ranks import backend_of

    touch(rank, [1 - rank.rank])
    backend = backend_of()
    work = dist.irecv(torch.zeros(1), 1 - rank.rank)
    rank.meet("abort")
    backend.abort()
    error = raised(RuntimeError, work.wait)
    assert "the group was closed on this rank" in str(error) or "closed its side" in str(error)
    raised(RuntimeError, dist.send, torch.zeros(1), 1 - rank.rank)
    backend.shutdown()
    backend.abort()
    dist.destroy_process_group()
    backend.shutdown()


def test_ends(run_ranks, setting):
    run_ranks([aborts, ends_without_destroying], env=setting)


# ---- P5 ----------------------------------------------------------------------------------------


def blocks(rank, where):
    """Rank 0 blocks until it is signalled; in first contact, its peer has not come."""
    if where == "first contact" and rank.rank == 1:
        rank.await_word("over")
        return
    rank.init(timeout=FAR_S)
    if where == "recv":
        touch(rank, [1 - rank.rank])
    if rank.rank == 1:
        rank.await_word("over")
        return

    # Only when the main thread is in the backend is the signal of any interest.
    threading.Timer(0.5, rank.post, ["blocked"]).start()
    try:
        if where == "recv":
            dist.recv(torch.zeros(1), 1)
        else:
            dist.send(torch.zeros(1), 1)
    except KeyboardInterrupt:
        print("KeyboardInterrupt", flush=True)
        rank.post("over")
        raise SystemExit(5) from None


@pytest.mark.parametrize("where", ["recv", "first contact"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGSEGV"])
def test_signals_in_a_blocked_call(start_ranks, libucp, name, where):
    # A send to a rank that never comes is waited for at the end of the process, so long:
    env = {**libucp, "TORCH_UCX_LINGER_S": "1"}
    job = start_ranks(blocks, env=env, arguments={"where": where})
    job.await_word("blocked")
    begin = time.monotonic()
    job.signal(0, getattr(signal, name))
    if name == "SIGINT":
        expected = 5
    else:
        expected = -getattr(signal, name)
        wait_until(lambda: job.status(0) is not None, f"rank 0 to end of {name}", 20)
        job.post("over")
    job.finish(statuses=[expected, 0])
    assert time.monotonic() - begin < 30
    if name == "SIGINT":
        assert "KeyboardInterrupt" in job.stdout(0)
    if name == "SIGSEGV":
        assert "Fatal Python error: Segmentation fault" in job.stderr(0)
        assert "in recv" in job.stderr(0) or "in send" in job.stderr(0), job.report()


def goes_on_after_ctrl_c(rank):
    """A receive whose wait Ctrl-C ended is withdrawn, a send goes on; the group stays usable."""
    rank.init(timeout=FAR_S)
    touch(rank, [1 - rank.rank])
    got = torch.zeros(2)
    if rank.rank == 0:
        work = dist.irecv(got, 1, tag=4)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        raised(KeyboardInterrupt, work.wait)
        assert work.is_completed() and not work.is_success()
        assert "interrupted" in str(raised(RuntimeError, work.wait))
        # A receive that had stayed posted would have swallowed this message.
        rank.post("receive interrupted")
        again = torch.zeros(2)
        dist.recv(again, 1, tag=4)
        same(again, torch.ones(2))
        same(got, torch.zeros(2))

        sent = dist.isend(torch.full((1 << 20,), 3.0), 1, tag=5)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        raised(KeyboardInterrupt, sent.wait)
        assert not sent.is_completed()
        rank.post("send interrupted")
        sent.wait(timedelta(seconds=30))
    else:
        rank.await_word("receive interrupted")
        dist.send(torch.ones(2), 0, tag=4)
        rank.await_word("send interrupted")
        long = torch.zeros(1 << 20)
        dist.recv(long, 0, tag=5)
        same(long, torch.full((1 << 20,), 3.0))


def test_a_group_goes_on_after_ctrl_c(run_ranks, few_settings):
    run_ranks(goes_on_after_ctrl_c, env=few_settings)
