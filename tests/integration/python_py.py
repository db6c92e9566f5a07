#!/usr/bin/env python3
"""The package python/elastic: against the C library's numbers, by itself, and under elastic-run."""

import glob
import json
import os
import signal
import socket
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "lib"))
sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "python"))
from py_cases import BUILD, DEADLINE_S, RUN, SOURCE, case, environment, main, wait_for  # noqa: E402

import elastic  # noqa: E402
from elastic import _client, _wire  # noqa: E402

WORKER = os.path.join(SOURCE, "tests", "integration", "python_worker.py")
PACKAGE = os.path.join(SOURCE, "python")
VALUES = os.path.join(BUILD, "tests", "integration", "sampler_values")
JOB = f"python-{os.getpid()}"
AT_ONCE = "--set=restart.respawn_wait=none"  # all ranks are in each generation, however late one is


def worker_environment(folder, **more):
    return environment(folder, PYTHONPATH=PACKAGE, PYTHON_EXEC=sys.executable, PYTHONDONTWRITEBYTECODE="1", **more)


def launch(folder, mode, *options, workers=3):
    done = subprocess.run([RUN, "--rdzv-id", JOB, f"--nproc-per-node={workers}", *options, WORKER, mode, folder], capture_output=True,
                          text=True, check=False, timeout=DEADLINE_S, env=worker_environment(folder), cwd=folder)
    sys.stderr.write(done.stdout + done.stderr)
    return done


@case
def sampler_gives_the_numbers_of_the_c_library(_folder):
    lines = subprocess.run([VALUES], capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    orders, kinds = {}, set()
    for line in lines:
        kind, *numbers = line.split()
        n = [int(x) for x in numbers]
        kinds.add(kind)
        if kind == "rng":
            assert elastic.rng(n[0], n[1], n[2], n[3]) == n[4], line
        elif kind == "order":
            order = orders.setdefault(tuple(n[:3]), elastic.Order(n[0], n[1], n[2]) if tuple(n[:3]) not in orders else None)
            assert order[n[3]] == n[4], line
        else:
            part = elastic.Plan(n[0], n[1], shards=n[2]).batch(n[3], n[4], n[5])
            assert [part.epoch, part.first, part.count, part.step_first, part.step_count] == n[6:], line
    assert kinds == {"rng", "order", "batch"} and len(lines) > 1000


@case
def every_world_size_uses_each_sample_once(_folder):
    plan = elastic.Plan(samples=1003, global_batch=48, seed=5)
    used = []
    for step in range(1, plan.steps + 1):
        size = step % 5 + 1
        for rank in range(size):
            used += plan.indices(step, rank, size)
    assert sorted(used) == list(range(1003))
    batches = list(elastic.StepSampler(plan, 1, 3, applied=4))
    assert len(batches) == len(elastic.StepSampler(plan, 1, 3, applied=4)) == plan.steps - 4
    assert batches[0] == plan.indices(5, 1, 3)


@case
def strided_is_the_distributed_sampler(_folder):
    with open(os.path.join(SOURCE, "tests", "golden", "distributed_sampler.txt"), encoding="utf-8") as f:
        for line in f:
            samples, world, drop_last, rank, *indices = (int(x) for x in line.split())
            assert list(elastic.Strided(samples, world, rank, bool(drop_last))) == indices, line


@case
def packets_round_trip_and_bad_ones_are_refused(_folder):
    message = _wire.Message(_wire.COMMIT, [1, -2], [b"", b"\0x"], 7, -5)
    packet = _wire.encode(message)
    assert _wire.decode(packet) == _wire.Message(_wire.COMMIT, [1, (1 << 64) - 2], [b"", b"\0x"], 7, -5)
    for bad in [packet[:n] for n in range(len(packet))] + [packet + b"x", b"\xff" * 64, packet[:16] + b"\xff\xff\xff\xff" + packet[20:]]:
        try:
            _wire.decode(bad)
            raise AssertionError(bad)
        except elastic.ProtocolMismatch:
            pass


@case
def agent_that_does_not_read_holds_nobody_beyond_his_time(folder):
    path, timeouts = os.path.join(folder, "sock"), []

    def ask(client):
        for _ in range(16):  # more than the socket takes
            try:
                client.call(_wire.Message(_wire.KV_PUT, [1], [b"key", bytes(_wire.VALUE_MAX)]), 0.01)
            except elastic.Timeout as e:
                timeouts.append(str(e))

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
        agent.bind(path)
        agent.listen()
        asking = threading.Thread(target=ask, args=(_client.Client(path, DEADLINE_S),), daemon=True)
        asking.start()
        asking.join(DEADLINE_S / 4)
    assert len(timeouts) == 16 and "did not take the request" in timeouts[-1], timeouts


@case
def script_runs_by_itself(folder):
    text = ("import elastic\nwith elastic.join() as job:\n  job.offer_rejoin(); job.ready(); job.put('a', 'b'); job.barrier('x')\n"
            "  job.progress(3, loss=1.0); job.commit(3, 'x')\n"
            "  print(job.get('a'), job.world.size, job.add('n', 2), job.notice().name, job.world.checkpoint_dir)\n  job.rejoin()\n")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False,
                          env=worker_environment(folder, ELASTIC_CHECKPOINT_DIR="/ckpt"))
    assert done.stdout == "b'b' 1 2 NONE /ckpt\n", done.stdout + done.stderr
    assert done.returncode == 1 and "was not started by elastic-run" in done.stderr


