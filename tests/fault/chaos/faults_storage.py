"""Faults of storage: the folder of checkpoints, the folder of logs."""

import contextlib
import errno
import glob
import os
import shutil
import subprocess

import etcd
from catalogue import entry, tmpfs, unmount
from hosts import sh
from job import NO_OVERRIDE
from trial import KILL, strike

SAVES = {"save_steps": 5}
# A disk of 4 MiB is one that the agent's health check would refuse at the start.
ON_A_DISK = {"needs": ("mount",), "shape": {"save_steps": 5, "set": {"health.builtin": "memory", "checkpoint.on_failure.max": "none"}}}


def disk(t):
    return os.path.join(t.folder, "ckpt")


def logs(t):
    return os.path.join(t.folder, "logs")


def newest_step(t):
    kv = t.hosts.client.get(t.job.key("ckpt/latest"))
    return etcd.latest(kv["value"])["step"] if kv else 0


def wait_saved(t):
    return t.wait("a checkpoint is committed", lambda: newest_step(t), 30)


def fill(t, path):
    """Until nothing more goes in."""
    why = None
    try:
        with open(os.path.join(path, "filler"), "ab", buffering=0) as f:
            while True:
                f.write(b"\0" * 65536)
    except OSError as e:
        why = e.errno
    t.must(why == errno.ENOSPC, "a disk without room")


def refused(t, path, number):
    """A file can not be made there."""
    why = None
    try:
        with open(os.path.join(path, "chaos-probe"), "wb"):
            os.unlink(os.path.join(path, "chaos-probe"))
    except OSError as e:
        why = e.errno
    t.must(why == number, f"a folder that answers {errno.errorcode[number]}")


def mount_checkpoints(t):
    tmpfs(disk(t), 4)


def unmount_checkpoints(t):
    unmount(disk(t))


@entry("storage", "the disk of checkpoints is full for t seconds: training goes on, checkpoints begin again when there is room", heal=lambda t: os.unlink(os.path.join(disk(t), "filler")),
       params={"t": (2, 4)}, prepare=mount_checkpoints, clean=unmount_checkpoints, during=(3,), detects=("checkpoint_failed",), **ON_A_DISK)
def checkpoint_disk_full(t):
    wait_saved(t)
    fill(t, disk(t))


@entry("storage", "the disk of checkpoints becomes read-only for t seconds, but for files that are open", heal=lambda t: unmount(disk(t)), params={"t": (2, 4)}, prepare=mount_checkpoints,
       clean=unmount_checkpoints, during=(3,), detects=("checkpoint_failed",), **ON_A_DISK)
def checkpoint_read_only(t):
    wait_saved(t)
    sh("mount", "--bind", disk(t), disk(t))
    # Not while somebody who has a file open there is inside a call that writes.
    t.wait("the disk becomes read-only", lambda: subprocess.run(["mount", "-o", "remount,ro,bind", disk(t)], capture_output=True, check=False).returncode == 0, 10)
    refused(t, disk(t), errno.EROFS)


def attempt_remove(path):
    """Something may be written into it meanwhile."""
    with contextlib.suppress(OSError):
        shutil.rmtree(path)


@entry("storage", "the whole folder of checkpoints is deleted: training goes on from memory", during=(3,), shape=SAVES, detects=("checkpoint_failed",), audit=False)
def checkpoints_deleted(t):
    t.damaged(wait_saved(t) + 10000)  # one that is being written may become the newest
    gone = [glob.glob(os.path.join(disk(t), "step-*")) for _ in range(3) if not attempt_remove(disk(t))]
    t.must([] in gone or not os.path.exists(disk(t)), "a folder without checkpoints")
    os.makedirs(disk(t), exist_ok=True)
    before = newest_step(t)
    t.damaged(t.wait("two further checkpoints", lambda: newest_step(t) > before + 20 and newest_step(t), 30))


@entry("storage", "a byte of the newest checkpoint flips at rest, and all workers die: back to an older one", during=(3,), new_generation=True, bound_s=15, shape=dict(SAVES, save_steps=25),
       charged=(1, 3), detects=("worker_exited",))
def checkpoint_corrupt(t):
    t.wait("two checkpoints", lambda: newest_step(t) >= 50, 40)
    step = newest_step(t)
    t.damaged(step)
    shards = [shard for name in (f"step-{step}", f"step-{step:012d}") for shard in glob.glob(os.path.join(disk(t), name, "*.safetensors"))]
    t.must(shards, f"shards of step {step} with a byte changed")
    for shard in shards:
        with open(shard, "r+b") as f:
            f.seek(-1, 2)
            byte = f.read(1)[0]
            f.seek(-1, 2)
            f.write(bytes([byte ^ 1]))
    strike(t, t.job.all_workers(), KILL)


@entry("storage", "the disk of logs is full for t seconds: workers are not held up, lines are counted as lost", heal=lambda t: os.unlink(os.path.join(logs(t), "filler")), params={"t": (2, 3)},
       prepare=lambda t: tmpfs(logs(t), 2), clean=lambda t: unmount(logs(t)), during=(3,), needs=("mount",), detects=("log_dropped",))
def log_disk_full(t):
    fill(t, logs(t))


def permit(t):
    os.chmod(disk(t), 0o755)


@entry("storage", "nobody may write into the folder of checkpoints any more, for t seconds", heal=permit, params={"t": (2, 4)}, during=(3,), detects=("checkpoint_failed",),
       shape={"save_steps": 5, "no_override": True, "set": {"checkpoint.on_failure.max": "none"}})
def wrong_permissions(t):
    wait_saved(t)
    os.chmod(disk(t), 0o555)
    probe = os.path.join(disk(t), "chaos-probe")
    done = subprocess.run([*NO_OVERRIDE, "touch", probe], capture_output=True, check=False)
    t.must(done.returncode != 0 and not os.path.exists(probe), "a folder that takes no new file")
