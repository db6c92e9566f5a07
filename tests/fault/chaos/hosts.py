"""The machines of a trial: nodes and etcd members, each with a network of its own on one bridge, IPv4 and IPv6."""

import errno
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

import etcd
import secure
import space

MEMBER_FLAGS = ["--log-level", "error", "--logger", "zap", "--backend-batch-limit", "100", "--backend-batch-interval", "10ms", "--max-txn-ops", "1024",
                "--heartbeat-interval", "100", "--election-timeout", "1000"]


def sh(*argv, check=True, timeout=60):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stdout}{done.stderr}".strip())
    return done.stdout


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Probe:
    """A connection that one host asks another one for, on a port where nobody listens: answered (with a refusal) when frames go both ways."""
    PORT = 9

    def __init__(self, sender, receiver):
        def ask():
            s = socket.socket()
            s.setblocking(False)
            s.connect_ex((receiver.v4, self.PORT))
            return s
        self.socket = space.in_network(sender.name, ask)

    def answered(self):
        with self.socket as s:
            if not select.select([], [s], [], 0)[1]:
                return False
            return s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (0, errno.ECONNREFUSED)


def arrives(sender, receiver, n, within_s=0.5):
    """Does a datagram of n bytes?"""
    def bind():
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.bind((receiver.v4, 0))
        return s
    with space.in_network(receiver.name, bind) as at, space.in_network(sender.name, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as from_:
        from_.sendto(b"\0" * n, at.getsockname())
        return bool(select.select([at], [], [], within_s)[0])


class Host:
    """`name` is its network namespace, `v-<name>` its port at the bridge, eth0 its own end. `cable` is what is in the bridge instead while it is bent; `cuts` how often it is unplugged."""

    def __init__(self, name, number):
        self.name, self.number = name, number
        self.v4, self.v6 = (f"10.99.0.{number}", f"fd99::{number:x}") if space.INSIDE else ("127.0.0.1", "::1")
        self.mac = f"02:00:00:00:00:{number:02x}"
        self.port, self.cable, self.cuts = "v-" + name, None, 0

    def enter(self):
        return ["nsenter", f"--net=/run/netns/{self.name}"] if space.INSIDE else []

    def ip(self, *args):
        return sh("ip", "-n", self.name, *args)

    def attach(self):
        """As it is to be: several faults may have a say."""
        sh("ip", "link", "set", self.cable or self.port, *(["nomaster"] if self.cuts else ["master", "br0"]), "up")


class Hosts:
    def __init__(self, folder, nodes, members):
        self.folder = folder
        self.nodes = [Host(f"n{i}", 10 + i) for i in range(nodes)]
        self.members = [Host(f"e{i}", 100 + i) for i in range(members)]
        self.client_ports = [2379 if space.INSIDE else free_port() for _ in self.members]
        self.peer_ports = [2380 if space.INSIDE else free_port() for _ in self.members]
        self.servers = [None] * members
        self.orders = self.slow_disk = None  # for the shim; the program that makes etcd's disk slow
        self.pki, self.flags, self.users, self.user = None, [], False, None  # secure.py
        self.client = etcd.Client((h.v4, p) for h, p in zip(self.members, self.client_ports))
        if space.INSIDE:
            self._network()

    def all(self):
        return self.nodes + self.members

    def _network(self):
        sh("ip", "link", "add", "br0", "type", "bridge")
        sh("ip", "addr", "add", "10.99.0.1/24", "dev", "br0")
        sh("ip", "addr", "add", "fd99::1/64", "dev", "br0", "nodad")
        sh("ip", "link", "set", "br0", "up")
        for h in self.all():
            sh("ip", "netns", "add", h.name)
            sh("ip", "link", "add", h.port, "type", "veth", "peer", "name", "eth0", "address", h.mac, "netns", h.name)
            sh("ip", "link", "set", h.port, "master", "br0", "up")
            h.ip("link", "set", "lo", "up")
            h.ip("addr", "add", h.v4 + "/24", "dev", "eth0")
            h.ip("addr", "add", h.v6 + "/64", "dev", "eth0", "nodad")
            h.ip("link", "set", "eth0", "up")

    def close(self):
        for i in range(len(self.servers)):
            self.member_kill(i)
        if space.INSIDE:
            for h in self.all():
                sh("ip", "link", "del", h.port, check=False)
                sh("ip", "netns", "del", h.name, check=False)
            sh("ip", "link", "del", "br0", check=False)

    # ---- etcd ----

    def endpoints(self, family=4):
        hosts = [f"[{h.v6}]" if family == 6 and space.INSIDE else h.v4 for h in self.members]
        return ",".join(f"{h}:{p}" for h, p in zip(hosts, self.client_ports))

    def member_start(self, i, state="new"):
        h, client, peer = self.members[i], self.client_ports[i], self.peer_ports[i]
        scheme = "https" if self.pki else "http"
        listen = ",".join(f"{scheme}://{at}:{client}" for at in ([h.v4, f"[{h.v6}]", "127.0.0.1"] if space.INSIDE else [h.v4]))
        cluster = ",".join(f"{m.name}=http://{m.v4}:{p}" for m, p in zip(self.members, self.peer_ports))
        argv = [*h.enter(), "setpriv", "--pdeathsig", "KILL", *([self.slow_disk, self.orders.path] if self.slow_disk else []), os.environ.get("ER_ETCD_BIN", "etcd"), "--name", h.name, "--data-dir", self.data(i), "--listen-client-urls", listen,
                "--advertise-client-urls", f"{scheme}://{h.v4}:{client}", "--listen-peer-urls", f"http://{h.v4}:{peer}",
                "--initial-advertise-peer-urls", f"http://{h.v4}:{peer}", "--initial-cluster", cluster, "--initial-cluster-state", state, *MEMBER_FLAGS, *self.flags, *(self.pki.flags() if self.pki else [])]
        log = open(os.path.join(self.folder, f"{h.name}.log"), "ab")  # pylint: disable=consider-using-with
        self.servers[i] = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)  # pylint: disable=consider-using-with
        log.close()

    def data(self, i):
        return os.path.join(self.folder, f"{self.members[i].name}.data")

    def start_store(self, patience=1):
        for i in range(len(self.members)):
            self.member_start(i)
        if self.pki:
            etcd.secure(self.pki.context("admin"))
        self.wait_store(patience)

    def enable_users(self):
        """The job's settings for them."""
        settings = secure.enable_users(self.client, self.folder)
        self.user = ["root", secure.PASSWORDS["root"]]
        return settings

    def refusal(self, headers=None, context=None):
        """What etcd says to somebody with that token, or that certificate; "": it takes it."""
        try:
            etcd.ask(self.client.addresses[0], "/v3/kv/range", {"key": etcd.b64("x")}, 5, headers or {}, context and etcd.context(*context))
        except etcd.Unavailable as why:
            return str(why)
        return ""

    def wait_store(self, patience=1):
        until = time.monotonic() + 30 * patience
        while True:
            try:
                return self.client.call("/v3/kv/range", {"key": etcd.b64("x")})
            except etcd.Unavailable as why:
                if time.monotonic() > until:
                    raise RuntimeError(f"etcd does not come up: {why}") from why
                time.sleep(0.05)

    def member_kill(self, i):
        if self.servers[i]:
            self.servers[i].kill()
            self.servers[i].wait()
            self.servers[i] = None

    def member_state(self, i):
        """The letter of /proc/PID/stat."""
        return (space.state(self.servers[i].pid) or "X")[0]

    def member_signal(self, i, sig):
        self.servers[i].send_signal(sig)

    def leader(self):
        """Index of the member that leads; None: nobody."""
        for i, (h, port) in enumerate(zip(self.members, self.client_ports)):
            try:
                status = etcd.post((h.v4, port), "/v3/maintenance/status", {}, 1)
            except etcd.Unavailable:
                continue
            if status.get("leader", "0") == status["header"]["member_id"]:
                return i
        return None

    def snapshot(self, path):
        h, port = self.members[0], self.client_ports[0]
        self._etcdctl("--endpoints", f"http://{h.v4}:{port}", "snapshot", "save", path)

    def restore(self, path):
        """All members start anew from a snapshot: revisions go backwards."""
        for i in range(len(self.members)):
            self.member_kill(i)
        cluster = ",".join(f"{m.name}=http://{m.v4}:{p}" for m, p in zip(self.members, self.peer_ports))
        for i, (h, peer) in enumerate(zip(self.members, self.peer_ports)):
            shutil.rmtree(self.data(i))
            self._etcdctl("snapshot", "restore", path, "--name", h.name, "--data-dir", self.data(i), "--initial-cluster", cluster,
                          "--initial-advertise-peer-urls", f"http://{h.v4}:{peer}")
        self.start_store()

    @staticmethod
    def _etcdctl(*args):
        done = subprocess.run(["etcdctl", *args], env=dict(os.environ, ETCDCTL_API="3"), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"etcdctl {args[0]}: {done.stderr}")

    # ---- links ----

    @staticmethod
    def unplug(host):
        """Nothing arrives, nothing leaves, and nobody is told: the link stays up."""
        host.cuts += 1
        host.attach()

    @staticmethod
    def plug(host):
        host.cuts -= 1
        host.attach()

    @staticmethod
    def deafen(sender, receiver):
        """What `sender` sends to `receiver` gets lost without a word (it goes to an address of the link that nobody has)."""
        for address in (receiver.v4, receiver.v6):
            sender.ip("neigh", "replace", address, "lladdr", "02:00:00:00:ff:ff", "dev", "eth0", "nud", "permanent")

    @staticmethod
    def undeafen(sender, receiver):
        for address in (receiver.v4, receiver.v6):
            sender.ip("neigh", "replace", address, "lladdr", receiver.mac, "dev", "eth0", "nud", "reachable")

    @staticmethod
    def bend(host, seed, **how):
        """Puts a cable that is not perfect between a host and the bridge (relay.py); straighten() takes what is returned."""
        mine, far = "w-" + host.name, "b-" + host.name
        sh("ip", "link", "add", mine, "type", "veth", "peer", "name", far)
        sh("ip", "link", "set", mine, "up")
        host.ip("link", "set", "eth0", "gso_max_segs", "1")
        main = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
        relay = subprocess.Popen([sys.executable, "-B", main, "relay", host.port, mine, json.dumps(how), str(seed)], stdout=subprocess.PIPE, text=True)  # pylint: disable=consider-using-with
        if relay.stdout.readline().strip() != "ready":
            raise RuntimeError("the relay does not start")
        sh("ip", "link", "set", host.port, "nomaster")
        host.cable = far
        host.attach()
        return relay

    @staticmethod
    def straighten(host, relay):
        """What the cable did, counted."""
        host.cable = None
        host.attach()
        relay.terminate()
        said = relay.stdout.read()
        relay.wait()
        relay.stdout.close()
        sh("ip", "link", "del", "w-" + host.name)
        host.ip("link", "set", "eth0", "gso_max_segs", "65535")
        return json.loads(said)

    def stop_all_members(self):
        for i in range(len(self.members)):
            self.member_signal(i, signal.SIGSTOP)

    def continue_all_members(self):
        for i in range(len(self.members)):
            self.member_signal(i, signal.SIGCONT)
