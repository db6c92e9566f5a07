#!/usr/bin/env python3
"""The parts of elastic-chaos that decide something, by themselves: plans, seeds, shrinking, time under load, what a report says."""

import contextlib
import io
import json
import os
import random
import subprocess
import sys
import time
import types

sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "lib"))
sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "fault", "chaos"))
from py_cases import BUILD, case, main  # noqa: E402

import catalogue  # noqa: E402
import course  # noqa: E402
import document  # noqa: E402
import load  # noqa: E402
import observer  # noqa: E402
import pool  # noqa: E402
import report  # noqa: E402
import schedule  # noqa: E402
import shim  # noqa: E402
import shrink  # noqa: E402
from job import Record, step_of  # noqa: E402
from trial import Failed, Fault, Trial  # noqa: E402

ENTRIES = catalogue.load()


def failing(plans, when):
    """Takes the place of pool.each: trials fail when `when` of their plan says so."""
    for plan in plans:
        yield {"ok": not when(plan), "why": "it stands still for 7.25 s", "plan": plan}


def shrunk(result, when, folder):
    real, pool.each = pool.each, lambda plans, args, jobs: failing(plans, when)
    try:
        return shrink.of(result, types.SimpleNamespace(results=folder, jobs=3), lambda text: None)
    finally:
        pool.each = real


@case
def the_dangerous_are_twenty_that_exist(_folder):
    assert len(set(catalogue.DANGEROUS)) == len(catalogue.DANGEROUS) == 20
    assert set(catalogue.DANGEROUS) <= set(ENTRIES)
    assert all(e.expect.code is None for e in map(ENTRIES.get, catalogue.DANGEROUS)), "a job that ends cannot be paired"


@case
def every_entry_says_what_it_does(_folder):
    for e in ENTRIES.values():
        assert e.doc and e.doc[-1] != "." and e.expect.charged[0] <= e.expect.charged[1], e.name
        assert e.family in course.ORDER, e.name


@case
def a_seed_gives_the_same_plan(_folder):
    one, other = ENTRIES["loss"], ENTRIES["agent_kill"]
    assert course.pair_plan(one, other, 5) == course.pair_plan(other, one, 5)
    assert json.loads(json.dumps(course.pair_plan(one, other, 5))) == course.pair_plan(one, other, 5)
    plan = course.storm_plan([one, other], 3, 1, 2)
    steps = [course.Storm(plan).steps() for _ in range(2)]
    assert [next(steps[0]) for _ in range(9)] == [next(steps[1]) for _ in range(9)]


@case
def a_fault_chooses_by_its_key_alone(_folder):
    picks = [(f.params, f.random.random()) for f in (Fault(ENTRIES["loss"], "k"), Fault(ENTRIES["loss"], "k"))]
    assert picks[0] == picks[1]
    assert Fault(ENTRIES["loss"], "k", {"t": 1}).random.random() == picks[0][1], "a given parameter changes no victim"


@case
def shrinking_finds_the_two_that_matter(folder):
    names = sorted(ENTRIES)
    plan = course.storm_plan([ENTRIES[n] for n in names], 1, 1, 1)
    parts = [{"entry": random.Random(i).choice(names), "key": f"k{i}", "wait": 1.5} for i in range(23)]
    result = {"ok": False, "why": "it stands still for 9.5 s", "plan": plan, "parts": parts, "entry": "storm", "seed": 1}
    found = shrunk(result, lambda p: {"k4", "k17"} <= {s["key"] for s in p["steps"]}, folder)
    assert [s["key"] for s in found["plan"]["steps"]] == ["k4", "k17"]
    assert all(s["wait"] == 0 for s in found["plan"]["steps"])
    with open(found["file"], encoding="utf-8") as f:
        assert json.load(f) == found["plan"]


@case
def shrinking_tells_one_failure_from_another(folder):
    plan = course.pair_plan(ENTRIES["loss"], ENTRIES["agent_kill"], 1)
    other = {"ok": False, "violations": [{"violation": "two_commit", "what": ""}], "plan": plan, "entry": plan["name"], "seed": 1, "why": "x"}
    assert shrunk(other, lambda p: True, folder)["plan"] is None


@case
def a_trial_that_breaks_down_is_a_failed_one(folder):
    args = types.SimpleNamespace(build=os.path.join(folder, "nothing"), results=folder, patience=1, lease=None, keep=False)
    result = pool.one(course.alone_plan(ENTRIES["budget_spent"], 1), args)
    assert not result["ok"] and result["why"], result


