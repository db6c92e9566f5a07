"""PyTorch DDP that lives through a change of its world: processes stay, with their memory, when a worker dies or a node comes or goes.

    PYTHONPATH=python python3 examples/torch_elastic_ddp.py                # by itself
    build/elastic-run examples/torch_elastic_ddp.yaml                      # two workers; kill one and watch

A newcomer gets the state from a survivor. With checkpoint.dir in the job spec there are checkpoints, for when nobody survives.
"""
import argparse
import glob
import os
import time

import torch
from torch.nn.parallel import DistributedDataParallel

import elastic
import elastic.torch

SAMPLES, GLOBAL_BATCH, EPOCHS, KEEP = 4800, 48, 2, 3


def data(indices):
    """The samples with these numbers; a data set of your own stands here."""
    x = torch.stack([torch.randn(10, generator=torch.Generator().manual_seed(i)) for i in indices]) if indices else torch.empty(0, 10)
    return x, x.sum(dim=1, keepdim=True)


class Training:
    def __init__(self, job, args):
        self.job, self.args = job, args
        torch.manual_seed(0)
        self.device = torch.device("cuda", job.world.local_rank) if torch.cuda.is_available() else torch.device("cpu")
        self.model = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.plan = elastic.Plan(samples=SAMPLES, global_batch=GLOBAL_BATCH, seed=1)
        self.last_step = args.steps or EPOCHS * self.plan.steps
        self.applied = 0  # optimizer steps that are in the parameters: all else follows from it
        self.load()

    def generation(self):
        """From a new process group to the end, or to the next change. Called anew after each."""
        world = self.job.world
        self.applied = elastic.torch.sync(self.job, [self.model, self.optimizer], self.applied)
        ddp = DistributedDataParallel(self.model, device_ids=[self.device.index] if self.device.type == "cuda" else None)
        self.job.ready()
        while self.applied < self.last_step:
            step = self.applied + 1
            if step in world.skip_steps:  # ranks have failed in it again and again (restart.poison_step): nobody computes it
                self.applied = step
                continue
            share = self.plan.batch(step, world.rank, world.size)
            x, y = (t.to(self.device) for t in data(self.plan.indices(step, world.rank, world.size)))
            # DDP takes the mean over ranks; their shares may differ, and may be empty. This makes it the mean over the global batch.
            loss = torch.nn.functional.mse_loss(ddp(x), y, reduction="sum") / share.step_count
            self.optimizer.zero_grad()
            (loss * world.size).backward()
            decision = elastic.torch.vote(self.job, [loss.item()])
            self.optimizer.step()
            self.applied = step
            self.job.progress(step, loss=decision.sums[0], total_steps=self.last_step)
            if world.rank == 0 and step % self.args.log_every == 0:
                print(f"step={step} loss={decision.sums[0]:.6f} world={world.size} generation={world.generation}", flush=True)
            if decision.saves or step % self.args.save_every == 0 or step == self.last_step:
                self.save()
            decision.follow()
            time.sleep(self.args.pace)

    def save(self):
        """Rank 0 writes under another name, renames, and tells the job: who is not of the newest generation cannot."""
        folder, step = self.job.world.checkpoint_dir, self.applied
        if not folder or self.job.world.rank != 0:
            return
        self.job.progress(step, elastic.Phase.CHECKPOINT)
        path = os.path.join(folder, f"model-{step:09d}.pt")
        began = time.monotonic()
        torch.save({"step": step, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path + ".part")
        os.replace(path + ".part", path)
        self.job.commit(step, path, size=os.path.getsize(path), duration=time.monotonic() - began)
        for old in sorted(glob.glob(os.path.join(folder, "model-*.pt")))[:-KEEP]:
            os.remove(old)
        self.job.progress(step)

    def load(self):
        """What a process starts with, when there is something. The others' may be newer: sync() sees to that."""
        folder = self.job.world.checkpoint_dir
        for path in reversed(sorted(glob.glob(os.path.join(folder, "model-*.pt"))) if folder else []):
            try:
                saved = torch.load(path, map_location=self.device)
            except (OSError, RuntimeError, EOFError) as e:  # an older one will do
                print(f"{path}: {e}", flush=True)
                continue
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.applied = saved["step"]
            self.job.loaded(self.applied, path)
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=0, help=f"default: {EPOCHS} epochs of {SAMPLES} samples")
    parser.add_argument("--save-every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to wait after each step")
    args = parser.parse_args()
    with elastic.join() as job:
        training = Training(job, args)
        if elastic.torch.run(job, training.generation) and job.world.rank == 0:
            norm = sum(p.detach().double().pow(2).sum().item() for p in training.model.parameters()) ** 0.5
            print(f"done steps={training.applied} norm={norm:.6f} world={job.world.size}", flush=True)


if __name__ == "__main__":
    main()
