"""Which trials, in which order, and what is said of them."""

import fcntl
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import catalogue
import course
import pool
import report
import shrink
import space

TRIALS_AN_ENTRY = 30  # of a soak, before entries begin anew
STORM_MINUTES = 5


class Sink:
    """Results as they come: JSON lines, the terminal or TAP; and the verdict of all."""

    def __init__(self, args, planned=None):
        os.makedirs(args.results, exist_ok=True)
        self.out = open(os.path.join(args.results, "result.jsonl"), "a", encoding="utf-8")  # pylint: disable=consider-using-with
        try:
            fcntl.flock(self.out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"elastic-chaos: '{args.results}' belongs to another run that is under way; wait for its end, or give --results another folder", file=sys.stderr)
            sys.exit(69)
        for folder in (pool.PLANS, *([] if args.add else ["kept"])):
            shutil.rmtree(os.path.join(args.results, folder), ignore_errors=True)
        self.args, self.about, self.number, self.failed, self.planned = args, about(args), 0, 0, planned
        if not args.add:
            self.out.truncate(0)
        self.out.write(json.dumps({"run": self.about}) + "\n")
        self.plan() if planned else None  # pylint: disable=expression-not-assigned

    def plan(self):
        if self.args.tap:
            print(f"1..{self.planned}", flush=True)

    def put(self, result):
        """Each record says by itself what it comes from."""
        self.number += 1
        self.out.write(json.dumps(dict(result, load=round(os.getloadavg()[0], 1), **{k: self.about[k] for k in ("revision", "etcd", "kernel", "cores", "date")})) + "\n")
        self.out.flush()
        ok, skipped = result["ok"], result.get("skipped")
        self.failed += not (ok or skipped)
        if self.args.tap:
            print(("" if ok or skipped else "not ") + f"ok {self.number} - {result['entry']}" + (f" # SKIP {skipped}" if skipped else ""), flush=True)
        self.say(told(result).replace("\n", "\n# " if self.args.tap else "\n"))

    def say(self, text):
        print(("# " if self.args.tap else "") + text, flush=True)

    def add(self, found):
        """What a failed trial came down to."""
        self.out.write(json.dumps(found) + "\n")
        self.say(shrink.told(found))

    def close(self):
        if not self.planned:  # nobody knew how many there would be
            self.planned = self.number
            self.plan()
        self.out.close()
        report.write(self.args.results, self.args.build)
        if not self.args.tap:
            print(f"{self.number} trials, {self.failed} failed: {os.path.join(self.args.results, 'report.html')}")
        return 1 if self.failed else 0


