"""Exits at the worst instants: start-up, barrier, checkpoint, opening of communicators, shutdown; of a worker, an agent, the leader's agent.

Where the instant is inside a call of a worker, the shim either kills the worker there, or holds it there while its agent is killed.
"""

from catalogue import entry
from faults_process import gone, kill_agent, nodes_at_work, some_node, start_again
from faults_shim import FILES, rule, until_hit
from faults_storage import wait_saved
from trial import KILL, TERM, signal_all, strike

VICTIMS = ("worker", "agent", "leader")
WHO = {"worker": "the worker", "agent": "its agent", "leader": "the leader's agent"}
SHAPE = {"shim": True, "save_steps": 10}
HELD_MS = 3000


def victim_node(t, who):
    """Who leads, or another one that has workers."""
    leads, nodes = t.job.leader(), nodes_at_work(t, 2)
    return leads if who == "leader" and leads in nodes else t.random.choice([n for n in nodes if n != leads or who == "worker"])


def exit_there(t, who, node, op, path, bring_about):
    """The worker of `node` comes to a call, by what bring_about() does; there it is killed, or its agent is."""
    action = {"action": "kill"} if who == "worker" else {"action": "delay", "delay_ms": HELD_MS}
    found = rule(t, op, node=node, path=path, times=1, **action)
    bring_about()
    until_hit(t, found, 60)
    if who != "worker":
        kill_agent(t, node)


def again(t):
    """Rules are gone, nodes start anew."""
    for found, what in t.memory.pop("rules", []):
        t.must(found.hits > 0, f"{what}: {found.hits} times")
        found.clear()
    start_again(t)


def over(t):
    """The job ends by itself: nobody starts again."""
    t.memory.pop("start", None)
    again(t)


def another_worker_dies(t, node):
    """A change of generation, for which all workers open communicators anew."""
    strike(t, t.job.workers(t.random.choice([n for n in nodes_at_work(t, 2) if n != node])), KILL)


def at_start_up(t, who):
    node = victim_node(t, who)
    exit_there(t, who, node, "open", "/pid.", lambda: strike(t, t.job.workers(node), KILL))


def at_communicator(t, who):
    node = victim_node(t, who)
    exit_there(t, who, node, "listen", "", lambda: another_worker_dies(t, node))


def at_checkpoint(t, who):
    wait_saved(t)
    exit_there(t, who, victim_node(t, who), "sync", FILES, lambda: None)


def at_shutdown(t, who):
    """All steps are made; the results are being written."""
    node = victim_node(t, who)
    exit_there(t, who, node, "open", "/params.", lambda: t.job.slow(False))


def at_barrier(t, who):
    """No node can be spared (min 3): one leaves, and the others wait for it at the rendezvous."""
    leaves = t.random.choice([n for n in nodes_at_work(t, 3) if n != t.job.leader()])
    gone(t, leaves, 75)
    signal_all([t.job.guards[leaves].pid], TERM)
    t.wait(f"n{leaves} has left", lambda: leaves not in t.job.guards, 30)
    t.must((leaves, 75) in t.job.ended, f"n{leaves} that left: {t.job.ended}")
    node = victim_node(t, who)
    if who == "worker":
        strike(t, t.job.workers(node), KILL)
    else:
        kill_agent(t, node)


INSTANTS = {
    "startup": (at_start_up, "when the worker has just been started", {"charged": (1, 3)}),
    "barrier": (at_barrier, "while it waits at the rendezvous for a node that is not there", {"charged": (0, 1), "shape": dict(SHAPE, min=3)}),
    "checkpoint": (at_checkpoint, "while the worker writes its part of a checkpoint", {"charged": (0, 1)}),
    "communicator": (at_communicator, "while the worker opens a communicator", {"charged": (1, 3)}),
    "shutdown": (at_shutdown, "when all steps are made, and the worker writes its results", {"charged": (0, 2), "code": 0, "heal": over}),
}


def register():
    for instant, (at, text, more) in INSTANTS.items():
        for who in VICTIMS:
            entry("process", f"{WHO[who]} is killed {text}", needs=("shim",), name=f"exit_{instant}_{who}", **{"heal": again, "shape": SHAPE, "heal_bound_s": 40, **more})(
                lambda t, at=at, who=who: at(t, who))


register()
