#!/usr/bin/env python3
"""Unmodified PyTorch scripts (tests/interop/torch/) under elastic-run: torch_py.py, with Debian's python3-torch.

Each case is what a user of torchrun has: the command line is torchrun's with another first word.
"""

import glob
import json
import os
import pty
import re
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "lib"))
from py_cases import DEADLINE_S, RUN, SOURCE, case, main, private_etcd, skip, wait_for  # noqa: E402
from py_cases import environment as plain_environment  # noqa: E402

SCRIPTS = os.path.join(SOURCE, "tests", "interop", "torch")


def script(name):
    return os.path.join(SCRIPTS, name)


def environment(folder, **more):
    # This Python has torch; GLOO needs no look-up of the host's name.
    return plain_environment(folder, PYTHON_EXEC=sys.executable, GLOO_SOCKET_IFNAME="lo", **more)


def launch(folder, *arguments, **more):
    done = subprocess.run([RUN, "--local-addr", "127.0.0.1", *arguments], capture_output=True, text=True, check=False,
                          timeout=DEADLINE_S, env=environment(folder, **more), cwd=folder)
    sys.stderr.write(done.stdout + done.stderr)
    return done


@case
def ddp_trains_on_one_node(folder):
    done = launch(folder, "--standalone", "--nproc_per_node=2", script("ddp.py"))
    assert done.returncode == 0
    loss = float(re.search(r"world 2 loss ([0-9.e-]+)", done.stdout).group(1))
    assert loss < 0.01, loss


@case
def ddp_trains_on_three_nodes_through_etcd(folder):
    with private_etcd(folder) as endpoint:
        nodes = []
        for node in range(3):
            home = os.path.join(folder, f"node{node}")
            os.mkdir(home)
            nodes.append(subprocess.Popen(
                [RUN, "--nnodes=3", "--nproc-per-node=1", "--rdzv-backend=etcd-v2", "--rdzv-endpoint=" + endpoint,
                 f"--rdzv-id=ddp-{os.getpid()}", f"--node-id=n{node}", "--local-addr=127.0.0.1", script("ddp.py")],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(home), cwd=home))
        said = [node.communicate(timeout=DEADLINE_S) for node in nodes]
    sys.stderr.write("".join(out + err for out, err in said))
    assert [node.returncode for node in nodes] == [0, 0, 0]
    assert sum("world 3 loss" in out for out, _ in said) == 1


@case
def failing_rank_is_the_root_cause(folder):
    outer = os.path.join(folder, "outer.json")
    done = launch(folder, "--nproc-per-node=2", script("record.py"), TORCHELASTIC_ERROR_FILE=outer)
    assert done.returncode == 1
    assert "ValueError: no luck on the last rank" in done.stderr and 'raise ValueError("no luck' in done.stderr
    with open(outer, encoding="utf-8") as f:
        message = json.load(f)["message"]
    assert message["message"] == "ValueError: no luck on the last rank" and message["errorCode"] == 1
    assert "raise ValueError" in message["extraInfo"]["py_callstack"] and int(message["extraInfo"]["timestamp"]) > 0


@case
def script_finds_what_torch_tells_of_its_launcher(folder):
    done = launch(folder, "--nproc-per-node=2", "--max-restarts=3", "--role=trainer", script("facilities.py"), "${local_rank}")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["rank 0 knows its launcher", "rank 1 knows its launcher"]


@case
def killed_rank_is_restarted(folder):
    done = launch(folder, "--nproc-per-node=2", "--max-restarts=1", script("restart.py"))
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["sum 2 after 1 restart(s)"] * 2


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@case
def loader_workers_are_not_orphaned(folder):
    with subprocess.Popen([RUN, "--nproc-per-node=2", "--shutdown-timeout=5", script("loader.py"), folder], cwd=folder,
                          env=environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as agent:
        ranks = [os.path.join(folder, f"rank-{r}") for r in (0, 1)]
        wait_for(lambda: all(os.path.exists(r) and os.path.getsize(r) for r in ranks)
                 and len(glob.glob(os.path.join(folder, "loader-*"))) == 4)
        pids = [int(f.rsplit("-", 1)[1]) for f in glob.glob(os.path.join(folder, "loader-*"))]
        with open(ranks[0], encoding="utf-8") as f:
            victim = int(f.read())
        assert all(alive(pid) for pid in [*pids, victim])
        os.kill(victim, signal.SIGKILL)
        assert agent.wait(DEADLINE_S) == 137
        assert not [pid for pid in pids if alive(pid)]


@case
def progress_bar_is_on_the_terminal(folder):
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execve(RUN, [RUN, "--nproc-per-node=1", script("progress.py")], environment(folder, TERM="xterm", COLUMNS="80"))
    text = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the other end was closed
            break
        if not data:
            break
        text += data
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    sys.stderr.write(repr(text) + "\n")
    assert os.waitstatus_to_exitcode(status) == 0
    assert text.count(b"\rrank 0: ") >= 20 and b"100%" in text and b"[default0]" not in text


@case
def progress_bar_keeps_its_carriage_returns_in_a_file(folder):
    text = 'import sys\nfor i in range(5):\n    sys.stderr.write(f"\\r{i}%")\nsys.stderr.write("\\n")\n'
    with open(os.path.join(folder, "bar.py"), "w", encoding="utf-8") as f:
        f.write(text)
    job = f"bar-{os.getpid()}"
    done = launch(folder, "--rdzv-id", job, "--log-dir", folder, "-t", "3", "bar.py")
    assert done.returncode == 0
    with open(os.path.join(folder, job, "gen-1", "rank-0", "stderr.log"), "rb") as f:
        assert f.read() == b"\r0%\r1%\r2%\r3%\r4%\n"


try:
    import torch  # noqa: F401
    import tqdm  # noqa: F401
except ImportError as missing:
    skip("torch", missing)
main()
