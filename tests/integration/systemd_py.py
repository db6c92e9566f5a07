#!/usr/bin/env python3
"""The units of packaging/systemd under a real systemd (tests/lib/systemd_ns.py)."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "lib"))
from py_cases import BUILD, SOURCE, Skip, case, main, wait_for  # noqa: E402
from systemd_ns import Systemd, why_not  # noqa: E402

UNIT = "elastic-agent@.service"
STEPPER = "/run/er-build/tests/integration/stepper"
SECONDS = 40
HARDENING = os.path.join(SOURCE, "packaging", "systemd", "hardening.conf")
STATE = {"why": why_not()}


def unit_text():
    with open(os.path.join(BUILD, "packaging", "system-" + UNIT), encoding="utf-8") as f:
        return re.sub(r"(Exec\w+=)\S+/bin/", r"\1/run/er-build/", f.read()).replace("/etc/elastic-run/jobs", "/run/er/jobs")


def manager():
    """One for all cases, started by the first that needs it."""
    if STATE["why"]:
        raise Skip(STATE["why"])
    if "manager" not in STATE:
        folder = tempfile.mkdtemp()
        STATE["folder"] = folder
        os.makedirs(os.path.join(folder, "jobs"))
        STATE["manager"] = Systemd(folder, BUILD)
        STATE["manager"].unit(UNIT, unit_text())
        STATE["manager"].drop_in(UNIT, "[Service]\nRestartSec=100ms\n")
    try:
        wait_for(STATE["manager"].first, SECONDS)
    except AssertionError as problem:
        STATE["why"] = f"systemd does not start here: {problem}"
        raise Skip(STATE["why"]) from problem
    return STATE["manager"]


def job(name, command=(STEPPER, "1000000"), **more):
    spec = dict({"command": list(command), "nproc_per_node": 2}, **more)
    with open(os.path.join(STATE["folder"], "jobs", name + ".yaml"), "w", encoding="utf-8") as f:
        json.dump(spec, f)
    return f"elastic-agent@{name}.service"


def started(system, name, *command, **more):
    unit = job(name, command or (STEPPER, "1000000"), **more)
    system.ctl("start", unit)
    wait_for(lambda: system.show(unit, "StatusText").startswith("generation "), SECONDS)
    return unit


def processes(system, unit):
    """Guard, agent and their workers, once all are there."""
    return wait_for(lambda: (lambda found: found if len(found) >= 4 else None)(system.processes(unit)), SECONDS)


def agent_of(system, unit):
    guard = system.show(unit, "MainPID")
    found = system.run("cat", f"/proc/{guard}/task/{guard}/children").stdout.split()
    assert len(found) == 1, found
    return found[0]


def events(system, name):
    text = system.run("sh", "-c", f"cat /var/log/elastic-run/{name}/{name}/events-*.jsonl").stdout
    return [json.loads(line) for line in text.splitlines()]


def restarted(system, unit, before):
    """Again up, after whatever was done to it, with nothing of the old left."""
    def is_up():
        state, text, restarts = system.show(unit, "ActiveState", "StatusText", "NRestarts")
        return state == "active" and text.startswith("generation ") and restarts != "0"
    wait_for(is_up, SECONDS)
    now = processes(system, unit)
    assert not set(before) & set(now), (before, now)


@case
def start_is_ready_and_says_what_it_does(_):
    system = manager()
    unit = started(system, "ready")
    assert re.fullmatch(r"generation 1: 2 ranks on 1 node(, step \d+)?", system.show(unit, "StatusText"))
    assert system.show(unit, "ActiveState", "SubState") == ["active", "running"]
    asked = json.loads(system.run("/run/er-build/elastic-ctl", "--job", "ready", "status", "--json").stdout)
    assert asked["sentence"].startswith("generation 1: 2 ranks on 1 node") and asked["job"] == "ready"
    assert re.fullmatch(r"m[0-9a-f]{12}|\S+", asked["node_id"])
    system.ctl("stop", unit)


@case
def lines_have_fields_in_the_journal(_):
    system = manager()
    unit = job("fields", (STEPPER, "5"))
    system.ctl("start", unit)
    wait_for(lambda: system.show(unit, "ActiveState") == "inactive", SECONDS)

    def entries():
        text = system.run("journalctl", "-o", "json", "--no-pager", "ELASTIC_JOB=fields").stdout
        return [json.loads(line) for line in text.splitlines()]
    first = wait_for(entries, SECONDS)[0]
    assert first["SYSLOG_IDENTIFIER"] == "elastic-run" and first["PRIORITY"] == "6" and first["_SYSTEMD_UNIT"] == unit, first


@case
def stop_asks_the_workers_first(_):
    system = manager()
    unit = started(system, "drain")

    def spoke():
        asked = json.loads(system.run("/run/er-build/elastic-ctl", "--job", "drain", "status", "--json").stdout)
        return [w["state"] for w in asked["workers"]] == ["ready", "ready"]
    wait_for(spoke, SECONDS)
    system.ctl("stop", unit)
    assert system.show(unit, "ActiveState", "Result") == ["inactive", "success"]
    assert events(system, "drain")[-1]["exit_code"] == 75
    text = system.run("journalctl", "-u", unit, "-o", "cat", "--no-pager").stdout
    assert "asked 2 workers to save and leave within" in text and "still run" not in text.split("asked 2")[0], text


@case
def stop_takes_the_time_that_the_job_has(_):
    system = manager()
    system.drop_in("elastic-agent@slow.service", "[Service]\nTimeoutStopSec=1s\n")
    system.ctl("daemon-reload")
    unit = started(system, "slow", "sh", "-c", "trap 'sleep 3; touch /run/er/saved; exit 0' TERM; while :; do sleep 0.1; done",
                   stop={"grace": "20s"}, nproc_per_node=1)
    system.ctl("stop", unit)
    assert system.show(unit, "Result") == "success" and events(system, "slow")[-1]["exit_code"] == 75
    assert os.path.exists(os.path.join(STATE["folder"], "saved"))


@case
def reload_reads_the_file_again(_):
    system = manager()
    unit = started(system, "again")
    job("again", log={"timestamps": True, "console": "none"})
    system.ctl("reload", unit)
    assert system.show(unit, "ActiveState", "SubState") == ["active", "running"]
    event = next(e for e in events(system, "again") if e["event"] == "config_reloaded")
    assert event["keys"] == ["log.console", "log.timestamps"], event
    job("again", nproc_per_node=3, restart={"max": 7}, log={"timestamps": False})
    refused = system.run("systemctl", "reload", unit)
    assert refused.returncode != 0
    said = system.run("/run/er-build/elastic-ctl", "--job", "again", "reload").stderr
    assert "nproc_per_node is 3, was 2 (needs a restart of this node's agent)" in said and "restart.max is 7, was 3" in said, said
    assert system.show(unit, "ActiveState", "NRestarts") == ["active", "0"]
    system.ctl("stop", unit)


@case
def agent_that_hangs_is_ended_by_the_watchdog(_):
    system = manager()
    system.drop_in("elastic-agent@hangs.service", "[Service]\nWatchdogSec=4s\n")
    system.ctl("daemon-reload")
    unit = started(system, "hangs")
    before = processes(system, unit)
    system.run("kill", "-STOP", agent_of(system, unit))
    restarted(system, unit, before)
    said = system.run("journalctl", "-u", unit, "-o", "cat", "--no-pager").stdout
    assert "gave no sign of life to the service manager's watchdog" in said, said
    system.ctl("stop", unit)


@case
def agent_and_guard_that_die_are_started_again(_):
    system = manager()
    unit = started(system, "dies")
    before = processes(system, unit)
    system.run("kill", "-KILL", agent_of(system, unit))
    restarted(system, unit, before)
    before = processes(system, unit)
    system.run("kill", "-KILL", system.show(unit, "MainPID"))
    wait_for(lambda: system.show(unit, "NRestarts") == "2", SECONDS)
    restarted(system, unit, before)
    system.ctl("stop", unit)


@case
def job_that_fails_is_not_started_again(_):
    system = manager()
    unit = job("fails", ("sh", "-c", "exit 3"), restart={"max": 1})
    system.run("systemctl", "start", unit)
    wait_for(lambda: system.show(unit, "ActiveState") == "failed", SECONDS)
    assert system.show(unit, "Result", "ExecMainStatus", "NRestarts") == ["exit-code", "3", "0"]
    unit = job("wrong", ("true",), nnodes="2:1")
    system.run("systemctl", "start", unit)
    wait_for(lambda: system.show(unit, "ActiveState") == "failed", SECONDS)
    assert system.show(unit, "ExecMainStatus", "NRestarts") == ["78", "0"]


@case
def crashes_in_a_row_end(_):
    system = manager()
    system.drop_in("elastic-agent@loop.service", "[Unit]\nStartLimitBurst=2\n")
    system.ctl("daemon-reload")
    unit = started(system, "loop")
    before = processes(system, unit)
    system.run("kill", "-KILL", agent_of(system, unit))
    restarted(system, unit, before)
    system.run("kill", "-KILL", agent_of(system, unit))
    wait_for(lambda: system.show(unit, "ActiveState", "Result") == ["failed", "exit-code"], SECONDS)
    assert system.show(unit, "NRestarts") in ("1", "2")


@case
def hardened_agent_works(_):
    system = manager()
    with open(HARDENING, encoding="utf-8") as f:
        system.unit("elastic-agent@hard.service.d/hardening.conf", f.read() + "ReadWritePaths=/run/er\n")
    system.ctl("daemon-reload")
    unit = started(system, "hard", "sh", "-c", "touch /run/er/hard; ! touch /usr/bin/x; exec " + STEPPER + " 1000000")
    wait_for(lambda: os.path.exists(os.path.join(STATE["folder"], "hard")), SECONDS)
    processes(system, unit)
    system.ctl("reload", unit)
    system.ctl("stop", unit)
    assert system.show(unit, "Result") == "success" and events(system, "hard")[-1]["exit_code"] == 75


@case
def sandbox_is_as_tight_as_it_says(folder):
    if not shutil.which("systemd-analyze"):
        raise Skip("systemd-analyze is not installed")
    with open(HARDENING, encoding="utf-8") as f:
        hardening = f.read()
    for text, most in ((unit_text(), 56), (unit_text() + "\n" + hardening, 40)):
        path = os.path.join(folder, UNIT)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        found = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={most}", path],
                               capture_output=True, text=True)
        if "unrecognized option" in found.stderr:
            raise Skip("this systemd-analyze cannot read a file (before 250)")
        assert found.returncode == 0, (most, found.stdout[-200:], found.stderr)


@case
def unit_for_users_is_sound(folder):
    if not shutil.which("systemd-analyze"):
        raise Skip("systemd-analyze is not installed")
    path = os.path.join(folder, UNIT)
    with open(os.path.join(BUILD, "packaging", "user-" + UNIT), encoding="utf-8") as f:
        text = re.sub(r"(Exec\w+=)\S+/bin/", r"\1" + BUILD + "/", f.read())
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    found = subprocess.run(["systemd-analyze", "--user", "verify", "--man=no", path], capture_output=True, text=True,
                           env=dict(os.environ, XDG_RUNTIME_DIR=folder))
    assert found.returncode == 0, found.stderr


try:
    main()
finally:
    if "manager" in STATE:
        STATE["manager"].__exit__()
        shutil.rmtree(STATE["folder"], ignore_errors=True)
