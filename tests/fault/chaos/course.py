"""The courses of trials: one fault, several at once, one after the other; and the process that runs one.

A plan is what a trial is made from, as JSON: {"course": "alone" | "overlap" | "sequence" | "storm", "name", "family", "seed", and either "steps", a list of
{"entry", "key", "wait", "params"} (params: those that are not chosen by the key), or, of a storm, "entries", "minutes" and "mean_s"}. The same plan is the same trial.
"""

import contextlib
import json
import os
import random
import shutil
import time

import catalogue
import sanitizer
import space
from trial import Failed, Fault, Trial

ORDER = ("storage", "clock", "program", "process", "network", "store")  # what needs the store to begin with comes before what takes it away


def alone_plan(entry, seed):
    return {"course": "alone", "name": entry.name, "family": entry.family, "seed": seed, "steps": [{"entry": entry.name, "key": f"{entry.name}/{seed}", "wait": 0}]}


def pair_plan(one, other, seed):
    """The second one begins while the first one acts, or what it broke is being mended."""
    one, other = sorted((one, other), key=lambda e: ORDER.index(e.family))
    name, apart = f"{one.name}+{other.name}", random.Random(f"apart/{seed}").choice((0, 0.1, 0.5, 1, 2))
    return {"course": "overlap", "name": name, "family": "pair", "seed": seed,
            "steps": [{"entry": e.name, "key": f"{name}/{e.name}/{seed}", "wait": wait} for e, wait in ((one, 0), (other, apart))]}


def storm_plan(entries, seed, minutes, mean_s):
    return {"course": "storm", "name": "storm", "family": "storm", "seed": seed, "entries": [e.name for e in entries], "minutes": minutes, "mean_s": mean_s}


class Alone:
    """One entry, with all that it says must follow."""

    def __init__(self, plan):
        self.plan, self.shape = plan, {}
        self.entries = [catalogue.ENTRIES[s["entry"]] for s in plan["steps"]]
        self.code, self.charged = self.entries[0].expect.code or 0, self.entries[0].expect.charged

    def go(self, t, result):
        step = self.plan["steps"][0]
        figures = t.alone(Fault(self.entries[0], step["key"], step.get("params")))
        result["params"], result["evidence"] = figures["params"], figures["evidence"]
        result.update({k: v for k, v in figures.items() if k.endswith("_ms")})


class Overlap(Alone):
    """Several at once, healed in reverse: the job goes on afterwards, and ends well. One that stands in the way of the next one is healed when its time is over."""

    def __init__(self, plan):
        super().__init__(plan)
        self.shape, self.code, self.charged = {"steps": 600}, 0, (0, 20)

    def go(self, t, result):
        steps = self.plan["steps"]
        faults = [Fault(e, s["key"], s.get("params")) for e, s in zip(self.entries, steps)]
        result["params"] = {"waits_s": [s["wait"] for s in steps], **{f.entry.name: f.params for f in faults if f.params}}
        for fault, step in zip(faults, steps):
            t.pause(step["wait"])
            t.inject(fault)
            t.passing.append(fault)
        last_longer, t.passing = t.passing, []
        for fault in last_longer:
            t.hold(fault)
        for fault in reversed(last_longer):
            t.heal(fault)
        last = max(faults, key=lambda f: f.entry.expect.heal_bound_s)
        last.healed = max(f.healed for f in faults)
        result["healed_ms"] = t.after(last)
        result["pause_ms"] = round(t.longest_pause(faults[0].at) * 1000, 1)
        result["evidence"] = [e for f in faults for e in f.evidence]


class Sequence(Alone):
    """Fault after fault on one job, each one when the one before is mended."""

    def __init__(self, plan):
        super().__init__(plan)
        self.shape = {"members": 3, "steps": 6000, "slow_ms": 2, "max_restarts": 100000, "save_steps": 50}
        self.code, self.charged = 0, (0, 100000)

    def steps(self):
        yield from self.plan["steps"]

    def go(self, t, result):
        result["parts"] = []
        for step in self.steps():
            t.pause(step["wait"])
            part = {"entry": step["entry"], "key": step["key"], "wait": step["wait"]}
            result["parts"].append(part)
            part.update(t.alone(Fault(catalogue.ENTRIES[step["entry"]], step["key"], step.get("params"))))
        result["useful"] = round(t.useful(), 4)


