#!/usr/bin/env python3
"""etcd with TLS in both directions and a role for one job's keys, as docs/several-nodes.md sets it up: those commands are run as they stand there.
What is wrong with an access is said, in time, with exit code 77, and never does a byte leave in plaintext."""

import contextlib
import json
import os
import pty
import re
import socket
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "lib"))
import private_space  # noqa: E402
from py_cases import BUILD, DEADLINE_S, RUN, SOURCE, case, environment, main, skip, wait_for  # noqa: E402

NODES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")  # of the documentation
PORT = 2379
CTL = os.path.join(BUILD, "elastic-ctl")
HELLO = os.path.join(BUILD, "examples", "hello")
PKI = r"""
ca() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $1-key.pem -out $1.pem -days 2 -subj /CN=$1; }
# NAME CN DAYS EXTENSIONS
cert() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $1-key.pem -out $1.csr -subj /CN=$2
    printf "$4" >$1.ext
    openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial -out $1.pem -days $3 -extfile $1.ext
}
ca ca; ca other
cert server etcd 2 'subjectAltName=IP:10.0.0.1,IP:10.0.0.2,IP:10.0.0.3\nextendedKeyUsage=serverAuth,clientAuth'
cert misnamed etcd 2 'subjectAltName=DNS:etcd.example.org\nextendedKeyUsage=serverAuth,clientAuth'
cert late etcd -1 'subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth'
for who in root demo stranger; do cert $who $who 2 'extendedKeyUsage=clientAuth'; done
cert expired demo -1 'extendedKeyUsage=clientAuth'
mv root.pem admin.pem; mv root-key.pem admin-key.pem
"""
LEAK = (b"elastic-run", b"PRI * HTTP", b"correct-horse", b"demo", b"authenticate")
PATIENT = {"ETCDCTL_DIAL_TIMEOUT": "60s", "ETCDCTL_COMMAND_TIMEOUT": "60s"}  # a busy machine takes more than its 2 and 5 s
STORE = {}  # the one store of all cases


def block(begins):
    """The code block of the page that begins with these words, without its indentation."""
    with open(os.path.join(SOURCE, "docs", "several-nodes.md"), encoding="utf-8") as f:
        found = re.search(r"^    " + re.escape(begins) + r".*\n(?:^(?:    .*)?\n)*", f.read(), re.MULTILINE)
    return re.sub(r"^    ", "", found.group(0).rstrip(), flags=re.MULTILINE)