@case
def number_is_no_value(_folder):
    with elastic.join() as job:
        try:
            job.put("a", 5)
            raise AssertionError(job.get("a"))
        except TypeError:
            assert job.get("a") is None


@case
def another_launcher_and_a_dead_agent_are_told(folder):
    def complaint(text, **more):
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False,
                              env=worker_environment(folder, **more))
        assert done.returncode == 1
        return done.stderr.splitlines()[-1]

    assert "WORLD_SIZE=2 was set by another launcher" in complaint("import elastic; elastic.join()", WORLD_SIZE="2")
    assert "run by itself" in complaint("import elastic; elastic.join(required=True)")
    assert "connect to the agent" in complaint("import elastic; elastic.join()", ELASTIC_SOCKET=folder + "/none")
    with open(os.path.join(folder, "page"), "wb") as f:
        os.set_inheritable(f.fileno(), True)
        text = f"import os, elastic._page; elastic._page.Page('{f.fileno()}')"
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, pass_fds=[f.fileno()],
                              env=worker_environment(folder))
        assert "is not a worker page" in done.stderr


@case
def ranks_share_a_store(folder):
    done = launch(folder, "store")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [f"rank {r} of 3 in {JOB} is fine" for r in range(3)]


@case
def survivors_go_on_in_process(folder):
    done = launch(folder, "rejoin", "--max-restarts=1", AT_ONCE)
    assert done.returncode == 0
    assert "2 of 3 workers kept their memory, 1 started anew" in done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 restarts 1 since 1", "rank 1 restarts 1 since 2", "rank 2 restarts 1 since 1"]


@case
def survivors_go_on_with_fewer_and_are_joined(folder):
    done = launch(folder, "shrink", "--max-restarts=1", "--set=restart.on_loss=shrink", "--set=resize.settle=0s")
    assert done.returncode == 0
    assert "2 of 2 workers kept their memory, 0 started anew" in done.stderr and "0 started anew, 1 joined" in done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 has seen [3, 2, 3]", "rank 1 has seen [3]", "rank 2 has seen [3, 2, 3]"]


@case
def who_waits_is_told_that_the_generation_is_over(folder):
    done = launch(folder, "stale", "--max-restarts=1", AT_ONCE)
    assert done.returncode == 0 and done.stdout.count("told that it is over") == 2


@case
def notice_comes_before_the_end(folder):
    with subprocess.Popen([RUN, "--rdzv-id", JOB, "--nproc-per-node=2", WORKER, "drain", folder], stdout=subprocess.PIPE, text=True,
                          env=worker_environment(folder), cwd=folder) as agent:
        wait_for(lambda: len(glob.glob(os.path.join(folder, "ready-*"))) == 2)
        agent.send_signal(signal.SIGTERM)
        said, _ = agent.communicate(timeout=DEADLINE_S)
    assert agent.returncode == 75
    assert sorted(said.splitlines()) == ["rank 0 was told DRAIN", "rank 1 was told DRAIN"]


@case
def forked_child_is_refused(folder):
    done = launch(folder, "forked", workers=1)
    assert done.returncode == 0 and done.stdout == "the child was refused\n"


@case
def exception_is_the_root_cause(folder):
    done = launch(folder, "fail", workers=1)
    assert done.returncode == 1 and "ValueError: the data are of another year" in done.stderr


@case
def poisoned_step_is_told(folder):
    done = launch(folder, "skips", "--max-restarts=5", "--set=restart.poison_step.action=skip", "--set=restart.poison_step.failures=2",
                  workers=1)
    assert done.returncode == 0 and done.stdout == "left out (5,) after 2\n"


@case
def commits_are_in_the_events(folder):
    done = launch(folder, "commit", "--log-dir", folder, workers=2)
    assert done.returncode == 0
    with open(glob.glob(os.path.join(folder, JOB, "events-*.jsonl"))[0], encoding="utf-8") as f:
        events = [json.loads(line) for line in f]
    committed = [e for e in events if e["event"] == "checkpoint_committed"]
    assert [(e["step"], e["bytes"], e["duration_ms"]) for e in committed] == [(12, 100, 500)]
    assert [(e["step"], e["errno"]) for e in events if e["event"] == "checkpoint_failed"] == [(13, 28)]


@case
def package_needs_no_newer_python_than_it_says(_folder):
    import ast
    for path in glob.glob(os.path.join(PACKAGE, "elastic", "*.py")):
        with open(path, encoding="utf-8") as f:
            tree = ast.parse(f.read(), path, feature_version=(3, 9))
        future = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
        assert future or path.endswith("__init__.py"), path  # annotations are not evaluated: `X | None` is fine in 3.9


main()
