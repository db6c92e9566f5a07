#!/usr/bin/env python3
"""elastic-ctl from a host without an agent of the job, and what it shows of events."""

import contextlib
import glob
import itertools
import json
import os
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "lib"))
from py_cases import BUILD, DEADLINE_S, RUN, SOURCE, case, environment, main, wait_for  # noqa: E402

CTL = os.path.join(BUILD, "elastic-ctl")
PREFIX = "/elastic-run"
STEPPER = os.path.join(BUILD, "tests", "integration", "stepper")


def free_ports(n):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


LINES_TOLD = 60
NUMBERS = itertools.count()  # an agent whose guard was killed takes a while to end, and answers meanwhile


class Job:
    """An etcd and some agents, each at home in a folder of its own; elastic-ctl is at home in another."""

    def __init__(self, folder, nodes, *settings, command=(STEPPER, "1000000"), bounds=None, program=RUN):
        client, peer = free_ports(2)
        self.folder, self.nodes, self.name, self.endpoint = folder, nodes, f"ctl-{os.getpid()}-{next(NUMBERS)}", f"127.0.0.1:{client}"
        self.urls = [f"http://127.0.0.1:{p}" for p in (client, peer)]
        self.settings, self.command, self.agents, self.bounds, self.program = settings, command, [], bounds or f"1:{nodes}", program

    def __enter__(self):
        client, peer = self.urls
        self.etcd = subprocess.Popen(  # pylint: disable=consider-using-with
            ["etcd", "--data-dir", os.path.join(self.folder, "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.etcdctl("get", "--", PREFIX)  # once it answers, elastic-ctl need not wait for it
            for i in range(self.nodes):
                self.start(f"n{i}")
        except BaseException:
            self.end()
            raise
        return self

    def start(self, node):
        home = os.path.join(self.folder, node)
        os.makedirs(home)
        sets = [x for s in self.settings for x in ("--set", s)]
        with open(os.path.join(self.folder, f"{node}.out"), "w", encoding="utf-8") as out:
            self.agents.append(self.agent(node, home, sets, out))

    def agent(self, node, home, sets, out):
        return subprocess.Popen(
            [self.program, f"--nnodes={self.bounds}", "--rdzv-backend=etcd", f"--rdzv-endpoint={self.endpoint}", f"--rdzv-id={self.name}",
             "--node-id", node, "--log-dir", os.path.join(self.folder, "logs"), *sets, *self.command],
            env=environment(home), cwd=home, stdout=out, stderr=out)

    def __exit__(self, kind, *_):
        self.end()
        if kind:
            self.tell()

    def end(self):
        for process in [*self.agents, self.etcd]:
            process.kill()
            process.wait()

    def tell(self):
        """What the agents and their workers wrote, in the report of a case that fails."""
        for path in sorted(glob.glob("*.out", root_dir=self.folder) + glob.glob("logs/*/gen-*/rank-*/*.log", root_dir=self.folder)):
            with open(os.path.join(self.folder, path), encoding="utf-8", errors="replace") as f:
                for line in f.read().splitlines()[-LINES_TOLD:]:
                    print(f"# {path}: {line}")

    def ctl(self, *words, job=True, code=0):
        at = ["--endpoints", self.endpoint, *(["--job", self.name] if job else [])]
        done = subprocess.run([CTL, *at, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False,
                              env=environment(os.path.join(self.folder, "elsewhere")))
        assert code is None or done.returncode == code, f"{words}: {done.returncode} {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def etcdctl(self, *words):
        return subprocess.run(["etcdctl", "--endpoints", self.endpoint, "--dial-timeout=60s", "--command-timeout=60s", *words], check=True, timeout=DEADLINE_S, capture_output=True, text=True,
                              env={**os.environ, "ETCDCTL_API": "3"}).stdout

    def put(self, key, value):
        self.etcdctl("put", "--", key, value)

    def state(self):
        return json.loads(self.ctl("status", "--json"))

    def codes(self):
        return [agent.wait(timeout=DEADLINE_S) for agent in self.agents]


@case
def a_host_without_agent_sees_and_steers_the_job(folder):
    with Job(folder, 3) as job:
        job.ctl("wait", "--nodes", "3", "--timeout", "2m")
        state = job.state()
        assert state["source"] == "store" and state["phase"] == "running" and state["nnodes"] == 3
        assert {n["node"]: n["state"] for n in state["nodes"]} == {"n0": "member", "n1": "member", "n2": "member"}
        listed = [json.loads(line) for line in job.ctl("ps", "--json", job=False).splitlines()]
        assert [(j["job"], j["phase"]) for j in listed] == [(job.name, "running")]
        strange = ["", "a" * 80, "b" * 900, "a\x1b[2J", ".hidden", "a/world/x"]
        for key in [*strange, "a"]:
            job.put(f"{PREFIX}/{key}/j/world", "{")
        listed = [json.loads(line) for line in job.ctl("ps", "--json", job=False).splitlines()]
        assert [(j["job"], j["phase"]) for j in listed] == [("a", "unreadable"), (job.name, "running")], "what others wrote hides no job"
        job.ctl("drain", "n1")
        assert job.agents[1].wait(timeout=DEADLINE_S) == 0
        wait_for(lambda: (s := job.state())["phase"] == "running" and s["nnodes"] == 2)
        job.ctl("scale", "1:1")
        wait_for(lambda: sorted(n["state"] for n in job.state()["nodes"]) == ["member", "spare"])
        job.ctl("stop", "--wait")
        assert [job.agents[0].wait(timeout=DEADLINE_S), job.agents[2].wait(timeout=DEADLINE_S)] == [79, 79]
        state = job.state()
        assert state["phase"] == "stopped" and state["exit_code"] == 79
        assert "is over" in job.ctl("drain", "n0", code=1)
        job.ctl("wait", "--state", "running", code=1)
        job.ctl("wait", "--state", "failed,stopped")


@case
def preempted_job_can_be_run_again(folder):
    with Job(folder, 2) as job:
        job.ctl("wait", "--nodes", "2", "--timeout", "2m")
        assert "every node of job" in job.ctl("stop", "--preempt", "--wait")
        assert job.codes() == [75, 75]
        assert job.state()["phase"] == "forming"
        for words in (("stop", "--wait"), ("stop", "--preempt"), ("drain", "n0")):  # nothing is left for the next run, which would end by it
            text = job.ctl(*words, code=1)
            assert "no node of job" in text and "its next run goes on from where it was" in text, text
        job.start("n7")
        job.ctl("wait", "--state", "running", "--timeout", "2m")


def agent_of(guard):
    with open(f"/proc/{guard.pid}/task/{guard.pid}/children", encoding="ascii") as f:
        return next(pid for pid in map(int, f.read().split()) if os.readlink(f"/proc/{pid}/exe") == os.path.realpath(RUN))


@case
def explain_asks_all_nodes_through_the_store(folder):
    worker = ("sh", "-c", f"echo $$ > $HOME/pid.new; mv $HOME/pid.new $HOME/pid; exec {STEPPER} 1000000")
    with Job(folder, 3, "rendezvous.lease_ttl=10m", command=worker) as job:
        job.ctl("wait", "--nodes", "3", "--timeout", "2m")

        def explained(*words):  # a busy machine may keep a node from answering in time, once
            return wait_for(lambda: (text := job.ctl("explain")) and all(w in text for w in words) and text)

        explained(f"job '{job.name}', generation ", ", as 3 of 3 nodes and its store tell:\n 1. good   ranks move, at step")
        with open(os.path.join(homes(job)[1], "pid"), encoding="ascii") as f:
            pid = int(f.read())
        os.kill(pid, signal.SIGSTOP)
        explained(" 1. wrong  node n1: rank ", f" (pid {pid}) is stopped by a signal", f"-> `kill -CONT {pid}`")
        found = wait_for(lambda: (found := json.loads(job.ctl("explain", "--json"))) and found[0]["code"] == "rank_stopped" and found)
        assert found[0]["nodes"] == ["n1"]
        assert found[-1]["code"] == "moving" and found[-1]["nodes"] is None, "the other ranks wait for nobody"
        agent = agent_of(job.agents[2])
        os.kill(agent, signal.SIGSTOP)
        explained("as 2 of 3 nodes and its store tell", "no answer within 5.0s from node n2", f"(pid {pid}) is stopped")
        os.kill(agent, signal.SIGCONT)
        os.kill(pid, signal.SIGCONT)

        def forgotten():  # at once; a busy machine may leave it to the lease
            keys = job.etcdctl("get", "--prefix", "--keys-only", f"{PREFIX}/{job.name}/")
            return "/query" not in keys and "/answer/" not in keys

        wait_for(forgotten)
        job.ctl("stop", "--wait")
        explained(" 1. good   the job is over here: stopped, exit code 79")


@case
def explain_says_what_a_job_that_forms_waits_for(folder):
    with Job(folder, 1, bounds="2:3") as job:
        text = wait_for(lambda: (text := job.ctl("explain", code=None)) and "1 node is here, and the job needs at least 2" in text and text)
        assert "start more nodes, or lower nnodes; the wait ends in" in text


@case
def explain_says_when_the_nodes_cannot_be_asked(folder):
    password = os.path.join(folder, "password")
    with open(password, "w", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
        f.write("secret")

    def user(name):
        return f"rendezvous.auth.user={name}", f"rendezvous.auth.password_file={password}"

    with Job(folder, 0, *user("root"), bounds="1:2") as job:
        for words in (("user", "add", "root:secret"), ("user", "grant-role", "root", "root"), ("role", "add", "reader"),
                      ("role", "grant-permission", "--prefix=true", "reader", "read", f"{PREFIX}/"), ("user", "add", "reader:secret"),
                      ("user", "grant-role", "reader", "reader"), ("auth", "enable")):
            job.etcdctl(*words)
        job.start("n0")
        as_root, as_reader = ([x for s in user(name) for x in ("--set", s)] for name in ("root", "reader"))
        job.ctl("wait", "--nodes", "1", "--timeout", "2m", *as_root)
        assert "as 0 of 1 nodes and its store tell:\n 1. wrong  the nodes cannot be asked what they know: " in job.ctl("explain", *as_reader)
        wait_for(lambda: "ranks move" in job.ctl("explain", *as_root))


@case
def earlier_releases_are_not_asked_what_they_do_not_know(folder):
    with Job(folder, 1, program=RUN + "-before") as job:
        job.ctl("wait", "--nodes", "1", "--timeout", "2m")
        for words in (("--deadline", "1m"), ("--preempt",)):
            assert "has agents of an earlier release" in job.ctl("stop", *words, code=1)
        job.ctl("stop")
        assert job.codes() == [79]


SAVES = ("sh", "-c", "trap 'echo saved > $HOME/saved; exit 0' USR1; trap 'echo $? > $HOME/term' TERM; echo > $HOME/up; while :; do sleep 0.1; done")
LISTENS_NOT = ("sh", "-c", "trap '' USR1 TERM; echo > $HOME/up; while :; do sleep 0.1; done")
NOTICED = ("resize.notice_signal=USR1", "stop.grace=1h", "preempt.deadline=1h", "resize.grace=1h")


def homes(job):
    return [os.path.join(job.folder, f"n{i}") for i in range(job.nodes)]


def all_up(job):
    for home in homes(job):
        wait_for(lambda at=home: os.path.exists(os.path.join(at, "up")))


@case
def deadline_lets_workers_save_before_a_stop(folder):
    with Job(folder, 2, *NOTICED, command=SAVES) as job:
        job.ctl("wait", "--nodes", "2", "--timeout", "2m")
        all_up(job)
        assert "has ended: exit code 79" in job.ctl("stop", "--deadline", "2m", "--wait")
        assert job.codes() == [79, 79]
        assert [sorted(f for f in os.listdir(home) if f in ("saved", "term")) for home in homes(job)] == [["saved"], ["saved"]]
        assert job.state()["phase"] == "stopped"
        assert "is over" in job.ctl("stop", "--deadline", "1m", code=1)


COMMITS = """
import elastic, os, time
job = elastic.join(required=True)
job.ready()
step = 0
while job.notice() == elastic.Notice.NONE:
    step += 1
    job.progress(step)
    open(os.path.join(os.environ["HOME"], "up"), "w").close()
    time.sleep(0.01)
assert job.notice() == elastic.Notice.DRAIN
job.barrier("saved", 60)
if job.world.rank == 1:
    job.commit(step, "/nowhere/step", digest="00")
    open(os.path.join(os.environ["HOME"], "saved"), "w").close()
job.close()
"""


@case
def what_is_saved_before_a_stop_is_committed(folder):
    os.environ["PYTHONPATH"] = os.path.join(SOURCE, "python")
    with Job(folder, 2, command=(sys.executable, "-B", "-c", COMMITS)) as job:
        job.ctl("wait", "--nodes", "2", "--timeout", "2m")
        all_up(job)  # who has not said a word yet is stopped at once, and the other waits for it in vain
        job.ctl("stop", "--deadline", "2m", "--wait")
        assert job.codes() == [79, 79]
        assert job.state()["checkpoint_step"] > 0 and any(os.path.exists(os.path.join(home, "saved")) for home in homes(job))
        assert "/fence" not in job.etcdctl("get", "--prefix", "--keys-only", f"{PREFIX}/{job.name}/")


@case
def nobody_lives_longer_than_the_deadline(folder):
    with Job(folder, 2, *NOTICED, command=LISTENS_NOT) as job:
        job.ctl("wait", "--nodes", "2", "--timeout", "2m")
        all_up(job)
        assert "its workers have 3s to save" in job.ctl("stop", "--deadline", "3s")
        assert job.codes() == [79, 79]


@case
def preemption_takes_a_deadline_too(folder):
    with Job(folder, 2, *NOTICED, command=LISTENS_NOT) as job:
        job.ctl("wait", "--nodes", "2", "--timeout", "2m")
        all_up(job)
        # As on a node, where an agent is asked: it has the store that elastic-ctl is not told of.
        done = subprocess.run([CTL, "--job", job.name, "stop", "--preempt", "--deadline", "3s"], capture_output=True, text=True,
                              timeout=DEADLINE_S, check=True, env=environment(homes(job)[1]))
        assert "exit code 75; its workers have 3s to save" in done.stdout
        assert job.codes() == [75, 75]
        assert job.state()["phase"] == "forming"


@case
def job_of_one_node_has_the_same_stops(folder):
    for i, (words, command, code) in enumerate(((("--deadline", "2m"), SAVES, 79), (("--deadline", "2s"), LISTENS_NOT, 79),
                                                (("--preempt", "--deadline", "2m"), SAVES, 75), (("--preempt", "--deadline", "2s"), LISTENS_NOT, 75))):
        home, name = os.path.join(folder, f"home{i}"), f"ctl-one-{os.getpid()}-{i}"
        os.makedirs(home)
        with subprocess.Popen([RUN, f"--rdzv-id={name}", *(x for s in NOTICED for x in ("--set", s)), *command], env=environment(home), cwd=home,
                              stderr=subprocess.DEVNULL) as agent:
            wait_for(lambda at=home: os.path.exists(os.path.join(at, "up")))
            subprocess.run([CTL, "--job", name, "stop", "--wait", *words], timeout=DEADLINE_S, check=True, env=environment(home),
                           stdout=subprocess.DEVNULL)
            assert agent.wait(timeout=DEADLINE_S) == code
        assert os.path.exists(os.path.join(home, "saved")) == (command is SAVES)
        assert not os.path.exists(os.path.join(home, "term"))


@case
def wrong_words_are_told(folder):
    with Job(folder, 0) as job:
        for words in (("wait", "--state", "done"), ("wait", "--nodes", "0"), ("wait", "--timeout", "5"), ("drain",), ("scale",),
                      ("scale", "3:1"), ("scale", "x"), ("events", "0"), ("stop", "--deadline", "0s"),
                      ("stop", "--deadline", "none"), ("stop", "--deadline", "5"), ("status", "--deadline", "5s"), ("set", "a=b"), ("status", "--nodes"), ("drain", "-x")):
            job.ctl(*words, code=64)
        for wrong in ("0", "0s", "none", "5", "x"):  # of each, what would be right
            told = job.ctl("stop", "--deadline", wrong, code=64).splitlines()[0]
            assert told == f"elastic-ctl: --deadline: expected a time above 0 with its unit, such as 30s or 5m; got: {wrong}", told
        assert f"no job '{job.name}'" in job.ctl("status", code=66)
        assert "not within 1s" in job.ctl("wait", "--timeout", "1s", code=1)
        job.ctl("status", job=False, code=64)
        job.put(f"{PREFIX}/{job.name}/j/world", "{")
        assert "is damaged" in job.ctl("status", code=69)
        job.endpoint = "127.0.0.1:1"
        assert "not reached" in job.ctl("ps", job=False, code=69)


@case
def events_of_all_nodes_are_in_order(folder):
    with Job(folder, 2, command=("true",)) as job:
        assert job.codes() == [0, 0]
        spec = os.path.join(folder, "job.yaml")
        with open(spec, "w", encoding="utf-8") as f:
            json.dump({"name": job.name, "command": "true", "log": {"dir": os.path.join(folder, "logs")}}, f)
        env = environment(os.path.join(folder, "elsewhere"))

        def lines(*words):
            done = subprocess.run([CTL, "-f", spec, "events", *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False,
                                  env=env)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()
        events = [json.loads(line) for line in lines("--json", "1000")]
        assert {e["node_id"] for e in events} == {"n0", "n1"} and [e["ts"] for e in events] == sorted(e["ts"] for e in events)
        assert len(lines("3")) == 3 and "agent_exited" in lines("1")[0]
        assert any("job_succeeded" in line for line in lines("--follow", "1000"))


@case
def following_goes_on_with_later_nodes_and_new_files(folder):
    logs = os.path.join(folder, "logs", "later")
    os.makedirs(logs)
    spec = os.path.join(folder, "job.yaml")
    with open(spec, "w", encoding="utf-8") as f:
        json.dump({"name": "later", "command": "true", "log": {"dir": os.path.dirname(logs)}}, f)

    def tell(node, event, mode="a"):
        with open(os.path.join(logs, f"events-{node}.jsonl"), mode, encoding="utf-8") as f:
            f.write(json.dumps({"ts": "2026-01-01T00:00:00.000000Z", "node_id": node, "event": event, "msg": "."}) + "\n")

    with subprocess.Popen([CTL, "-f", spec, "events", "--follow", "--json"], stdout=subprocess.PIPE, text=True,
                          env=environment(os.path.join(folder, "elsewhere"))) as reader:
        def heard():
            event = json.loads(reader.stdout.readline())
            return event["node_id"], event["event"]

        tell("n0", "agent_started")  # there was no file at all
        assert heard() == ("n0", "agent_started")
        tell("n1", "agent_started")
        assert heard() == ("n1", "agent_started")
        os.rename(os.path.join(logs, "events-n1.jsonl"), os.path.join(logs, "events-n1.old"))
        tell("n1", "generation_sealed")
        assert heard() == ("n1", "generation_sealed")
        tell("n1", "node_left", "w")  # shorter than it was
        assert heard() == ("n1", "node_left")
        tell("n1", "agent_exited")
        assert heard() == ("n1", "agent_exited")
        tell("n0", "agent_exited")
        assert heard() == ("n0", "agent_exited")
        assert reader.wait(timeout=DEADLINE_S) == 0


@case
def a_terminal_finds_nothing_to_act_upon(folder):
    logs = os.path.join(folder, "logs [1]")  # no pattern
    os.makedirs(os.path.join(logs, "evil"))
    os.mkfifo(os.path.join(logs, "evil", "events-n1.jsonl"))
    spec = os.path.join(folder, "job.yaml")
    with open(spec, "w", encoding="utf-8") as f:
        json.dump({"name": "evil", "command": "true", "log": {"dir": logs}, "node": {"id": "n0"}}, f)
    event = {"ts": "2026-01-01T00:00:00.000000Z", "event": "worker_exited", "severity": "error", "node_id": "n\x1b[31m0", "generation": 1,
             "msg": "title\x1b]0;owned\x07 and\na line\x9b2J, \u00e4"}
    end = {"ts": "2026-01-01T00:00:01.000000Z", "event": "agent_exited", "job": "evil", "exit_code": 1, "outcome": "failed\x1b[2J"}
    with open(os.path.join(logs, "evil", "events-n0.jsonl"), "w", encoding="utf-8") as f:
        for line in (json.dumps(event, ensure_ascii=False), "[1, 2]", '"text"', "torn {", "\0" * 20, json.dumps(end)):
            f.write(line + "\n")
    for words, lines in (("events",), 2), (("events", "--follow"), 2), (("status",), 1):
        done = subprocess.run([CTL, "-f", spec, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False,
                              env=environment(os.path.join(folder, "home")))
        assert done.returncode == (66 if words[0] == "status" else 0), done.stderr
        assert all(c == "\n" or c.isprintable() for c in done.stdout), done.stdout
        assert done.stdout.count("\n") == lines, done.stdout
        assert words[0] == "status" or "title?]0;owned? and a line??2J, \u00e4\n" in done.stdout, done.stdout


@case
def who_waits_is_told_once_that_the_agent_died(folder):
    logs, spec = os.path.join(folder, "logs"), os.path.join(folder, "job.yaml")
    os.makedirs(os.path.join(logs, "lost"))
    with open(spec, "w", encoding="utf-8") as f:
        json.dump({"name": "lost", "command": "true", "log": {"dir": logs}, "node": {"id": "n0"}}, f)
    with open(os.path.join(logs, "lost", "events-n0.jsonl"), "w", encoding="utf-8") as f:
        f.write('{"ts":"2026-01-01T00:00:00.000000Z","event":"worker_started","job":"lost"}\n')
    done = subprocess.run([CTL, "-f", spec, "wait", "--timeout", "3s"], capture_output=True, text=True, timeout=DEADLINE_S, check=False,
                          env=environment(os.path.join(folder, "home")))
    assert done.returncode == 1 and done.stderr.count("its agent died after 2026") == 1, done.stderr
    assert done.stderr.count("\n") == 3, done.stderr


@case
def certificates_are_gone_whenever_it_ends(folder):
    tmp, spec, secret = (os.path.join(folder, n) for n in ("tmp", "job.yaml", "secret"))
    os.mkdir(tmp)
    with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as f:
        f.write("a secret that is long enough for certificates\n")
    store = {"backend": "managed", "endpoints": f"127.0.0.1:{free_ports(1)[0]}", "managed": {"secret_file": secret}}
    with open(spec, "w", encoding="utf-8") as f:
        json.dump({"name": "lost", "command": "true", "nnodes": "1:2", "rendezvous": store}, f)
    with subprocess.Popen([CTL, "-f", spec, "status"], env={**environment(os.path.join(folder, "home")), "TMPDIR": tmp},
                          stderr=subprocess.PIPE, text=True) as ctl:
        wait_for(lambda: os.listdir(tmp) or ctl.poll() is not None)
        ctl.send_signal(signal.SIGTERM)
        assert ctl.wait(timeout=DEADLINE_S) in (-signal.SIGTERM, 69), ctl.stderr.read()  # 69: the folder came and went unseen
    assert os.listdir(tmp) == []


@case
def what_is_missing_is_told_once(folder):
    with Job(folder, 0) as job:
        words = [w for key in ("ca", "cert", "key") for w in ("--set", f"rendezvous.tls.{key}={folder}/none.pem")]
        told = job.ctl(*words, "status", code=69).splitlines()
        assert len(told) == 1 and "none.pem" in told[0], told


if __name__ == "__main__":
    main()
