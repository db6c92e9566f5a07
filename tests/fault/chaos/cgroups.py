"""A control group with a limit, of version 1 or 2: whichever the machine has the controller in. Only root can make them, and not everywhere."""

import contextlib
import glob
import os
import time

LIMITS = {"memory": ("memory.limit_in_bytes", "memory.max"), "pids": ("pids.max", "pids.max")}
PREFIX = "elastic-chaos-"


def parent(controller):
    """The folder in which groups can be made, and the version; (None, why not)."""
    with open("/proc/self/mounts", encoding="utf-8") as f:
        mounts = [line.split()[:4] for line in f]
    for _, folder, kind, options in mounts:
        if kind == "cgroup" and controller in options.split(","):
            return (folder, 1) if os.access(folder, os.W_OK) and "ro" not in options.split(",") else (None, f"{folder} cannot be written")
        if kind == "cgroup2":
            with contextlib.suppress(OSError), open(os.path.join(folder, "cgroup.subtree_control"), encoding="ascii") as f:
                if controller in f.read().split() and os.access(folder, os.W_OK) and "ro" not in options.split(","):
                    return folder, 2
    return None, f"no cgroup with the controller {controller} that could be written"


def lacks(controller):
    """Why there can be no such group here; None: there can."""
    folder, why = parent(controller)
    if not folder:
        return why
    probe = os.path.join(folder, f"{PREFIX}probe-{os.getpid()}")
    try:
        os.mkdir(probe)
        os.rmdir(probe)
    except OSError as e:
        return f"no cgroup can be made in {folder}: {e.strerror}"
    return None


class Group:
    def __init__(self, controller, name):
        folder, self.version = parent(controller)
        for old in glob.glob(os.path.join(folder, PREFIX + "*")):  # of suites that were killed; those in use stay
            with contextlib.suppress(OSError):
                os.rmdir(old)
        self.controller, self.path = controller, os.path.join(folder, PREFIX + name)
        os.mkdir(self.path)

    def _write(self, name, value):
        with open(os.path.join(self.path, name), "w", encoding="ascii") as f:
            f.write(str(value))

    def limit(self, value):
        self._write(LIMITS[self.controller][self.version - 1], value)

    def take(self, pid):
        """The process is in the group from now on, with what it starts."""
        self._write("cgroup.procs", pid)

    def oom_kills(self):
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        with open(os.path.join(self.path, name), encoding="ascii") as f:
            return sum(int(line.split()[1]) for line in f if line.split()[0] == "oom_kill")

    def close(self):
        """It is empty, or becomes so soon."""
        for _ in range(100):
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
                return
            time.sleep(0.05)
