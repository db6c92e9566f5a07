"""The job of a trial: one agent a node, workers of tests/fault/chaos_worker.c, and what they leave behind, read as it grows."""

import json
import os
import signal
import subprocess

import etcd
import shim
import space


class Tail:
    """Whole lines of a file that grows; there need not be one yet."""

    def __init__(self, path):
        self.path, self.at, self.rest = path, 0, b""

    def lines(self):
        try:
            with open(self.path, "rb") as f:
                f.seek(self.at)
                data = f.read()
        except OSError:
            return []
        self.at += len(data)
        *whole, self.rest = (self.rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in whole if line]


TORCH_PYTHON = "/usr/bin/python3"  # Debian's, which has torch where `make interop` was run
TORCH_SCRIPT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "torch_train.py")
FIELDS = 8  # of a line of a worker's trace


class Step:
    """A line of a worker's trace."""
    __slots__ = ("at", "step", "generation", "rank", "size", "pid", "digest", "node", "local")

    def __init__(self, line, place):
        us, step, generation, rank, size, pid, self.digest = line.split()[:7]
        self.at, self.step, self.generation = int(us) / 1e6, int(step), int(generation)
        self.rank, self.size, self.pid = int(rank), int(size), int(pid)
        node, local = place.rsplit("-", 1)
        self.node, self.local = int(node[1:]), int(local)


def step_of(line, place):
    """None: its writer was killed at a page's edge, and has left a part of it (of a write(2) that a signal ends, what was copied counts)."""
    try:
        return Step(line, place) if len(line.split()) == FIELDS else None
    except ValueError:
        return None


def parsed(line):
    """None: a full disk has taken only a part of it."""
    try:
        return json.loads(line)
    except ValueError:
        return None


class Record:
    """Traces and events, read again by poll()."""

    def __init__(self, folder, name, nodes, per_node):
        self.tails = [(f"n{n}-{l}", Tail(os.path.join(folder, f"trace.n{n}-{l}"))) for n in range(nodes) for l in range(per_node)]
        self.logs = [Tail(os.path.join(folder, "logs", name, f"events-n{n}.jsonl")) for n in range(nodes)]
        self.steps, self.events = [], []

    def poll(self):
        """(new steps, new events), both also in the lists."""
        steps = [step for place, tail in self.tails for step in (step_of(line, place) for line in tail.lines()) if step]
        events = [event for log in self.logs for event in map(parsed, log.lines()) if event]
        self.steps += steps
        self.events += events
        return steps, events

    def of(self, *names):
        return [e for e in self.events if e["event"] in names]


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as f:
            return [int(child) for child in f.read().split()]
    except OSError:
        return []


# root without the right to write everywhere.
NO_OVERRIDE = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]


