"""Faults of calls into the C library (chaos_shim.c) and of the disk under etcd (chaos_slow.c): files that fail, are late, hang or are half written; clocks."""

import errno
import glob
import os

from catalogue import entry
from faults_network import deafen, listen_again
from faults_process import nodes_at_work, some_node
from faults_storage import disk, newest_step, wait_saved
from trial import Failed, KILL, strike

SHIM = {"needs": ("shim",)}
SAVES = {"save_steps": 5, "shim": True, "set": {"health.builtin": "memory", "checkpoint.on_failure.max": "none"}}
FILES = "/ckpt/"


def rule(t, op, action, node=None, path=FILES, **how):
    """In force on one node, or the one that is given, until mended()."""
    nodes = [some_node(t)] if node is None else node if isinstance(node, list) else [node]
    found = t.hosts.orders.rule(op, action, nodes, path, **how)
    t.memory.setdefault("rules", []).append((found, f"{op} {action} on {path or 'connections'}"))
    return found


def mended(t):
    for found, what in t.memory.pop("rules"):
        t.must(found.hits > 0, f"{what}: {found.hits} times")
        found.clear()


def until_hit(t, found, bound_s=30):
    t.wait("the shim acts", lambda: found.hits, bound_s)


FAILS = {"heal": mended, "shape": SAVES, "during": (3,), "detects": ("checkpoint_failed",), **SHIM}


@entry("storage", "writes into the folder of checkpoints fail on one node (EIO), for t seconds", params={"t": (2, 4)}, **FAILS)
def write_eio(t):
    wait_saved(t)
    until_hit(t, rule(t, "write", "fail", error=errno.EIO))


@entry("storage", "fsync in the folder of checkpoints fails on one node (EIO): what was written may be lost", params={"t": (2, 4)}, **FAILS)
def fsync_eio(t):
    wait_saved(t)
    until_hit(t, rule(t, "sync", "fail", error=errno.EIO))


@entry("storage", "a write into the folder of checkpoints takes the first half, and fails", **FAILS)
def torn_write(t):
    wait_saved(t)
    until_hit(t, rule(t, "write", "tear", error=errno.EIO, times=1))


@entry("storage", "a worker is gone in the middle of a write into the folder of checkpoints", heal=mended, shape=SAVES, during=(3,), new_generation=True, charged=(1, 1),
       detects=("worker_exited",), **SHIM)
def torn_write_exit(t):
    wait_saved(t)
    until_hit(t, rule(t, "write", "tear_kill", times=1))


@entry("storage", "the newest checkpoint cannot be read (EIO), and all workers die: back to an older one", heal=mended, shape=dict(SAVES, save_steps=25), during=(3,), new_generation=True,
       bound_s=15, charged=(1, 3), detects=("worker_exited",), **SHIM)
def read_eio(t):
    t.wait("two checkpoints", lambda: newest_step(t) >= 50, 40)
    step = newest_step(t)
    names = [os.path.basename(p) for p in glob.glob(os.path.join(disk(t), "step-*")) if int(os.path.basename(p)[5:]) == step]
    t.must(names, f"a folder of step {step}")
    rule(t, "read", "fail", nodes_at_work(t, 3), f"/{names[0]}/", error=errno.EIO)
    strike(t, t.job.all_workers(), KILL)


@entry("storage", "every write and fsync in the folder of checkpoints is ms milliseconds late on one node, for t seconds: no step waits for it", heal=mended,
       params={"t": (3, 5), "ms": (100, 400)}, shape=SAVES, during=(3,), detects=(), **SHIM)
def slow_storage(t):
    node = some_node(t)
    until_hit(t, rule(t, "write", "delay", node, delay_ms=t.params["ms"]))
    rule(t, "sync", "delay", node, delay_ms=t.params["ms"])
    t.wait("both are late", lambda: all(r.hits for r, _ in t.memory["rules"]), 30)


@entry("storage", "writes into the folder of checkpoints hang on one node, for t seconds", heal=mended, params={"t": (3, 6)}, shape=SAVES, detects=(), **SHIM)
def hanging_storage(t):
    wait_saved(t)
    until_hit(t, rule(t, "write", "hang"))


# ---- the disk under etcd ----

def fast_again(t):
    t.hosts.orders.sync_delay(0)
    t.must(t.hosts.orders.syncs() > t.memory["before"], f"{t.hosts.orders.syncs()} writes of etcd that were late")


@entry("store", "each fsync of etcd is ms milliseconds late for t seconds", heal=fast_again, params={"t": (3, 6), "ms": (100, 500)}, shape={"slow_disk": True}, during=(3,), detects=("store_lost",),
       bound_s=20, needs=("seccomp",))