@case
def a_fault_of_which_nothing_shows_fails(_folder):
    t = Trial.__new__(Trial)
    t.fault, fault = None, Fault(ENTRIES["worker_kill"], "k")
    try:
        t.heal(fault)
    except Failed as why:
        assert "was not injected" in str(why)
    else:
        raise AssertionError("it passed")
    with t.acting(fault):
        t.must(True, "seen")
    t.heal(fault)


@case
def a_restart_whose_event_was_lost_is_counted(_folder):
    t, record = Trial.__new__(Trial), Record.__new__(Record)
    t.job, t.course = types.SimpleNamespace(record=record), types.SimpleNamespace(charged=(1, 3))
    record.events = [{"event": "job_succeeded", "restarts": 1}, {"event": "job_succeeded", "restarts": 1}]
    assert t.budget() == 1
    record.events.append({"event": "restart_counted", "used": 2})
    assert t.budget() == 2
    record.events = []
    try:
        t.budget()
    except Failed as why:
        assert "0 restarts charged" in str(why)
    else:
        raise AssertionError("it passed")


@case
def a_folder_of_results_belongs_to_one_run(folder):
    args = types.SimpleNamespace(results=folder, add=True, tap=False, verb="run", names=[], seed=1, build=BUILD, default=False, all=False, patience=1, jobs=1)
    first = schedule.Sink(args, 1)
    kept = os.path.join(folder, "plans", "of-the-first")
    os.makedirs(kept)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            schedule.Sink(args, 1)
        except SystemExit as end:
            assert end.code == 69 and "another run" in said.getvalue(), said.getvalue()
        else:
            raise AssertionError("both have it")
    assert os.path.isdir(kept)
    first.out.close()


@case
def time_passes_more_slowly_under_load(_folder):
    clock = load.Clock()
    clock._measure = lambda: 8.0  # pylint: disable=protected-access
    clock.factor, began = 8.0, time.monotonic()
    before = clock.at
    while time.monotonic() < began + 0.4:
        clock.look()
        time.sleep(0.01)
    passed = time.monotonic() - began
    assert clock.at - before <= passed / 8 + 0.1, (clock.at - before, passed)
    assert 1 <= load.busy(0.05) <= load.FACTOR_MAX


@case
def half_a_line_is_no_step(_folder):
    assert step_of("1 2 3 0 3 77 abcd 16", "n1-0").step == 2
    assert step_of("1 2 3 0 3 77 ab", "n1-0") is None and step_of("1 2 3 0 x 77 abcd 16", "n1-0") is None


def number(n):
    return bytes([n])


def commit(generation, step, digest=b"d"):
    """A record of rendezvous/codec.c."""
    return b"c1" + number(generation) + number(step) + number(len(digest)) + digest + number(1) + b"p"


def observed(folder, *changes):
    """The invariants that these changes of the store violate."""
    o = observer.Observer({"name": "j", "folder": folder, "nodes": 1, "per_node": 1, "etcd": [], "digests": [], "checkpoints": folder, "build": BUILD})
    with contextlib.redirect_stdout(io.StringIO()):
        for revision, (key, value) in enumerate(changes, 1):
            if key is None:
                o.on_state(value)
            else:
                o.on_change("PUT", "/elastic-run/j/" + key, value, revision)
    return {kind for kind, _ in o.said}, o


def assigned(generation):
    return b"a1" + number(generation) + number(1) + number(1) + number(0) + number(0)


@case
def the_observer_knows_a_commit_of_an_old_generation(folder):
    begin = [("a/n0", assigned(1)), ("fence", b"1:1"), ("ckpt/latest", commit(1, 10)), ("a/n0", assigned(2)), ("fence", b"2:1")]
    assert observed(folder, *begin)[0] == set()
    assert observed(folder, *begin, ("ckpt/latest", commit(2, 12)))[0] == set()
    assert observed(folder, *begin, ("ckpt/latest", commit(1, 11)))[0] == {"two_commit"}
    assert observed(folder, *begin, ("ckpt/latest", commit(1, 10)))[0] == set(), "the same again is none"
    assert observed(folder, *begin, ("ckpt/latest", commit(1, 10, b"e")))[0] == {"two_commit"}
    assert "fence_back" in observed(folder, *begin, ("fence", b"1:2"))[0]
    assert observed(folder, *begin, ("a/n0", assigned(1)), ("fence", b"3:1"))[0] == {"node_ranks"}


