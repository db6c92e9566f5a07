"""Faults of the network, made of links and neighbour entries alone: they need no packet filter in the kernel."""

import copy
import time

import etcd
from catalogue import entry
from hosts import Probe, arrives, sh
from faults_process import gone, nodes_at_work, start_again
from trial import KILL, TERM, signal_all, strike

LOST = {"needs": ("network",), "heal_bound_s": 40}


def choose(t):
    node = t.random.choice(sorted(t.job.guards))
    t.memory["node"], t.memory["host"] = node, t.hosts.nodes[node]
    t.tell(cut=node)
    return t.memory["host"]


def probe(t, pairs):
    """Connections are asked for now; heal() finds that none of them was answered."""
    t.memory["probes"] = [Probe(*pair) for pair in pairs]


def unanswered(t):
    probes = t.memory.pop("probes")
    t.must(probes and not any(p.answered() for p in probes), f"{len(probes)} connections without an answer")


def unplug(t):
    host = choose(t)
    t.hosts.unplug(host)
    other = next(h for h in t.hosts.nodes if h is not host)
    probe(t, [(host, t.hosts.members[0]), (other, host)])


def plug(t):
    unanswered(t)
    t.hosts.plug(t.memory["host"])


@entry("network", "one node is cut off: nothing arrives, nothing leaves, no link goes down", heal=plug, params={"leases": (2, 2.6)}, during=(2,), new_generation=True, bound_s=20, **LOST)
def node_cut(t):
    unplug(t)


@entry("network", "one node is cut off for a moment, far shorter than its lease", heal=plug, params={"t": (1, 2)}, detects=(), **LOST)
def node_cut_short(t):
    unplug(t)


@entry("network", "the link of a node comes and goes every 0.3 s for t seconds", params={"t": (3, 6)}, detects=(), **LOST)
def flapping(t):
    host, until = choose(t), time.monotonic() + t.params["t"]
    while time.monotonic() < until:
        t.hosts.unplug(host)
        probe(t, [(host, t.hosts.members[0])])
        t.pause(0.3)
        plug(t)
        t.pause(0.3)


def listen_again(t):
    unanswered(t)
    for sender, receiver in t.memory.pop("deaf"):
        t.hosts.undeafen(sender, receiver)


def deafen(t, pairs):
    t.memory["deaf"] = pairs
    for sender, receiver in pairs:
        t.hosts.deafen(sender, receiver)
    probe(t, [pairs[0], pairs[-1]])


@entry("network", "a node hears everything, and nobody hears it", heal=listen_again, params={"leases": (2, 2.6)}, during=(2,), new_generation=True, bound_s=20, **LOST)
def one_way_out(t):
    me = choose(t)
    deafen(t, [(me, h) for h in t.hosts.all() if h is not me])


@entry("network", "a node hears nothing, and everybody hears it", heal=listen_again, params={"leases": (2, 2.6)}, during=(2,), new_generation=True, bound_s=20, **LOST)
def one_way_in(t):
    me = choose(t)
    deafen(t, [(h, me) for h in t.hosts.all() if h is not me])


@entry("network", "a node reaches its peers and not etcd: its lease ends, and what it computed on is stopped or fenced", heal=listen_again, params={"leases": (2, 2.6)}, during=(2,),
       new_generation=True, bound_s=20, **LOST)
def cut_from_etcd(t):
    me = choose(t)
    deafen(t, [pair for h in t.hosts.members for pair in ((me, h), (h, me))])


@entry("network", "a node reaches etcd and not its peers: the steps stand still until it is mended", heal=listen_again, params={"t": (3, 6)}, detects=(), charged=(0, 2), **LOST)
def cut_from_peers(t):
    me = choose(t)
    deafen(t, [pair for h in t.hosts.nodes if h is not me for pair in ((me, h), (h, me))])


@entry("network", "a worker dies while its node is cut off for a moment: nobody hears of the end of its connections, and they stay half open", heal=plug, params={"t": (1, 2)},
       detects=("worker_exited",), charged=(1, 1), **LOST)
