#!/usr/bin/env python3
"""Who else is on the network, and on the host: which sockets of a job listen (each is one that docs/threat-model.md names), what a stranger who
connects to all of them can do (nothing), and what another user can prepare for an agent that is yet to start (nothing)."""

import collections
import contextlib
import glob
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request

sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "lib"))
import private_space  # noqa: E402
from py_cases import BUILD, DEADLINE_S, RUN, SOURCE, case, environment, free_port, main, skip, wait_for  # noqa: E402

WORKER = os.path.join(BUILD, "tests", "fault", "chaos_worker")
STEPS, EPOCHS, PARAMS = 240, 3, 257
JOB = {"WORKER_STEPS": str(STEPS), "WORKER_EPOCHS": str(EPOCHS), "WORKER_PARAMS": str(PARAMS), "WORKER_DIGESTS": "1", "WORKER_SLOW_MS": "20", "WORKER_SAVE_STEPS": "50"}
Listener = collections.namedtuple("Listener", "program address port")


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


# ---- what listens ----

def processes():
    """All of this test's processes: {pid: name}; the namespace has no others."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                found[int(name)] = read(f"/proc/{name}/comm").strip()
    return found


def owners():
    """{inode of a socket: name of a process that has it}"""
    found = {}
    for pid, name in processes().items():
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}")):
                        found[match.group(1)] = name
    return found


def address_of(text):
    words = struct.unpack(f"<{len(text) // 8}I", struct.pack(f">{len(text) // 8}I", *(int(text[i:i + 8], 16) for i in range(0, len(text), 8))))
    return socket.inet_ntop(socket.AF_INET if len(text) == 8 else socket.AF_INET6, struct.pack(f">{len(words)}I", *words))


def open_ports():
    """Every TCP socket that listens and every UDP, raw or packet socket that is bound: {(protocol, address, port, inode)}."""
    found = set()
    for protocol in ("tcp", "tcp6", "udp", "udp6", "udplite", "raw", "raw6"):
        with contextlib.suppress(OSError):
            for line in read(f"/proc/net/{protocol}").splitlines()[1:]:
                fields = line.split()
                host, port = fields[1].split(":")
                if not protocol.startswith("tcp") or fields[3] == "0A":
                    found.add((protocol, address_of(host), int(port, 16), fields[9]))
    return found


def unix_listeners():
    """(type, path or "@name") of each Unix socket that listens."""
    found = set()
    for line in read("/proc/net/unix").splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & 0x10000 and len(fields) > 7:
            found.add((int(fields[4], 16), fields[7]))
    return found


class Watch(threading.Thread):
    """Looks again and again at what listens."""

    def __init__(self):
        super().__init__(daemon=True)
        self.inet, self.unix, self.over = set(), set(), False
        self.start()

    def run(self):
        names = {}
        while not self.over:
            ports = open_ports()
            if any(inode not in names for *_, inode in ports):
                names.update(owners())
            for protocol, address, port, inode in ports:
                self.inet.add((names.get(inode, "?"), protocol.rstrip("6"), address, port))
            self.unix |= unix_listeners()
            time.sleep(0.002)

    def stop(self):
        self.over = True
        self.join()
        return self.inet


# ---- jobs ----

def start(folder, *args, name="hostile", **env):
    log = open(os.path.join(folder, f"agent-{len(os.listdir(folder))}.log"), "w", encoding="utf-8")  # pylint: disable=consider-using-with
    agent = subprocess.Popen([RUN, "--rdzv-id", name, f"--set=log.dir={folder}/logs", *args], env=environment(folder, WORKER_DIR=folder, **JOB, **env), stdout=log, stderr=log)  # pylint: disable=consider-using-with
    agent.log = log.name
    log.close()
    return agent


def managed(folder, endpoint, peer_port, node, *more, **env):
    secret = os.path.join(folder, "secret")
    if not os.path.exists(secret):
        with open(secret, "w", encoding="utf-8", opener=lambda p, flags: os.open(p, flags, 0o600)) as f:
            f.write("0123456789abcdef0123456789abcdef\n")
    return start(folder, "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--nnodes=2", "--nproc-per-node=2", f"--node-id=n{node}", "--max-restarts=20", "--set=restart.node_strikes.max=1000",
                 f"--set=rendezvous.managed.secret_file={secret}", f"--set=rendezvous.managed.peer_port={peer_port}", f"--set=checkpoint.dir={folder}/ckpt", "--set=stop.grace=5s", *more, WORKER,
                 **env)


def hold(folder, local_rank):
    """That rank of node n0 does not connect until the file is removed: until then the others listen."""
    path = os.path.join(folder, f"hold-start.n0-{local_rank}")
    with open(path, "w", encoding="utf-8"):
        return path


def ended_well(*agents):
    for agent in agents:
        assert agent.wait(DEADLINE_S) == 0, read(agent.log)


def till_it_is_seen(folder):
    """A worker that ends when `seen` says so, however long a busy machine takes to look."""
    return "sh", "-c", f"while [ ! -e {folder}/seen ]; do sleep 0.1; done"


def seen(folder, agent):
    with open(os.path.join(folder, "seen"), "w", encoding="utf-8"):
        pass
    ended_well(agent)


def rows():
    """First words of the rows of the table of ports."""
    text = read(os.path.join(SOURCE, "docs", "threat-model.md")).split("## What listens")[1].split("##")[0]
    return re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE)[1:]


def expect(seen, **wanted):
    """`wanted`: a check of (protocol, address, port) for each row of the table that may be seen here; each was seen, and nothing else."""
    names = {row.replace(" ", "_").replace("`", "").replace(".", "_"): row for row in rows()}
    for row in wanted:
        assert row in names, f"the page has no row '{row}', but {sorted(names)}"
    left = {s for s in seen if s[0] not in ("python3", "?")}
    for row, check in wanted.items():
        mine = {s for s in left if check(*s)}
        assert mine, f"{row}: not seen, but {left}"
        left -= mine
    assert not left, f"not on the page: {left}"


@case
def a_job_of_one_node_listens_nowhere(folder):
    watch = Watch()
    agent = start(folder, "--nproc-per-node=2", *till_it_is_seen(folder))
    wait_for(lambda: len(watch.unix) > 1)  # of the agent and of its workers
    seen(folder, agent)
    expect(watch.stop())
    assert all(path.startswith("/run/elastic-run/hostile/") for _, path in watch.unix), watch.unix


@case
def communicators_listen_while_they_connect(folder):
    for transport, inet in (("auto", False), ("tcp", True)):
        own = os.path.join(folder, transport)
        os.makedirs(own)
        late = hold(own, 2)
        watch = Watch()
        agent = start(own, "--nproc-per-node=3", "--node-id=n0", WORKER, ELASTIC_COMM_TRANSPORT=transport)
        wait_for(lambda: any(name == "chaos_worker" for name, *_ in list(watch.inet)) if inet else any(path.startswith("@") for _, path in list(watch.unix)))
        os.unlink(late)
        ended_well(agent)
        assert not inet or not open_ports()
        if inet:
            expect(watch.stop(), communicator=lambda name, protocol, address, _: (name, protocol) == ("chaos_worker", "tcp") and address in ("127.0.0.1", "::"))
        else:
            expect(watch.stop())


@case
def http_listens_where_it_was_told(folder):
    port = free_port()
    watch = Watch()
    agent = start(folder, f"--set=http.listen=127.0.0.1:{port}", *till_it_is_seen(folder))
    wait_for(lambda: any(name == "elastic-run" for name, *_ in list(watch.inet)))
    seen(folder, agent)
    expect(watch.stop(), http_listen=lambda name, protocol, address, at: (name, protocol, address, at) == ("elastic-run", "tcp", "127.0.0.1", port))


@case
def managed_etcd_listens_at_its_endpoint(folder):
    client, peer = free_port(), free_port()
    watch = Watch()
    late = hold(folder, 1)
    agents = [managed(folder, f"127.0.0.1:{client}", peer, node, ELASTIC_COMM_TRANSPORT="tcp") for node in range(2)]
    wait_for(lambda: any(name == "chaos_worker" for name, *_ in list(watch.inet)))
    os.unlink(late)
    ended_well(*agents)
    expect(watch.stop(), managed_etcd_clients=lambda name, protocol, address, at: (name, protocol, address, at) == ("etcd", "tcp", "127.0.0.1", client),
           communicator=lambda name, protocol, *_: (name, protocol) == ("chaos_worker", "tcp"))


# ---- a stranger on the network ----

HUGE = (b"ECTL\x01\0\0\0\x01\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", b"ERCT\xff\xff\xff\xff", b"\x16\x03\x01\xff\xff" + b"\x01\xff\xff\xff",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n", b"GET /" + b"a" * 70000, b"\xff\xff\xff\x00\x04\0\0\0\0",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x04\0\0\0\0\0")
IDLE_MAX = 300


class Stranger(threading.Thread):
    """Connects to whatever listens: random bytes, bytes of handshakes that were seen on the wire, lengths that nobody has, and nothing at all."""

    def __init__(self, tap, seed):
        super().__init__(daemon=True)
        self.tap, self.random, self.over = tap, random.Random(seed), False
        self.idle, self.counts, self.replayed = collections.defaultdict(list), collections.Counter(), 0
        self.start()

    def words(self):
        seen = [text[:64] for text in self.tap.everything() if text[:4] == b"ERCM"]
        if seen and self.random.random() < 0.3:
            self.replayed += 1
            return self.random.choice(seen)
        if self.random.random() < 0.5:
            return self.random.choice(HUGE)
        return self.random.randbytes(self.random.randrange(1, 5000))

    def dial(self, where):
        kind, address = where
        family = {"tcp": socket.AF_INET, "tcp6": socket.AF_INET6}.get(kind, socket.AF_UNIX)
        s = socket.socket(family, socket.SOCK_STREAM if kind != 5 else socket.SOCK_SEQPACKET)
        s.settimeout(1)
        try:
            s.connect(address)
        except OSError:
            s.close()
            return None
        self.counts[where] += 1
        return s

    def attack(self, where):
        s = self.dial(where)
        if s and len(self.idle[where]) < IDLE_MAX:
            self.idle[where].append(s)
            s = self.dial(where)
        if s:
            with s, contextlib.suppress(OSError):
                s.send(self.words())
                if self.random.random() < 0.5:
                    s.shutdown(socket.SHUT_WR)
                    s.settimeout(0.01)
                    s.recv(4096)

    def targets(self):
        for protocol, address, port, _ in open_ports():
            if protocol in ("tcp", "tcp6"):
                yield protocol, ("::1" if protocol == "tcp6" and address == "::" else address, port)
        for kind, path in unix_listeners():
            yield kind, ("\0" + path[1:] if path.startswith("@") else path)

    def run(self):
        while not self.over:
            for where in list(self.targets()):
                with contextlib.suppress(OSError):
                    self.attack(where)

    def stop(self):
        self.over = True
        self.join()
        for sockets in self.idle.values():
            for s in sockets:
                s.close()


def use_of(pid):
    """(resident bytes, descriptors)"""
    return int(re.search(r"VmRSS:\s+(\d+)", read(f"/proc/{pid}/status")).group(1)) << 10, len(os.listdir(f"/proc/{pid}/fd"))


def steps_of(folder):
    return [line.split() for path in glob.glob(os.path.join(folder, "trace.n*")) for line in read(path).splitlines()]


@case
def a_stranger_changes_nothing(folder):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 14), hard))
    reference = subprocess.run([WORKER, "reference", str(PARAMS), str(STEPS), str(EPOCHS)], capture_output=True, text=True, check=True).stdout.split()
    client, peer, http = free_port(), free_port(), free_port()
    with open(os.path.join(folder, "slow"), "w", encoding="utf-8"):
        pass
    stranger = Stranger(private_space.WireTap(), 1)
    most = collections.defaultdict(lambda: [0, 0])
    agents = [managed(folder, f"127.0.0.1:{client}", peer, node, f"--set=http.listen=127.0.0.1:{http}" if node == 0 else "--set=metrics.textfile=none", ELASTIC_COMM_TRANSPORT="tcp") for node in range(2)]
    killed, healthy = 0, False
    until = time.monotonic() + 5 * DEADLINE_S
    while any(a.poll() is None for a in agents):
        assert time.monotonic() < until, read(agents[0].log)
        for pid, name in processes().items():
            if name.startswith("elastic-"):
                with contextlib.suppress(OSError, AttributeError):
                    for i, value in enumerate(use_of(pid)):
                        most[name][i] = max(most[name][i], value)
        done = max((int(s[1]) for s in steps_of(folder)), default=0)
        if killed < 3 and done >= 60 * (killed + 1):  # communicators open anew, with the stranger about
            with contextlib.suppress(OSError, IndexError):
                os.kill(int(read(os.path.join(folder, f"pid.n{killed % 2}-0")).split()[-1]), signal.SIGKILL)
            killed += 1
        time.sleep(0.05)
        if done > STEPS // 2 and not healthy:  # 300 connections that say nothing keep a probe out, but for the time that they have
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{http}/healthz", timeout=30) as answer:
                healthy = answer.read() == b"ok\n"
    stranger.stop()
    ended_well(*agents)
    steps = steps_of(folder)
    assert {int(s[1]) for s in steps} == set(range(1, STEPS + 1)) and killed == 3
    for s in steps:
        assert s[6] == reference[int(s[1]) - 1], f"step {s[1]} of rank {s[3]}"
    kinds = {kind for kind, _ in stranger.counts}
    assert {"tcp", 5} <= kinds and stranger.replayed > 0 and healthy, stranger.counts
    print(f"# {sum(stranger.counts.values())} connections to {len(stranger.counts)} sockets, {stranger.replayed} replayed; most bytes and descriptors: {dict(most)}")
    for name, (size, descriptors) in most.items():
        assert size < 512 << 20 and descriptors < 1500, f"{name}: {size} bytes, {descriptors} descriptors"


# ---- a worker ----

LIAR = """
import mmap, os, random, struct, time
page = mmap.mmap(int(os.environ["ELASTIC_PAGE_FD"]), 4096)
odd = [0, 1, 2**63, 2**64 - 1, 0x7ff0000000000000, 0x7ff8000000000001, 2**53, int(time.monotonic() * 1e6)]
print("up", flush=True)
while True:
    at = 128 + 8 * random.randrange(60)
    page[at:at + 8] = struct.pack("<Q", random.choice(odd) if random.random() < 0.7 else random.getrandbits(64))