class Storm(Sequence):
    """A sequence that goes on until its time is over."""

    def __init__(self, plan):
        super().__init__(dict(plan, steps=[{"entry": name} for name in plan["entries"]]))

    def steps(self):
        plan, until, i = self.plan, time.monotonic() + 60 * self.plan["minutes"], 0
        while time.monotonic() < until:
            key = f"storm/{plan['seed']}/{i}"
            draw = random.Random("step/" + key)
            yield {"entry": draw.choice(plan["entries"]), "key": key, "wait": round(min(draw.expovariate(1 / plan["mean_s"]), 5 * plan["mean_s"]), 2)}
            i += 1


COURSES = {"alone": Alone, "overlap": Overlap, "sequence": Sequence, "storm": Storm}


# ---- a trial, from its plan to its result ----

def attempt(t, course, result):
    try:
        t.begin()
        result["formed_ms"] = round((time.monotonic() - result["began"]) * 1000, 1)
        course.go(t, result)
        t.finish(course.code)
        t.audit()
        result["charged"] = t.budget()
        t.leftovers()
        result["ok"] = True
    except Failed as why:
        result["why"] = str(why)
    except Exception as why:  # pylint: disable=broad-except
        where = why.__traceback__
        while where.tb_next:
            where = where.tb_next
        result["why"] = f"{type(why).__name__}: {why} ({os.path.basename(where.tb_frame.f_code.co_filename)}:{where.tb_lineno})"


def conclude(t, result):
    """The observer's word, the job's history; and everything ends."""
    if t.observer:
        result["violations"], result["checked"] = t.stop_observer()
    if t.job:
        t.job.record.poll()
        result["generations"], result["useful_spans"] = t.generations(), t.useful_spans()
        result["work_lost_steps"] = lost_steps(t.job.record.steps)
    result["faults"] = [[f.entry.name, f.at, f.healed] for f in t.faults]
    result["lease_s"] = t.shape["lease_s"]
    result["busy"], result["busy_most"] = round(t.clock.mean(), 2), round(t.clock.worst, 2)
    result["ended"] = time.monotonic()
    t.close()
    bad = [f"{v['violation']}: {v['what']}" for v in result.get("violations", [])[:3]] + sanitizer.found(t.folder)[:3]
    if bad:
        result["ok"] = False
        result["why"] = "; ".join([result["why"]] * bool(result["why"]) + bad)


def lost_steps(steps):
    """Steps that all ranks of a generation applied, and all of a later one again: the way back to a checkpoint."""
    ranks = {}
    for s in steps:
        ranks.setdefault((s.generation, s.step), (set(), s.size))[0].add(s.rank)
    whole = [step for (_, step), (have, size) in ranks.items() if len(have) == size]
    return len(whole) - len(set(whole))


def keep_files(folder, to):
    """Logs, traces, events and the ledger; no data of etcd and no shards."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to, ignore=lambda _, names: [n for n in names if n.endswith((".data", ".safetensors"))], ignore_dangling_symlinks=True, symlinks=True)
    return to


def run(plan, options):
    """The trial's result, as in the report."""
    course = COURSES[plan["course"]](plan)
    name = f"{plan['name']}-{plan['seed']}"
    folder = os.path.join("/run/chaos" if space.INSIDE else os.path.join(options.results, "running"), name)
    shutil.rmtree(folder, ignore_errors=True)
    result = {"entry": plan["name"], "family": plan["family"], "seed": plan["seed"], "params": {}, "ok": False, "why": None, "began": time.monotonic()}
    sanitizer.prepare(options.build, folder)
    t = Trial(plan["name"], folder, course, plan["seed"], options)
    try:
        attempt(t, course, result)
    finally:
        conclude(t, result)
    if not result["ok"] or options.keep:
        with contextlib.suppress(OSError):
            result["kept"] = keep_files(folder, os.path.join(options.results, "kept", name))
    shutil.rmtree(folder, ignore_errors=True)
    return result


def main(folder, options):
    """In namespaces of its own: FOLDER/plan.json -> FOLDER/result.json (pool.py)."""
    space.furnish()
    catalogue.load(options.build)
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as f:
        plan = json.load(f)
    result = run(plan, options)
    with open(os.path.join(folder, "result.new"), "w", encoding="utf-8") as f:
        json.dump(result, f)
    os.replace(os.path.join(folder, "result.new"), os.path.join(folder, "result.json"))
    return 0
