"""Faults of etcd: members, leases, keys, space, time travel."""

import errno
import os
import socket
import time

import etcd
from catalogue import entry
from faults_process import some_worker
from trial import Failed, KILL, strike

THREE = {"members": 3}
GOES_ON = {"during": (3,), "detects": ("store_lost",)}


def start_killed(t):
    for i in t.memory.pop("killed", []):
        t.hosts.member_start(i)
    t.hosts.wait_store(t.patience)


def kill_members(t, which):
    t.memory["killed"] = list(which)
    for i in which:
        t.hosts.member_kill(i)
    t.must(all(refuses(t.hosts.members[i].v4, t.hosts.client_ports[i]) for i in which), f"members {which} that take no connection")


def refuses(address, port):
    with socket.socket() as s:
        s.settimeout(5)
        return s.connect_ex((address, port)) == errno.ECONNREFUSED


@entry("store", "SIGKILL to the etcd member that leads, for t seconds", heal=start_killed, shape=THREE, params={"t": (1, 4)}, **GOES_ON)
def etcd_leader_kill(t):
    kill_members(t, [t.wait("etcd leads", lambda: [i for i in [t.hosts.leader()] if i is not None], 20)[0]])


@entry("store", "SIGKILL to one etcd member of three, for t seconds", heal=start_killed, shape=THREE, params={"t": (1, 4)}, **GOES_ON)
def etcd_member_loss(t):
    kill_members(t, [t.random.randrange(3)])


@entry("store", "two etcd members of three are killed: no quorum for t seconds", heal=start_killed, shape=THREE, params={"t": (4, 8)}, **GOES_ON)
def etcd_quorum_loss(t):
    kill_members(t, t.random.sample(range(3), 2))


@entry("store", "the only etcd member is killed, and started again after t seconds", heal=start_killed, params={"t": (2, 8)}, **GOES_ON)
def etcd_restart(t):
    kill_members(t, [0])


def stop_members(t):
    t.hosts.stop_all_members()
    t.wait("etcd stands still", lambda: all(t.hosts.member_state(i) in "Tt" for i in range(len(t.hosts.members))), 10)
    t.injected("all members stand still")


def go_on(t):
    t.hosts.continue_all_members()


@entry("store", "SIGSTOP to all etcd members for t seconds", heal=go_on, params={"t": 30}, shape={"steps": 600}, **GOES_ON)
def etcd_stop(t):
    stop_members(t)


@entry("store", "SIGSTOP to all etcd members, for longer than the lease, beside a worker's death: the job waits, and goes on when etcd does", heal=go_on, params={"leases": (1.4, 1.8)}, charged=(1, 1),
       detects=("worker_exited",), heal_bound_s=30)
def etcd_stop_worker_kill(t):
    stop_members(t)
    strike(t, some_worker(t), KILL)


def is_compacted(t, revision):
    try:
        t.hosts.client.call("/v3/kv/range", {"key": etcd.b64("x"), "revision": revision})
    except etcd.Unavailable as why:
        return "compacted" in str(why)
    return False


@entry("store", "everything up to now is compacted away under the watches' feet, while etcd is away for a moment", heal=go_on, params={"t": 2}, **GOES_ON)
def compaction(t):
    revision = revision_of(t)
    t.hosts.client.call("/v3/kv/compaction", {"revision": revision, "physical": True})
    t.must(is_compacted(t, revision - 1), f"revisions below {revision} that are compacted")
    stop_members(t)


def node_key(t):
    leader = t.wait("somebody leads", lambda: [n for n in [t.job.leader()] if n is not None], 20)[0]
    t.memory["since"] = time.monotonic()
    return t.job.key(f"j/n/n{leader if t.params['of'] == 'leader' else t.random.choice([n for n in sorted(t.job.guards) if n != leader])}")


def nothing_began(t):
    if len(t.entries) > 1:
        return  # for another fault, perhaps
    began = [e["reason"] for e in t.job.record.of("generation_forming") if e["mono_us"] / 1e6 > t.memory["since"]]
    if began:
        raise Failed(f"a generation ended for a node that lives: {began}")


BY_HAND = {"heal": nothing_began, "params": {"of": ("leader", "other"), "t": (3, 4)}, "during": (3,), "detects": ()}


@entry("store", "the lease of a living node is revoked by hand: it registers again, and nothing restarts", **BY_HAND)
def lease_revoked(t):
    key = node_key(t)
    lease = t.wait("the node has a record", lambda: (record(t, key) or {}).get("lease"), 20)
    t.hosts.client.call("/v3/lease/revoke", {"ID": lease})
    t.must((record(t, key) or {}).get("lease") != lease, "a record that is gone with its lease")


def record(t, key):
    try:
        return t.hosts.client.get(key)
    except etcd.Unavailable:
        return None


@entry("store", "a living node's record is deleted by hand: it registers again, and nothing restarts", **BY_HAND)
def node_key_deleted(t):
    t.must(t.hosts.client.delete(node_key(t)) == 1, "a node's record that was deleted")


@entry("store", "the key of who leads is deleted by hand: somebody takes over", during=(3,), detects=())
def leader_key_deleted(t):
    t.must(t.hosts.client.delete(t.job.key("j/leader")) == 1, "a leader's key that was deleted")


def disarm(t):
    for alarm in t.hosts.client.call("/v3/maintenance/alarm", {"action": "GET"}).get("alarms", []):
        t.hosts.client.call("/v3/maintenance/alarm", {"action": "DEACTIVATE", "memberID": alarm["memberID"], "alarm": alarm["alarm"]})


@entry("store", "etcd's alarm NOSPACE: it refuses writes for t seconds", heal=disarm, params={"t": (3, 6)}, during=(3,), detects=("store_lost", "checkpoint_failed"), heal_bound_s=40)
def nospace(t):
    member = t.hosts.client.call("/v3/kv/range", {"key": etcd.b64("x")})["header"]["member_id"]
    t.hosts.client.call("/v3/maintenance/alarm", {"action": "ACTIVATE", "memberID": member, "alarm": "NOSPACE"})
    try:
        t.hosts.client.call("/v3/kv/put", {"key": etcd.b64("chaos-probe"), "value": ""})
        said = "ok"
    except etcd.Unavailable as why:
        said = str(why)
    t.must("space exceeded" in said, f"a write that is refused for lack of space: {said}")


@entry("store", "etcd comes back from a snapshot taken before: revisions go backwards", params={"t": 1}, detects=("store_lost",), heal_bound_s=60, charged=(0, 1))
def restored_from_the_past(t):
    path = os.path.join(t.folder, "snapshot")
    t.hosts.snapshot(path)
    t.wait_steps("steps behind the snapshot", t.world(), 10, 20, time.monotonic())
    strike(t, some_worker(t), KILL)
    t.wait_steps("a generation behind the snapshot", t.world(), 5, 20, time.monotonic(), t.newest().generation)
    before = revision_of(t)
    for i in range(len(t.hosts.members)):
        t.hosts.member_kill(i)
    t.tell(rewound=True)
    t.wait_told("rewound")
    t.hosts.restore(path)
    after = revision_of(t)
    t.must(after < before, f"a revision that goes back: {before} to {after}")


def revision_of(t):
    return int(t.hosts.client.call("/v3/kv/range", {"key": etcd.b64("x")})["header"]["revision"])
