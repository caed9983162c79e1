"""Settings: UCX_TLS, TORCH_UCX_*, two UCX versions in one job, a damaged store, the profiler."""

import os
import time

import torch
import torch.distributed as dist

from ranks import backend_of, pattern, raised, same

FAR_S = 300
"""The time-out of groups here: an error that comes for another reason comes before the deadline."""


def talk(rank):
    for size in (8, 100_000, 8 << 20):
        got = torch.zeros(size, dtype=torch.uint8)
        peer = (rank.rank + 1) % rank.size
        source = (rank.rank - 1) % rank.size
        works = [dist.isend(pattern(size, rank.rank), peer), dist.irecv(got, source)]
        for work in works:
            work.wait()
        same(got, pattern(size, source))
    dist.barrier()


# ---- F1 ----------------------------------------------------------------------------------------


def transports_one_after_the_other(rank):
    """F1; the settings are read when an engine starts, and it ends with the last group."""
    for tls in ("tcp", "sm", "self,sm", "sm,tcp", "^sysv", "all"):
        os.environ["UCX_TLS"] = tls
        print(f"UCX_TLS={tls}", flush=True)
        rank.init(name=tls)
        talk(rank)
        dist.destroy_process_group()
    # Ours comes first, for this backend only.
    os.environ.update(UCX_TLS="bogus", TORCH_UCX_TLS="tcp,self")
    rank.init(name="override")
    talk(rank)
    dist.destroy_process_group()


def test_transports_that_connect(run_ranks, libucp):
    run_ranks(transports_one_after_the_other, env=libucp)


def no_such_transport(rank):
    error = raised(RuntimeError, rank.init, timeout=FAR_S)
    text = str(error)
    assert "UCX_TLS" in text and "bogus" in text, text


def test_a_transport_that_does_not_exist(run_ranks, libucp):
    env = {**libucp, "UCX_TLS": "bogus"}
    run_ranks(no_such_transport, env=env, ucx_lines=r"bogus|no usable transports|not available")


def nothing_in_common(rank):
    rank.init(timeout=FAR_S)
    peer = 1 - rank.rank
    for function in (dist.send, dist.recv):
        error = raised(dist.DistNetworkError, function, torch.zeros(1), peer)
        text = str(error)
        assert f"no contact with rank {peer}" in text, text
        assert "UCX_TLS=tcp,self" in text and "UCX_TLS=sm,self" in text, text
    rank.meet("both saw it")


def test_transports_with_nothing_in_common(run_ranks, libucp):
    run_ranks(
        nothing_in_common,
        env=libucp,
        rank_env={0: {"UCX_TLS": "tcp,self"}, 1: {"UCX_TLS": "sm,self"}},
    )


