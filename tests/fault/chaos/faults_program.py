"""Faults of the programs themselves: what a rank computes, how long it takes, what it leaves out, what it takes of the machine."""

import os
import time

import cgroups
import space
from catalogue import entry
from faults_process import gone, some_node, start_again
from job import children
from trial import KILL, strike

ROLLS_BACK = "2"  # ER_NONFINITE_ROLL_BACK


def order(t, words, first=lambda pid: None):
    """To a worker, behind first(its pid); it does it in its next step, and says so."""
    t.memory["place"] = f"n{some_node(t)}-0"
    t.memory["pid"] = t.job.workers(int(t.memory["place"][1:-2]))[0]
    first(t.memory["pid"])
    path = os.path.join(t.job.folder, "order." + t.memory["place"])
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.write(words)
    os.rename(path + ".new", path)


def did(t):
    """What it says of it, or ""."""
    try:
        with open(os.path.join(t.job.folder, "did." + t.memory["place"]), encoding="utf-8") as f:
            return f.read()
    except OSError:
        return ""


def carried_out(t, words, bound_s=60):
    order(t, words)
    t.wait(f"the worker does '{words}'", lambda: did(t), bound_s)
    t.injected(f"{t.memory['place']}: {words}")


@entry("program", "a gradient of one rank is not a number: no rank applies that step, and all go back to the newest checkpoint", shape={"env": {"WORKER_NONFINITE": ROLLS_BACK}, "save_steps": 10},
       detects=())
def nan_gradient(t):
    t.wait_steps("a checkpoint is behind", t.world(), 12, 30)
    t.tell(rolls_back=True)
    carried_out(t, "nan")


def quick_again(t):
    with open(os.path.join(t.job.folder, "done." + t.memory["place"]), "w", encoding="utf-8"):
        pass
    t.must(did(t).count("slow") >= 2, "steps that took longer")


@entry("program", "a rank takes ms milliseconds longer for each step, for t seconds: all wait for it, nobody is thrown out", params={"t": (3, 5), "ms": (100, 400)}, heal=quick_again, during=(3,),
       detects=(), bound_s=20)
def slow_rank(t):
    carried_out(t, f"drag {t.params['ms']}")


@entry("program", "a rank leaves out a collective that the others make: an error that names it, not a hang", during=(3,), new_generation=True, bound_s=40, charged=(1, 2), detects=("worker_exited",))
def skipped_collective(t):
    carried_out(t, "skip", 60)


@entry("program", "a rank writes mb MiB to its standard output as fast as it can", params={"mb": (16, 64)}, during=(3,), bound_s=40, detects=("log_dropped",))
def output_flood(t):
    order(t, f"flood {t.params['mb']}")
    t.wait("the flood is over", lambda: "written" in did(t), 60)
    t.must(int(did(t).split()[-3]) == t.params["mb"] << 20, f"{did(t)[-30:]}")


def start_it(t):
    os.unlink(t.memory["hold"])


@entry("program", "a worker that is started does nothing: it is found to hang in start-up, and started anew", heal=start_it, shape={"set": {"hang.startup": "6s", "hang.floor": "6s"}},
       detects=("worker_hung",), charged=(2, 3), heal_bound_s=40)
def rank_never_starts(t):
    node = some_node(t)
    t.memory["hold"] = os.path.join(t.job.folder, f"hold-start.n{node}-0")
    with open(t.memory["hold"], "w", encoding="utf-8"):
        pass
    since = time.monotonic()
    strike(t, t.job.workers(node), KILL)
    t.wait("the hang is told", lambda: t.first_event(("worker_hung",), since), 60)
    t.injected("worker_hung was told")


@entry("program", "a node starts with another world size than the job has (--nnodes): it is refused (76), and the others go on", heal=start_again, during=(2,), new_generation=True, bound_s=20,
       detects=("node_lost", "worker_exited", "generation_forming"))
def wrong_world_size(t):
    node = some_node(t)
    gone(t, node, 70)
    strike(t, [t.job.agent(node)], KILL)
    t.wait(f"the guard of n{node} ends", lambda: node not in t.job.guards, 20)
    t.may_end.append((node, 76))
    t.shape["odd"] = node
    t.start_again(node)
    t.wait("it is refused", lambda: node not in t.job.guards, 30)
    t.must((node, 76) in t.job.ended, f"a node that is refused: {t.job.ended}")
    t.shape["odd"] = None


# ---- limits ----

def limited(t, controller, limit, words):
    """A worker in a group of its own with a limit is told to go beyond it."""
    t.memory["group"] = group = cgroups.Group(controller, t.job.name)
    group.limit(limit)
    order(t, words, group.take)
    return group


def ungroup(t):
    t.memory.pop("group").close()


@entry("program", "a worker takes more memory than its cgroup has: the kernel kills it", heal=ungroup, needs=("memory",), new_generation=True, during=(3,), bound_s=60, charged=(1, 1), detects=("worker_exited",))
def out_of_memory(t):
    group = limited(t, "memory", 96 << 20, "eat 400")
    t.wait("the worker is gone", lambda: not space.lives(t.memory["pid"]), 60)
    t.must(group.oom_kills() > 0, "a kill for lack of memory, counted by the kernel")


@entry("program", "a worker forks until its pids limit, and is killed: nothing of it lives on", heal=ungroup, needs=("pids",), new_generation=True, during=(3,), bound_s=60, charged=(1, 1), detects=("worker_exited",))
def fork_bomb(t):
    limited(t, "pids", 120, "bomb 1000")
    t.wait("the bomb has gone off", lambda: "then" in did(t), 60)
    t.must("EAGAIN" in did(t), f"a limit that was met: {did(t)}")
    bomb = children(t.memory["pid"])
    t.must(len(bomb) > 20, f"{len(bomb)} processes")
    strike(t, [t.memory["pid"]], KILL)
    t.wait("nothing of the bomb lives", lambda: not any(space.lives(p) for p in bomb), 20)