def half_open(t):
    nodes_at_work(t, 3)
    unplug(t)
    strike(t, t.job.workers(t.memory["node"]), KILL)


def mtu_back(t):
    sh("ip", "link", "set", t.memory["host"].port, "mtu", "1500")


@entry("network", "frames above 600 bytes to a node get lost without a word, for t seconds", heal=mtu_back, params={"t": (2, 4)}, shape={"params": 20000}, detects=(), charged=(0, 2), **LOST)
def mtu_black_hole(t):
    # The port at the bridge takes less than both ends believe: the bridge drops, and tells nobody.
    host = choose(t)
    sh("ip", "link", "set", host.port, "mtu", "600")
    other = next(h for h in t.hosts.nodes if h is not host)
    t.must(arrives(other, host, 100) and not arrives(other, host, 1000), "100 bytes that arrive and 1000 that do not")


def limit_end(t):
    said = sh("tc", "-s", "-n", t.memory["host"].name, "qdisc", "show", "dev", "eth0")
    t.must("overlimits 0 " not in said and "tbf" in said, "frames that had to wait")
    sh("tc", "-n", t.memory["host"].name, "qdisc", "del", "dev", "eth0", "root")


@entry("network", "what a node sends is limited to 2 Mbit/s for t seconds: slower, and nothing else", heal=limit_end, params={"t": (3, 5)}, shape={"params": 4000}, during=(3,), bound_s=20,
       detects=(), **LOST)
def bandwidth(t):
    sh("tc", "-n", choose(t).name, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "2mbit", "burst", "16kb", "latency", "400ms")


# ---- cables that are not perfect ----

FRAMES_MIN = 10  # so many that should be struck: that none is would be no chance


def bend(t, what, **how):
    host = choose(t)
    t.memory["what"], t.memory["relay"] = what, t.hosts.bend(host, t.random.getrandbits(32), **how)


def straighten(t):
    done = t.hosts.straighten(t.memory["host"], t.memory.pop("relay"))
    if done["carried"] * t.params.get("share", 1) < FRAMES_MIN:  # beside a fault that silences the node
        t.injected(f"a cable with too few frames to tell: {done}")
    else:
        t.must(done[t.memory["what"]] > 0, f"frames of which the cable says {t.memory['what']}: {done}")


BENT = {"heal": straighten, "during": (3,), "bound_s": 30, "detects": (), "charged": (0, 0), **LOST}


@entry("network", "everything to and from a node is ms milliseconds late, give or take a quarter, for t seconds", params={"t": (4, 6), "ms": (5, 20, 50)}, **BENT)
def delay(t):
    bend(t, "late", delay_ms=t.params["ms"], jitter_ms=t.params["ms"] / 4)


@entry("network", "a share of what goes to and from a node gets lost, for t seconds", params={"t": (4, 6), "share": (0.01, 0.05, 0.2)}, **BENT)
def loss(t):
    bend(t, "lost", loss=t.params["share"])


@entry("network", "a share of what goes to and from a node comes twice, for t seconds", params={"t": (4, 6), "share": (0.05, 0.5)}, **BENT)
def duplication(t):
    bend(t, "doubled", duplicate=t.params["share"])


@entry("network", "a share of what goes to and from a node overtakes the rest, for t seconds", params={"t": (4, 6), "share": (0.05, 0.3)}, **BENT)
def reordering(t):
    bend(t, "overtook", delay_ms=10, jitter_ms=2, reorder=t.params["share"])


def arrive(t):
    """With the next address but fifty; nobody has the old one any more."""
    node, host = t.memory["node"], t.memory["host"]
    t.wait(f"n{node} has left", lambda: node not in t.job.guards, 20)
    host.ip("addr", "flush", "dev", "eth0")
    host.v4, host.v6 = f"10.99.0.{host.number + 50}", f"fd99::{host.number + 50:x}"
    address_there(host)
    since = time.monotonic()
    start_again(t)
    t.wait("the others know its address", lambda: any(e.get("address") in (host.v4, host.v6) and e["mono_us"] / 1e6 > since for e in t.job.record.of("node_joined")), 40)
    t.injected(f"n{node} joined with {host.v4}")