def at_a_terminal(script, folder, words):
    """Runs it where it can ask; answers each question for a password."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe("sh", ["sh", "-ec", script], {**os.environ, **PATIENT})
    said = b""
    with contextlib.suppress(OSError):  # EIO: it has ended
        while piece := os.read(terminal, 4096):
            said += piece
            if piece.rstrip().lower().endswith(b":"):
                os.write(terminal, words.encode() + b"\n")
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0, said.decode(errors="replace")


def store(folder="/run/store"):
    """Three members, users and role, by the page's commands; once for all cases."""
    if STORE:
        return STORE["folder"]
    os.mkdir(folder)
    done = subprocess.run(["sh", "-ec", PKI], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for address in NODES:
        private_space.ip("addr", "add", address + "/24", "dev", "lo")
    STORE.update(folder=folder, tap=private_space.WireTap([PORT]), members=[])
    start = block("etcd --name n1")
    head, cluster = start.split("--initial-cluster ")
    for number, address in enumerate(NODES, 1):
        script = head.replace("--name n1", f"--name n{number}").replace(NODES[0], address).replace("/var/lib/etcd", f"{folder}/n{number}")
        STORE["members"].append(subprocess.Popen(["sh", "-c", f"exec {script} --initial-cluster {cluster} --log-level error"], cwd=folder, stderr=subprocess.DEVNULL))  # pylint: disable=consider-using-with
    wait_for(lambda: ctl("endpoint", "health").returncode == 0)
    at_a_terminal(block("export ETCDCTL_API=3"), folder, "correct-horse")
    return folder


def ctl(*args):
    env = dict(os.environ, **PATIENT, ETCDCTL_API="3", ETCDCTL_ENDPOINTS=f"https://{NODES[0]}:{PORT}", ETCDCTL_CACERT="ca.pem", ETCDCTL_CERT="admin.pem", ETCDCTL_KEY="admin-key.pem")
    return subprocess.run(["etcdctl", *args], cwd=STORE["folder"], env=env, capture_output=True, text=True, check=False)


def settings(folder, name="demo", cert="demo", ca="ca", endpoints=None, password=None, **more):
    """A job file as the page has it."""
    files = store()
    rendezvous = {"endpoints": endpoints or [f"https://{a}:{PORT}" for a in NODES], "join_timeout": "60s", "last_call_timeout": "0s",
                  "tls": {"ca": f"{files}/{ca}.pem", **({"cert": f"{files}/{cert}.pem", "key": f"{files}/{cert}-key.pem"} if cert else {}), **more}}
    if password:
        path = os.path.join(folder, "password")
        with open(path, "w", encoding="utf-8", opener=lambda p, flags: os.open(p, flags, 0o600)) as f:
            f.write(password + "\n")
        rendezvous["auth"] = {"user": "demo", "password_file": path}
    return {"name": name, "command": [HELLO], "nnodes": "2", "rendezvous": rendezvous, "log": {"dir": os.path.join(folder, "log")}}


@contextlib.contextmanager
def agents(folder, spec, n=2):
    """Running agents of the job, of which the store knows nothing yet; what is left of them is killed."""
    assert ctl("del", "--prefix", "/elastic-run/").returncode == 0
    path, running = os.path.join(folder, "job.yaml"), []
    with open(path, "w", encoding="utf-8") as f:
        json.dump(spec, f)
    try:
        for i in range(n):
            log = open(os.path.join(folder, f"agent{i}"), "w", encoding="utf-8")  # pylint: disable=consider-using-with
            running.append(subprocess.Popen([RUN, f"--node-id=n{i}", path], env=environment(folder), stdout=log, stderr=log))  # pylint: disable=consider-using-with
            log.close()
        yield running
    finally:
        for agent in running:
            agent.kill()
            agent.wait()
        wait_for(no_agent_is_left)  # one whose guard was killed takes a while to end, and is in the next one's way


def no_agent_is_left():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has gone, or waits for a parent that does not ask
            if os.readlink(f"/proc/{pid}/exe") == os.path.realpath(RUN):
                return False
    return True


def told(folder, i=0):
    with open(os.path.join(folder, f"agent{i}"), encoding="utf-8", errors="replace") as f:
        return f.read()


def refused(folder, spec, *words, code=77):
    """One agent ends with that code, and says all of this."""
    with agents(folder, spec, 1) as (agent,):
        got = agent.wait(DEADLINE_S)
    text = told(folder)
    assert got == code, f"exit code {got}: {text}"
    for word in words:
        assert word in text, f"'{word}' is not in: {text}"
    assert "hello from" not in text, text


def nothing_was_plain():
    """Each connection began with a TLS handshake, and nothing of ours can be read on the wire."""
    said = STORE["tap"].said(PORT)
    assert len(said) > 3
    for text in said:
        assert text[:2] == b"\x16\x03", text[:60]
    for word in LEAK:
        assert not STORE["tap"].anywhere(word), word


def does_its_work(folder, spec):
    """Its workers meet through the store, and all end well."""
    with agents(folder, spec) as running:
        codes = [a.wait(DEADLINE_S) for a in running]
    both = told(folder, 0) + told(folder, 1)
    assert codes == [0, 0] and both.count("hello from rank") == 2, both
    nothing_was_plain()


@case
def the_commands_of_the_page_make_a_store_for_a_job(folder):
    does_its_work(folder, settings(folder))


@case
def a_password_over_tls_is_enough(folder):
    does_its_work(folder, settings(folder, cert="stranger", password="correct-horse"))


@case
def another_authority_is_not_believed(folder):
    refused(folder, settings(folder, ca="other"), "the store refuses this agent", f"https://{NODES[0]}:{PORT}", "certificate", "rendezvous.tls.ca")
    nothing_was_plain()


@case
def a_certificate_for_another_name_is_not_believed(folder):
    refused(folder, settings(folder, server_name="elsewhere.test"), "the store refuses this agent", "elsewhere.test", "rendezvous.tls.server_name")
    nothing_was_plain()


@case
def an_expired_certificate_is_told_by_name_and_date(folder):
    refused(folder, settings(folder, cert="expired"), "expired.pem' has expired, at 20", "renew it")
    nothing_was_plain()


@case
def no_certificate_is_no_access(folder):
    spec = settings(folder, cert=None)
    spec["rendezvous"]["join_timeout"] = "5s"  # TLS 1.3 tells late, so that it looks like a store that is away
    refused(folder, spec, f"https://{NODES[0]}:{PORT}", "or a client certificate wanted?", code=69)
    nothing_was_plain()


@case
def a_wrong_password_is_no_access(folder):
    refused(folder, settings(folder, cert="stranger", password="guess"), "the store refuses this agent", "authentication failed", "rendezvous.auth")
    assert "guess" not in told(folder)
    nothing_was_plain()


@case
def a_role_is_for_one_jobs_keys_only(folder):
    refused(folder, settings(folder, name="other"), "the store refuses this agent", "permission denied", "/elastic-run/other/")
    refused(folder, settings(folder, cert="stranger"), "the store refuses this agent", "permission denied", "/elastic-run/demo/")
    nothing_was_plain()


@case
def a_role_that_is_taken_away_is_told_when_something_is_written(folder):
    spec = settings(folder)
    go = os.path.join(folder, "go")
    spec["command"] = ["sh", "-c", f"echo up; while [ ! -e {go} ]; do sleep 0.1; done"]
    with agents(folder, spec) as running:
        wait_for(lambda: all("]: up" in told(folder, i) for i in range(2)))
        assert ctl("user", "revoke-role", "demo", "demo").returncode == 0
        with open(go, "w", encoding="utf-8"):
            pass
        codes = [a.wait(DEADLINE_S) for a in running]
    ctl("user", "grant-role", "demo", "demo")
    for i in range(2):
        assert codes[i] == 77 and "may not write below '/elastic-run/demo/' (role with read and write permission" in told(folder, i), told(folder, i)
    nothing_was_plain()


def of_all_processes():
    """Arguments and environment of each process of this namespace that is not etcd, the test or a tool of its: [(name, bytes)]."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/comm", encoding="utf-8") as f:
                name = f.read().strip()
            for part in ("cmdline", "environ"):
                with open(f"/proc/{pid}/{part}", "rb") as f:
                    found.append((f"{name}: {part}", f.read()))
    return [(name, text) for name, text in found if not name.startswith(("etcd", "python3", "unshare"))]


@case
def a_credential_is_nowhere_but_in_its_file(folder):
    """Not in any process's arguments or environment, nor in logs, events, status, findings, metrics, or what is printed of the settings."""
    spec = settings(folder, cert="stranger", password="correct-horse")
    spec["command"] = ["sh", "-c", "echo up; env; while :; do sleep 0.1; done"]
    spec["metrics"] = {"textfile": os.path.join(folder, "metrics.prom")}
    with open(os.path.join(STORE["folder"], "stranger-key.pem"), encoding="utf-8") as f:
        secrets = [b"correct-horse", *(line.strip().encode() for line in f if "-----" not in line)]
    with agents(folder, spec):
        wait_for(lambda: all("]: up" in told(folder, i) for i in range(2)) and os.path.exists(spec["metrics"]["textfile"]))
        everything = of_all_processes()
        workers = [text for name, text in everything if name == "sh: environ" and b"ELASTIC_SOCKET" in text]
        assert len(workers) >= 2 and len(everything) >= 12
        for text in workers:
            assert b"password" not in text and b"-key.pem" not in text, text
        job = os.path.join(folder, "job.yaml")
        for command in ([CTL, "--job", "demo", "status", "--json"], [CTL, "--job", "demo", "status"], [CTL, "--job", "demo", "explain"], [CTL, "-f", job, "status"],
                        [RUN, "--print-config", job], [RUN, "--dry-run", job], [RUN, "--check", job]):
            done = subprocess.run(command, env=environment(folder), capture_output=True, check=False, timeout=DEADLINE_S)
            assert done.stdout or done.stderr, command
            everything.append((" ".join(command), done.stdout + done.stderr))
    for where, _, files in os.walk(folder):
        for name in files:
            if name != "password":
                with open(os.path.join(where, name), "rb") as f:
                    everything.append((os.path.join(where, name), f.read()))
    assert any("events" in name for name, _ in everything) and any(name.endswith(".prom") for name, _ in everything)
    for name, text in everything:
        for secret in secrets:
            assert secret not in text, f"'{secret.decode()}' is in {name}"
    nothing_was_plain()


class Listener(threading.Thread):
    """Accepts, keeps what it is told, and answers with `answer` to the first bytes."""

    def __init__(self, answer):
        super().__init__(daemon=True)
        self.answer, self.said = answer, []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.start()

    def run(self):
        while True:
            conn, _ = self.socket.accept()
            with contextlib.suppress(OSError), conn:
                conn.settimeout(5)
                text = conn.recv(1 << 16)
                self.said.append(text)
                if self.answer:
                    conn.sendall(self.answer)
                    text = conn.recv(1 << 16)
                    self.said[-1] += text


@case
def a_server_that_speaks_no_tls_hears_nothing(folder):
    """Not even one that answers as an etcd without TLS would, or that breaks the handshake off."""
    settings_frame, alert = b"\0\0\0\x04\0\0\0\0\0", b"\x15\x03\x03\0\x02\x02\x28"
    for answer in (b"", settings_frame, alert, b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        listener = Listener(answer)
        spec = settings(folder, endpoints=[f"127.0.0.1:{listener.port}"], password="correct-horse")
        spec["rendezvous"]["join_timeout"] = "3s"
        with agents(folder, spec, 1) as (agent,):
            assert agent.wait(DEADLINE_S) in (69, 77), told(folder)
        assert f"127.0.0.1:{listener.port}" in told(folder)
        wait_for(lambda at=listener: at.said)
        for text in listener.said:
            assert not text or text[:2] == b"\x16\x03", text[:60]
            for word in LEAK:
                assert word not in text, word
        listener.socket.close()


@case
def an_expired_server_is_told(folder):
    files = store()
    client, peer = "https://127.0.0.1:3379", "http://127.0.0.1:3380"
    with subprocess.Popen(["etcd", "--data-dir", os.path.join(folder, "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                           "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer, "--log-level", "panic", "--cert-file", "late.pem", "--key-file", "late-key.pem",
                           "--trusted-ca-file", "ca.pem", "--client-cert-auth"], cwd=files, stderr=subprocess.DEVNULL) as etcd:
        try:
            refused(folder, settings(folder, endpoints=[client]), "the store refuses this agent", client, "certificate", "expired")
        finally:
            etcd.kill()


if __name__ == "__main__":
    why = private_space.why_not()
    if why:
        skip("secure_etcd", why)
    private_space.enter()
    main()
