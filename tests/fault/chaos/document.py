"""docs/reliability.md, all of it, from the results; of what other programs measure and did not where it is made, the page keeps what it has."""

import re

import catalogue
import observer
from report import command, state, summary

DOC = """# Reliability: what was broken on purpose, and what followed

Written by `elastic-chaos report --docs` from the records of these runs; do not edit. {stamp}

What is broken, how, and what must follow then is in the suite's catalogue ([tests/fault](../tests/fault/README.md)): jobs of three agents on
etcd, whose workers train a model that ends with the same bits whatever its world sizes were. *Detected*: the first event that tells of it.
*Recovered*: the first step that all ranks of the world that must follow have applied, counted from the injection; *after healing*: the
same, counted from when the fault was mended. *Longest pause*: between two applied steps anywhere. *Steps again*: steps that were
computed a second time because the way led back to a checkpoint. A node that vanishes without a word is noticed at the end of its lease, {leases} s here.

{total}

| entry | trials | failed | detected, p50 / p99 / max ms | recovered | after healing | longest pause, ms | steps again, most |
|---|--:|--:|--:|--:|--:|--:|--:|
{rows}

## Invariants, looked at from outside all the time

| invariant | checked | violated |
|---|--:|--:|
{invariants}
{storms}
## Pairs of the dangerous twenty

Two at once; how many trials of each pair went well, in bold how many did not. Columns are numbered as rows are.

{matrix}

## Deliberate bugs

{mutations}

## Simulation of the rendezvous

{soak}

## Fuzzers

{fuzz}
{failures}
## Known

{known}"""


def stamp(results):
    found = results.stamp()
    def all_of(name):
        return ", ".join(found[name]) or "unknown"
    load = f"{found['load'][0]:g} to {found['load'][1]:g}" if found["load"] else "unknown"
    busy = f" (programs ran {found['busy'][0]:.1f} to {found['busy'][1]:.1f} times slower than alone)" if found["busy"] else ""
    runs = ", ".join(f"`{c}`" for c in dict.fromkeys(command(run) for run in results.runs))
    return f"{all_of('date')}, revision {all_of('revision')}, etcd {all_of('etcd')}, {all_of('cores')} cores under a load of {load}{busy}, Linux {all_of('kernel')}: {runs}."


def invariants(trials):
    for name, text in observer.INVARIANTS.items():
        checked = sum(r.get("checked", {}).get(name, 0) for r in trials)
        violated = sum(v["violation"] == name for r in trials for v in r.get("violations", []))
        yield f"| {text} | {checked:,} | {violated} |"


def storms(trials):
    found = [r for r in trials if r["family"] == "storm" and r.get("useful") is not None]
    if not found:
        return ""
    return "\n## Storms\n\n| seed | faults | useful time | steps again |\n|--:|--:|--:|--:|\n" + "".join(
        f"| {r['seed']} | {len(r.get('parts', []))} | {100 * r['useful']:.1f} % | {r['work_lost_steps']} |\n" for r in found)


def matrix(trials):
    """Below the diagonal: a cell for each pair."""
    cells = {}
    for r in trials:
        if r["family"] == "pair":
            well, badly = cells.get(frozenset(r["entry"].split("+")), (0, 0))
            cells[frozenset(r["entry"].split("+"))] = (well + r["ok"], badly + (not r["ok"]))
    names = catalogue.DANGEROUS

    def cell(one, other):
        well, badly = cells.get(frozenset((one, other)), (0, 0))
        return " ".join([str(well)] * (well > 0) + [f"**{badly}**"] * (badly > 0)) or "·"

    lines = ["| | " + " | ".join(str(i + 1) for i in range(len(names) - 1)) + " |", "|---|" + "--:|" * (len(names) - 1)]
    lines += [f"| {i + 1} {name} | " + " | ".join(cell(name, names[k]) if k < i else "" for k in range(len(names) - 1)) + " |" for i, name in enumerate(names)]
    return f"{len(cells)} of {len(names) * (len(names) - 1) // 2} pairs.\n\n" + "\n".join(lines)


def sections(page):
    """{title: text} of a page that was made before."""
    found = re.split(r"^## (.*)\n", page, flags=re.M)[1:]
    return {title: text.strip() for title, text in zip(found[::2], found[1::2])}


