"""Faults of processes: workers, agents, guards, nodes."""

import time

from catalogue import entry
from trial import CONT, KILL, SEGV, STOP, TERM, USR1, signal_all, strike

LIVE_ON = {"during": (3,), "new_generation": True, "bound_s": 10, "charged": (1, 1)}
TWO_A_NODE = {"per_node": 2}


def nodes_at_work(t, n=1):
    """Nodes whose workers live: at least n of them, when there were."""
    return t.wait(f"{n} nodes have workers", lambda: [found for found in [[node for node in sorted(t.job.guards) if t.job.workers(node)]] if len(found) >= n], 30)[0]


def some_node(t):
    return t.random.choice(nodes_at_work(t))


def some_worker(t):
    return t.job.workers(some_node(t))[:1]


def start_again(t):
    for node in t.memory.pop("start", []):
        t.start_again(node)


def gone(t, node, code):
    """The agent of a node that was killed ends with `code`; heal() starts it again."""
    t.memory.setdefault("start", []).append(node)
    t.may_end.append((node, code))


@entry("process", "SIGKILL to one worker", **LIVE_ON)
def worker_kill(t):
    strike(t, some_worker(t), KILL)


@entry("process", "SIGSEGV to one worker", **LIVE_ON)
def worker_segv(t):
    strike(t, some_worker(t), SEGV)


@entry("process", "one worker exits with code 7", **LIVE_ON)
def worker_exit(t):
    strike(t, some_worker(t), USR1)


def wake(t):
    signal_all(t.memory.pop("stopped", []), CONT)


@entry("process", "SIGSTOP to one worker for t seconds; far below the hang limit, so everybody waits for it", heal=wake, params={"t": (1, 3)}, detects=())
def worker_stop(t):
    t.memory["stopped"] = some_worker(t)
    strike(t, t.memory["stopped"], STOP)


@entry("process", "SIGKILL to one worker on each of two nodes at once", during=(3,), new_generation=True, charged=(1, 2))
def workers_of_two_nodes_kill(t):
    strike(t, [t.job.workers(n)[0] for n in t.random.sample(nodes_at_work(t, 2), 2)], KILL)


@entry("process", "SIGKILL to all workers of a node at once", shape=TWO_A_NODE, during=(3,), new_generation=True, charged=(1, 2))
def workers_of_node_kill(t):
    strike(t, t.job.workers(some_node(t)), KILL)


@entry("process", "SIGKILL to all workers but one: it alone has the state", during=(3,), new_generation=True, charged=(1, 3))
def workers_all_but_one_kill(t):
    nodes_at_work(t, 2)
    pids = t.job.all_workers()
    pids.remove(t.random.choice(pids))
    strike(t, pids, KILL)


@entry("process", "SIGKILL to all workers at once: back to the newest checkpoint", during=(3,), new_generation=True, charged=(1, 3))
def workers_all_kill(t):
    nodes_at_work(t)
    strike(t, t.job.all_workers(), KILL)


NODE_LOST = {"during": (2,), "new_generation": True, "heal": start_again, "heal_bound_s": 25}


def kill_agent(t, node):
    """Said first: the guard may have ended before the agent is seen to be gone."""
    gone(t, node, 70)
    strike(t, [t.job.agent(node)], KILL)


@entry("process", "SIGKILL to an agent: its guard ends the node's workers and tells the store", **NODE_LOST)
def agent_kill(t):
    kill_agent(t, some_node(t))


@entry("process", "SIGKILL to the agent that leads", **NODE_LOST)
def leader_kill(t):
    node = t.job.leader()
    kill_agent(t, node if node in nodes_at_work(t) else some_node(t))


@entry("process", "SIGKILL to a guard: agent and workers of the node end with it", orphans_s=5, **NODE_LOST)
def guard_kill(t):
    node = some_node(t)
    gone(t, node, -9)
    strike(t, [t.job.guards[node].pid], KILL)


@entry("process", "guard, agent and workers of a node vanish at once: only the lease's end tells", **dict(NODE_LOST, bound_s=15))
def node_vanish(t):
    node = some_node(t)
    gone(t, node, -9)
    strike(t, [t.job.guards[node].pid, t.job.agent(node), *t.job.workers(node)], KILL)


@entry("process", "SIGSTOP to an agent for longer than its lease: the others go on, and it finds that when it wakes", heal=wake, params={"leases": (1.8, 2.2)}, during=(2,), new_generation=True,
       bound_s=15, heal_bound_s=30, charged=(0, 1))
def agent_stop(t):
    node = some_node(t)
    t.tell(cut=node)
    t.memory["stopped"] = [t.job.agent(node)]
    strike(t, t.memory["stopped"], STOP)


@entry("process", "SIGSTOP to an agent for a second: nobody notices", heal=wake, params={"t": 1}, during=(3,), detects=())
def agent_stop_short(t):
    t.memory["stopped"] = [t.job.agent(some_node(t))]
    strike(t, t.memory["stopped"], STOP)


def come_back(t):
    left = t.memory["start"][0]
    t.wait(f"n{left} has left", lambda: left not in t.job.guards, 20)
    t.must((left, 75) in t.job.ended, f"n{left} that ends with 75")
    start_again(t)


@entry("process", "TERM to an agent: the node leaves as planned (75), and comes back", detects=("node_left", "resize_announced"), **dict(NODE_LOST, heal=come_back))
def node_preempted(t):
    node = some_node(t)
    gone(t, node, 75)
    signal_all([t.job.guards[node].pid], TERM)


@entry("process", "each agent in turn leaves and comes back as the next release, in mid-run", shape={"steps": 600}, detects=("node_left", "resize_announced"), heal_bound_s=25)
def agents_upgraded(t):
    for node in sorted(t.job.guards):
        gone(t, node, 75)
        signal_all([t.job.guards[node].pid], TERM)
        t.wait(f"n{node} has left", lambda: node not in t.job.guards, 20)  # pylint: disable=cell-var-from-loop
        t.must((node, 75) in t.job.ended, f"n{node} that ends with 75")
        t.job.programs[node] = "elastic-run-next"
        since = time.monotonic()
        t.start_again(node)
        t.wait_steps(f"all go on with the new n{node}", t.world(), 5, 30, since)
    t.memory["start"].clear()


@entry("process", "a worker that fails at once wherever it is started, until the budget is spent: the job ends with its code", shape={"max_restarts": 2}, code=7, charged=(2, 2))
def budget_spent(t):
    node, struck, until = some_node(t), 0, t.clock.look() + 60 * t.patience
    while t.job.guards and t.clock.look() < until:
        t.look()
        if t.job.guards:
            pids = t.job.workers(node)[:1]
            struck += len(pids)
            signal_all(pids, USR1)
        time.sleep(0.1)
    t.must(struck >= 3, "three workers that exit")
