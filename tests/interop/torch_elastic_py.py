#!/usr/bin/env python3
"""PyTorch programs that use python/elastic: they live through changes in process. With Debian's python3-torch, over gloo."""

import glob
import json
import os
import re
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "lib"))
from py_cases import DEADLINE_S, RUN, SOURCE, case, main, private_etcd, skip, wait_for  # noqa: E402
from py_cases import environment as plain_environment  # noqa: E402

EXAMPLE = os.path.join(SOURCE, "examples", "torch_elastic_ddp.py")
NOTICED = os.path.join(SOURCE, "examples", "torch_notice_ddp.py")  # knows nothing of elastic-run
STEPS = 120
PACE = ["--steps", str(STEPS), "--log-every", "1", "--pace", "0.03"]

JOB = f"torch-elastic-{os.getpid()}"


def environment(folder, **more):
    return plain_environment(folder, PYTHON_EXEC=sys.executable, GLOO_SOCKET_IFNAME="lo", PYTHONPATH=os.path.join(SOURCE, "python"),
                             PYTHONDONTWRITEBYTECODE="1", **more)


class Agent:
    """An agent whose output is in a file, and whose events can be read while it runs."""

    def __init__(self, folder, *arguments):
        os.makedirs(folder, exist_ok=True)
        self.folder, self.out = folder, os.path.join(folder, "out")
        with open(self.out, "wb") as out, open(os.path.join(folder, "err"), "wb") as err:
            self.process = subprocess.Popen([RUN, "--rdzv-id", JOB, "--local-addr=127.0.0.1", "--log-dir", folder, "-r", "0", "--set=restart.respawn_wait=none",
                                             *arguments],
                                            stdout=out, stderr=err, env=environment(folder), cwd=folder)

    def steps(self):
        """(step, loss, world, generation) of each line of rank 0."""
        with open(self.out, encoding="utf-8") as f:
            found = re.findall(r"^step=(\d+) loss=(\S+) world=(\d+)(?: generation=(\d+))?$", f.read(), re.MULTILINE)
        return [(int(s), float(x), int(w), int(g or 0)) for s, x, w, g in found]

    def reaches(self, step, world):
        wait_for(lambda: self.process.poll() is not None or any(s >= step and w == world for s, _, w, _ in self.steps()))

    def events(self, name):
        found = []
        for path in glob.glob(os.path.join(self.folder, JOB, "events-*.jsonl")):
            with open(path, encoding="utf-8") as f:
                found += [json.loads(line) for line in f if line.endswith("\n")]
        return [e for e in found if e["event"] == name]

    def pids(self):
        """By rank, those of the newest generation in which one was started."""
        return {e["rank"]: e["pid"] for e in self.events("worker_started")}

    def ends(self):
        code = self.process.wait(DEADLINE_S)
        for name in ("out", "err"):
            with open(os.path.join(self.folder, name), encoding="utf-8") as f:
                sys.stderr.write("".join(line for line in f if not line.startswith("step=")))
        return code

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(DEADLINE_S)


def undisturbed(folder):
    """The losses and the last line of a run on one process."""
    done = subprocess.run([sys.executable, EXAMPLE, "--steps", str(STEPS), "--log-every", "1"], capture_output=True, text=True,
                          check=True, env=environment(folder), cwd=folder, timeout=DEADLINE_S)
    return [float(x) for x in re.findall(r"loss=(\S+)", done.stdout)], norm_of(done.stdout)


def norm_of(text):
    return float(re.search(r"^done steps=%d norm=(\S+)" % STEPS, text, re.MULTILINE).group(1))


def assert_same_training(agent, folder):
    losses, norm = undisturbed(folder)
    for step, loss, _, _ in agent.steps():
        assert abs(loss - losses[step - 1]) < 1e-4 * max(1, loss), (step, loss, losses[step - 1])
    with open(agent.out, encoding="utf-8") as f:
        assert abs(norm_of(f.read()) - norm) < 1e-4


