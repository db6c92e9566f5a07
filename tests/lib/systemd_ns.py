"""A systemd of the test's own: PID 1 in namespaces for processes, mounts, host name, IPC and cgroups. The host sees a few processes.

Its /run, /tmp, /var/tmp, /var/lib and /var/log are empty and private: at its start systemd empties folders, and with the host's
it would empty the host's. /etc and /proc/sys are read-only. It finds no unit but those in UNITS, and no generator."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time

SYSTEMD = "/lib/systemd/systemd"
PRIVATE = ("/tmp", "/var/tmp", "/var/lib", "/var/log", "/lib/systemd/system-generators", "/lib/systemd/system-environment-generators",
           "/usr/local/lib/systemd", "/etc/systemd/system-generators", "/etc/systemd/system-environment-generators")
# $1: the folder shared with the test, $2: the build. /run/er and /run/er-build are what both are called inside.
OUTER = r"""
set -e
mount -t tmpfs tmpfs /run
mkdir /run/er /run/er-build /run/cg
mount --bind "$1" /run/er
mount --bind "$2" /run/er-build
mount -t cgroup2 none /run/cg
mkdir "/run/cg/$3"
echo $$ >"/run/cg/$3/cgroup.procs"
umount /run/cg
for dir in {private}; do
    [ -d "$dir" ] && mount -t tmpfs tmpfs "$dir"
done
exec unshare --cgroup --pid --fork --uts --ipc --kill-child /bin/sh -ec "$4"
"""
INNER = r"""
mount -t proc proc /proc
for dir in /proc/sys /etc; do
    mount --bind $dir $dir
    mount -o remount,bind,ro $dir
done
mount -t cgroup2 none /sys/fs/cgroup
cd /
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=er-test SYSTEMD_UNIT_PATH=/run/er/units \
    /lib/systemd/systemd --system --unit=basic.target --log-target=console --log-level=warning --show-status=no
"""
UNITS = {
    "sysinit.target": "[Unit]\nDefaultDependencies=no\nRequires=systemd-journald.service\nAfter=systemd-journald.service\n",
    "basic.target": "[Unit]\nDefaultDependencies=no\nRequires=sysinit.target\nAfter=sysinit.target\n",
    "shutdown.target": "[Unit]\nDefaultDependencies=no\n",
    "systemd-journald.service": "[Unit]\nDefaultDependencies=no\n[Service]\nType=notify\nExecStart=/lib/systemd/systemd-journald\n"
                                "StandardOutput=null\n",
}


def why_not():
    """Why it cannot be had here; None: it can."""
    if os.geteuid() != 0:
        return "needs root"
    for program in ("unshare", "nsenter", "systemctl", "journalctl", SYSTEMD):
        if not shutil.which(program):
            return f"{program} is not installed"
    # Private first, as everything here.
    probe = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--cgroup", "--uts", "--ipc", "/bin/sh", "-ec",
             "mount -t tmpfs tmpfs /tmp; mkdir /tmp/cg; mount -t cgroup2 none /tmp/cg; mkdir /tmp/cg/er-probe-$$; rmdir /tmp/cg/er-probe-$$"]
    tried = subprocess.run(probe, capture_output=True, text=True)
    return f"no namespaces or cgroups: {tried.stderr.strip()}" if tried.returncode else None


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: and with it, by --kill-child, all inside


class Systemd:
    """`folder` is /run/er inside; units are read from its `units`."""

    def __init__(self, folder, build):
        self.folder, self.group = folder, f"er-test-{os.getpid()}"
        os.makedirs(os.path.join(folder, "units"))
        for name, text in UNITS.items():
            self.unit(name, text)
        script = OUTER.replace("{private}", " ".join(PRIVATE))
        self.outer = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script, "sh", folder, build,
                                       self.group, INNER], stdout=sys.stderr, stdin=subprocess.DEVNULL,
                                      preexec_fn=die_with_parent)
        self.pid = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)  # and so all in its namespace
        self.outer.kill()
        self.outer.wait()
        remove = 'mount -t cgroup2 none /sys/fs/cgroup && find "/sys/fs/cgroup/$1" -depth -type d -exec rmdir {} + 2>/dev/null'
        for _ in range(100):  # the last ones are still on their way out
            done = subprocess.run(["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", remove, "sh", self.group], timeout=30)
            if done.returncode == 0:
                break
            time.sleep(0.05)

    def unit(self, name, text):
        path = os.path.join(self.folder, "units", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)

    def drop_in(self, unit, text):
        """A name for each: an instance's would replace the template's of the same name."""
        self.unit(os.path.join(unit + ".d", unit + ".conf"), text)

    def first(self):
        """The pid of its PID 1, as seen from here, once there is one that answers; else None."""
        assert self.outer.poll() is None, "systemd did not start"
        if not self.pid:
            with open(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children", encoding="ascii") as f:
                children = f.read().split()
            try:  # what comes before it are mount and the like
                if not children or os.readlink(f"/proc/{children[0]}/exe") != os.path.realpath(SYSTEMD):
                    return None
            except FileNotFoundError:
                return None
            self.pid = int(children[0])
        return self.pid if self.run("systemctl", "is-active", "basic.target").stdout == "active\n" else None

    def run(self, *command):
        return subprocess.run(["nsenter", "-t", str(self.pid), "--mount", "--uts", "--ipc", "--pid", "--cgroup", *command],
                              capture_output=True, text=True, timeout=60)

    def ctl(self, *arguments):
        done = self.run("systemctl", "--no-pager", *arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def show(self, unit, *properties):
        text = self.ctl("show", unit, "-p", ",".join(properties))
        found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return found[properties[0]] if len(properties) == 1 else [found[p] for p in properties]

    def processes(self, unit):
        """Pids of its cgroup and those below it, inside its namespace."""
        found = self.run("sh", "-c", 'cat $(find "/sys/fs/cgroup$1" -name cgroup.procs) 2>/dev/null', "sh", self.show(unit, "ControlGroup"))
        return sorted(int(pid) for pid in found.stdout.split())


