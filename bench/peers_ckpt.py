"""Others' ways to save and load the same state, asked turn by turn: peers_ckpt.py FOLDER BYTES.

Commands are lines on stdin, answers lines "MS PAUSE_MS" on stdout: `save NAME` (until durable by fsync, in a fresh folder), `first
NAME` (the same as the first save of a fresh process), `load` (safetensors.load_file, then one read of every byte; PAUSE_MS is that of
load_file alone). Two ranks (gloo) where the library has ranks, one process where it has none. Pause: what training waits for.
"""

import os
import shutil
import socket
import subprocess
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


def torch_save(data, path):
    torch.save(data, os.path.join(path, "state.pt"))


def safe_save(data, path):
    save_file(data, os.path.join(path, "state.safetensors"))


class OneProcess:
    def __init__(self, folder, total, write):
        self.folder, self.data, self.write, self.n = folder, state(total), write, 0

    def save(self):
        path = os.path.join(self.folder, f"one-{self.n}")
        self.n += 1
        os.makedirs(path)
        started = time.monotonic()
        self.write(self.data, path)
        sync_all(path)
        took = time.monotonic() - started
        shutil.rmtree(path)
        return took, took


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def dcp_rank(rank, port, folder, total, asynchronous, orders, answers):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    data, n = state(total), 0
    while orders.get() == "save":
        path = os.path.join(folder, f"dcp-{int(asynchronous)}-{n}")
        n += 1
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
            answers.put((time.monotonic() - started, pause))
            shutil.rmtree(path)
    dist.destroy_process_group()


class TwoRanks:
    def __init__(self, folder, total, asynchronous):
        spawn = mp.get_context("spawn")
        self.orders, self.answers = [spawn.Queue() for _ in range(2)], spawn.Queue()
        port = free_port()
        self.ranks = [spawn.Process(target=dcp_rank, args=(r, port, folder, total, asynchronous, self.orders[r], self.answers), daemon=True)
                      for r in range(2)]
        for rank in self.ranks:
            rank.start()

    def save(self):
        for queue in self.orders:
            queue.put("save")
        return self.answers.get(timeout=600)

    def close(self):
        for queue in self.orders:
            queue.put("end")
        for rank in self.ranks:
            rank.join()


LIBRARIES = {
    "torch.save": lambda folder, total: OneProcess(folder, total, torch_save),
    "safetensors": lambda folder, total: OneProcess(folder, total, safe_save),
    "dcp.save": lambda folder, total: TwoRanks(folder, total, False),
    "dcp.async_save": lambda folder, total: TwoRanks(folder, total, True),
}


class Loader:
    def __init__(self, folder, total):
        self.path = os.path.join(folder, "load.safetensors")
        save_file(state(total), self.path)

    def load(self):
        started = time.monotonic()
        loaded = load_file(self.path)
        mapped = time.monotonic() - started
        for tensor in loaded.values():
            tensor.sum()
        return time.monotonic() - started, mapped


def first_save(folder, total, name):
    """As the first one of a fresh process."""
    done = subprocess.run([sys.executable, __file__, folder, str(total)], input=f"save {name}\n", capture_output=True, text=True, check=True)
    return [float(ms) / 1e3 for ms in done.stdout.split()]


def main():
    folder, total = sys.argv[1], int(sys.argv[2])
    os.makedirs(folder, exist_ok=True)
    open_ones, loader = {}, None
    for line in sys.stdin:
        verb, _, name = line.strip().partition(" ")
        if verb == "save":
            if name not in open_ones:
                open_ones[name] = LIBRARIES[name](folder, total)
            answer = open_ones[name].save()
        elif verb == "first":
            answer = first_save(folder, total, name)
        elif verb == "close":  # its memory, and its processes
            one = open_ones.pop(name, None)
            if isinstance(one, TwoRanks):
                one.close()
            answer = (0, 0)
        else:
            loader = loader or Loader(folder, total)
            answer = loader.load()
        print(*(round(seconds * 1e3, 3) for seconds in answer), flush=True)
    for one in open_ones.values():
        if isinstance(one, TwoRanks):
            one.close()


if __name__ == "__main__":
    main()
