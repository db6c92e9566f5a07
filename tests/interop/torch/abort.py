"""Rank 0 waits for a message of rank 2, which lives and sends none, while rank 1 dies: the agent's word ends the wait, not a time limit."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import elastic
import elastic.torch


def generation():
    job.ready()
    if job.world.generation > 1:
        dist.barrier()
        return
    dist.barrier()
    if job.world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if job.world.rank == 0:
        try:
            dist.recv(torch.zeros(1), 2)
        finally:
            with open(sys.argv[1], "w", encoding="utf-8"):
                pass
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    raise elastic.torch.WorldChanged


with elastic.join(required=True) as job:
    began = time.monotonic()
    assert elastic.torch.run(job, generation, timeout=1000)
    os.write(1, f"rank {job.world.rank} in generation {job.world.generation} after {time.monotonic() - began:.1f} s\n".encode())
