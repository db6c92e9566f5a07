"""The observer: a process of its own that looks from outside while a trial runs, and says each invariant that does not hold.

    observer CONFIG.json      (as `elastic-chaos observe`)

It reads etcd (one watch of the job's keys: every change, in order), the workers' traces, the checkpoint folder and /proc. The trial tells it on stdin
what it cannot see, a JSON object a line: {"rewound": true} (the suite has put the store back), {"damaged": STEP} (checkpoints up to that one
may have been broken by the suite), {"cut": NODE} (it is cut off from now on: it may compute until it learns
that the others went on), {"rolls_back": true} (processes may go back to a checkpoint in mid-generation), {"ended": NODE} (that node's guard has ended: nothing of it may be left), {"stop": true}. On stdout a line for each violation, for
what it was told and has looked at, and, at the end, what was checked how often:

    {"violation": "two_commit", "what": "..."}          {"done": 2}          {"checked": {"fence": 4, "steps": 812, ...}}
"""

import base64
import http.client
import json
import os
import queue
import subprocess
import sys
import threading
import time

import etcd
import space
from job import Record

POLL_S = 0.05
VERIFY_EVERY_S = 0.5
VERIFY_MAX_S = 30
INVARIANTS = {
    "fence_back": "generations of the fence only grow",
    "two_commit": "a checkpoint is committed by the generation that the fence names",
    "latest_back": "steps of the newest checkpoint only grow within a generation's lineage",
    "node_ranks": "at each seal the assigned node ranks are 0, 1, ..., and first ranks follow from them",
    "rank_twice": "a rank of a generation is one worker",
    "rank_range": "ranks lie within the world, whose size is one for a generation",
    "two_compute": "no step is applied in a generation after its successor's first one, but on a node that was cut off",
    "parameters": "behind each applied step parameters and optimizer are those of an undisturbed run, bit for bit, on all ranks",
    "step_order": "a process applies steps one by one",
    "latest_broken": "the newest committed checkpoint verifies",
    "orphan": "nothing of a node lives on when its guard has ended",
    "port": "no socket listens where a guard has ended",
}


class Watch(threading.Thread):
    """All changes below the job's prefix, from the first on; over another member, from where it was, when one ends. Puts (epoch, "PUT" | "DELETE", key, value,
    revision); where etcd has compacted what was not seen yet, (epoch, "STATE", None, {key: value}, revision) instead of what is missing."""

    def __init__(self, addresses, prefix, out):
        super().__init__(daemon=True)
        self.addresses, self.prefix, self.out, self.revision, self.epoch = list(addresses), prefix, out, 1, 0

    def rewind(self):
        """The store has another history from now on: what comes of the old one is nobody's."""
        self.epoch += 1
        self.revision = 1

    def run(self):
        while True:
            try:
                self._follow(self.epoch)
            except (OSError, http.client.HTTPException, ValueError, etcd.Unavailable):
                pass
            self.addresses.append(self.addresses.pop(0))
            time.sleep(0.1)

    def _seen(self, epoch, revision, *change):
        if epoch == self.epoch:
            self.revision = revision + 1
            self.out.put((epoch, *change, revision))

    def _read_anew(self, epoch):
        """All at once, since the way there is lost."""
        client = etcd.Client(self.addresses)
        found, revision = client.range_at(self.prefix)
        self._seen(epoch, revision, "STATE", None, {key: kv["value"] for key, kv in found.items()})

    def _follow(self, epoch):
        connection = etcd.connect(self.addresses[0], 5)
        body = {"create_request": {"key": etcd.b64(self.prefix), "range_end": etcd.b64(etcd.prefix_end(self.prefix.encode())),
                                   "start_revision": self.revision, "progress_notify": False}}
        connection.request("POST", "/v3/watch", json.dumps(body), etcd.headers(self.addresses[0]))
        answer = connection.getresponse()
        while epoch == self.epoch:
            try:
                line = answer.readline()
            except TimeoutError:
                return  # a quiet job, or a member that is gone: from the same revision again
            if not line:
                return
            said = json.loads(line)
            if "error" in said:
                etcd.HEADERS.clear()  # a token that has ended
                return
            result = said.get("result", {})
            if "compact_revision" in result:
                self._read_anew(epoch)
                return
            for event in result.get("events", []):
                kv = event["kv"]
                self._seen(epoch, int(kv["mod_revision"]), event.get("type", "PUT"), base64.b64decode(kv["key"]).decode(), base64.b64decode(kv.get("value", "")))