"""


def not_json(text):
    raise ValueError(f"{text} is no JSON")


@case
def numbers_that_a_worker_makes_up_stay_its_own(folder):
    """Whatever stands in its page, what the agent tells of it is well formed, and the agent stays."""
    port = free_port()
    agent = start(folder, "--nproc-per-node=2", f"--set=http.listen=127.0.0.1:{port}", "--set=straggler.for=1s", sys.executable, "-c", LIAR)
    wait_for(lambda: agent.poll() is not None or [read(f) for f in glob.glob(f"{folder}/logs/hostile/gen-1/rank-*/stdout.log")] == ["up\n"] * 2)
    for _ in range(60):
        for path in ("status.json", "metrics"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=DEADLINE_S) as answer:
                text = answer.read().decode()
            if path == "status.json":
                assert len(json.loads(text, parse_constant=not_json)["workers"]) == 2
            else:
                for line in text.splitlines():
                    assert line.startswith("#") or re.fullmatch(r"[a-z_]+(\{.*\})? [-+]?([0-9.e+-]+|Inf|NaN)", line), line
        time.sleep(0.02)
    for words in (["status"], ["status", "--json"], ["explain"], ["events"]):
        done = subprocess.run([os.path.join(BUILD, "elastic-ctl"), "--job", "hostile", *words], env=environment(folder), capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        assert done.returncode == 0, done
    assert agent.poll() is None
    agent.terminate()
    assert agent.wait(DEADLINE_S) == 75, read(agent.log)


# ---- another user of the host ----

AGENT_UID, OTHER_UID = 400000 + os.getpid() % 1000 * 2, 400001 + os.getpid() % 1000 * 2


def as_user(uid, *argv, **more):
    return subprocess.run(["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *argv], capture_output=True, text=True, check=False, timeout=DEADLINE_S, **more)


def agent_of_a_user(folder, *args):
    """One that has no $XDG_RUNTIME_DIR, so that its sockets are in /tmp; of a copy that it may read."""
    run = os.path.join(folder, "elastic-run")
    if not os.path.exists(run):
        os.chmod(folder, 0o755)
        shutil.copy(RUN, run)
    env = {k: v for k, v in os.environ.items() if k == "PATH"}
    return as_user(AGENT_UID, run, "--rdzv-id=planted", *args, "sh", "-c", "echo started; stat -c %u:%a $(dirname $ELASTIC_SOCKET)", env=env, cwd="/")


def planted(folder):
    """What another user may put where the agent will make its folder: {name: shell commands}; `$p` is that place."""
    mine = os.path.join(folder, "mine")
    os.mkdir(mine)
    os.chown(mine, AGENT_UID, AGENT_UID)
    return {"a folder": "mkdir -m 777 $p", "a link to a folder of mine": f"ln -s {mine} $p", "a link to nothing": "ln -s /nowhere/at/all $p", "a file": "touch $p", "a pipe": "mkfifo -m 666 $p"}, mine


@case
def what_another_user_planted_is_refused(folder):
    place = f"/tmp/elastic-run-{AGENT_UID}"
    ways, mine = planted(folder)
    for name, script in ways.items():
        assert as_user(OTHER_UID, "sh", "-ec", f"p={place}; {script}").returncode == 0, name
        try:
            done = agent_of_a_user(folder)
            assert done.returncode == 73 and "started" not in done.stdout, f"{name}: {done}"
            assert place in done.stderr and "remove it, or set XDG_RUNTIME_DIR" in done.stderr, f"{name}: {done.stderr}"
            assert os.listdir(mine) == []
        finally:
            as_user(OTHER_UID, "rm", "-rf", place)
    done = agent_of_a_user(folder)
    assert done.returncode == 0 and done.stdout == f"started\n{AGENT_UID}:700\n", done
    assert not os.path.lexists(place)


@case
def another_user_who_is_fast_gains_nothing(folder):
    """Folder, link and nothing change places as quickly as a shell can, while agents start."""
    place = f"/tmp/elastic-run-{AGENT_UID}"
    _, mine = planted(folder)
    racer = ["setpriv", f"--reuid={OTHER_UID}", f"--regid={OTHER_UID}", "--clear-groups", sys.executable, "-c", """
