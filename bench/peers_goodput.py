"""The job of lib/elastic_job.c in PyTorch, as a worker of torchrun: peers_goodput.py FIFO FOLDER. The same state and step; rank 0 writes a
checkpoint every 50 steps, and everybody loads it at the start. Each step is said in the FIFO (struct elastic_job_step)."""

import os
import signal
import struct
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

PARAMS, MOVING, PACE_S, SAVE_EVERY = 12_500_000, 65536, 0.02, 50


def main():
    signal.signal(signal.SIGUSR2, lambda *_: os._exit(1))
    said = os.open(sys.argv[1], os.O_WRONLY)
    path = os.path.join(sys.argv[2], "latest.pt")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    params, momentum, step = torch.zeros(PARAMS), torch.zeros(PARAMS), 0
    if os.path.exists(path):
        state = torch.load(path)
        params, momentum, step = state["params"], state["momentum"], state["step"]
    while True:
        time.sleep(PACE_S)
        grads = torch.full((MOVING,), 48.0 / size)
        dist.all_reduce(grads)
        momentum[:MOVING].mul_(0.9).add_(grads, alpha=1 / 48)
        params[:MOVING].sub_(momentum[:MOVING], alpha=0.01)
        step += 1
        os.write(said, struct.pack("=dQQiii4x", time.clock_gettime(time.CLOCK_MONOTONIC) * 1e3, step, 0, rank, size, os.getpid()))
        if step % SAVE_EVERY == 0 and rank == 0:
            torch.save({"params": params, "momentum": momentum, "step": step}, path + ".part")
            os.replace(path + ".part", path)


main()