class Observer:
    def __init__(self, config):
        self.c = config
        self.root = f"/elastic-run/{config['name']}/"
        self.checked = dict.fromkeys(INVARIANTS, 0)
        self.said = set()
        self.changes, self.told = queue.Queue(), queue.Queue()
        self.watch = Watch([tuple(a) for a in config["etcd"]], self.root, self.changes)
        self.record = Record(config["folder"], config["name"], config["nodes"], config["per_node"])
        self.fence, self.latest, self.assigned = 0, None, {}
        self.first_apply, self.owners, self.sizes, self.last = {}, {}, {}, {}
        self.damaged, self.verify_next, self.verified = 0, 0.0, None
        self.cut, self.rolls_back, self.digests = set(), False, {}

    def violation(self, kind, what):
        if (kind, what) not in self.said and len(self.said) < 50:
            self.said.add((kind, what))
            print(json.dumps({"violation": kind, "at": time.monotonic(), "what": what}), flush=True)

    @staticmethod
    def done(what):
        print(json.dumps({"done": what}), flush=True)

    def check(self, kind, holds, what):
        self.checked[kind] += 1
        if not holds:
            self.violation(kind, what())

    # ---- the store ----

    def on_change(self, kind, key, value, revision):
        name = key[len(self.root):]
        if name == "fence" and kind == "PUT":
            self.on_fence(int(value.split(b":")[0]), revision)
        elif name == "ckpt/latest" and kind == "PUT":
            self.on_latest(etcd.latest(value), revision)
        elif name.startswith("a/") and kind == "PUT":
            self.assigned[name[2:]] = etcd.assignment(value)

    def on_state(self, state):
        """Taken as it is: what led there was not seen, and nothing is said of it."""
        fence, latest = state.get(self.root + "fence"), state.get(self.root + "ckpt/latest")
        self.fence = int(fence.split(b":")[0]) if fence else 0
        self.latest = etcd.latest(latest) if latest else None
        self.assigned = {key[len(self.root) + 2:]: etcd.assignment(value) for key, value in state.items() if key.startswith(self.root + "a/")}

    def on_fence(self, generation, revision):
        self.check("fence_back", generation > self.fence, lambda: f"generation {generation} after {self.fence}, at revision {revision}")
        self.fence = generation
        members = sorted((a["group_rank"], a["first_rank"], node) for node, a in self.assigned.items() if a["generation"] == generation)
        n = self.c["per_node"]
        self.check("node_ranks", bool(members) and all(rank == i and first == i * n for i, (rank, first, _) in enumerate(members)),
                   lambda: f"generation {generation}: (node rank, first rank, node) are {members}")

    def on_latest(self, record, revision):
        # The same again is no commit: a generation that begins behind the last step ends with the checkpoint that it began with.
        self.check("two_commit", record["generation"] == self.fence or record == self.latest,
                   lambda: f"generation {record['generation']} commits step {record['step']} at revision {revision}, where the fence names {self.fence}")
        if self.latest and self.latest["generation"] == record["generation"]:
            self.check("latest_back", record["step"] >= self.latest["step"],
                       lambda: f"step {record['step']} after {self.latest['step']} in generation {record['generation']}")
        self.latest = record

    # ---- workers ----

    def on_step(self, s):
        where = f"n{s.node}-{s.local} (pid {s.pid})"
        size = self.sizes.setdefault(s.generation, s.size)
        self.check("rank_range", size == s.size and 0 <= s.rank < s.size, lambda: f"{where}: rank {s.rank} of {s.size} in generation {s.generation} of {size}")
        owner = self.owners.setdefault((s.generation, s.rank), s.pid)
        self.check("rank_twice", owner == s.pid, lambda: f"generation {s.generation}: pids {owner} and {s.pid} are both rank {s.rank}")
        self.first_apply[s.generation] = min(s.at, self.first_apply.get(s.generation, s.at))
        later = min((at for g, at in self.first_apply.items() if g > s.generation), default=None)
        self.check("two_compute", later is None or s.at <= later or s.node in self.cut,
                   lambda: f"{where} applies step {s.step} of generation {s.generation} {s.at - later:.3f} s after a later one's first step")
        wanted = self.wanted(s)
        self.check("parameters", s.digest == wanted, lambda: f"{where}: step {s.step} of generation {s.generation}: {s.digest}, not {wanted}")
        before = self.last.get(s.pid)
        self.check("step_order", before is None or s.step == before.step + 1 or s.generation > before.generation or (self.rolls_back and s.step <= before.step),
                   lambda: f"{where}: step {s.step} after {before.step} in generation {s.generation}")
        self.last[s.pid] = s

    def wanted(self, s):
        """The digest behind a step; where none is known beforehand, that of the rank that was read first."""
        digests = self.c["digests"]
        if digests is None:
            return self.digests.setdefault((s.generation, s.step), s.digest)
        return digests[s.step - 1] if s.step <= len(digests) else "none"

    # ---- files ----

    def verify(self):
        """The newest committed one; a commit or a removal meanwhile makes the answer worthless, and the next look counts."""
        if not self.latest or time.monotonic() < self.verify_next or self.latest["step"] <= self.damaged or self.verified == self.latest["step"]:
            return
        self.verify_next = time.monotonic() + VERIFY_EVERY_S
        step, folder = self.latest["step"], self.c["checkpoints"]
        try:
            done = subprocess.run([os.path.join(self.c["build"], "elastic-ckpt"), "verify", folder, "--step", str(step)], capture_output=True, text=True, check=False, timeout=VERIFY_MAX_S)
        except subprocess.TimeoutExpired:
            return  # storage that hangs: another time
        self.drain()
        if self.latest["step"] == step and step > self.damaged:
            self.verified = step
            self.check("latest_broken", done.returncode == 0, lambda: f"step {step}: {done.stdout.strip()} {done.stderr.strip()}")

    # ---- processes ----

    def left_of(self, node):
        """Processes that carry the node's mark, zombies not counted."""
        mark = f"CHAOS_NODE={self.c['name']}/{node}\0".encode()
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as f:
                    if mark not in b"\0" + f.read() + b"\0":
                        continue
                with open(f"/proc/{name}/cmdline", "rb") as f:
                    yield int(name), f.read().replace(b"\0", b" ").decode(errors="replace").strip()[:100]
            except OSError:
                continue

    def listening(self, node):
        """Ports on which something listens in the node's network."""
        if not space.INSIDE:
            return []
        done = subprocess.run(["nsenter", f"--net=/run/netns/n{node}", "cat", "/proc/self/net/tcp", "/proc/self/net/tcp6"], capture_output=True, text=True, check=False)
        return [int(f[1].rsplit(":", 1)[1], 16) for f in (line.split() for line in done.stdout.splitlines()) if len(f) > 3 and f[3] == "0A"]

    def on_ended(self, node, within):
        """Looks until nothing is left, or the time is over."""
        until = time.monotonic() + within
        while True:
            left, ports = list(self.left_of(node)), self.listening(node)
            if not (left or ports) or time.monotonic() > until:
                break
            time.sleep(0.05)
        self.check("orphan", not left, lambda: f"n{node}: {left}")
        self.check("port", not ports, lambda: f"n{node}: {ports}")

    # ---- one after the other ----

    def drain(self):
        while not self.changes.empty():
            epoch, kind, key, value, revision = self.changes.get()
            if epoch != self.watch.epoch:
                continue
            if kind == "STATE":
                self.on_state(value)
            else:
                self.on_change(kind, key, value, revision)

    def on_told(self, told):
        if "rewound" in told:
            self.watch.rewind()
            self.fence, self.latest = 0, None
            self.assigned.clear()
            self.done("rewound")
        if "damaged" in told:
            self.damaged = told["damaged"]
            self.done("damaged")
        self.rolls_back = told.get("rolls_back", self.rolls_back)
        if "cut" in told:
            self.cut.add(told["cut"])
        if "ended" in told:
            self.on_ended(told["ended"], told.get("within", 2))
            self.done(told["ended"])
        return "stop" not in told

    def run(self):
        self.watch.start()
        threading.Thread(target=lambda: [self.told.put(json.loads(line)) for line in sys.stdin] + [self.told.put({"stop": True})], daemon=True).start()
        on = True
        while on:
            try:
                on = self.on_told(self.told.get(timeout=POLL_S))
            except queue.Empty:
                pass
            self.drain()
            for s in sorted(self.record.poll()[0], key=lambda s: s.at):
                self.on_step(s)
            self.verify()
        print(json.dumps({"checked": self.checked}), flush=True)


def main(path):
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    if config.get("tls"):
        etcd.secure(config["tls"])
    if config.get("user"):
        etcd.login(*config["user"])
    Observer(config).run()
