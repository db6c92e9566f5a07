"""The least part of a failing trial that still fails: fewer faults, no waits, the smallest parameters.

A candidate counts as failing when one of TRIES trials of it fails in the same way, for what depends on the kernel's scheduling does not fail each time. Faults keep their
keys, and so their victims, whatever is taken away around them (trial.py, Fault).
"""

import copy
import json
import os
import re
import sys
import time

import catalogue
import course
import pool

TRIES = 3
MINUTES = 10  # for one trial, when it is done by itself


def way_of_failing(result):
    """What is the same in two failures of one kind: the first invariant, or the text without its numbers. None: it did not fail."""
    if result["ok"]:
        return None
    violations = result.get("violations") or []
    return violations[0]["violation"] if violations else re.sub(r"[0-9.]+", "#", result["why"] or "?")[:80]


def explicit(result):
    """The plan of a result with each of its faults named: a storm's are those that it came to."""
    plan = copy.deepcopy(result["plan"])
    if plan["course"] == "storm":
        steps = [{k: p[k] for k in ("entry", "key", "wait")} for p in result.get("parts", [])]
        plan = {"course": "sequence", "name": plan["name"], "family": plan["family"], "seed": plan["seed"], "steps": steps}
    return plan


class Shrinker:
    def __init__(self, args, minutes, say):
        self.args, self.until, self.say, self.runs = args, time.monotonic() + 60 * minutes, say, 0
        self.wanted = None

    def fails(self, plan):
        """Trials of it, side by side as far as there are jobs for them; the first that fails the same way decides."""
        if not plan["steps"] or time.monotonic() > self.until:
            return False
        trials = pool.each([dict(plan, minutes=0) for _ in range(TRIES)], self.args, min(TRIES, self.args.jobs))
        for result in trials:
            self.runs += 1
            way = way_of_failing(result)
            if way and self.wanted in (None, way):
                self.wanted = way
                trials.close()
                return True
        return False

    def fewer(self, plan):
        """Halves are left out, then quarters, down to single faults; from the beginning again when one could be."""
        size = max(1, len(plan["steps"]) // 2)
        while True:
            at, less = 0, False
            while at < len(plan["steps"]) and len(plan["steps"]) > 1:
                candidate = dict(plan, steps=plan["steps"][:at] + plan["steps"][at + size:])
                if self.fails(candidate):
                    plan, less = candidate, True
                    self.say(f"{len(plan['steps'])} faults are enough")
                else:
                    at += size
            if size == 1 and not less:
                return plan
            size = max(1, size // 2)

    def simpler(self, plan):
        """Step by step: no wait, then each parameter at its smallest."""
        for i, step in enumerate(plan["steps"]):
            smallest = {k: min(v) for k, v in catalogue.ENTRIES[step["entry"]].params.items() if isinstance(v, tuple)}
            for change in [{"wait": 0}] + [{"params": {**step.get("params", {}), k: v}} for k, v in smallest.items()]:
                if all(plan["steps"][i].get(k) == v for k, v in change.items()):
                    continue
                merged = {**plan["steps"][i], **change}
                merged["params"] = {**plan["steps"][i].get("params", {}), **merged.get("params", {})}
                candidate = dict(plan, steps=plan["steps"][:i] + [merged] + plan["steps"][i + 1:])
                if self.fails(candidate):
                    plan = candidate
        return plan

    def least(self, plan):
        """None: it did not fail again."""
        return self.simpler(self.fewer(plan)) if self.fails(plan) else None


def of(result, args, say, minutes=MINUTES):
    """Shrinks a failed result; what is found, as in the report, and as a file to replay."""
    shrinker, plan = Shrinker(args, minutes, say), explicit(result)
    shrinker.wanted = way_of_failing(result)
    least = shrinker.least(plan)
    found = {"shrunk": result["entry"], "seed": result["seed"], "way": shrinker.wanted, "trials": shrinker.runs, "from": len(plan["steps"]), "plan": least}
    if least:
        found["file"] = os.path.join(args.results, f"least-{result['entry']}-{result['seed']}.json")
        with open(found["file"], "w", encoding="utf-8") as f:
            json.dump(least, f, indent=1)
    return found


def told(found):
    if not found["plan"]:
        return f"{found['shrunk']} --seed {found['seed']} did not fail again in {found['trials']} trials"
    return (f"{found['shrunk']} --seed {found['seed']}: {len(found['plan']['steps'])} of {found['from']} faults are enough for '{found['way']}' ({found['trials']} trials): "
            f"elastic-chaos replay {found['file']}")


def known(name, args):
    """The failed trial of that name and seed in the results, or a plan made anew from name and seed."""
    path = os.path.join(args.results, "result.jsonl")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            for r in map(json.loads, f):
                if r.get("entry") == name and r.get("seed") == args.seed and not r["ok"] and r.get("plan"):
                    return r
    entries = [catalogue.ENTRIES.get(part) for part in name.split("+")]
    if None in entries or len(entries) > 2:
        return None
    plan = course.alone_plan(entries[0], args.seed) if len(entries) == 1 else course.pair_plan(*entries, args.seed)
    return dict(pool.one(plan, args))


def main(args):
    status = 0
    for name in args.names:
        result = known(name, args)
        if not result or result["ok"]:
            why = "is not in the results, and no entry or pair of that name is known" if not result else "does not fail"
            print(f"elastic-chaos: {name} --seed {args.seed} {why}", file=sys.stderr)
            status = 1
            continue
        print(told(of(result, args, lambda text: print(f"  {text}", flush=True), args.minutes)), flush=True)
    return status
