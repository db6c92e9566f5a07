"""An ordinary PyTorch script, as under torchrun: DDP over Gloo, a checkpoint of rank 0 every ten steps, from which all begin. It knows nothing of who launched
it; for those who watch it each rank writes a line for each step, as chaos_worker does.

    torch_train.py FOLDER STEPS
"""

import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SAVE_STEPS = 10


def main(folder, steps):
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    path, first = os.path.join(folder, "torch.pt"), 1
    if os.path.exists(path):
        saved = torch.load(path)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1
    place = f"{os.environ['CHAOS_NODE'].rsplit('/', 1)[1]}-{os.environ['LOCAL_RANK']}"
    trace = os.open(os.path.join(folder, f"trace.n{place}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for step in range(first, steps + 1):
        x = torch.randn(24 // size, 8)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]
        line = f"{time.monotonic_ns() // 1000} {step} {os.environ.get('ELASTIC_GENERATION', 0)} {rank} {size} {os.getpid()} {digest} {len(x)}\n"
        os.write(trace, line.encode())
        if rank == 0 and step % SAVE_STEPS == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".new")
            os.replace(path + ".new", path)
        if os.path.exists(os.path.join(folder, "slow")):
            time.sleep(0.03)
    dist.barrier()
    dist.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]))