def mutations(results, before):
    if not results.mutations:
        return before or "`make mutation` has not been run where this page was made."
    revisions = ", ".join(dict.fromkeys(m["revision"][:7] for m in results.mutations))
    lines = [f"Each bug is put into a copy of the sources (revision {revisions}) by `make mutation`, and the test that it names must fail.", "",
             "| bug | what it does wrong | test | caught |", "|---|---|---|:-:|"]
    return "\n".join(lines + [f"| {m['name']} | {m['doc']} | `{m['test']}` | {'yes' if m['caught'] else '**no**'} |" for m in results.mutations])


def soak(results, before):
    if not results.soak:
        return before or "`make soak` has not been run where this page was made."
    said = [line for line in results.soak.splitlines() if not line.startswith("{")]
    return "The core alone, on a virtual clock, by `make soak`; how often each kind of fault met each phase:\n\n```\n" + "\n".join(line.removeprefix("# ") for line in said) + "\n```"


FUZZ = """Readers of bytes from outside, by `make fuzz` with ASan and UBSan; lines of each parser's file that the kept corpus reaches.

| target | minutes | of a core | runs | findings | corpus | lines | date, revision |
|---|--:|--:|--:|--:|--:|---|---|
"""


def fuzz(results, before):
    """Of each target all runs together, and the coverage of the last one; a target that was not run keeps its row."""
    targets = {}
    for line in results.fuzz:
        t = targets.setdefault(line["target"], {"seconds": 0, "cpu_seconds": 0, "runs": 0, "findings": 0})
        t.update({name: line[name] for name in ("corpus", "files", "date", "revision")})
        for name in ("seconds", "cpu_seconds", "runs"):
            t[name] += line[name]
        t["findings"] += len(line["findings"])
    rows = {row.split("|")[1].strip(): row for row in before.splitlines() if row.startswith("| ") and not row.startswith("| target")}
    for name, t in targets.items():
        reached = ", ".join(f"{file} {n['percent']:.0f} %" for file, n in t["files"].items())
        rows[name] = f"| {name} | {t['seconds'] / 60:.0f} | {t['cpu_seconds'] / 60:.0f} | {t['runs']:,} | {t['findings']} | {t['corpus']['inputs']} inputs | {reached} | {t['date']}, {t['revision']} |"
    return FUZZ + "\n".join(row for _, row in sorted(rows.items())) if rows else "`make fuzz` has not been run where this page was made."


def failures(results):
    if not results.failed:
        return ""
    least = {(s["shrunk"], s["seed"]): s for s in results.shrunk if s.get("plan")}
    lines = []
    for r in results.failed:
        found = least.get((r["entry"], r["seed"]))
        short = " Enough for it: " + ", ".join(s["entry"] for s in found["plan"]["steps"]) + "." if found else ""
        mended = results.mended.get((r["entry"], r["seed"], r.get("revision")))
        why = r["why"].strip().split("\n")[-1].strip()
        lines.append(f"- `{r['entry']}`, seed {r['seed']}, revision {r.get('revision')}: {why}.{short}" + (f" *Mended since:* {mended}." if mended else "") + "\n")
    return "\n## Not as it must be\n\n" + "".join(lines)


def document(results, page=""):
    """The page, made anew from what it was."""
    before = sections(page)
    done, skipped = results.done, [r for r in results.trials if state(r) == "skipped"]
    total = f"{len(done)} trials, {len(results.failed)} failed." + (f" Skipped there: {', '.join(sorted({r['entry'] for r in skipped}))}." if skipped else "")
    leases = sorted({r["lease_s"] for r in done if "lease_s" in r}) or [5]
    leases = f"{leases[0]} to {leases[-1]}" if len(leases) > 1 else str(leases[0])
    return DOC.format(stamp=stamp(results), leases=leases, total=total, rows="\n".join("| " + " | ".join(str(v) for v in row) + " |" for row in summary(results.trials)),
                      invariants="\n".join(invariants(done)), storms=storms(done), matrix=matrix(done),
                      mutations=mutations(results, before.get("Deliberate bugs", "")), soak=soak(results, before.get("Simulation of the rendezvous", "")), fuzz=fuzz(results, before.get("Fuzzers", "")),
                      failures=failures(results), known="".join(f"- {k}\n" for k in results.known) or "Nothing.\n")