def etcd_slow_disk(t):
    t.memory["before"] = t.hosts.orders.syncs()
    t.hosts.orders.sync_delay(t.params["ms"])
    t.wait("etcd is slow", lambda: t.hosts.orders.syncs() > t.memory["before"], 30)


# ---- clocks ----

def right_time(t):
    t.must(t.hosts.orders.clock_reads(t.memory["node"]) > 0, f"{t.hosts.orders.clock_reads(t.memory['node'])} looks at a wrong clock")
    t.hosts.orders.clock(t.memory["node"])


def wrong_time(t, **how):
    t.memory["node"] = some_node(t)
    t.hosts.orders.clock(t.memory["node"], **how)


WRONG = {"heal": right_time, "shape": {"shim": True, "save_steps": 5}, "during": (3,), "detects": (), **SHIM}


@entry("clock", "the wall clock of a node, for agent and workers, goes back by hours, and comes again after t seconds", params={"t": (2, 4), "hours": (1, 5, 30)}, **WRONG)
def clock_back(t):
    wrong_time(t, offset_s=-3600 * t.params["hours"])


@entry("clock", "the wall clock of a node jumps forward by hours, and back after t seconds", params={"t": (2, 4), "hours": (1, 5, 30)}, **WRONG)
def clock_forward(t):
    wrong_time(t, offset_s=3600 * t.params["hours"])


@entry("clock", "the wall clock of a node runs slower than time, for t seconds", params={"t": (3, 5), "rate": (0.2, 0.9)}, **WRONG)
def clock_slow(t):
    wrong_time(t, rate=t.params["rate"])


@entry("clock", "the wall clock of a node runs faster than time, for t seconds", params={"t": (3, 5), "rate": (1.1, 5)}, **WRONG)
def clock_fast(t):
    wrong_time(t, rate=t.params["rate"])


# ---- the monotonic clock ----

def right_pace(t):
    reads, waits = t.hosts.orders.monotonic_uses(t.memory["node"])
    t.must(reads > 0 and waits > 0, f"{reads} looks at a wrong clock, {waits} waits by it")
    t.hosts.orders.monotonic(t.memory["node"], 1.0)


def wrong_pace(t, rate, node=None):
    t.memory["node"] = some_node(t) if node is None else node
    t.hosts.orders.monotonic(t.memory["node"], rate)


def right_pace_kept(t):
    began = [e["reason"] for e in t.job.record.of("generation_forming") if e["generation"] > 1]
    right_pace(t)
    if began:
        raise Failed(f"a generation ended: {began}")


PACE = {**WRONG, "heal": right_pace_kept, "params": {"t": (6, 9), "of": ("leader", "other")}}


def leads_or_not(t):
    leader = t.wait("somebody leads", lambda: [n for n in [t.job.leader()] if n is not None], 20)[0]
    return leader if t.params["of"] == "leader" else t.random.choice([n for n in nodes_at_work(t, 3) if n != leader])


@entry("clock", "the monotonic clock of a node, and all that agent and workers wait by it, runs a tenth slower than time: no lease is lost, no limit struck, nothing restarts", **PACE)
def pace_slow(t):
    wrong_pace(t, 0.9, leads_or_not(t))


@entry("clock", "the monotonic clock of a node runs a tenth faster than time: the same", **PACE)
def pace_fast(t):
    wrong_pace(t, 1.1, leads_or_not(t))


def back_with_slow_clock(t):
    # Its workers' word is what ended the generation; the end of its lease would have, later.
    first = next((e["reason"] for e in t.job.record.of("generation_forming") if e["generation"] > 1), None)
    t.must(first == "connections_lost", f"workers that left before the lease of their node ended: {first}")
    listen_again(t)
    right_pace(t)


# By as much as the second covers that is kept in hand: a tenth, but for leases above 10 s (of busy machines). The observer is not told of a cut: no step may be applied in
# both generations at once, either.
@entry("clock", "a node whose monotonic clock runs up to a tenth slower is cut off from etcd, and told to stop before its lease ends (store_loss.policy: stop): "
       "its workers are out of the generation before the others can hear that it is lost", heal=back_with_slow_clock, params={"leases": (2, 2.6)}, shape={"shim": True, "save_steps": 5, "set": {"rendezvous.store_loss.policy": "stop", "stop.grace": "300ms"}},
       during=(2,), new_generation=True, bound_s=20, heal_bound_s=40, needs=("shim", "network"))
def pace_slow_cut(t):
    wrong_pace(t, max(0.9, 1 - 1 / t.shape["lease_s"]))
    me = t.hosts.nodes[t.memory["node"]]
    t.pause(t.shape["lease_s"] / 4)  # the last keep-alive is that old, and other requests are not
    t.wait("the clock is used", lambda: t.hosts.orders.monotonic_uses(t.memory["node"])[1], 10)
    deafen(t, [pair for h in t.hosts.members for pair in ((me, h), (h, me))])
