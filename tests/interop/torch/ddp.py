"""An unmodified DDP script: a line is fitted over Gloo; every rank ends with the same parameters."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    torch.manual_seed(1 + int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    assert dist.get_rank() == int(os.environ["RANK"]) and dist.get_world_size() == int(os.environ["WORLD_SIZE"])
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        x = torch.randn(64, 2)
        loss = ((model(x) - x @ torch.tensor([[2.0], [-3.0]]) - 0.5) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    every = [torch.zeros_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(every, flat)
    assert all(torch.equal(flat, other) for other in every)
    if dist.get_rank() == 0:
        print(f"world {dist.get_world_size()} loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


main()
