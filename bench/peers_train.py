"""The models of bench_train.c in PyTorch: peers_train.py mlp|gpt RANKS eager|compile. Each line "steps" on stdin runs so many; the answer is ms.

One thread a rank; DistributedDataParallel over Gloo for 2 ranks, the bare model for 1; AdamW as one fused pass.
"""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F

MLP_ROWS, GPT_ROWS, LENGTH, VOCAB, LAYERS, WIDTH, HEADS = 256, 4, 256, 256, 4, 256, 8


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))

    def forward(self, x, labels):
        return F.cross_entropy(self.layers(x), labels)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, -1).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(WIDTH, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, WIDTH)
        x = x + self.mix(y)
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x, labels):
        x = self.tokens(x) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1))


def batch_of(name):
    if name == "mlp":
        return torch.rand(MLP_ROWS, 784), torch.randint(10, (MLP_ROWS,))
    tokens = torch.randint(VOCAB, (GPT_ROWS, LENGTH + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def wanted(rank, ranks):
    """Steps to run next, the same on every rank; 0: end."""
    steps = torch.tensor([int((sys.stdin.readline() or "0").strip() or 0)]) if rank == 0 else torch.zeros(1, dtype=torch.int64)
    if ranks > 1:
        dist.broadcast(steps, 0)
    return int(steps)


def work(rank, name, ranks, mode, port):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = Mlp() if name == "mlp" else Gpt()
    if ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if mode == "compile":
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = batch_of(name)
    while steps := wanted(rank, ranks):
        began = time.perf_counter()
        for _ in range(steps):
            model(*batch).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=ranks == 1)
        if ranks > 1:
            dist.barrier()
        if rank == 0:
            print((time.perf_counter() - began) * 1e3, flush=True)
    if ranks > 1:
        dist.destroy_process_group()


def main():
    name, ranks, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(sys.prefix, "inductor"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    others = [mp.get_context("spawn").Process(target=work, args=(rank, name, ranks, mode, port)) for rank in range(1, ranks)]
    for process in others:
        process.start()
    work(0, name, ranks, mode, port)
    for process in others:
        process.join()


if __name__ == "__main__":
    main()
