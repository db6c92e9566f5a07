#!/usr/bin/env python3
"""packaging/setup.sh: quiet when nothing is missing, clear about what it would do, never half-hearted about a failure.
packaging/configure.sh: meson is called when an option is to change, and only then.

dpkg-query, apt-get, id, sudo and meson are stand-ins, so nothing on this machine changes.
"""

import os
import shutil
import subprocess
import tempfile

import tree

SETUP = os.path.join(tree.SOURCE_ROOT, "packaging", "setup.sh")
CONFIGURE = os.path.join(tree.SOURCE_ROOT, "packaging", "configure.sh")
TOOLS = ("sh", "sed", "tr", "env", "cat")


def stand_in(folder, name, body):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\n" + body + "\n")
    os.chmod(path, 0o755)


def setup(*arguments, missing=(), uid=0, sudo=False, apt_status=0):
    """(exit status, what it said, calls of apt-get)."""
    with tempfile.TemporaryDirectory() as folder:
        for tool in TOOLS:
            os.symlink(shutil.which(tool), os.path.join(folder, tool))
        installed = f'for p in "$@"; do case " {" ".join(missing)} " in *" $p "*) ;; *) echo "installed:$p" ;; esac; done'
        stand_in(folder, "dpkg-query", installed)
        stand_in(folder, "id", f"echo {uid}")
        calls = os.path.join(folder, "calls")
        stand_in(folder, "apt-get", f'echo "$@" >>{calls}; exit {apt_status}')
        if sudo:
            stand_in(folder, "sudo", f'echo "sudo $@" >>{calls}; exec "$@"')
        done = subprocess.run([SETUP, *arguments], capture_output=True, text=True, env={"PATH": folder},
                              stdin=subprocess.DEVNULL, check=False)
        made = open(calls, encoding="utf-8").read() if os.path.exists(calls) else ""
        return done.returncode, done.stdout + done.stderr, made


def configured(*option_lists):
    """How often meson was called up to the end of each of these calls."""
    with tempfile.TemporaryDirectory() as folder:
        calls, build = os.path.join(folder, "calls"), os.path.join(folder, "build")
        stand_in(folder, "meson", f"mkdir -p {build}; touch {build}/build.ninja; echo >>{calls}")
        for options in option_lists:
            subprocess.run([CONFIGURE, build, *options], check=True, env={"PATH": folder + ":" + os.environ["PATH"]})
            yield len(open(calls, encoding="utf-8").read())


def problems():
    calls = list(configured([], ["-Da=1", "-Dab=1"], ["-Da=1"], ["-Da=2"], ["-Da=1"], ["-Dab=1"], ["-Da=1", "-Dab=1"]))
    if calls != [1, 2, 2, 3, 4, 4, 4]:
        yield f"meson was called {calls} times when options were set and changed"
    if (have := setup()) != (0, "", ""):
        yield f"nothing is missing, yet: {have}"
    status, said, calls = setup("-y", missing=("libyaml-dev", "valgrind"))
    if status != 0 or "install -y --no-install-recommends libyaml-dev valgrind" not in calls or "libyaml-dev" not in said:
        yield f"missing packages were not installed: {status} {said} {calls}"
    if (have := setup("build", missing=("valgrind",))) != (0, "", ""):
        yield f"a package of another group was asked for: {have}"
    status, said, calls = setup("-y", missing=("meson",), uid=1000)
    if status == 0 or calls or "apt-get install -y --no-install-recommends meson" not in said:
        yield f"without root and sudo the line to run is not printed: {status} {said} {calls}"
    status, said, calls = setup("-y", missing=("meson",), uid=1000, sudo=True)
    if status != 0 or "sudo env DEBIAN_FRONTEND=noninteractive apt-get" not in calls:
        yield f"sudo was not used: {status} {said} {calls}"
    status, said, calls = setup("-y", missing=("meson",), apt_status=100)
    if status == 0 or "could not install: meson" not in said:
        yield f"a failure of apt is not told: {status} {said}"
    if setup("nonsense")[0] != 64:
        yield "an unknown group was accepted"


tree.report("setup script", list(problems()))
