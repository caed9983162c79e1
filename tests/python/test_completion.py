"""Completion: without a wait, from several threads, through futures, across a fork."""

import gc
import os
import sys
import threading
import time
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from ranks import backend_of, pattern, raised, same, wait_until

BIG = 64 << 20


def completes_by_itself(rank):
    """C1: seen by polling with sleeps only."""
    for size in (8, BIG):
        rank.meet(f"C1 {size}")
        if rank.rank == 0:
            work = dist.isend(pattern(size, 1), 1)
        else:
            got = torch.zeros(size, dtype=torch.uint8)
            work = dist.irecv(got, 0)
        wait_until(work.is_completed, f"is_completed() of {size} bytes", 20)
        if rank.rank == 1:
            same(got, pattern(size, 1))


def sender_completes_while_the_receiver_does_other_things(rank):
    """C2."""
    if rank.rank == 0:
        dist.isend(pattern(BIG, 2), 1).wait()
        rank.post("C2 sender is done")
    else:
        got = torch.zeros(BIG, dtype=torch.uint8)
        work = dist.irecv(got, 0)
        rank.await_word("C2 sender is done", 20)  # no call of the backend in the meantime
        work.wait()
        same(got, pattern(BIG, 2))


def receiver_completes_while_the_sender_computes(rank):
    """C2."""
    rank.meet("C2 second part")
    if rank.rank == 0:
        work = dist.isend(pattern(BIG, 3), 1)
        word = rank.directory / "word-C2 receiver is done"
        end = time.monotonic() + 20
        while not word.exists():  # a loop in Python that holds the GIL most of the time
            assert time.monotonic() < end
        work.wait()
    else:
        got = torch.zeros(BIG, dtype=torch.uint8)
        dist.recv(got, 0)
        rank.post("C2 receiver is done")
        same(got, pattern(BIG, 3))


def both_ways_at_once(rank, rounds=12):
    """C3: wait in either order."""
    size = 8 << 20
    out = pattern(size, rank.rank)
    expected = pattern(size, 1 - rank.rank)
    for number in range(rounds):
        got = torch.zeros(size, dtype=torch.uint8)
        works = [dist.isend(out, 1 - rank.rank), dist.irecv(got, 1 - rank.rank)]
        for work in works if number % 2 else reversed(works):
            work.wait()
        same(got, expected)


def both_send_first(rank):
    """C4: completes while small; at rendezvous sizes both time out and say so."""
    small, got = pattern(512, rank.rank), torch.zeros(512, dtype=torch.uint8)
    dist.send(small, 1 - rank.rank)
    dist.recv(got, 1 - rank.rank)
    same(got, pattern(512, 1 - rank.rank))

    group = dist.new_group(timeout=timedelta(seconds=2))
    big = torch.zeros(BIG, dtype=torch.uint8)
    error = raised(dist.DistError, dist.send, big, 1 - rank.rank, group=group)
    assert f"ucx send on rank {rank.rank} of group " in str(error), error
    assert f"to rank {1 - rank.rank}, tag 0, {BIG} bytes: Timed out after " in str(error), error
    rank.meet("C4 both timed out")
    dist.destroy_process_group(group)


class Buffer(bytearray):
    """Memory that shows when it is released."""


def dropped_sends_are_delivered_and_released(rank, count=500):
    """C5: work and tensor dropped at once."""
    size = 10_000
    if rank.rank == 0:
        for number in range(count):
            dist.isend(torch.full((size,), number), 1)
        gc.collect()
    else:
        got = torch.zeros(size, dtype=torch.int64)
        for number in range(count):
            dist.recv(got, 0)
            same(got, torch.full((size,), number))

    # Memory whose release takes the GIL, on whichever thread it comes.
    if rank.rank == 0:
        alive = weakref.WeakSet()
        for number in range(count):
            buffer = Buffer(bytes([number % 256]) * size)
            alive.add(_Watched(buffer))
            dist.isend(torch.frombuffer(buffer, dtype=torch.uint8), 1)
            del buffer
        rank.post("C5 sent")
        wait_until(lambda: len(alive) == 0, "the release of what was sent", 20)
    else:
        got = torch.zeros(size, dtype=torch.uint8)
        for number in range(count):
            dist.recv(got, 0)
            same(got, torch.full((size,), number % 256, dtype=torch.uint8))


