"""The catalogue: what can be broken, how it is mended, and what must follow. One @entry each; `elastic-chaos list` prints it."""

import dataclasses
import functools
import os
import shutil
import subprocess
import tempfile

import cgroups
import shim
import space
from job import TORCH_PYTHON

ENTRIES = {}

# Those that are paired, each with each, and thrown into storms: the ways in which a job loses a process, a node, the network, the store or its files
# for longer than it takes to notice, and the two that look like a loss and are none.
DANGEROUS = ("worker_kill", "worker_stop", "workers_all_but_one_kill", "workers_all_kill", "agent_kill", "leader_kill", "node_vanish", "agent_stop",
             "node_cut", "node_cut_short", "one_way_out", "cut_from_etcd", "cut_from_peers", "loss", "etcd_leader_kill", "etcd_quorum_loss", "etcd_restart", "lease_revoked",
             "checkpoint_disk_full", "checkpoint_corrupt")


@dataclasses.dataclass(frozen=True)
class Expect:
    """What must follow. Counts are of nodes."""
    during: tuple = None          # worlds that go on training while the fault lasts; None: nobody has to
    after: tuple = (3,)           # and when it is mended
    new_generation: bool = False  # `during` is a generation of its own
    bound_s: float = 10           # until `during` has made its steps
    heal_bound_s: float = 20      # until `after` has
    code: int = None              # the job ends with it by itself; None: it goes on, and ends with 0
    charged: tuple = (0, 0)       # restarts of the budget, at least and at most
    audit: bool = True            # the ledger adds up


@dataclasses.dataclass(frozen=True)
class Entry:
    name: str
    family: str
    doc: str
    params: dict
    shape: dict
    needs: tuple       # "network", "mount": what namespaces give; others are in NEEDS
    detects: tuple     # events of which the first is the detection
    expect: Expect
    orphans_s: float   # after a guard's end until nothing of its node is left
    inject: object
    heal: object
    prepare: object    # before the job starts
    clean: object

    def skipped(self):
        """Why it cannot be had here, or None."""
        if set(self.needs) & {"network", "mount"} and not space.INSIDE:
            return f"needs namespaces ({', '.join(self.needs)}): root, or users who may make them"
        return next((why for why in (NEEDS[need]() for need in self.needs if need in NEEDS) if why), None)

    def lasts(self):
        """About how many seconds a trial of it takes, beside what all take."""
        def most(name):
            value = self.params.get(name, 0)
            return max(value) if isinstance(value, tuple) else value
        return 3 + most("t") + 5 * most("leases") + (60 if self.shape.get("torch") else 0)


BUILD = None  # set by load(): where the programs are


def lacks_program(name, why):
    return None if os.path.exists(os.path.join(BUILD, "tests/fault", name)) else why


# What an entry needs beside namespaces: a function that says why it cannot be had, or None.
NEEDS = {
    "shim": lambda: lacks_program("libchaos_shim.so", "needs chaos_shim"),
    "seccomp": lambda: lacks_program("chaos_slow", "needs chaos_slow") or slow_disk_fails(),
    "openssl": lambda: None if shutil.which("openssl") else "needs openssl",
    "torch": lambda: torch_fails(),  # pylint: disable=unnecessary-lambda
    "memory": lambda: cgroups.lacks("memory"),
    "pids": lambda: cgroups.lacks("pids"),
}


@functools.cache
def torch_fails():
    done = subprocess.run([TORCH_PYTHON, "-c", "import torch.distributed as d; assert d.is_available()"], capture_output=True, check=False)
    return None if done.returncode == 0 else "needs python3-torch (`make interop` installs it)"


@functools.cache
def slow_disk_fails():
    """The kernel may not let a program be told of another one's calls."""
    with tempfile.NamedTemporaryFile() as f:
        shim.Orders(f.name)
        done = subprocess.run([os.path.join(BUILD, "tests/fault/chaos_slow"), f.name, "true"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"needs seccomp notices: {done.stderr.strip()}"


def nothing(_trial):
    """For what heals by itself."""


def entry(family, doc, heal=nothing, needs=(), shape=None, detects=("worker_exited", "node_lost", "generation_forming", "generation_sealed"), orphans_s=2.0, prepare=nothing, clean=nothing,
          params=None, name=None, **expect):
    """Makes a function that injects an entry of the catalogue, named after it or by `name`."""
    def register(inject):
        as_ = name or inject.__name__
        ENTRIES[as_] = Entry(as_, family, doc, params or {}, shape or {}, needs, detects, Expect(**expect), orphans_s, inject, heal, prepare, clean)
        return inject
    return register


def tmpfs(folder, megabytes):
    os.makedirs(folder, exist_ok=True)
    os.system(f"mount -t tmpfs -o size={megabytes}m,mode=755 chaos '{folder}'")


def unmount(folder):
    os.system(f"umount -l '{folder}' 2>/dev/null")


def remove(path):
    shutil.rmtree(path, ignore_errors=True)


def load(build=None):
    """The families register themselves."""
    global BUILD  # pylint: disable=global-statement
    BUILD = build or BUILD
    # pylint: disable=import-outside-toplevel,unused-import
    import faults_exit
    import faults_network
    import faults_process
    import faults_program
    import faults_secure
    import faults_shim
    import faults_storage
    import faults_store
    import faults_torch
    return ENTRIES
