"""Plain PyTorch DDP that saves when it is told of a change. Nothing in it knows of elastic-run: it handles a signal, and has checkpoints.

    python3 examples/torch_notice_ddp.py                                  # by itself
    build/elastic-run examples/torch_notice_ddp.yaml                      # two workers; send the agent a TERM, and start it again

All ranks save the same step and end with 0; in the next generation they are started anew, and go on from there: no step is lost.
"""
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SAMPLES, GLOBAL_BATCH, SAVE_EVERY = 4800, 48, 50
FOLDER = os.environ.get("ELASTIC_CHECKPOINT_DIR") or "torch_notice_ddp.checkpoint"
noticed = False


def on_notice(*_):
    """Only a note: the step under way is finished first."""
    global noticed
    noticed = True


def agree(flag):
    """Whether any rank was told: all learn it at the same step. (One small all-reduce.)"""
    told = torch.tensor([float(flag)])
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return told.item() > 0


def save(step, model, optimizer):
    """Whole or not at all: under another name first."""
    if dist.get_rank() == 0:
        os.makedirs(FOLDER, exist_ok=True)
        path = os.path.join(FOLDER, "latest.pt")
        with open(path + ".part", "wb") as f:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + ".part", path)
    dist.barrier()  # nobody ends before it is there


def load(model, optimizer):
    path = os.path.join(FOLDER, "latest.pt")
    if not os.path.exists(path):
        return 0
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def share_of(step):
    """This rank's samples: which ones a step uses does not depend on how many ranks there are."""
    epoch, first = divmod((step - 1) * GLOBAL_BATCH, SAMPLES)
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
    return torch.tensor_split(order[first:first + GLOBAL_BATCH], dist.get_world_size())[dist.get_rank()].tolist()


def data(indices):
    x = torch.stack([torch.randn(10, generator=torch.Generator().manual_seed(i)) for i in indices]) if indices else torch.empty(0, 10)
    return x, x.sum(dim=1, keepdim=True)


def main():
    steps, pace = (int(sys.argv[1]), float(sys.argv[2])) if len(sys.argv) == 3 else (200, 0.0)
    signal.signal(signal.SIGUSR1, on_notice)  # before anything slow: a notice may come during start-up
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")):
        os.environ.setdefault(name, value)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    done = load(model, optimizer)
    ddp = DistributedDataParallel(model)
    while done < steps:
        x, y = data(share_of(done + 1))
        # DDP takes the mean over ranks, whose shares may differ: this makes it the mean over the global batch.
        loss = torch.nn.functional.mse_loss(ddp(x), y, reduction="sum") / GLOBAL_BATCH
        optimizer.zero_grad()
        (loss * dist.get_world_size()).backward()
        optimizer.step()
        done += 1
        dist.all_reduce(loss.detach())
        if dist.get_rank() == 0:
            print(f"step={done} loss={loss.item():.6f} world={dist.get_world_size()}", flush=True)
        leaves = agree(noticed)
        if leaves or done % SAVE_EVERY == 0 or done == steps:
            save(done, model, optimizer)
        if leaves:
            break
        time.sleep(pace)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
