"""Others' ways to save and load the same state: peers_ckpt.py FOLDER BYTES ROUNDS. Lines "what name ms" on stdout.

save: until durable (fsync), warm; first: the first save in this process; pause: what training waits for; load: load and one read
of every byte. Two ranks (gloo) where the library has ranks, one process where it has none; fresh files each time.
"""

import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file

NAMES = ("params", "adam.m", "adam.v")


def state(total):
    n = total // len(NAMES) // 4
    return {name: torch.arange(n, dtype=torch.float32) for name in NAMES}


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def sync_all(folder):
    for name in os.listdir(folder):
        sync(os.path.join(folder, name))
    sync(folder)


def report(what, name, seconds):
    print(what, name, round(seconds * 1e3, 3), flush=True)


def series(name, folder, rounds, save):
    """Saves into fresh folders; `save(folder)` returns (seconds until durable, seconds of pause)."""
    for i in range(rounds + 1):
        path = os.path.join(folder, f"{name}-{i}")
        os.makedirs(path)
        durable, pause = save(path)
        report("first" if i == 0 else "save", name, durable)
        if i > 0:
            report("pause", name, pause)
        shutil.rmtree(path)


def one_process(folder, total, rounds):
    data = state(total)

    def torch_save(path):
        started = time.monotonic()
        torch.save(data, os.path.join(path, "state.pt"))
        sync_all(path)
        took = time.monotonic() - started
        return took, took

    def safe_save(path):
        started = time.monotonic()
        save_file(data, os.path.join(path, "state.safetensors"))
        sync_all(path)
        took = time.monotonic() - started
        return took, took

    series("torch.save", folder, rounds, torch_save)
    series("safetensors", folder, rounds, safe_save)
    path = os.path.join(folder, "load.safetensors")
    save_file(data, path)
    for i in range(rounds + 1):
        started = time.monotonic()
        loaded = load_file(path)
        for tensor in loaded.values():
            tensor.sum()
        if i > 0:
            report("load", "safetensors.load_file", time.monotonic() - started)
        del loaded
    os.unlink(path)


def dcp_rank(rank, folder, total, rounds):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    data = state(total)
    for asynchronous in (False, True):
        name = "dcp.async_save" if asynchronous else "dcp.save"
        for i in range(rounds + 1):
            path = os.path.join(folder, f"{name}-{i}")
            dist.barrier()
            started = time.monotonic()
            if asynchronous:
                future = dcp.async_save(data, checkpoint_id=path)
                pause = time.monotonic() - started
                future.result()
            else:
                dcp.save(data, checkpoint_id=path)
                pause = time.monotonic() - started
            dist.barrier()
            if rank == 0:
                sync_all(path)
                report("first" if i == 0 else "save", name, time.monotonic() - started)
                if i > 0:
                    report("pause", name, pause)
                shutil.rmtree(path)
    dist.destroy_process_group()


def main():
    folder, total, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.makedirs(folder, exist_ok=True)
    one_process(folder, total, rounds)
    mp.spawn(dcp_rank, (folder, total, rounds), nprocs=2)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
