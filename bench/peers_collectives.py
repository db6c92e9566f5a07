"""PyTorch's gloo, two processes of this host: peers_collectives.py RUNS BYTES... Lines "BYTES us" on stdout: median time of an
all-reduce of float32 in place."""

import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


def measure(rank, path, runs, sizes):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=RANKS)
    for size in sizes:
        x = torch.zeros(size // 4)
        times = []
        for i in range(runs + 5):
            began = time.perf_counter()
            dist.all_reduce(x)
            if i >= 5:
                times.append(time.perf_counter() - began)
        if rank == 0:
            print(size, statistics.median(times) * 1e6, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        arguments = (os.path.join(folder, "store"), int(sys.argv[1]), [int(a) for a in sys.argv[2:]])
        mp.spawn(measure, arguments, nprocs=RANKS)