def damaged_address(rank, damage):
    """Rank 1's key is written by hand."""
    store = dist.FileStore(str(rank.directory / f"damaged {damage}"), 2)
    dist.init_process_group("ucx", store=store, rank=0, world_size=2)
    # The first group shows where the keys are and what they hold.
    (own,) = (k for k in store.list_keys() if k.endswith("/1/0") and "torch_ucx" in k)
    blob = store.get(own)
    assert own.endswith("/1/0"), own
    dist.destroy_process_group()
    damaged = {
        "empty": b"",
        "text": b"no address at all",
        "cut": blob[: len(blob) // 2],
        "longer": blob + b"x",
        "version": bytes([blob[0] ^ 0x55]) + blob[1:],
    }[damage]
    for instance in (1, 2):  # whichever of them the next group of this name is
        store.set(own.removesuffix("1/0") + f"{instance}/1", damaged)
    begin = time.monotonic()
    dist.init_process_group("ucx", store=store, rank=0, world_size=2)
    for function in (dist.send, dist.recv):
        error = raised(dist.DistNetworkError, function, torch.zeros(1), 1)
        assert "no contact with rank 1: " in str(error) and "address" in str(error), error
        print(error)
    assert time.monotonic() - begin < 30
    dist.destroy_process_group()


def damaged_addresses(rank):
    rank.size = 2  # one process, in a world of two
    for damage in ("text", "cut", "longer", "version"):
        damaged_address(rank, damage)


def test_damaged_addresses(run_ranks):
    run_ranks(damaged_addresses, 1)


# ---- F4 ----------------------------------------------------------------------------------------


def version_mismatch(rank):
    import torch_ucx

    rank.init(timeout=FAR_S)
    peer = 1 - rank.rank
    rank.post(f"version of {rank.rank}", list(torch_ucx.ucx_version()))
    versions = [".".join(map(str, rank.await_word(f"version of {r}"))) for r in range(2)]
    assert versions[0] != versions[1]
    for function in (dist.send, dist.recv):
        error = raised(dist.DistNetworkError, function, torch.zeros(1), peer)
        text = str(error)
        assert f"no contact with rank {peer}: " in text, text
        for version in versions:
            assert f"UCX {version} " in text, text
        assert "TORCH_UCX_ALLOW_VERSION_MISMATCH=1" in text, text
    rank.meet("both saw it")


def test_two_versions_of_ucx_are_refused(run_ranks, both_libucp):
    run_ranks(version_mismatch, rank_env=dict(enumerate(both_libucp)))


def small_messages(rank):
    rank.init(timeout=30)
    for size in (8, 4096):
        got = torch.zeros(size, dtype=torch.uint8)
        works = [dist.isend(pattern(size, rank.rank), 1 - rank.rank)]
        works.append(dist.irecv(got, 1 - rank.rank))
        for work in works:
            work.wait()
        same(got, pattern(size, 1 - rank.rank))
    rank.meet("talked")
    dist.destroy_process_group()


SHM = {"UCX_TLS": "posix,sysv,cma,self"}


def test_two_versions_of_ucx_by_request(run_ranks, both_libucp):
    """What then works is UCX's own: 1.13 and 1.22 exchange small messages over shared memory; their
    rendezvous does not end, and over tcp 1.13 aborts at the address of 1.22."""
    env = {"TORCH_UCX_ALLOW_VERSION_MISMATCH": "1", **SHM}
    run_ranks(small_messages, env=env, rank_env=dict(enumerate(both_libucp)))


def version_mismatch_allowed_by_one(rank):
    rank.init(timeout=FAR_S)
    for function in (dist.send, dist.recv):
        error = raised(dist.DistNetworkError, function, torch.zeros(1), 1 - rank.rank)
        text = str(error)
        assert f"no contact with rank {1 - rank.rank}: " in text, text
        assert "TORCH_UCX_ALLOW_VERSION_MISMATCH=1 on all ranks" in text, text
    rank.meet("both saw it")


def test_two_versions_of_ucx_that_one_rank_allows(run_ranks, both_libucp):
    first, second = both_libucp
    rank_env = {0: {**first, "TORCH_UCX_ALLOW_VERSION_MISMATCH": "1"}, 1: second}
    run_ranks(version_mismatch_allowed_by_one, env=SHM, rank_env=rank_env)


def error_mode_of_one_rank(rank):
    for mode in ("none", "peer"):
        if rank.rank == 1:
            os.environ["TORCH_UCX_ERROR_MODE"] = mode
        rank.init(name=mode)
        talk(rank)
        dist.destroy_process_group()


def test_error_mode_on_one_rank_only(run_ranks, few_settings):
    # Without error handling over tcp, UCX remarks on a peer that closed first.
    remark = "error during flush: (Endpoint timeout|Connection reset)"
    run_ranks(error_mode_of_one_rank, env=few_settings, ucx_lines=remark)


def contrary_modes(rank):
    rank.init(timeout=FAR_S)
    error = raised(dist.DistNetworkError, dist.send, torch.zeros(1), 1 - rank.rank)
    text = str(error)
    assert "TORCH_UCX_ERROR_MODE" in text and '"none"' in text and '"peer"' in text, text
    rank.meet("both saw it")


def test_contrary_error_modes_are_refused(run_ranks):
    rank_env = {r: {"TORCH_UCX_ERROR_MODE": mode} for r, mode in enumerate(("none", "peer"))}
    run_ranks(contrary_modes, rank_env=rank_env)


def refused_options(rank):
    wrong = {
        "TORCH_UCX_ERROR_MODE": "sometimes",
        "TORCH_UCX_SPIN_US": "-1",
        "TORCH_UCX_LINGER_S": "long",
        "TORCH_UCX_ALLOW_VERSION_MISMATCH": "yes",
    }
    for name, value in wrong.items():
        os.environ[name] = value
        error = raised((ValueError, RuntimeError), rank.init, name=name)
        assert f"{name}={value}: allowed is " in str(error), error
        del os.environ[name]


def test_options_with_wrong_values(run_ranks):
    run_ranks(refused_options, 1)


def no_such_option(rank):
    """UCX 1.22 knows its options; 1.13 takes any for one of a transport, and warns afterwards."""
    import torch_ucx

    os.environ["TORCH_UCX_NO_SUCH_OPTION"] = "1"
    if torch_ucx.ucx_version() < (1, 14):
        rank.init()
        dist.destroy_process_group()
        return
    error = raised(ValueError, rank.init)
    assert "TORCH_UCX_NO_SUCH_OPTION=1 is neither an option of torch_ucx nor" in str(error), error
    print("refused: NO_SUCH_OPTION=1")


def test_options_of_ucx(run_ranks, start_ranks, libucp):
    """What is no option of ours goes to UCX."""
    run_ranks(talk, env={**libucp, "TORCH_UCX_RNDV_THRESH": "1000"}, group={})
    job = start_ranks(no_such_option, 1, env=libucp)
    job.finish(ucx_lines="invalid configuration: NO_SUCH_OPTION=1")
    assert "NO_SUCH_OPTION=1" in job.output(0)


# ---- profiler ----------------------------------------------------------------------------------


def profiled(rank):
    peer = 1 - rank.rank
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        got = torch.zeros(4)
        works = [dist.isend(torch.ones(4), peer), dist.irecv(got, peer)]
        for work in works:
            work.wait()
        dist.barrier()
    names = {event.name for event in profile.events()}
    missing = {"ucx:send", "ucx:recv", "ucx:barrier"} - names
    assert not missing, sorted(n for n in names if "ucx" in n)
    same(got, torch.ones(4))
    talk(rank)


def test_profiler(run_ranks):
    run_ranks(profiled, group={})


# ---- other things ------------------------------------------------------------------------------


def tells_its_version_and_state(rank):
    import torch_ucx

    same(backend_of().name(), "ucx")
    rank.results["version"] = list(torch_ucx.ucx_version())
    rank.results["path"] = torch_ucx.ucx_library_path()
    talk(rank)


def test_the_chosen_ucx_is_used(run_ranks, both_libucp):
    seen = []
    for env in both_libucp:
        results = run_ranks(tells_its_version_and_state, env=env, group={})
        assert results[0] == results[1]
        seen.append(results[0])
        if env["TORCH_UCX_LIBUCP"]:
            assert os.path.samefile(seen[-1]["path"], env["TORCH_UCX_LIBUCP"])
    assert seen[0]["version"][:2] != seen[1]["version"][:2]
