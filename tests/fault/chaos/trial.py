"""One trial: a job, faults at their instants, what must follow."""

import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time

import load
import shim
import space
from hosts import Hosts
from job import Job, Tail

SHAPE = {"nodes": 3, "per_node": 1, "min": 2, "members": 1, "lease_s": 5, "params": 257, "steps": 300, "epochs": 3, "slow_ms": 10, "save_steps": 20, "max_restarts": 20}
LEASES = ((4, 5), (10, 10), (math.inf, 20))  # seconds of a lease up to which load factor: an agent that gets no core must not lose it
LONG_STEPS = 1000
END_S = 60        # from "no more waiting" to the last agent's end
WAIT_MAX_S = 240  # by the wall, for any one thing, however busy the machine is: so that a trial that stands still leaves its logs
LATE_S = 60       # by which one node's steps are read later than another's, at most
SETTLED_STEPS = 5  # before the first fault, and after the last


class Failed(Exception):
    """What must follow did not; the text says which and by when."""


class Fault:
    """An entry of the catalogue with parameters chosen, on its way through a trial. Its key alone decides on parameters and victims: whatever else the trial does."""

    def __init__(self, entry, key, given=None):
        self.entry, self.key, self.random = entry, key, random.Random(key)
        self.params = {k: self.random.choice(v) if isinstance(v, tuple) else v for k, v in entry.params.items()}
        self.params.update(given or {})
        self.memory = {}    # what heal() needs of inject()
        self.evidence = []  # what shows that it was injected
        self.at = self.acts = self.healed = None  # when injecting began, was done; when it was mended