@case
def only_connections_are_shut(folder):
    """A file with the inode's number of a connection is none, and costs no descriptor either."""
    text = """
import os, socket, sys
import elastic.torch
a = socket.create_server(("127.0.0.1", 0))
b = socket.create_connection(a.getsockname())
with open(sys.argv[1], "w") as f:
    before = len(os.listdir("/proc/self/fd"))
    elastic.torch._shut({os.fstat(s.fileno()).st_ino for s in (f, b)})
    print(len(os.listdir("/proc/self/fd")) - before, b.recv(1))
"""
    done = subprocess.run([sys.executable, "-c", text, os.path.join(folder, "file")], capture_output=True, text=True, check=False,
                          env=environment(folder), timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (0, "0 b''\n"), done.stdout + done.stderr


@case
def killed_rank_is_replaced_and_the_others_stay(folder):
    agent = Agent(folder, "--nproc-per-node=3", "--max-restarts=2", EXAMPLE, *PACE)
    try:
        agent.reaches(20, 3)
        first = agent.pids()
        os.kill(first[2], signal.SIGKILL)
        wait_for(lambda: agent.process.poll() is not None or agent.steps()[-1][3] > 1)
        os.kill(agent.pids()[0], signal.SIGKILL)  # rank 0, whose state is the newest, too
        assert agent.ends() == 0
    finally:
        agent.kill()
    assert agent.pids()[1] == first[1], "rank 1 was started anew"
    # The step in flight is done again where only the dead rank had got to apply it.
    assert all(e["steps_lost"] <= 1 for e in agent.events("recovered")) and len(agent.events("recovered")) == 2
    # The event is that of the first local rank.
    assert [(e["source"], e["path"]) for e in agent.events("checkpoint_loaded")] == [("peer", "rank 1")]
    assert sorted({s for s, _, _, _ in agent.steps()}) == list(range(1, STEPS + 1))
    assert_same_training(agent, folder)


@case
def nobody_survives_and_the_newest_checkpoint_is_loaded(folder):
    agent = Agent(folder, "--nproc-per-node=2", "--max-restarts=2", "--set", f"checkpoint.dir={folder}/ckpt", EXAMPLE, *PACE,
                  "--save-every", "10")
    try:
        agent.reaches(25, 2)
        for pid in agent.pids().values():
            os.kill(pid, signal.SIGKILL)
        assert agent.ends() == 0
    finally:
        agent.kill()
    loaded = agent.events("checkpoint_loaded")
    assert loaded and all(e["source"] == "disk" and e["step"] >= 20 and e["step"] % 10 == 0 for e in loaded)
    assert [e["step"] for e in agent.events("checkpoint_committed")][-1] == STEPS
    assert_same_training(agent, folder)


@case
def node_joins_and_leaves_without_loss(folder):
    with private_etcd(folder) as endpoint:
        def node(i, *program):
            return Agent(os.path.join(folder, f"node{i}"), "--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=etcd",
                         "--rdzv-endpoint=" + endpoint, f"--node-id=n{i}", "--set=resize.settle=0s", "--set=resize.min_interval=0s",
                         "--rdzv-conf=last_call_timeout=1", EXAMPLE, *program)

        program = ["--steps", str(STEPS), "--log-every", "1", "--pace", "0.1"]
        agents = [node(0, *program)]
        try:
            agents[0].reaches(5, 1)
            agents.append(node(1, *program))
            agents[0].reaches(10, 2)
            agents[1].process.terminate()
            assert agents[1].ends() == 75
            assert agents[0].ends() == 0
        finally:
            for agent in agents:
                agent.kill()
    steps = agents[0].steps()
    assert [s for s, _, _, _ in steps] == list(range(1, STEPS + 1)), "a planned change repeats no step"
    assert [w for i, (_, _, w, _) in enumerate(steps) if i == 0 or steps[i - 1][2] != w] == [1, 2, 1]
    assert not agents[0].events("restart_counted") and len(agents[0].events("worker_started")) == 1
    assert_same_training(agents[0], folder)


@case
def the_agents_word_ends_a_wait(folder):
    agent = Agent(folder, "--nproc-per-node=3", "--max-restarts=1", os.path.join(SOURCE, "tests", "interop", "torch", "abort.py"),
                  os.path.join(folder, "out-of-it"))
    try:
        assert agent.ends() == 0
    finally:
        agent.kill()
    with open(agent.out, encoding="utf-8") as f:
        said = re.findall(r"rank (\d) in generation (\d+) after (\S+) s", f.read())
    assert sorted(rank for rank, _, _ in said) == ["0", "1", "2"] and all(generation == "2" for _, generation, _ in said)


@case
def preempted_program_saves_and_goes_on_where_it_was(folder):
    options = ["--nproc-per-node=2", "--set=resize.notice_signal=USR1", "--set", f"checkpoint.dir={folder}/ckpt", NOTICED, "60", "0.05"]
    agent = Agent(folder, *options)
    try:
        agent.reaches(10, 2)
        agent.process.terminate()
        assert agent.ends() == 75
        steps = agent.steps()
        agent = Agent(folder, *options)
        assert agent.ends() == 0
        steps += agent.steps()
    finally:
        agent.kill()
    assert [s for s, _, _, _ in steps] == list(range(1, 61)), "no step is lost, and none is done again"


@case
def program_that_is_told_loses_no_step_when_a_node_joins(folder):
    with private_etcd(folder) as endpoint:
        def node(i):
            return Agent(os.path.join(folder, f"node{i}"), "--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=etcd",
                         "--rdzv-endpoint=" + endpoint, f"--node-id=n{i}", "--set=resize.settle=0s", "--set=resize.min_interval=0s",
                         "--set=resize.notice_signal=USR1", "--set", f"checkpoint.dir={folder}/ckpt", "--rdzv-conf=last_call_timeout=1",
                         NOTICED, "60", "0.1")

        agents = [node(0)]
        try:
            agents[0].reaches(5, 1)
            agents.append(node(1))
            assert [agent.ends() for agent in agents] == [0, 0]
        finally:
            for agent in agents:
                agent.kill()
    steps = sorted(agents[0].steps() + agents[1].steps())
    assert [s for s, _, _, _ in steps] == list(range(1, 61)) and steps[0][2] == 1 and steps[-1][2] == 2
    assert not agents[0].events("restart_counted")


try:
    import torch  # noqa: F401
except ImportError as missing:
    skip("torch_elastic", missing)
main()
