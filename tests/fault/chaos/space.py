"""Namespaces of each trial's own: processes, mounts, network. The kernel ends all of it with the trial, and that with the suite, however those end.

Inside, the trial is process 1 behind `unshare --kill-child`; `/run`, `/dev/shm` and so everything that jobs leave behind are memory of
the mount namespace, and so are the names of its network: trials side by side cannot meet. As root, or where users may make user namespaces,
without it. Where neither works, jobs run as plain processes on loopback (`INSIDE` is False): entries that need a network or a mount of
their own are skipped by name.
"""

import ctypes
import gc
import os
import subprocess
import threading

MARK = "ELASTIC_CHAOS_INSIDE"
UNSHARE = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
PROBE = "ip link add br0 type bridge && mount -t tmpfs none /run && mkdir -p /run/netns && ip netns add probe"
CLONE_NEWNET = 0x40000000
# With the suite: it is the parent of what is started with this.
DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL"]
INSIDE = os.environ.get(MARK) == "1"
_way = None  # how to get in; []: not at all


def _works(argv):
    done = subprocess.run([*argv, "sh", "-c", PROBE], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def way():
    """What to put before a command so that it has namespaces of its own; [] where they cannot be had. The suite's own process stays outside."""
    global _way, INSIDE  # pylint: disable=global-statement
    if _way is None:
        ways = [UNSHARE] if os.geteuid() == 0 else [[*UNSHARE, "--user", "--map-root-user"]]
        _way = next((w for w in ways if _works(w)), [])
        INSIDE = bool(_way)
    return _way


def furnish():
    """In a trial's own namespaces: what is memory, and the way to itself."""
    if INSIDE:
        for folder in ("/run", "/dev/shm"):
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "chaos", folder], check=True)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def in_network(name, do):
    """What do() returns in the network namespace `name`: sockets it makes belong there."""
    found = []

    def body():
        with open(f"/run/netns/{name}", "rb") as f:
            if ctypes.CDLL(None, use_errno=True).setns(f.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns {name}")
        found.append(do())

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if not found:
        raise RuntimeError(f"nothing can be done in the network of {name}")
    return found[0]


def state(pid):
    """(letter of its state, its parent); None: there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            letter, parent = f.read().rsplit(") ", 1)[1].split()[:2]
        return letter, int(parent)
    except (OSError, ValueError, IndexError):
        return None


def lives(pid):
    found = state(pid)
    return found is not None and found[0] not in "ZX"


def reap():
    """Process 1 collects what was orphaned and has ended; children that somebody waits for are left alone."""
    if not INSIDE or os.getpid() != 1:
        return
    zombies = [int(name) for name in os.listdir("/proc") if name.isdigit() and state(name) == ("Z", 1)]
    if not zombies:
        return
    # Looked up behind the list: a child that is started meanwhile is not on it.
    waited = {p.pid for p in gc.get_objects() if isinstance(p, subprocess.Popen)}
    for pid in set(zombies) - waited:
        try:
            os.waitpid(pid, os.WNOHANG)
        except OSError:
            pass
