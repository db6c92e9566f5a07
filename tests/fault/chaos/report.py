"""Results of runs, read back from result.jsonl, and their summary: report.json, JUnit XML; page.py and document.py make the rest."""

import json
import os
from xml.sax.saxutils import quoteattr

import catalogue

STAMP = ("revision", "etcd", "kernel", "cores", "date")  # what each record says of where it comes from


class Results:
    """Of one or more runs: what was run, the trials, what failed ones came down to; and what other programs measured, where they were run."""

    def __init__(self, folder, build):
        self.folder, self.runs, self.trials, self.shrunk = folder, [], [], []
        self.known, self.mended = [], {}  # what people wrote beside the records: {(entry, seed, revision): what was done}
        with open(os.path.join(folder, "result.jsonl"), encoding="utf-8") as f:
            for said in map(json.loads, f):
                if "run" in said:
                    self.runs.append(said["run"])
                elif "mended" in said:
                    self.mended[said["entry"], said["seed"], said["revision"]] = said["mended"]
                elif "known" in said:
                    self.known.append(said["known"])
                else:
                    (self.shrunk if "shrunk" in said else self.trials).append(said)
        self.mutations = lines_of(os.path.join(build, "mutation", "result.jsonl"))
        self.fuzz = lines_of(os.path.join(build, "fuzz", "result.jsonl"))
        self.soak = text_of(os.path.join(build, "soak.txt"))
        self.done = [r for r in self.trials if state(r) != "skipped"]
        self.failed = [r for r in self.done if not r["ok"]]

    def stamp(self):
        """All that the records say, each once: {"revision": ["8bc0ee5"], ...}; and from which to which load."""
        found = {k: sorted({str(r[k]) for r in self.trials if k in r}) for k in STAMP}
        loads, busy = [r["load"] for r in self.trials if "load" in r], [r["busy"] for r in self.done if "busy" in r]
        return dict(found, load=[min(loads), max(loads)] if loads else [], busy=[min(busy), max(busy)] if busy else [])


def text_of(path):
    try:
        with open(path, encoding="utf-8") as f:
            return f.read()
    except OSError:
        return ""


def lines_of(path):
    return [json.loads(line) for line in text_of(path).splitlines()]


def command(run):
    return f"elastic-chaos {' '.join([run['verb'], *run['names'], *run.get('options', [])])} --seed {run['seed']}"


def state(r):
    return "skipped" if r.get("skipped") else "ok" if r["ok"] else "failed"


# ---- JUnit ----

def junit(results):
    trials = results.trials
    failed, skipped = sum(state(r) == "failed" for r in trials), sum(state(r) == "skipped" for r in trials)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuite name="elastic-chaos" tests="{len(trials)}" failures="{failed}" skipped="{skipped}">',
             "<properties>", *(f"<property name={quoteattr(k)} value={quoteattr(str(v))}/>" for i, run in enumerate(results.runs) for k, v in dict(run, run=i).items()), "</properties>"]
    for r in trials:
        seconds = r.get("ended", 0) - r.get("began", 0)
        lines.append(f'<testcase classname={quoteattr("chaos." + r["family"])} name={quoteattr(r["entry"] + " seed " + str(r["seed"]))} time="{seconds:.3f}">')
        if state(r) == "failed":
            lines.append(f"<failure message={quoteattr(r['why'] or '?')}/>")
        if state(r) == "skipped":
            lines.append(f"<skipped message={quoteattr(r['skipped'])}/>")
        lines.append("</testcase>")
    return "\n".join([*lines, "</testsuite>", ""])


# ---- figures of all trials ----

def spread(values):
    values = sorted(v for v in values if v is not None)
    if not values:
        return "–"
    at = [values[min(len(values) - 1, int(q * len(values)))] for q in (0.5, 0.99)]
    return " / ".join(f"{v:.0f}" for v in (*at, values[-1]))


def summary(trials):
    """A row for each entry, pairs and storms taken together."""
    groups = {}
    for r in trials:
        if state(r) != "skipped":
            groups.setdefault(r["entry"] if r["family"] not in ("pair", "storm") else f"({r['family']}s)", []).append(r)
    order = {name: i for i, name in enumerate(catalogue.load())}
    for name, of in sorted(groups.items(), key=lambda group: order.get(group[0], len(order))):
        pauses = [r["pause_ms"] for r in of if r.get("pause_ms") is not None]
        parts = [p for r in of for p in parts_of(r)]
        yield (name, len(of), sum(not r["ok"] for r in of), spread(p.get("detect_ms") for p in parts), spread(p.get("recovery_ms") for p in parts),
               spread(p.get("healed_ms") for p in parts), f"{max(pauses):.0f}" if pauses else "–", max((r.get("work_lost_steps") or 0) for r in of))


# ---- machine-readable ----

NUMBERS = ("detect_ms", "recovery_ms", "healed_ms", "pause_ms", "work_lost_steps")


def parts_of(r):
    """Faults with figures of their own: those of a storm, or the trial's."""
    return r.get("parts", [r])


def as_json(results):
    """For other programs: stamp, totals, and for each entry all values that were measured."""
    entries = {}
    for r in results.done:
        e = entries.setdefault(r["entry"], {"family": r["family"], "trials": 0, "failed": 0, **{n: [] for n in NUMBERS}})
        e["trials"] += 1
        e["failed"] += not r["ok"]
        for n in NUMBERS:
            e[n] += [p[n] for p in ([r] if n in ("pause_ms", "work_lost_steps") else parts_of(r)) if p.get(n) is not None]
    return {"runs": results.runs, "stamp": results.stamp(), "trials": len(results.done), "failed": len(results.failed),
            "skipped": sorted({r["entry"] for r in results.trials if state(r) == "skipped"}), "entries": entries, "shrunk": results.shrunk,
            "violations": [dict(v, entry=r["entry"], seed=r["seed"]) for r in results.done for v in r.get("violations", [])]}


def write(folder, build, docs=None):
    import document  # pylint: disable=import-outside-toplevel
    import page  # pylint: disable=import-outside-toplevel
    results = Results(folder, build)
    for name, text in (("report.json", json.dumps(as_json(results), indent=1) + "\n"), ("junit.xml", junit(results)), ("report.html", page.page(results))):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)
    if docs:
        text = document.document(results, text_of(docs))
        with open(docs, "w", encoding="utf-8") as f:
            f.write(text)