class _Watched:
    """Lives as long as the buffer does."""

    def __init__(self, buffer):
        buffer.watched = self


def one_work_and_several_threads(rank):
    """C6."""
    beats = []
    stop = threading.Event()

    def heartbeat():
        while not stop.wait(0.01):
            beats.append(time.monotonic())

    def wait_twice(work, failures):
        try:
            work.wait()
            work.wait()
            assert work.is_completed()
        except Exception as error:
            failures.append(error)

    heart = threading.Thread(target=heartbeat)
    heart.start()
    if rank.rank == 1:
        got = torch.zeros(BIG, dtype=torch.uint8)
        work = dist.irecv(got, 0, tag=1)
        failures = []
        waiters = [threading.Thread(target=wait_twice, args=(work, failures)) for _ in range(2)]
        for thread in waiters:
            thread.start()
        small = torch.zeros(1, dtype=torch.int64)
        for number in range(200):
            dist.recv(small, 0, tag=2)
            same(int(small), number)
        before = len(beats)
        rank.post("C6 go")
        for thread in waiters:
            thread.join(30)
            assert not thread.is_alive()
        assert not failures, failures
        same(got, pattern(BIG, 6))
        assert len(beats) > before or len(beats) > 3
    else:
        for number in range(200):
            dist.send(torch.tensor([number]), 1, tag=2)
        rank.await_word("C6 go")
        time.sleep(0.3)  # the waiters of the other rank block meanwhile; its heart must beat
        dist.send(pattern(BIG, 6), 1, tag=1)
    stop.set()
    heart.join()
    assert len(beats) > 3


def threads_with_tags_of_their_own(rank, seconds=2.0):
    """C7."""
    failures = []

    def talk(tag):
        try:
            end = time.monotonic() + seconds
            number = 0
            sizes = (1, 100, 5000, 200_000)
            while True:
                size = sizes[number % 4]
                more = torch.tensor([time.monotonic() < end], dtype=torch.int64)
                out = pattern(size, number + tag)
                got = torch.zeros(size, dtype=torch.uint8)
                if rank.rank == 0:
                    dist.send(more, 1, tag=tag)
                    dist.send(out, 1, tag=tag)
                    dist.recv(got, 1, tag=tag)
                else:
                    dist.recv(more, 0, tag=tag)
                    dist.recv(got, 0, tag=tag)
                    dist.send(out, 0, tag=tag)
                same(got, out)
                number += 1
                if not int(more):
                    break
            assert number > 4
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def futures(rank):
    """C8: the value on success, the exception on a time-out; also with nobody waiting."""
    called = threading.Event()
    threads = []

    def then(future):
        threads.append(threading.current_thread())
        called.set()
        return future.value()[0] + 1

    if rank.rank == 0:
        work = dist.isend(torch.arange(3), 1)
        (sent,) = work.get_future().wait()
        same(sent, torch.arange(3))
    else:
        got = torch.zeros(3, dtype=torch.int64)
        future = dist.irecv(got, 0).get_future()
        later = future.then(then)
        wait_until(called.is_set, "the callback", 20)
        same(later.wait(), torch.arange(3) + 1)
        same(future.value()[0], torch.arange(3))
        assert future.done()
        # A callback that is added late runs at once.
        same(future.then(lambda f: f.value()[0] * 2).wait(), torch.arange(3) * 2)
    rank.meet("C8")

    group = dist.new_group(timeout=timedelta(seconds=1))
    work = dist.irecv(torch.zeros(1), 1 - rank.rank, group=group, tag=8)
    seen = []
    done = threading.Event()

    def after_failure(future):
        try:
            future.value()
        except Exception as error:
            seen.append(error)
        done.set()

    future = work.get_future()
    future.then(after_failure)
    wait_until(done.is_set, "the callback of a failure", 20)
    for error in (*seen, raised(RuntimeError, future.wait), raised(RuntimeError, work.wait)):
        assert "tag 8, 4 bytes: Timed out after " in str(error), error
    assert isinstance(work.exception() and raised(RuntimeError, work.wait), dist.DistError)
    assert work.is_completed() and not work.is_success()

    # A callback may itself post and wait, and one that raises harms nobody else.
    answered = threading.Event()
    if rank.rank == 0:
        ask = torch.zeros(1, dtype=torch.int64)

        def answer(future):
            dist.isend(future.value()[0] * 2, 1, tag=2).wait()
            answered.set()

        def broken(future):
            raise KeyError("a callback's own mistake")

        future = dist.irecv(ask, 1, tag=1).get_future()
        mistake = future.then(broken)
        future.then(answer)
        wait_until(answered.is_set, "the answer", 20)
        assert "a callback's own mistake" in str(raised(Exception, mistake.wait))
    else:
        dist.send(torch.tensor([21]), 0, tag=1)
        got = torch.zeros(1, dtype=torch.int64)
        dist.recv(got, 0, tag=2)
        same(int(got), 42)


