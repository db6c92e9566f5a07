"""The commonest faults on unmodified PyTorch scripts (torch_train.py): no part of ours is in the workers, and each change starts them anew."""

import etcd
from catalogue import entry
from faults_network import move, moved
from faults_process import come_back, gone, nodes_at_work, some_node, some_worker, start_again
from trial import KILL, TERM, signal_all, strike

TORCH = {"shape": {"torch": True, "steps": 600}, "needs": ("torch", "network"), "audit": False, "new_generation": True, "bound_s": 60, "heal_bound_s": 90}


@entry("program", "PyTorch: SIGKILL to one worker: all are started anew, from the newest checkpoint", during=(3,), charged=(1, 1), **TORCH)
def torch_worker_kill(t):
    strike(t, some_worker(t), KILL)


@entry("program", "PyTorch: SIGKILL to all workers at once", during=(3,), charged=(1, 3), **TORCH)
def torch_workers_all_kill(t):
    nodes_at_work(t)
    strike(t, t.job.all_workers(), KILL)


@entry("program", "PyTorch: SIGKILL to an agent: the others go on, it comes back", during=(2,), heal=start_again, **TORCH)
def torch_agent_kill(t):
    node = some_node(t)
    gone(t, node, 70)
    strike(t, [t.job.agent(node)], KILL)


@entry("program", "PyTorch: TERM to an agent: the node leaves as planned (75), and comes back", during=(2,), heal=come_back, detects=("node_left", "resize_announced"), **TORCH)
def torch_node_preempted(t):
    node = some_node(t)
    gone(t, node, 75)
    signal_all([t.job.guards[node].pid], TERM)


@entry("program", "PyTorch: all addresses of the node of rank 0, where all ranks meet, are replaced by others: all are started anew, and meet at the new one", during=(3,), heal=moved,
       **TORCH)
def torch_address_replaced(t):
    first = [node for node in nodes_at_work(t, 3) if etcd.assignment(t.hosts.client.get(t.job.key(f"a/n{node}"))["value"])["group_rank"] == 0]
    t.must(first, "a node of rank 0")
    move(t, (4, 6), first[0])