@entry("network", "a node leaves as planned, and comes back with other addresses", heal=arrive, during=(2,), new_generation=True, bound_s=20, detects=("node_left", "resize_announced"), **LOST)
def address_changed(t):
    choose(t)
    gone(t, t.memory["node"], 75)
    signal_all([t.job.guards[t.memory["node"]].pid], TERM)


def moved(t):
    """What shows that the address is another one now, and known: the record of the node says it, and the node was never taken for lost."""
    node, host, since = t.memory["node"], t.memory["host"], t.memory["since"]
    unanswered(t)
    said = etcd.member(t.hosts.client.get(t.job.key(f"j/n/n{node}"))["value"])["address"]
    t.must(said == t.memory["new"], f"a record of n{node} that says {t.memory['new']}: {said}")
    lost = [e["event"] for e in t.job.record.of("node_lost", "node_set_aside") if e["mono_us"] / 1e6 > since]
    t.must(not lost, f"a node that nobody takes for lost: {lost}")
    sealed = max(t.job.record.of("generation_sealed"), key=lambda e: e["mono_us"])["master_addr"]
    t.must(sealed not in t.memory["gone"], f"a master that can be reached: {sealed}")


def move(t, families, node=None):
    """One address for another, the old one first: connections from it end without a word."""
    node = t.random.choice(nodes_at_work(t, 3)) if node is None else node
    host = t.memory["host"] = t.hosts.nodes[node]
    old, number = copy.copy(host), host.number + 50
    for family in families:
        host.ip("addr", "del", *((old.v4 + "/24",) if family == 4 else (old.v6 + "/64",)), "dev", "eth0")
    host.v4, host.v6 = f"10.99.0.{number}" if 4 in families else host.v4, f"fd99::{number:x}" if 6 in families else host.v6
    for family in families:
        host.ip("addr", "add", *((host.v4 + "/24",) if family == 4 else (host.v6 + "/64", "nodad")), "dev", "eth0")
    t.memory.update(node=node, since=time.monotonic(), new=host.v6 if t.shape["family"] == 6 else host.v4, gone={old.v4, old.v6} - {host.v4, host.v6})
    probe(t, [(next(h for h in t.hosts.nodes if h is not host), old)])


MOVED = {"heal": moved, "during": (3,), "new_generation": True, "bound_s": 15, "detects": ("generation_forming",), **LOST}


@entry("network", "all addresses of a node that runs are replaced by others: its connections die without a word, and it goes on with new ones from there", **MOVED)
def address_replaced(t):
    move(t, (4, 6))


@entry("network", "the IPv4 address of a node that runs is replaced by another; IPv6 stays", **MOVED)
def address_replaced_v4(t):
    move(t, (4,))


def address_there(host):
    host.ip("addr", "add", host.v4 + "/24", "dev", "eth0")
    host.ip("addr", "add", host.v6 + "/64", "dev", "eth0", "nodad")


def address_back(t):
    unanswered(t)
    address_there(t.memory["host"])


@entry("network", "a node loses its addresses for t seconds, shorter than its lease", heal=address_back, params={"t": (1, 2)}, detects=(), charged=(0, 3), **LOST)
def address_lost(t):
    host = choose(t)
    host.ip("addr", "flush", "dev", "eth0")
    probe(t, [(next(h for h in t.hosts.nodes if h is not host), host)])


@entry("network", "every connection of a node is reset as soon as something is sent on it, for t seconds", params={"t": (0.3, 1)}, heal=straighten, detects=("generation_forming",), charged=(0, 0),
       **dict(LOST, heal_bound_s=20))
def connections_reset(t):
    bend(t, "reset", reset=True)
