#!/usr/bin/env python3
"""packaging/slurm/elastic.sbatch: the job's code is its own however it is told to end, and the secret is whole and one.

srun, elastic-ctl and scontrol are stand-ins; tests/interop/slurm_py.py runs it under a real Slurm.
"""

import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time

import tree

SBATCH = os.path.join(tree.SOURCE_ROOT, "packaging", "slurm", "elastic.sbatch")
DEADLINE_S = 60
# Ends with the code that is written into the file "end".
SRUN = 'echo $$ >srun.pid.new; mv srun.pid.new srun.pid; until [ -e end ]; do sleep 0.02; done; exit "$(cat end)"'
# Returns when the batch script's shell has taken note of srun's end.
STOP = 'echo 75 >end.new; mv end.new end; while kill -0 "$(cat srun.pid)" 2>/dev/null; do sleep 0.02; done'


def stand_in(folder, name, body):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\n" + body + "\n")
    os.chmod(path, 0o755)


class Batch:
    """A folder with the stand-ins, in which the script runs."""

    def __init__(self, folder, **more):
        self.folder, self.secret = folder, os.path.join(folder, "secret")
        programs = os.path.join(folder, "bin")
        os.mkdir(programs)
        for name, body in {"srun": SRUN, "elastic-ctl": STOP, "scontrol": 'echo "$*" >>requeued', **more}.items():
            stand_in(programs, name, body)
        self.environment = dict(os.environ, PATH=programs + ":" + os.environ["PATH"], SLURM_JOB_ID="7", ELASTIC_SECRET_FILE=self.secret)

    def begin(self):
        return subprocess.Popen(["bash", SBATCH, "job.yaml"], cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

    def code(self, ends_with):
        with open(os.path.join(self.folder, "end"), "w", encoding="utf-8") as f:
            f.write(str(ends_with))
        return self.begin().wait(DEADLINE_S)

    def has(self, name):
        return os.path.exists(os.path.join(self.folder, name))


def in_folder(test, **more):
    with tempfile.TemporaryDirectory() as folder:
        return list(test(Batch(folder, **more)))


def told_to_end(batch):
    job = batch.begin()
    until = time.monotonic() + DEADLINE_S
    while not batch.has("srun.pid") and time.monotonic() < until:
        time.sleep(0.02)
    job.send_signal(signal.SIGTERM)
    code = job.wait(DEADLINE_S)
    if code != 75 or not batch.has("requeued"):
        yield f"told to end, and its srun ended before the trap did: exit {code}, requeued: {batch.has('requeued')}"


def by_itself(batch):
    for wanted, requeued in ((0, False), (3, False), (69, True)):
        code = batch.code(wanted)
        if code != wanted or batch.has("requeued") != requeued:
            yield f"srun ended with {wanted}: exit {code}, requeued: {batch.has('requeued')}"


def makes_a_secret(batch):
    batch.code(0)
    with open(batch.secret, encoding="utf-8") as f:
        if len(f.read()) != 64 or stat.S_IMODE(os.stat(batch.secret).st_mode) != 0o600:
            yield "the secret is not one of 64 digits, for its owner alone"
    if left := [name for name in os.listdir(batch.folder) if name.startswith("secret.")]:
        yield f"making the secret left {left}"


def makes_no_half_secret(batch):
    code = batch.code(0)
    if code != 73 or [name for name in os.listdir(batch.folder) if name.startswith("secret")]:
        yield f"no secret could be made: exit {code}, and in the folder is {os.listdir(batch.folder)}"


def takes_the_first_secret(batch):
    batch.code(0)
    with open(batch.secret, encoding="utf-8") as f:
        if f.read().strip() != "another":
            yield "the secret of a job that began at the same time was replaced"


HEAD = shutil.which("head")
tree.report("slurm script", in_folder(told_to_end) + in_folder(by_itself) + in_folder(makes_a_secret) +
            in_folder(makes_no_half_secret, head="exit 1") +
            in_folder(takes_the_first_secret, head=f'echo another >"$ELASTIC_SECRET_FILE"; exec {HEAD} "$@"'))