import os, sys
place, mine = sys.argv[1:]
while True:
    for make, take in ((lambda: os.mkdir(place), lambda: os.rmdir(place)), (lambda: os.symlink(mine, place), lambda: os.unlink(place))):
        try:
            make()
            take()
        except OSError:
            pass
""", place, mine]
    with subprocess.Popen(racer) as other:
        try:
            codes = collections.Counter()
            for _ in range(60):
                done = agent_of_a_user(folder)
                codes[done.returncode] += 1
                assert done.stdout == (f"started\n{AGENT_UID}:700\n" if done.returncode == 0 else ""), done
                assert os.listdir(mine) == []
        finally:
            other.kill()
    print(f"# exit codes {dict(codes)}")
    assert set(codes) <= {0, 73} and not os.path.lexists(place) or as_user(OTHER_UID, "rm", "-rf", place)


@case
def a_log_folder_of_another_user_is_refused(folder):
    os.chmod(folder, 0o755)
    logs, victim = os.path.join(folder, "logs"), os.path.join(folder, "victim")
    os.mkdir(logs)
    os.chmod(logs, 0o1777)  # as /tmp is
    os.mkdir(victim)
    os.chown(victim, AGENT_UID, AGENT_UID)
    for script in ("mkdir -m 777 $p", f"ln -s {victim} $p"):
        assert as_user(OTHER_UID, "sh", "-ec", f"p={logs}/planted; {script}").returncode == 0
        done = agent_of_a_user(folder, f"--set=log.dir={logs}")
        assert done.returncode == 73 and "started" not in done.stdout, done
        assert f"'{logs}/planted' belongs to user {OTHER_UID}" in done.stderr and "log.dir" in done.stderr, done.stderr
        assert os.listdir(victim) == []
        as_user(OTHER_UID, "rm", "-rf", f"{logs}/planted")


if __name__ == "__main__":
    why = private_space.why_not()
    if why:
        skip("hostile", why)
    private_space.enter()
    main()