def two_threads_ask_for_one_future(rank):
    """The first get_future() of a pending Work, from several threads at once."""
    other = 1 - rank.rank
    for number in range(50):
        work = dist.irecv(torch.zeros(1), other, tag=number)
        start = threading.Barrier(4)
        futures = []

        def ask(start=start, work=work, futures=futures):
            start.wait()
            futures.append(work.get_future())

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        rank.meet(f"asked {number}")
        dist.send(torch.full((1,), 5.0), other, tag=number)
        for future in futures:
            same(future.wait()[0], torch.full((1,), 5.0))


def what_else_a_work_tells(rank):
    """The ends of a Work that torch's own code calls, and its numbers."""
    other = 1 - rank.rank
    tensor = torch.zeros(3)
    received = dist.irecv(tensor, other)
    sent = dist.isend(torch.ones(3), other)
    for work in (received, sent):
        work.synchronize()
        assert work.is_completed() and work.is_success()
        assert work.exception() is None
    same(tensor, torch.ones(3))
    same(received.result()[0], torch.ones(3))
    assert received.result()[0].data_ptr() == tensor.data_ptr()
    same(received.source_rank(), other)
    blocking = [dist.irecv(tensor, other), dist.isend(torch.full((3,), 2.0), other)]
    for work in blocking:
        if hasattr(work, "block_current_stream"):  # of torch 2.9 and later
            work.block_current_stream()
        else:
            work.wait()
    same(tensor, torch.full((3,), 2.0))
    # Collectives are counted alike on all ranks, messages are not among them.
    backend = backend_of()
    before = backend._get_sequence_number_for_group()
    dist.barrier()
    dist.isend(torch.ones(1), other)
    dist.recv(torch.zeros(1), other)
    same(backend._get_sequence_number_for_group(), before + 1)


COMPLETION = [
    completes_by_itself,
    sender_completes_while_the_receiver_does_other_things,
    receiver_completes_while_the_sender_computes,
    both_ways_at_once,
    both_send_first,
    dropped_sends_are_delivered_and_released,
    one_work_and_several_threads,
    threads_with_tags_of_their_own,
    futures,
    two_threads_ask_for_one_future,
    what_else_a_work_tells,
]


def test_completion(run_ranks, setting):
    run_ranks(COMPLETION, env=setting, group={})


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("check", "arguments"),
    [(both_ways_at_once, {"rounds": 200}), (threads_with_tags_of_their_own, {"seconds": 30})],
)
def test_completion_long(run_ranks, setting, check, arguments):
    run_ranks(check, env=setting, group={"timeout": 120}, arguments=arguments, deadline=300)


