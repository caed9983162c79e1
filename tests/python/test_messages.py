"""Messages between two ranks: matching, sizes, layouts, dtypes; over each transport and UCX."""

import pytest
import torch
import torch.distributed as dist

from ranks import backend_of, pattern, raised, same

BIG = 64 << 20
"""Bytes; far above every threshold at which UCX changes its protocol."""

MAX_TAG = 2**31 - 1


def exchange(rank, send, receive, late, word):
    """Rank 0 sends and rank 1 receives; ``late``, which of the two starts after the other.

    "sender": the receives are posted first. "receiver": the sends are (they then wait as
    unexpected messages, or as offers of a rendezvous). ``send`` and ``receive`` post operations
    and return their works.
    """
    if rank.rank == 0:
        if late == "sender":
            rank.await_word(f"{word} posted")
        works = send()
        if late == "receiver":
            rank.post(f"{word} posted")
    else:
        if late == "receiver":
            rank.await_word(f"{word} posted")
        works = receive()
        if late == "sender":
            rank.post(f"{word} posted")
    for work in works:
        work.wait()
        assert work.is_completed() and work.is_success()


def tags_are_matched_in_any_order(rank):
    """M1."""
    for size in (4, 1024, BIG // 4):
        for late in ("sender", "receiver"):
            got = {tag: torch.zeros(size, dtype=torch.uint8) for tag in (3, 1, 2)}
            exchange(
                rank,
                lambda size=size: [dist.isend(pattern(size, tag), 1, tag=tag) for tag in (1, 2, 3)],
                lambda got=got: [dist.irecv(t, 0, tag=tag) for tag, t in got.items()],
                late,
                f"M1 {size} {late}",
            )
            if rank.rank == 1:
                for tag, tensor in got.items():
                    same(tensor, pattern(size, tag))


def blocking_calls_in_order_of_tags(rank):
    """M1 with send and recv, where small messages are sent without a receive."""
    if rank.rank == 0:
        for tag in (1, 2, 3):
            dist.send(torch.full((8,), tag), 1, tag=tag)
    else:
        for tag in (3, 1, 2):
            got = torch.zeros(8, dtype=torch.int64)
            same(dist.recv(got, 0, tag=tag), 0)
            same(got, torch.full((8,), tag))


def all_tags_on_two_groups_are_distinct(rank):
    """M2."""
    tags = (0, 1 << 16, 1 << 24, MAX_TAG)
    groups = {"world": dist.group.WORLD, "other": dist.new_group()}
    messages = [(name, tag) for name in groups for tag in tags]
    if rank.rank == 0:
        for number, (name, tag) in enumerate(messages):
            dist.send(torch.tensor([number]), 1, group=groups[name], tag=tag)
    else:
        works = {}
        for name, tag in reversed(messages):
            got = torch.full((1,), -1)
            works[name, tag] = dist.irecv(got, 0, group=groups[name], tag=tag), got
        for number, key in enumerate(messages):
            work, got = works[key]
            work.wait()
            same(got, torch.tensor([number]))
    dist.destroy_process_group(groups["other"])


def wrong_tags_and_ranks_are_refused(rank):
    """M2; and the next message is intact."""
    value = torch.zeros(1)
    for function in (dist.isend, dist.irecv, dist.send, dist.recv):
        error = raised(ValueError, function, value, 1 - rank.rank, tag=-1)
        assert "tag -1 is negative; allowed is 0 to 2147483647" in str(error), error
        assert function.__name__.lstrip("i") in str(error), error
        raised(TypeError, function, value, 1 - rank.rank, tag=2**31)
        raised(ValueError, function, value, 2)
    for operation, role in ("send", "destination"), ("recv", "source"):
        for wrong in (2, -1):
            error = raised(ValueError, getattr(backend_of(), operation), [value], wrong, 0)
            assert f"{role} rank {wrong} is outside " in str(error), error
            assert "group" in str(error) and "allowed is 0 to 1" in str(error), error
    ping(rank, "after wrong tags")


def ping(rank, word):
    """One message each way."""
    text = torch.frombuffer(bytearray(word.encode()), dtype=torch.uint8)
    got = torch.zeros_like(text)
    if rank.rank == 0:
        dist.send(text, 1)
        same(dist.recv(got, 1), 1)
    else:
        same(dist.recv(got, 0), 0)
        dist.send(text, 0)
    same(got, text)


def messages_to_oneself(rank):
    """M7."""
    me = rank.rank
    for size in (0, 8, 1 << 20):
        for first in ("send", "receive"):
            got = torch.zeros(size, dtype=torch.uint8)
            works = []
            for step in (first, "receive" if first == "send" else "send"):
                if step == "send":
                    works.append(dist.isend(pattern(size, me), me, tag=5))
                else:
                    works.append(dist.irecv(got, me, tag=5))
            for work in works:
                work.wait()
            same(got, pattern(size, me))
    same(dist.get_rank(), me)
    # torch refuses the blocking forms, for every backend.
    raised(ValueError, dist.send, torch.zeros(1), me)


def wrong_sizes_are_errors_and_the_next_message_is_intact(rank):
    """S1, small and big, expected and unexpected."""
    floats = torch.tensor([1.0, 2.0, 3.0])
    cases = [(floats, torch.zeros(n), verdict) for n, verdict in WRONG_SIZES]
    big = pattern(100_000_000, 1)
    cases += [
        (big, torch.zeros(n, dtype=torch.uint8), "the buffer is too small") for n in (50_000_000, 0)
    ]
    for late in ("sender", "receiver"):
        for number, (message, buffer, verdict) in enumerate(cases):
            word = f"S1 {late} {number}"
            if rank.rank == 0:
                exchange(rank, lambda m=message: [dist.isend(m, 1, tag=7)], None, late, word)
                dist.send(floats * 2, 1, tag=7)
            else:

                def receive(buffer=buffer):
                    return [dist.irecv(buffer, 0, tag=7)]

                error = raised(dist.DistBackendError, exchange, rank, None, receive, late, word)
                text = str(error)
                assert f"the message has {message.nbytes} bytes" in text, text
                assert f"the receive buffer has {buffer.nbytes} bytes: {verdict}" in text, text
                assert "ucx recv on rank 1 " in text and "from rank 0, tag 7" in text, text
                got = torch.zeros(3)
                dist.recv(got, 0, tag=7)
                same(got, floats * 2)


WRONG_SIZES = ((2, "the buffer is too small"), (5, "the message is too short"))


def sizes_around_the_thresholds(rank):
    """S2."""
    sizes = [
        base + step for base in (1 << 10, 8 << 10, 64 << 10, 256 << 10) for step in (-64, -1, 0, 64)
    ]
    for late in ("sender", "receiver"):
        got = [torch.zeros(size + 8, dtype=torch.uint8) for size in sizes]
        exchange(
            rank,
            lambda: [dist.isend(pattern(size, size % 13), 1) for size in sizes],
            # Views, so that a byte too many shows.
            lambda got=got: [dist.irecv(t[:-8], 0) for t in got],
            late,
            f"S2 {late}",
        )
        if rank.rank == 1:
            for size, tensor in zip(sizes, got, strict=True):
                same(tensor[:-8], pattern(size, size % 13))
                same(tensor[-8:], torch.zeros(8, dtype=torch.uint8))


def shapes_without_elements(rank):
    """S4; an empty message, then a big one, on one tag."""
    for shape in ((0,), (1, 0, 2), ()):
        if rank.rank == 0:
            dist.send(torch.full(shape, 2.5), 1)
        else:
            got = torch.zeros(shape)
            same(dist.recv(got, 0), 0)
            same(got, torch.full(shape, 2.5))
    for late in ("sender", "receiver"):
        empty, big = torch.zeros(0, dtype=torch.uint8), torch.zeros(BIG, dtype=torch.uint8)
        exchange(
            rank,
            lambda: [
                dist.isend(torch.zeros(0, dtype=torch.uint8), 1, tag=4),
                dist.isend(pattern(BIG, 4), 1, tag=4),
            ],
            lambda empty=empty, big=big: [dist.irecv(t, 0, tag=4) for t in (empty, big)],
            late,
            f"S4 {late}",
        )
        if rank.rank == 1:
            same(big, pattern(BIG, 4))


def all_dtypes():
    found = {d for d in vars(torch).values() if isinstance(d, torch.dtype)}
    return sorted(found, key=str)


def bytes_of(tensor):
    """The memory of a tensor, as uint8."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),))


def tensor_of(dtype, count):
    """A tensor of zero bytes of any dtype that torch can allocate."""
    try:
        tensor = torch.empty(count, dtype=dtype)
    except (RuntimeError, TypeError):  # quantised ones have a maker of their own
        tensor = torch._empty_affine_quantized([count], scale=0.5, zero_point=0, dtype=dtype)
    bytes_of(tensor).zero_()
    return tensor


def every_dtype_is_bit_exact(rank):
    """S5; every byte value in every dtype, NaNs and what is no valid value of the dtype as well."""
    dtypes = all_dtypes()
    rank.results["dtypes"] = [str(d) for d in dtypes]
    for number, dtype in enumerate(dtypes):
        tensor = tensor_of(dtype, 1024)
        expected = pattern(len(bytes_of(tensor)), number)
        if rank.rank == 0:
            bytes_of(tensor).copy_(expected)
        if tensor.is_quantized:
            # torch has no dist.send for these, whatever the backend; the backend has.
            error = raised(NotImplementedError, dist.isend, tensor, 1 - rank.rank)
            assert "QuantizedCPU" in str(error), error
            operation = backend_of().send if rank.rank == 0 else backend_of().recv
            operation([tensor], 1 - rank.rank, 0).wait()
        elif rank.rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
        assert torch.equal(bytes_of(tensor), expected), dtype


def complex_is_sent_as_pairs_of_reals(rank):
    """S5: as torch hands it over; a conjugate view raises in torch, before the backend."""
    value = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    if rank.rank == 0:
        dist.send(value, 1)
        dist.send(torch.view_as_real(value).reshape(-1), 1)
        dist.send(value, 1)
    else:
        got = torch.zeros(2, dtype=torch.complex64)
        dist.recv(got, 0)
        same(got, value)
        dist.recv(got, 0)
        same(got, value)
        reals = torch.zeros(4)
        dist.recv(reals, 0)
        same(reals, torch.tensor([1.0, 2.0, 3.0, -4.0]))
    for function in (dist.isend, dist.irecv):
        raised(RuntimeError, function, value.conj(), 1 - rank.rank)
    ping(rank, "after conj")


def views_are_sent_by_logical_index(rank):
    """S6; nothing outside the view is written."""
    base = torch.arange(24).reshape(4, 6)
    views = {
        "transposed": base.t(),
        "sliced": base[1:3, 2:5],
        "strided": base[::2, ::3],
        "expanded": base[0:1].expand(3, 6),
        "negative": base.to(torch.float32) * 1j,
    }
    views["negative"] = views["negative"].conj().imag  # a lazily negated view
    assert views["negative"].is_neg()
    for name, view in views.items():
        plain = view.resolve_neg().contiguous()
        if rank.rank == 0:
            dist.send(view, 1)
            dist.send(plain, 1)
            continue
        got = torch.zeros(plain.shape, dtype=plain.dtype)
        dist.recv(got, 0)
        assert torch.equal(got, plain), name
        if name in ("expanded", "negative"):
            dist.recv(got, 0)
            continue
        around = torch.full_like(base, -1)
        into = around.as_strided(view.shape, view.stride(), view.storage_offset())
        dist.recv(into, 0)
        assert torch.equal(into, plain), name
        same(int((around == -1).sum()), around.numel() - plain.numel())
    # Refused before anything is posted. Through the backend object, because torch's dispatcher
    # hands on a copy of a negated view.
    for name, text in ("expanded", "share"), ("negative", "negative"):
        error = raised(ValueError, backend_of().recv, [views[name]], 1 - rank.rank, 0)
        assert "ucx recv: " in str(error) and text in str(error), error
    # A row of a matrix is contiguous; its neighbours stay what they are.
    rows = torch.zeros(3, 4)
    if rank.rank == 0:
        dist.send(torch.ones(4), 1)
    else:
        dist.recv(rows[1], 0)
        same(rows, torch.tensor([[0.0] * 4, [1.0] * 4, [0.0] * 4]))
    ping(rank, "after views")


def tensors_without_plain_memory_are_refused(rank):
    """S7; before anything is posted."""
    dense = torch.eye(3)
    cases = {
        "layout Sparse": dense.to_sparse(),
        "layout SparseCsr": dense.to_sparse_csr(),
        "device meta": torch.zeros(3, device="meta"),
        "nested": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    }
    for text, tensor in cases.items():
        for operation in ("send", "recv"):
            error = raised(ValueError, getattr(backend_of(), operation), [tensor], 1 - rank.rank, 0)
            assert f"ucx {operation}: the tensor " in str(error) and text in str(error), error
            if text != "device meta":  # torch answers for these itself, and moves nothing
                raised(RuntimeError, getattr(dist, f"i{operation}"), tensor, 1 - rank.rank)
    for operation in ("send", "recv"):
        for number in (0, 2):
            error = raised(
                ValueError, getattr(backend_of(), operation), [dense] * number, 1 - rank.rank, 0
            )
            assert f"one tensor is allowed, got {number}" in str(error), error
    raised(TypeError, dist.isend, "text", 1 - rank.rank)
    ping(rank, "after refused tensors")


def many_small_sends_arrive_in_order(rank):
    """M8; the sends complete although the receiver does not receive."""
    count = 20_000
    if rank.rank == 0:
        ping(rank, "before the flood")
        works = [dist.isend(torch.tensor([i]), 1) for i in range(count)]
        for work in works:
            work.wait()
        rank.post("M8 sent")
    else:
        ping(rank, "before the flood")
        rank.await_word("M8 sent")
        got = torch.zeros(1, dtype=torch.int64)
        for i in range(count):
            dist.recv(got, 0)
            assert int(got) == i, f"message {i} holds {int(got)}"


def objects(rank):
    """send_object_list and recv_object_list."""
    things = [{"text": "x" * 10_000}, None, (1, 2.5), torch.arange(3)]
    if rank.rank == 0:
        dist.send_object_list(things, 1)
    else:
        got = [None] * len(things)
        same(dist.recv_object_list(got, 0), 0)
        same(got[:3], things[:3])
        same(got[3], things[3])


def works_tell_about_themselves(rank):
    if rank.rank == 0:
        work = dist.isend(torch.ones(2), 1)
        work.wait()
        raised(RuntimeError, work.source_rank)
    else:
        got = torch.zeros(2)
        work = dist.irecv(got, 0)
        work.wait()
        same(work.source_rank(), 0)
    assert work.is_completed() and work.is_success() and work.exception() is None
    work.wait()
    (result,) = work.result()
    same(result, torch.ones(2))


MESSAGES = [
    tags_are_matched_in_any_order,
    blocking_calls_in_order_of_tags,
    all_tags_on_two_groups_are_distinct,
    wrong_tags_and_ranks_are_refused,
    messages_to_oneself,
    wrong_sizes_are_errors_and_the_next_message_is_intact,
    sizes_around_the_thresholds,
    shapes_without_elements,
    every_dtype_is_bit_exact,
    complex_is_sent_as_pairs_of_reals,
    views_are_sent_by_logical_index,
    tensors_without_plain_memory_are_refused,
    many_small_sends_arrive_in_order,
    objects,
    works_tell_about_themselves,
]


def test_messages(run_ranks, setting):
    results = run_ranks(MESSAGES, env=setting, group={})
    assert len(results[0]["dtypes"]) >= 30


@pytest.mark.parametrize("threshold", ["0", "inf"])
def test_messages_with_every_message_by_one_protocol(run_ranks, few_settings, threshold):
    """S2: all by rendezvous, and none."""
    checks = [
        tags_are_matched_in_any_order,
        sizes_around_the_thresholds,
        shapes_without_elements,
        wrong_sizes_are_errors_and_the_next_message_is_intact,
        messages_to_oneself,
        every_dtype_is_bit_exact,
    ]
    run_ranks(checks, env={**few_settings, "UCX_RNDV_THRESH": threshold}, group={})


def whole_world_of_one(rank):
    """M7: world_size 1."""
    same((dist.get_rank(), dist.get_world_size()), (0, 1))
    messages_to_oneself(rank)
    dist.barrier()
    group = dist.new_group([0])
    got = torch.zeros(3)
    works = [dist.isend(torch.ones(3), 0, group=group), dist.irecv(got, 0, group=group)]
    for work in works:
        work.wait()
    same(got, torch.ones(3))


def test_a_world_of_one(run_ranks, few_settings):
    run_ranks(whole_world_of_one, 1, env=few_settings, group={})


def test_debug_mode_detail(run_ranks):
    """torch wraps the backend, with a gloo group beside it that checks the calls."""
    checks = [blocking_calls_in_order_of_tags, messages_to_oneself, objects, barriers]
    run_ranks(checks, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, group={}, fresh=True)


def barriers(rank):
    for i in range(3):
        if rank.rank == 0:
            rank.post(f"rank 0 is in barrier {i}")
            dist.barrier()
        else:
            dist.barrier()
            # Nobody leaves a barrier before all have come to it.
            assert (rank.directory / f"word-rank 0 is in barrier {i}").exists()
