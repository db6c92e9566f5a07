#!/usr/bin/env python3
"""What a service manager hears from an agent, with a socket in the manager's place: needs no systemd and no root."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "lib"))
from py_cases import BUILD, DEADLINE_S, RUN, case, environment, main, wait_for  # noqa: E402

STEPPER = os.path.join(BUILD, "tests", "integration", "stepper")
CTL = os.path.join(BUILD, "elastic-ctl")


class Manager:
    def __init__(self, folder):
        self.path = os.path.join(folder, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(DEADLINE_S)
        self.heard = []

    def until(self, pattern, times=1):
        """Messages up to the one that makes it `times` that match; the match of that one."""
        while True:
            self.heard.append(self.socket.recv(8192).decode())
            match = re.search(pattern, self.heard[-1])
            times -= match is not None
            if times == 0:
                return match


@contextlib.contextmanager
def job(folder, **more):
    manager = Manager(folder)
    spec = os.path.join(folder, "job.yaml")
    with open(spec, "w", encoding="utf-8") as f:
        json.dump(dict({"name": f"notify-{os.getpid()}", "command": [STEPPER, "1000000"], "log": {"dir": folder}}, **more), f)
    env = environment(folder, NOTIFY_SOCKET=manager.path, WATCHDOG_USEC="300000")
    with subprocess.Popen([RUN, spec], env=env, cwd=folder, stderr=subprocess.PIPE, text=True) as agent:
        try:
            yield agent, manager
        finally:
            if agent.poll() is None:
                agent.terminate()
            sys.stderr.write(agent.communicate(timeout=DEADLINE_S)[1])


@case
def it_is_told_of_start_life_reload_and_stop(folder):
    # Nobody below the agent speaks for the unit: a helper that could would hold up the start.
    health = ["sh", "-c", 'test -z "$NOTIFY_SOCKET$WATCHDOG_USEC"']
    with job(folder, nproc_per_node=2, health={"command": health}) as (agent, manager):
        manager.until(r"^READY=1\nSTATUS=.")
        assert not any("WATCHDOG_USEC" in text for text in manager.heard)
        manager.until(r"^STATUS=generation 1: 2 ranks on 1 node")
        manager.until(r"^WATCHDOG=1$", times=3)
        manager.until(r"^STATUS=generation 1: 2 ranks on 1 node, step \d+$")
        done = subprocess.run([CTL, "-f", os.path.join(folder, "job.yaml"), "reload"], env=environment(folder), capture_output=True, text=True)
        assert done.returncode == 0 and "nothing new" in done.stdout, done
        assert manager.until(r"^RELOADING=1\nMONOTONIC_USEC=\d+$")
        assert manager.until(r"^READY=1$")
        agent.terminate()
        manager.until(r"^STOPPING=1$")
        assert int(manager.until(r"^EXTEND_TIMEOUT_USEC=(\d+)$")[1]) == 20000000
        assert agent.wait(DEADLINE_S) == 75


@case
def a_status_is_one_line_and_told_once(folder):
    with job(folder, command=["sleep", "2"]) as (agent, manager):
        manager.until(r"^STOPPING=1\nEXTEND_TIMEOUT_USEC=")  # first: where nobody reads, ten messages may be all that there is room for
        assert agent.wait(DEADLINE_S) == 0
        told = [line for text in manager.heard for line in text.splitlines() if line.startswith("STATUS=")]
        assert told[-1] == "STATUS=over: succeeded" and len(told) == len(set(told)) and len(told) < 6, told


@case
def a_missed_watchdog_ends_a_hung_agent_with_all_it_started(folder):
    with job(folder) as (agent, manager):
        manager.until(r"^STATUS=generation 1")
        with open(f"/proc/{agent.pid}/task/{agent.pid}/children", encoding="ascii") as f:
            child = int(f.read())
        os.kill(child, signal.SIGSTOP)
        agent.send_signal(signal.SIGABRT)
        assert agent.wait(DEADLINE_S) == 70
        said = agent.stderr.read()
        assert "gave no sign of life to the service manager's watchdog" in said, said
        wait_for(lambda: not os.path.exists(f"/proc/{child}"))


main()