class Trial:
    """What inject() and heal() of a catalogue entry are given: hosts, job, the parameters and the memory of the fault that acts."""

    def __init__(self, name, folder, course, seed, options):
        self.name, self.folder, self.course, self.build, self.patience = name, folder, course, options.build, options.patience
        self.seed, self.choice = seed, random.Random(f"{name}/{seed}")
        self.entries = course.entries
        self.shape = dict(SHAPE)
        for e in self.entries:
            self.shape.update({k: max(v, self.shape[k]) if k == "members" else {**self.shape.get("set", {}), **v} if k == "set" else v for k, v in e.shape.items()})
        self.shape.update(course.shape)
        self.clock = load.Clock()
        self.shape["lease_s"] = options.lease or next(s for up_to, s in LEASES if load.busy() <= up_to)
        if self.shape["steps"] < LONG_STEPS:
            self.shape["steps"] *= min(3, max(1, self.shape["lease_s"] // 5))  # some faults last for leases, and a job must not end before
        self.shape["name"] = "chaos-" + "".join(c if c.isalnum() else "-" for c in name)[:40] + f"-{seed}-{os.getppid()}-{os.getpid()}"
        self.shape["family"] = self.choice.choice((4, 6))
        self.hosts = self.job = self.observer = self.fault = None
        self.ends, self.looks, self.said = {}, [], Tail(os.path.join(folder, "observer.out"))
        self.faults, self.may_end = [], []  # may_end: (node, exit code) of agents that faults ended
        self.passing = []  # faults that end when their time is over, whatever is waited for meanwhile

    # What inject() and heal() use of the fault that acts.
    params = property(lambda self: self.fault.params)
    memory = property(lambda self: self.fault.memory)
    random = property(lambda self: self.fault.random)

    def injected(self, what):
        """Said by inject() or heal() when something has shown that the fault was there; a fault of which nothing shows fails the trial."""
        self.fault.evidence.append(what)

    def must(self, holds, what):
        """The same, or the trial ends."""
        if not holds:
            raise Failed(f"{self.fault.entry.name} was not injected: not {what}")
        self.injected(what)

    def longer(self, bound_s):
        """A bound that is meant for leases of 5 s."""
        return bound_s + 2 * max(0, self.shape["lease_s"] - 5)

    # ---- set-up ----

    def digests(self):
        """Of each step; a torch script's are not known beforehand, and must be the same on all ranks."""
        s = self.shape
        if s.get("torch"):
            return None
        return subprocess.run([os.path.join(self.build, "tests/fault/chaos_worker"), "reference", str(s["params"]), str(s["steps"]), str(s["epochs"])],
                              capture_output=True, text=True, check=True).stdout.split()

    def begin(self):
        os.makedirs(self.folder)
        self.hosts = Hosts(self.folder, self.shape["nodes"], self.shape["members"])
        if self.shape.get("shim") or self.shape.get("slow_disk"):
            self.hosts.orders = shim.Orders(os.path.join(self.folder, "orders"))
        self.hosts.slow_disk = os.path.join(self.build, "tests/fault/chaos_slow") if self.shape.get("slow_disk") else None
        for prepare in dict.fromkeys(e.prepare for e in self.entries):
            prepare(self)
        self.hosts.start_store(self.patience * self.clock.factor)
        if self.hosts.users:
            self.shape["set"] = {**self.shape.get("set", {}), **self.hosts.enable_users()}
        self.job = Job(self.hosts, self.folder, self.build, self.shape)
        self._observe()
        for node in range(self.shape["nodes"]):
            self.job.start(node)
        self.wait_steps("the job forms", self.world(), SETTLED_STEPS, 60)

    def _observe(self):
        config = os.path.join(self.folder, "observer.json")
        with open(config, "w", encoding="utf-8") as f:
            json.dump({"name": self.job.name, "folder": self.folder, "build": self.build, "nodes": self.shape["nodes"], "per_node": self.shape["per_node"],
                       "checkpoints": self.job.checkpoints, "digests": self.digests(), "etcd": self.hosts.client.addresses,
                       "tls": self.hosts.pki and self.hosts.pki.context("admin"), "user": self.hosts.user}, f)
        out = open(os.path.join(self.folder, "observer.out"), "w", encoding="utf-8")  # pylint: disable=consider-using-with
        main = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
        self.observer = subprocess.Popen([sys.executable, "-B", main, "observe", config], stdin=subprocess.PIPE, stdout=out, stderr=out, text=True)  # pylint: disable=consider-using-with
        out.close()

    def tell(self, **what):
        """Tells the observer what it cannot see."""
        try:
            self.observer.stdin.write(json.dumps(what) + "\n")
            self.observer.stdin.flush()
        except OSError as why:
            raise Failed(self.observer_end()) from why

    def observer_end(self):
        """How it ended, and its last words."""
        with open(os.path.join(self.folder, "observer.out"), encoding="utf-8", errors="replace") as f:
            words = [line.strip() for line in f if not line.startswith("{")]
        return f"the observer has ended with {self.observer.wait()}: {' / '.join(words[-4:]) or 'it said nothing'}"

    def close(self):
        if self.job:
            self.job.kill_everything()
        if self.observer and self.observer.poll() is None:
            self.observer.kill()
            self.observer.wait()
        if self.hosts:
            for clean in dict.fromkeys(e.clean for e in self.entries):
                with contextlib.suppress(Exception):
                    clean(self)
            self.hosts.close()

    # ---- waiting ----

    def world(self):
        return self.shape["nodes"] * self.shape["per_node"]

    def worlds(self, nodes):
        return tuple(n * self.shape["per_node"] for n in nodes)

    def look(self):
        self.job.record.poll()
        for node, _ in self.job.reap():
            self.ends[node] = self.ends.get(node, 0) + 1
            self.tell(ended=node, within=max(e.orphans_s for e in self.entries) * self.patience * self.clock.factor)

    def wait(self, what, holds, bound_s):
        """What holds() returns, as soon as that is true. `bound_s` are seconds of a machine that has room (load.py)."""
        until, began = self.clock.look() + bound_s * self.patience, time.monotonic()
        while True:
            self.look()
            found = holds()
            if found:
                return found
            self.end_passing()
            if self.observer.poll() is not None:
                raise Failed(self.observer_end())
            if not self.job.guards and what != "the job ends" and not self.may_end:
                raise Failed(f"{what}: all agents have ended: {self.job.ended}")
            if self.clock.look() > until or time.monotonic() - began > max(bound_s, WAIT_MAX_S) * self.patience:
                raise Failed(f"{what}: not within {bound_s:g} s" + (f" x {self.patience:g}" if self.patience != 1 else "") + f", which took {time.monotonic() - began:.1f} s under load")
            time.sleep(0.02)

    def start_again(self, node):
        """When its guard has ended, and the observer has seen that nothing of that life is left."""
        self.wait(f"the guard of n{node} ends", lambda: node not in self.job.guards, 20)

        self.wait(f"the observer looks at n{node}", lambda: self.answers().count(node) >= self.ends.get(node, 0), 20)
        self.job.start(node)

    def answers(self):
        """What the observer has done of what it was told: nodes that it looked at, or words."""
        for line in self.said.lines():
            with contextlib.suppress(ValueError):
                done = json.loads(line).get("done")
                self.looks += [] if done is None else [done]
        return self.looks

    def damaged(self, step):
        """The newest checkpoints up to that step need not verify from now on; no look at one of them is on its way any more."""
        self.tell(damaged=step)
        self.wait_told("damaged")

    def wait_told(self, word):
        """Until the observer has done it; once for each time that it was told."""
        self.wait(f"the observer knows: {word}", lambda: word in self.answers(), 20)
        self.looks.remove(word)

    def pause(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            self.clock.look()
            time.sleep(0.02)

    def newest(self):
        steps = self.job.record.steps
        return max(steps, key=lambda s: (s.generation, s.step), default=None)

    def wait_steps(self, what, sizes, n, bound_s, after=0.0, new_since=None):
        """`n` steps applied after `after` in one generation with a world of `sizes`; of one later than `new_since`. The first of them."""
        sizes = sizes if isinstance(sizes, tuple) else (sizes,)

        def holds():
            count = {}
            for s in reversed(self.job.record.steps):
                if s.at < after - LATE_S:
                    break
                if s.at <= after:
                    continue
                if s.size in sizes and (new_since is None or s.generation > new_since):
                    count.setdefault(s.generation, {}).setdefault(s.step, []).append(s)
            for generation in sorted(count, reverse=True):
                whole = sorted(step for step, said in count[generation].items() if len({x.rank for x in said}) == said[0].size)
                if len(whole) >= n:
                    return min(max(x.at for x in count[generation][step]) for step in whole), generation
            return None

        return self.wait(what, holds, bound_s)

    # ---- what is measured ----

    def first_event(self, names, after):
        return min((e["mono_us"] / 1e6 for e in self.job.record.of(*names) if e["mono_us"] / 1e6 > after), default=None)

    def longest_pause(self, since):
        """Between two applied steps, of whichever rank."""
        at = sorted({s.at for s in self.job.record.steps})
        return max((b - a for a, b in zip(at, at[1:]) if b > since), default=0.0)

    def useful(self):
        """Share of the time from the first to the last step in which steps followed each other as usual (a gap counts up to three times the
        median of those around it)."""
        at = sorted({s.at for s in self.job.record.steps if s.rank == 0})
        gaps = [b - a for a, b in zip(at, at[1:])]
        used = 0.0
        for i, gap in enumerate(gaps):
            around = sorted(gaps[max(0, i - 20):i + 21])
            used += min(gap, 3 * around[len(around) // 2])
        return used / (at[-1] - at[0]) if gaps else 0.0

    def useful_spans(self):
        """[[from, to]]: where steps followed each other as usual, as useful() counts."""
        at = sorted({s.at for s in self.job.record.steps if s.rank == 0})
        gaps = sorted(b - a for a, b in zip(at, at[1:]))
        longest, spans = max(0.05, 3 * gaps[len(gaps) // 2]) if gaps else 0, []
        for a, b in zip(at, at[1:]):
            if b - a > longest:
                continue
            if spans and spans[-1][1] == a:
                spans[-1][1] = b
            else:
                spans.append([a, b])
        return spans

    def generations(self):
        """[(generation, size, first step at, last step at)]"""
        found = {}
        for s in self.job.record.steps:
            g = found.setdefault(s.generation, [s.size, s.at, s.at, s.step, s.step])
            g[1], g[2], g[3], g[4] = min(g[1], s.at), max(g[2], s.at), min(g[3], s.step), max(g[4], s.step)
        return [{"generation": g, "size": v[0], "from": v[1], "to": v[2], "first_step": v[3], "last_step": v[4]} for g, v in sorted(found.items())]

    # ---- one fault ----

    @contextlib.contextmanager
    def acting(self, fault):
        before, self.fault = self.fault, fault
        yield
        self.fault = before

    def inject(self, fault):
        fault.at = time.monotonic()
        self.faults.append(fault)
        with self.acting(fault):
            fault.entry.inject(self)
        fault.acts = time.monotonic()

    def heal(self, fault):
        with self.acting(fault):
            fault.entry.heal(self)
        fault.healed = time.monotonic()
        if not fault.evidence:
            raise Failed(f"{fault.entry.name} was not injected: nothing shows it")

    def over(self, fault):
        """When its time is over: `t` seconds, or so many leases."""
        return fault.at + fault.params.get("t", 0) + fault.params.get("leases", 0) * self.shape["lease_s"]

    def hold(self, fault):
        self.pause(max(0.0, self.over(fault) - time.monotonic()))

    def end_passing(self):
        """The next fault may need what an earlier one has taken away."""
        for fault in [f for f in self.passing if f is not self.fault and f.at < self.over(f) < time.monotonic()]:
            self.passing.remove(fault)
            self.heal(fault)

    def after(self, fault):
        at, _ = self.wait_steps(f"after {fault.entry.name}", self.worlds(fault.entry.expect.after), SETTLED_STEPS, self.longer(fault.entry.expect.heal_bound_s), fault.healed)
        return round((at - fault.healed) * 1000, 1)

    def alone(self, fault):
        """From the injection to the last step that must follow; its figures."""
        before, e, entry = self.newest(), fault.entry.expect, fault.entry
        figures = {"entry": entry.name, "key": fault.key, "params": fault.params, "evidence": fault.evidence}
        self.inject(fault)
        if e.during is not None:
            at, _ = self.wait_steps(f"while {entry.name} lasts", self.worlds(e.during), SETTLED_STEPS, self.longer(e.bound_s), fault.at if e.new_generation else fault.acts, before.generation if e.new_generation else None)
            figures["recovery_ms"] = round((at - fault.at) * 1000, 1)
        self.hold(fault)
        self.heal(fault)
        if e.code is None:
            figures["healed_ms"] = self.after(fault)
        detected = self.first_event(entry.detects, fault.at)
        figures["detect_ms"] = round((detected - fault.at) * 1000, 1) if detected else None
        figures["pause_ms"] = round(self.longest_pause(fault.at) * 1000, 1)
        return figures

    # ---- the end ----

    def finish(self, code):
        self.job.slow(False)
        self.wait("the job ends", lambda: not self.job.guards, END_S)
        self.look()
        wrong = [(f"n{n}", c) for n, c in self.job.ended if c != code and (n, c) not in self.may_end]
        if wrong:
            raise Failed(f"exit codes {wrong}, where {code} was due")

    def audit(self):
        if not all(e.expect.audit for e in self.entries):
            return
        done = subprocess.run([os.path.join(self.build, "elastic-ckpt"), "audit", self.job.checkpoints], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed("the ledger does not add up: " + (done.stdout.strip().splitlines() or [done.stderr.strip()])[-1])

    def budget(self):
        # A leader that is killed between the count and its event takes the event with it: at the end all tell of what the store has.
        counted = max([e["used"] for e in self.job.record.of("restart_counted")] + [e.get("restarts", 0) for e in self.job.record.of("job_succeeded", "job_failed", "job_stopped")], default=0)
        low, high = self.course.charged
        # Where peers tell of lost connections before a starved agent sees its worker's death, the generation ends for that, and nobody is charged.
        low -= len({e["generation"] for e in self.job.record.of("generation_forming") if e.get("reason") == "connections_lost"})
        if not low <= counted <= high:
            raise Failed(f"{counted} restarts charged, where {low} to {high} were due")
        return counted

    def leftovers(self):
        """Sockets' folders and shared memory; on loopback others' may be there too."""
        found = [f"/dev/shm/{name}" for name in os.listdir("/dev/shm")] if space.INSIDE else []
        found += [f for f in (f"/run/elastic-run/{self.job.name}",) if os.path.exists(f)]
        if found:
            raise Failed(f"left behind: {found}")

    def stop_observer(self):
        """([violations], {invariant: how often it was checked}). One that has not come to its end has seen nothing."""
        with contextlib.suppress(Failed):
            self.tell(stop=True)
        try:
            self.observer.wait(timeout=60 * self.patience * self.clock.factor)
        except subprocess.TimeoutExpired:
            self.observer.kill()
        violations, checked = [], {}
        with open(os.path.join(self.folder, "observer.out"), encoding="utf-8", errors="replace") as f:
            for line in f:
                with contextlib.suppress(ValueError):
                    said = json.loads(line)
                    violations += [said] if "violation" in said else []
                    checked = said.get("checked", checked)
        if not checked:
            violations.append({"violation": "observer", "what": self.observer_end()})
        return violations, checked


STOP, CONT, KILL, TERM = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL, signal.SIGTERM
SEGV, USR1, USR2 = signal.SIGSEGV, signal.SIGUSR1, signal.SIGUSR2
ENDS = (KILL, SEGV, USR1)  # what chaos_worker does not survive


def signal_all(pids, sig):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if pid:
                os.kill(pid, sig)


def strike(t, pids, sig):
    """Sends a signal to processes that live, and looks that it took effect: they are gone, or stand still."""
    pids = [pid for pid in pids if pid and space.lives(pid)]
    t.must(pids, "a process that lives to send a signal to")
    signal_all(pids, sig)
    if sig in ENDS:
        t.wait("who was struck is gone", lambda: not any(space.lives(pid) for pid in pids), 10)
    elif sig == STOP:
        t.wait("who was struck stands still", lambda: all((space.state(pid) or "X")[0] in "TtZX" for pid in pids), 10)
    t.injected(f"signal {int(sig)} took effect on pids {', '.join(map(str, pids))}")