class Job:
    def __init__(self, hosts, folder, build, shape):
        self.hosts, self.folder, self.build, self.shape = hosts, folder, build, shape
        self.name = shape["name"]
        self.checkpoints = os.path.join(folder, "ckpt")
        os.makedirs(self.checkpoints, exist_ok=True)
        self.guards, self.programs = {}, {}  # programs: nodes that run another one than elastic-run
        self.record = Record(folder, self.name, shape["nodes"], shape["per_node"])
        self.ended = []  # (node, exit code)
        self.slow(True)

    def slow(self, on):
        path = os.path.join(self.folder, "slow")
        if on:
            with open(path, "w", encoding="utf-8"):
                pass
        elif os.path.exists(path):
            os.unlink(path)

    def _argv(self, node):
        s = self.shape
        settings = {"rendezvous.lease_ttl": f"{s['lease_s']}s", "rendezvous.death_grace": "1s", "rendezvous.replacement_wait": "0s",
                    "rendezvous.last_call_timeout": "60s", "resize.settle": "0s", "resize.min_interval": "0s", "stop.grace": "5s",
                    "checkpoint.dir": self.checkpoints, "log.dir": os.path.join(self.folder, "logs"), "restart.node_strikes.max": "1000", **s.get("set", {})}
        return [os.path.join(self.build, self.programs.get(node, "elastic-run")), "--rdzv-id", self.name, "--rdzv-backend=etcd", "--rdzv-endpoint=" + self.hosts.endpoints(s["family"]),
                f"--nnodes={s['min']}:{s['nodes'] + (s.get('odd') == node)}", f"--node-id=n{node}", f"--nproc-per-node={s['per_node']}", f"--max-restarts={s['max_restarts']}",
                *(f"--set={k}={v}" for k, v in settings.items()), *self.command()]

    def command(self):
        if self.shape.get("torch"):
            return [TORCH_PYTHON, "-B", TORCH_SCRIPT, self.folder, str(self.shape["steps"])]
        return [os.path.join(self.build, "tests/fault/chaos_worker")]

    def _environment(self, node):
        s = self.shape
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "TORCHELASTIC_", "ELASTIC_", "SLURM_"))}
        if s.get("shim"):
            keep.update(LD_PRELOAD=shim.library(self.build), CHAOS_ORDERS=self.hosts.orders.path)
        if s.get("torch"):
            keep.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="eth0")
        return dict(keep, **s.get("env", {}), XDG_STATE_HOME=self.folder, XDG_RUNTIME_DIR=self.folder, HOME=self.folder, CHAOS_NODE=f"{self.name}/{node}", CHAOS_NAMESPACES=str(int(space.INSIDE)),
                    WORKER_DIR=self.folder, WORKER_DIGESTS="1", WORKER_PARAMS=str(s["params"]), WORKER_STEPS=str(s["steps"]), WORKER_EPOCHS=str(s["epochs"]),
                    WORKER_SLOW_MS=str(s["slow_ms"]), WORKER_SAVE_STEPS=str(s["save_steps"]))

    def start(self, node):
        log = open(os.path.join(self.folder, f"agent-n{node}.log"), "ab")  # pylint: disable=consider-using-with
        argv = [*self.hosts.nodes[node].enter(), *(NO_OVERRIDE if self.shape.get("no_override") else []), "setpriv", "--pdeathsig", "KILL", *self._argv(node)]
        self.guards[node] = subprocess.Popen(argv, env=self._environment(node), stdout=log, stderr=log, stdin=subprocess.DEVNULL)  # pylint: disable=consider-using-with
        log.close()

    def reap(self):
        """Guards that have ended since the last time: [(node, exit code)]."""
        done = [(n, g.returncode) for n, g in self.guards.items() if g.poll() is not None]
        for node, _ in done:
            del self.guards[node]
        self.ended += done
        space.reap()
        return done

    # ---- processes ----

    def agent(self, node):
        """The guard's child."""
        found = children(self.guards[node].pid)
        return found[0] if found else None

    def workers(self, node):
        """Process ids of a node's workers that live."""
        if self.shape.get("torch"):
            return [pid for pid in children(self.agent(node)) if space.lives(pid)]
        found = []
        for local in range(self.shape["per_node"]):
            try:
                with open(os.path.join(self.folder, f"pid.n{node}-{local}"), encoding="utf-8") as f:
                    pid = int(f.read().split()[-1])
                if space.lives(pid):
                    found.append(pid)
            except (OSError, ValueError, IndexError):
                pass
        return found

    def all_workers(self):
        return [pid for node in sorted(self.guards) for pid in self.workers(node)]

    def key(self, name):
        return f"/elastic-run/{self.name}/{name}"

    def leader(self):
        """Index of the node that leads; None: nobody."""
        try:
            kv = self.hosts.client.get(self.key("j/leader"))
        except etcd.Unavailable:
            return None
        return int(etcd.leader(kv["value"])[1:]) if kv else None

    def fence(self):
        """The sealed generation; 0: none."""
        try:
            kv = self.hosts.client.get(self.key("fence"))
        except etcd.Unavailable:
            return 0
        return int(kv["value"].split(b":")[0]) if kv else 0

    def kill_everything(self):
        for node, guard in list(self.guards.items()):
            for pid in [*self.workers(node), self.agent(node), guard.pid]:
                try:
                    if pid:
                        os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            guard.wait()
        self.guards.clear()