def ends_in_a_callback(rank):
    """A continuation destroys the last group while the program ends."""
    rank.init(timeout=20)
    got = torch.zeros(1)
    future = dist.irecv(got, 1 - rank.rank).get_future()
    sent = threading.Event()

    def last(_):
        sent.wait(20)  # the other's message may come before this rank has sent its own
        rank.post(f"in callback {rank.rank}")
        dist.destroy_process_group()
        time.sleep(0.5)  # the interpreter must not end under it
        print("callback ended", flush=True)

    future.then(last)
    dist.send(torch.ones(1), 1 - rank.rank)
    sent.set()
    rank.await_word(f"in callback {rank.rank}")
    sys.exit(0)


def test_the_program_ends_while_a_callback_destroys_its_group(start_ranks, few_settings):
    job = start_ranks(ends_in_a_callback, env=few_settings, fresh=True)
    job.finish()
    for rank in range(2):
        assert "callback ended" in job.stdout(rank), job.report()


# ---- forked children ---------------------------------------------------------------------------


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([index * index])


def forking_while_messages_move(rank):
    """C10: DataLoader workers are forked in the midst of a loop of big messages."""
    stop = threading.Event()
    failures = []
    rounds = []

    def talk():
        try:
            out = pattern(4 << 20, rank.rank)
            while True:
                more = torch.tensor([0 if stop.is_set() else 1])
                other = torch.zeros(1, dtype=torch.int64)
                got = torch.zeros(4 << 20, dtype=torch.uint8)
                works = [dist.isend(more, 1 - rank.rank), dist.irecv(other, 1 - rank.rank)]
                works += [dist.isend(out, 1 - rank.rank), dist.irecv(got, 1 - rank.rank)]
                for work in works:
                    work.wait()
                same(got, pattern(4 << 20, 1 - rank.rank))
                rounds.append(1)
                if not int(more) and not int(other):
                    break
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=talk)
    thread.start()
    for _ in range(2):
        loader = torch.utils.data.DataLoader(
            Squares(), batch_size=4, num_workers=4, multiprocessing_context="fork"
        )
        squares = torch.cat(list(loader)).reshape(-1)
        same(squares, torch.arange(40) ** 2)
    stop.set()
    thread.join()
    assert not failures, failures
    assert rounds


def in_a_forked_child(rank):
    """C10: a send fails at once, with a clear error; dropping the group and exit are silent."""
    import torch_ucx

    waiting = dist.irecv(torch.zeros(1), 1 - rank.rank, tag=77)
    started = torch_ucx.recv_init(torch.zeros(1), 1 - rank.rank, tag=78)
    started.start()
    for leave in ("exit", "destroy"):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 3
            try:
                for function in (dist.isend, dist.irecv, dist.send, dist.recv):
                    error = raised(dist.DistBackendError, function, torch.zeros(1), 1 - rank.rank)
                    assert "this process was forked from the one that made the group" in str(error)
                    assert '"spawn" or "forkserver"' in str(error), error
                for function in (
                    waiting.wait,
                    waiting.get_future,
                    started.wait,
                    started.start,
                    lambda: torch_ucx.wait_all([started]),
                    lambda: torch_ucx.start_all([started]),
                ):
                    error = raised(RuntimeError, function)
                    assert "this process was forked" in str(error), (function, error)
                assert not waiting.is_completed()
                if leave == "destroy":
                    dist.destroy_process_group()
                    gc.collect()
                    status = 0
                else:
                    sys.exit(0)  # through the hooks at exit
            except SystemExit:
                import atexit

                atexit._run_exitfuncs()
                status = 0
            except BaseException as error:
                print(f"in the child: {error!r}", flush=True)
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        same(os.waitstatus_to_exitcode(status), 0)
    # The parent's group is as it was.
    dist.send(torch.ones(1), 1 - rank.rank, tag=77)
    dist.send(torch.ones(1), 1 - rank.rank, tag=78)
    waiting.wait()
    started.wait()
    got = torch.zeros(3)
    works = [dist.isend(torch.ones(3), 1 - rank.rank), dist.irecv(got, 1 - rank.rank)]
    for work in works:
        work.wait()
    same(got, torch.ones(3))
    assert backend_of().size() == 2


def test_fork(run_ranks, few_settings):
    checks = [forking_while_messages_move, in_a_forked_child]
    run_ranks(checks, env=few_settings, group={})
