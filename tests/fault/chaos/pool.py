"""Trials side by side: each is a process of its own in namespaces of its own, that is given a plan and answers with a result.

A trial that breaks down, hangs or is killed is a result, too, and no other one notices.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import space

MAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
TRIAL_MAX_S = 600      # beside what a storm is meant to last: no bound within a trial is that long, even on a busy machine
POLL_S = 0.05
PLANS = "plans"        # folder below the results: plans of trials that are on their way, what they say, their results


def title(plan):
    return f"{plan['name']}-{plan['seed']}"


class Running:
    """A trial that is on its way."""

    def __init__(self, plan, args):
        self.plan, self.began = plan, time.monotonic()
        plans = os.path.join(args.results, PLANS)
        os.makedirs(plans, exist_ok=True)
        self.folder = tempfile.mkdtemp(dir=plans)
        self.until = self.began + TRIAL_MAX_S + 60 * plan.get("minutes", 0)
        with open(os.path.join(self.folder, "plan.json"), "w", encoding="utf-8") as f:
            json.dump(plan, f)
        argv = [*space.DIES_WITH_US, *space.way(), sys.executable, "-B", MAIN, "trial", self.folder, "--build", args.build, "--results", args.results, "--patience", str(args.patience)]
        argv += ["--lease", str(args.lease)] if args.lease else []
        argv += ["--keep"] if args.keep else []
        environment = dict(os.environ, **{space.MARK: "1" if space.INSIDE else "0"})
        with open(os.path.join(self.folder, "said"), "wb") as said:
            self.process = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said)  # pylint: disable=consider-using-with

    def poll(self):
        """The result, when there is one."""
        if self.process.poll() is None:
            if time.monotonic() < self.until:
                return None
            self.process.kill()
            self.process.wait()
        return self.result()

    def result(self):
        try:
            with open(os.path.join(self.folder, "result.json"), encoding="utf-8") as f:
                found = json.load(f)
        except (OSError, ValueError):
            with open(os.path.join(self.folder, "said"), encoding="utf-8", errors="replace") as f:
                said = f.read().strip()
            found = {"ok": False, "why": f"the trial has ended with {self.process.returncode} and no result: {said[-1000:] or 'nothing said'}",
                     "entry": self.plan["name"], "family": self.plan["family"], "seed": self.plan["seed"], "params": {}, "began": self.began, "ended": time.monotonic()}
        found["plan"] = self.plan
        shutil.rmtree(self.folder, ignore_errors=True)
        return found


def each(plans, args, jobs):
    """Runs what the iterator `plans` gives, `jobs` at a time; yields results as they come."""
    plans, running, more = iter(plans), [], True
    try:
        while more or running:
            while more and len(running) < jobs:
                plan = next(plans, None)
                more = plan is not None
                if more:
                    running.append(Running(plan, args))
            time.sleep(POLL_S)
            for trial in list(running):
                result = trial.poll()
                if result:
                    running.remove(trial)
                    yield result
    finally:
        for trial in running:
            trial.process.kill()
            trial.process.wait()
            shutil.rmtree(trial.folder, ignore_errors=True)


def one(plan, args):
    return next(each([plan], args, 1))
