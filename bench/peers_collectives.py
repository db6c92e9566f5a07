"""PyTorch's gloo, processes of this host: peers_collectives.py RANKS BYTES:RUNS... Lines "BYTES p50 p99" on stdout: microseconds
of an all-reduce of float32 in place."""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def measure(rank, path, ranks, sizes):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=ranks)
    for size, runs in sizes:
        x = torch.zeros(size // 4)
        times = []
        for i in range(-(runs // 8) - 1, runs):
            began = time.perf_counter()
            dist.all_reduce(x)
            if i >= 0:
                times.append((time.perf_counter() - began) * 1e6)
        times.sort()
        if rank == 0:
            print(size, times[runs // 2], times[runs * 99 // 100], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        ranks = int(sys.argv[1])
        sizes = [tuple(int(n) for n in argument.split(":")) for argument in sys.argv[2:]]
        mp.spawn(measure, (os.path.join(folder, "store"), ranks, sizes), nprocs=ranks)
