#!/usr/bin/env python3
"""A fault-injection suite that is killed leaves nothing behind: no process, no network, no folder."""

import contextlib
import glob
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "lib"))
from py_cases import BUILD, SOURCE, Skip, case, main, wait_for  # noqa: E402

MAIN = os.path.join(SOURCE, "tests", "fault", "chaos", "__main__.py")


def marked(*marks):
    """Processes whose environment holds all of them."""
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        with contextlib.suppress(OSError), open(path, "rb") as f:
            text = f.read()
            if all(mark in text for mark in marks):
                found.append(int(path.split("/")[2]))
    return found


@case
def killed_suite_leaves_nothing(folder):
    mark = f"CHAOS_KILLED_TEST={folder}".encode()
    argv = [sys.executable, "-B", MAIN, "run", "agent_stop", "--patience", "10", "--build", BUILD, "--results", folder]
    with subprocess.Popen(argv, env=dict(os.environ, CHAOS_KILLED_TEST=folder), stdout=subprocess.DEVNULL) as suite:
        try:
            wait_for(lambda: suite.poll() is not None or marked(mark, b"CHAOS_NODE="))
            assert suite.poll() is None, "the suite has ended"
            inside = marked(mark, b"CHAOS_NODE=", b"CHAOS_NAMESPACES=1")
        finally:
            suite.send_signal(signal.SIGKILL)
        suite.wait()
    if not inside:
        raise Skip("no namespaces")
    wait_for(lambda: not marked(mark))


if __name__ == "__main__":
    main()