@case
def what_was_compacted_away_is_no_violation(folder):
    begin = [("a/n0", assigned(1)), ("fence", b"1:1")]
    state = {"/elastic-run/j/fence": b"4:1", "/elastic-run/j/ckpt/latest": commit(4, 40), "/elastic-run/j/a/n0": assigned(4)}
    said, o = observed(folder, *begin, (None, state), ("ckpt/latest", commit(4, 42)))
    assert said == set() and o.fence == 4 and o.latest["step"] == 42
    assert observed(folder, *begin, (None, state), ("ckpt/latest", commit(3, 43)))[0] == {"two_commit"}


@case
def waits_go_with_a_clock_of_another_pace(folder):
    orders = shim.Orders(os.path.join(folder, "orders"))
    environment = dict(os.environ, LOCAL_RANK="0", CHAOS_ORDERS=orders.path, CHAOS_NODE="job/2", LD_PRELOAD=shim.library(BUILD))
    waits = os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "fault", "chaos_waits.py")
    for rate in (0.5, 1.0, 2.0):
        orders.monotonic(2, rate)
        out = subprocess.run(["/usr/bin/python3", "-B", waits], env=environment, capture_output=True, text=True, check=True).stdout
        for name, own, real in (line.split() for line in out.splitlines()):
            # A wait that did not go with it would be half as long where the clock is slow.
            assert float(own) >= 0.0999, f"{name} at {rate}: {own} s of 0.1"
            assert abs(float(own) - rate * float(real)) < 0.02 + 0.05 * float(real), f"{name} at {rate}: {own} s in {real} s"
        reads, used = orders.monotonic_uses(2)
        assert reads > 0 and used >= len(out.splitlines()) == 9, out
    before = orders.monotonic_uses(1)
    assert before == (0, 0), "another node's clock"


@case
def the_report_tells_where_it_comes_from(folder):
    stamp = {"revision": "r1", "etcd": "3.4", "kernel": "6", "cores": 2, "date": "2026-01-02", "load": 3.5}
    trials = [{"entry": "loss+agent_kill", "family": "pair", "seed": 4, "ok": False, "why": "<stood still>", "params": {}, "began": 1, "ended": 5, "busy": 1.5, "lease_s": 5, **stamp},
              {"entry": "loss", "family": "network", "seed": 1, "ok": True, "params": {}, "began": 1, "ended": 3, "detect_ms": 12, "busy": 2, "lease_s": 5, "work_lost_steps": 3, **stamp}]
    run = {"verb": "run", "names": [], "options": ["--default"], "seed": 4}
    with open(os.path.join(folder, "result.jsonl"), "w", encoding="utf-8") as f:
        f.writelines(json.dumps(x) + "\n" for x in [{"run": run}, *trials, {"mended": "a lock", "entry": "loss+agent_kill", "seed": 4, "revision": "r1"}, {"known": "a slow disk"}])
    report.write(folder, BUILD, os.path.join(folder, "doc.md"))
    texts = {name: report.text_of(os.path.join(folder, name)) for name in ("doc.md", "report.html", "junit.xml", "report.json")}
    for part in ("2026-01-02, revision r1, etcd 3.4, 2 cores under a load of 3.5 to 3.5", "`elastic-chaos run --default --seed 4`", "| loss | 1 | 0 | 12 / 12 / 12 |", "`loss+agent_kill`, seed 4, revision r1: <stood still>. *Mended since:* a lock.", "- a slow disk\n"):
        assert part in texts["doc.md"], part
    fuzzed = {"target": "ctl", "seconds": 600, "cpu_seconds": 120, "runs": 7, "findings": [], "corpus": {"inputs": 3}, "files": {"ctl.c": {"percent": 91}}, "date": "2026-01-03", "revision": "r2"}
    os.makedirs(os.path.join(folder, "fuzz"))
    with open(os.path.join(folder, "fuzz", "result.jsonl"), "w", encoding="utf-8") as f:
        f.write(json.dumps(fuzzed) + "\n")
    before = texts["doc.md"].replace("`make fuzz` has not been run where this page was made.", "| ctl | 1 |\n| idx | 20 |").replace("`make soak` has not been run", "A soak")
    again = document.document(report.Results(folder, folder), before)
    assert "| ctl | 10 | 2 | 7 | 0 | 3 inputs | ctl.c 91 % | 2026-01-03, r2 |\n| idx | 20 |\n" in again and "| ctl | 1 |" not in again and "\nA soak" in again, again
    row = next(line for line in document.matrix(trials).splitlines() if line.startswith("| 14 loss |"))
    assert row.split("|")[2:][4].strip() == "**1**", row
    assert "&lt;stood still&gt;" in texts["report.html"] and 'failures="1"' in texts["junit.xml"]
    assert json.loads(texts["report.json"])["entries"]["loss"]["detect_ms"] == [12]


if __name__ == "__main__":
    main()
