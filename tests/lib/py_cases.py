"""Test cases in Python that report as TAP: decorate each with @case, then call main(). A case gets a folder of its own."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

BUILD, SOURCE = os.environ["ER_TEST_BUILD"], os.environ["ER_TEST_SOURCE"]
RUN = os.path.join(BUILD, "elastic-run")
DEADLINE_S = 120
CASES = []


class Skip(Exception):
    """Raised by a case that cannot be run here, with the reason."""


def case(function):
    CASES.append(function)
    return function


def environment(folder, **more):
    """The caller's, without what a launcher around the tests has set; state and sockets are in `folder`, but for root's, in /run: jobs need
    names that nobody else has."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "TORCHELASTIC_", "ELASTIC_"))}
    return dict(keep, XDG_STATE_HOME=folder, XDG_RUNTIME_DIR=folder, HOME=folder, **more)


def wait_for(what, deadline_s=DEADLINE_S):
    """What `what` returns, as soon as that is true."""
    until = time.monotonic() + deadline_s
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < until, f"{what.__name__}: not in {deadline_s} s"
        time.sleep(0.02)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def private_etcd(folder):
    """The endpoint of an etcd that ends with the block."""
    client, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    with subprocess.Popen(["etcd", "--data-dir", os.path.join(folder, "etcd"), "--listen-client-urls", client,
                           "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                           "--initial-cluster", "default=" + peer, "--log-level", "error"], stderr=subprocess.DEVNULL) as etcd:
        try:
            yield client
        finally:
            etcd.kill()


def skip(name, why):
    print(f"1..1\nok 1 - {name} # SKIP {why}")
    sys.exit(0)


def gone(folder):
    """Whether it could be removed: what the case killed may be writing its last."""
    shutil.rmtree(folder, ignore_errors=True)
    return not os.path.exists(folder)


def main():
    print(f"1..{len(CASES)}")
    failed = 0
    for number, function in enumerate(CASES, 1):
        folder = tempfile.mkdtemp()
        try:
            function(folder)
            print(f"ok {number} - {function.__name__}", flush=True)
        except Skip as why:
            print(f"ok {number} - {function.__name__} # SKIP {why}", flush=True)
        except Exception as problem:  # pylint: disable=broad-except
            failed += 1
            print(f"not ok {number} - {function.__name__}", flush=True)
            where = problem.__traceback__
            while where.tb_next:
                where = where.tb_next
            for line in f"line {where.tb_lineno}: {type(problem).__name__}: {problem}".splitlines():
                print("# " + line)
        wait_for(lambda at=folder: gone(at))
    sys.exit(failed > 0)