def about(args):
    """What a reader of the results has to know of the run."""
    here = os.path.dirname(os.path.abspath(__file__))
    revision = subprocess.run(["git", "-C", here, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False).stdout.strip()
    etcd = subprocess.run([os.environ.get("ER_ETCD_BIN", "etcd"), "--version"], capture_output=True, text=True, check=False).stdout.split("\n")[0]
    return {"verb": args.verb, "names": args.names, "options": [f"--{o}" for o in ("default", "all") if getattr(args, o)], "seed": args.seed, "patience": args.patience, "jobs": args.jobs,
            "revision": revision or "unknown", "etcd": etcd.replace("etcd Version: ", ""), "cores": os.cpu_count(), "kernel": os.uname().release, "namespaces": space.INSIDE,
            "load": round(os.getloadavg()[0], 1), "date": time.strftime("%Y-%m-%d", time.gmtime())}


def told(r):
    if r.get("skipped"):
        return f"skipped  {r['entry']}: {r['skipped']}"
    figures = ", ".join(f"{name} {r[key]:.0f} ms" for name, key in (("detected", "detect_ms"), ("recovered", "recovery_ms"), ("after heal", "healed_ms"), ("pause", "pause_ms")) if r.get(key) is not None)
    figures += f"{len(r['parts'])} faults, useful {100 * r.get('useful', 0):.1f} %" if r.get("parts") else ""
    lost = f", {r['work_lost_steps']} steps again" if r.get("work_lost_steps") else ""
    busy = f", busy {r['busy']:g}" if r.get("busy", 1) > 2 else ""
    return (("ok       " if r["ok"] else "FAILED   ") + f"{r['entry']} --seed {r['seed']}" + (f" {r['params']}" if r["params"] else "") + f": {figures}{lost}{busy} ({r.get('ended', 0) - r.get('began', 0):.0f} s)"
            + ("" if r["ok"] else f"\n         {r['why']}\n         kept: {r.get('kept')}"))


# ---- which ones ----

def skipped(plan):
    """A result for what cannot be had here, or None."""
    names = plan.get("entries") or [s["entry"] for s in plan["steps"]]
    why = next((s for s in (catalogue.ENTRIES[n].skipped() for n in names) if s), None)
    return why and {"entry": plan["name"], "family": plan["family"], "seed": plan["seed"], "params": {}, "ok": False, "skipped": why}


def dangerous():
    return [catalogue.ENTRIES[name] for name in catalogue.DANGEROUS if not catalogue.ENTRIES[name].skipped()]


def pair(seed):
    return course.pair_plan(*random.Random(seed).sample(dangerous(), 2), seed)


def alone(args, chosen):
    return [course.alone_plan(entry, seed) for seed in range(args.seed, args.seed + args.trials) for entry in chosen] + (pairs(args, chosen) if args.default else [])


def pairs(args, _chosen):
    if args.all:
        return [course.pair_plan(one, other, args.seed) for one, other in itertools.combinations(dangerous(), 2)]
    return [pair(seed) for seed in range(args.seed, args.seed + args.count)]


def storm(args, chosen):
    return [course.storm_plan(chosen if args.names else dangerous(), args.seed, args.minutes, args.mean)]


def soak(args, chosen):
    """Until the time is over: each entry with the next seed, a share of all pairs, a storm. After TRIALS_AN_ENTRY rounds all pairs have been there."""
    until, every = time.monotonic() + 60 * args.minutes, list(itertools.combinations(dangerous(), 2))
    random.Random(args.seed).shuffle(every)
    share = -(-len(every) // TRIALS_AN_ENTRY)
    for i in itertools.count():
        seed = args.seed + i
        at = i % TRIALS_AN_ENTRY * share
        plans = [course.alone_plan(e, seed) for e in chosen] + [course.pair_plan(one, other, seed) for one, other in every[at:at + share]]
        left = (until - time.monotonic()) / 60
        plans += [course.storm_plan(dangerous(), seed, min(STORM_MINUTES, left), args.mean)] if left > 1 else []
        for plan in plans:
            if time.monotonic() > until:
                return
            yield plan


VERBS = {"run": alone, "pairs": pairs, "storm": storm, "soak": soak}


def longest_first(plans):
    """So that none of those that last long begins last."""
    return sorted(plans, key=lambda p: 60 * p.get("minutes", 0) + sum(catalogue.ENTRIES[s["entry"]].lasts() for s in p.get("steps", [])), reverse=True)


def carry_out(plans, args, out):
    def possible():
        for plan in plans:
            found = skipped(plan)
            if found:
                out.put(found)
            else:
                yield plan
    failed = []
    for result in pool.each(possible(), args, args.jobs):
        out.put(result)
        if not result["ok"] and result["plan"]["course"] != "alone":
            failed.append(result)
    for result in failed if args.shrink else []:
        out.add(shrink.of(result, args, out.say, args.shrink))


def listing(entries):
    for e in entries.values():
        print(f"{e.name:32} {e.family:8} {e.doc}" + (f" {e.params}" if e.params else "") + (" [dangerous]" if e.name in catalogue.DANGEROUS else "") + (f" [skipped here: {e.skipped()}]" if e.skipped() else ""))
    return 0


def replay(args, out):
    """FILE holds a plan, or a result with its plan."""
    for path in args.names:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
        carry_out([found.get("plan", found)], args, out)
    return out.close()


def main(args):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # trials end with us; so do their folders
    entries = catalogue.load(args.build)
    unknown = [n for n in args.names if n not in entries] if args.verb in ("run", "storm", "soak") else []
    if unknown:
        print(f"elastic-chaos: no such entry: {', '.join(unknown)}; `elastic-chaos list` prints them", file=sys.stderr)
        return 64
    if args.verb == "report":
        report.write(args.results, args.build, args.docs)
        return 0
    if args.seed is None:
        args.seed = int(time.time() // 86400) if args.default else 1
    space.way()
    if args.verb == "list":
        return listing(entries)
    if args.verb == "shrink":
        return shrink.main(args)
    if args.verb == "replay":
        return replay(args, Sink(args, len(args.names)))
    plans = VERBS[args.verb](args, [entries[n] for n in args.names] or list(entries.values()))
    plans = longest_first(plans) if isinstance(plans, list) and args.jobs > 1 else plans
    out = Sink(args, len(plans) if isinstance(plans, list) else None)
    carry_out(plans, args, out)
    return out.close()
