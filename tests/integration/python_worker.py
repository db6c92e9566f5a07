"""Workers of python_py.py: python_worker.py MODE FOLDER. What one finds wrong it raises, which fails the job."""

import multiprocessing
import os
import signal
import sys
import threading
import time

import elastic

PATIENCE_S = 60


def say(text):
    os.write(1, f"{text}\n".encode())  # one write: ranks share the output


def until(what):
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def store(job, _folder):
    me, size = job.world.rank, job.world.size
    assert me == int(os.environ["RANK"]) and size == int(os.environ["WORLD_SIZE"]) and job.has_agent
    job.ready()
    job.put(f"rank/{me}", bytes([me, 0, 255]))
    assert [job.wait(f"rank/{r}", PATIENCE_S) for r in range(size)] == [bytes([r, 0, 255]) for r in range(size)]
    assert job.get("nobody puts this") is None
    try:
        job.wait("nor this", 0.05)
        raise AssertionError("a value that nobody put")
    except elastic.Timeout as e:
        assert isinstance(e, TimeoutError) and "nor this" in str(e)
    job.add("count", -5)
    job.barrier("b", PATIENCE_S)
    assert job.add("count", 0) == -5 * size
    job.put("long " + "k" * 507, b"v" * 48 * 1024)
    for bad in (lambda: job.put("", "x"), lambda: job.put("k" * 513, "x"), lambda: job.put("k", b"v" * (48 * 1024 + 1))):
        try:
            bad()
            raise AssertionError("out of its limits")
        except elastic.InvalidValue:
            pass
    # A thread that waits does not hold up another, and gets what this one puts.
    got = []
    threads = [threading.Thread(target=lambda i=i: got.append(job.wait(f"late/{me}/{i}", PATIENCE_S))) for i in range(8)]
    for t in threads:
        t.start()
    for i in range(8):
        job.put(f"late/{me}/{i}", str(i))
    for t in threads:
        t.join(PATIENCE_S)
    assert sorted(got) == [str(i).encode() for i in range(8)]
    job.barrier("b", PATIENCE_S)
    say(f"rank {me} of {size} in {job.world.job} is fine")


def all_here(job):
    """Rank 1 may be dead before this one hears that it came."""
    try:
        job.barrier("all", PATIENCE_S)
    except elastic.Stale:
        assert job.world.rank != 1


def rejoin(job, folder):
    """Rank 1's first life is killed; the others go on in their processes."""
    started = job.world.generation
    job.offer_rejoin()
    while True:
        job.ready()
        job.communicator_ready()
        job.put(f"pid/{job.world.rank}", str(os.getpid()))
        job.progress(job.world.generation, loss=0.5, samples=3)
        all_here(job)
        if job.world.generation > 1:
            break
        if job.world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        until(lambda: job.notice() == elastic.Notice.STOP)
        old = job.world
        assert job.rejoin() is job.world and job.world.generation > old.generation and job.notice() == elastic.Notice.NONE
    say(f"rank {job.world.rank} restarts {job.world.restarts} since {started}")


def shrink(job, _folder):
    """Rank 1's first life is killed; the others go on at once, and are joined by its successor."""
    job.offer_rejoin()
    sizes = []
    while True:
        sizes.append(job.world.size)
        job.ready()
        all_here(job)
        if job.world.generation > 1 and job.world.size == 3:
            break
        if job.world.generation == 1 and job.world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        until(lambda: job.notice() in (elastic.Notice.STOP, elastic.Notice.REJOIN))
        assert job.rejoin()
    say(f"rank {job.world.rank} has seen {sizes}")


def stale(job, folder):
    """Waits for a key, or for the others, in a generation that ends: it is told, and not left waiting."""
    job.offer_rejoin()
    job.ready()
    if job.world.generation > 1:
        return
    all_here(job)
    if job.world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        if job.world.rank == 0:
            job.wait("nobody puts this")
        else:
            job.barrier("nobody else comes here")
        raise AssertionError("what nobody did")
    except elastic.Stale:
        say("told that it is over")
    assert job.rejoin()


def drain(job, folder):
    """TERM to the agent: a notice, and time to save."""
    job.offer_rejoin()
    job.ready()
    with open(os.path.join(folder, f"ready-{job.world.rank}"), "w", encoding="utf-8"):
        pass
    until(lambda: job.notice() >= elastic.Notice.DRAIN)
    say(f"rank {job.world.rank} was told {job.notice().name}")


def child_of(job):
    try:
        job.get("x")
    except elastic.ElasticError as e:
        os._exit(7 if "forked" in str(e) else 8)
    os._exit(9)


def forked(job, _folder):
    child = multiprocessing.get_context("fork").Process(target=child_of, args=(job,))
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == 7, child.exitcode
    job.put("x", "still speaks")
    say("the child was refused")


def fail(job, _folder):
    job.ready()
    raise ValueError("the data are of another year")


def skips(job, _folder):
    """Fails in step 5 until it is left out."""
    job.ready()
    job.progress(0, elastic.Phase.STARTUP)
    for step in range(1, 7):
        if step == 5 and step not in job.world.skip_steps:
            sys.exit(5)
        job.progress(step)
    say(f"left out {job.world.skip_steps} after {job.world.restarts}")


def commit(job, folder):
    job.ready()
    if job.world.rank == 0:
        job.commit(12, os.path.join(folder, "model-12.pt"), size=100, duration=0.5)
        job.commit_failed(13, "/nowhere", OSError(28, "No space left on device"))
    job.barrier("b", PATIENCE_S)


with elastic.join(required=True) as the_job:
    globals()[sys.argv[1]](the_job, sys.argv[2])
