"""Starts the ranks of an example, when nobody else has.

    python examples/ring.py                                     # starts its own four ranks
    torchrun --standalone --nproc-per-node 4 examples/ring.py   # or torchrun does

Either way each rank finds the others through the environment (``env://``), as PyTorch documents it.
"""

import argparse
import os
import sys

import torch.distributed as dist
import torch.multiprocessing as mp


def launch(main, ranks):
    """Run ``main(backend)`` on every rank; ``--backend`` on the command line chooses it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="ucx", help="a backend of torch.distributed")
    start(main, ranks, parser.parse_args().backend)


def start(main, ranks, *arguments):
    """Run ``main(*arguments)`` on every rank."""
    if "RANK" in os.environ:  # torchrun, or another launcher, has started this process as a rank
        if int(os.environ["WORLD_SIZE"]) != ranks:
            sys.exit(f"this example is for {ranks} ranks, not for {os.environ['WORLD_SIZE']}")
        main(*arguments)
        return
    # The store is here, and not on rank 0, so that its port is known and cannot be taken.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    mp.spawn(_rank, (environment, main, arguments), nprocs=ranks)


def _rank(rank, environment, main, arguments):
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    main(*arguments)
