#!/usr/bin/env python3
"""A real Slurm of one machine: three slurmd beside their controller, in namespaces of their own, end with this program."""

import contextlib
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "lib"))
from py_cases import BUILD, DEADLINE_S, RUN, SOURCE, case, environment, main, skip, wait_for  # noqa: E402

SBATCH = os.path.join(SOURCE, "packaging", "slurm", "elastic.sbatch")
NODES = {f"n{i}": f"10.77.0.{i}" for i in (1, 2, 3)}

JOB = f"counted-{os.getpid()}"
# A worker that counts, and saves what it counted: without libelastic, as most programs are.
COUNTER = """
import os, signal, sys, time
path, wanted = sys.argv[1], int(sys.argv[2])
count = int(open(path).read()) if os.path.exists(path) else 0
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "starts at", count, flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while count < wanted:
    time.sleep(0.02)
    count += 1
    if os.environ["RANK"] == "0":
        with open(path + ".new", "w") as f:
            f.write(str(count))
        os.replace(path + ".new", path)
"""

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=6817
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
ReturnToService=2
KillWait=10
MessageTimeout=30
SchedulerParameters=sched_interval=1,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
NodeName=n[1-3] NodeHostname={host} NodeAddr=10.77.0.[1-3] Port=[6818-6820] CPUs=1 State=UNKNOWN
PartitionName=main Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP
"""


def sh(*argv, check=True, **more):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S, check=False, **more)
    assert not check or done.returncode == 0, f"{argv[0]}: {done.stdout}{done.stderr}"
    return done


def into_namespaces():
    """Network, mounts, host name and processes: whatever happens, nothing stays behind."""
    if os.environ.get("ER_SLURM_INSIDE"):
        return
    missing = [p for p in ("slurmctld", "slurmd", "srun", "munged", "etcd") if not shutil.which(p)]
    if missing:
        skip("slurm", f"{', '.join(missing)} not installed (packaging/setup.sh interop)")
    unshare = ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid() != 0 or sh(*unshare, "true", check=False).returncode != 0:
        skip("slurm", "needs root and namespaces")
    os.environ["ER_SLURM_INSIDE"] = "1"
    os.execvp(unshare[0], [*unshare, sys.executable, "-B", os.path.abspath(__file__)])


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        self.daemons = []

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def daemon(self, *argv):
        log = open(self.path(f"daemon-{len(self.daemons)}.log"), "w", encoding="utf-8")
        self.daemons.append(subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL))  # pylint: disable=consider-using-with

    def start(self):
        host = "controller"
        os.makedirs(self.path("bin"))
        os.chmod(self.folder, 0o755)
        for program in ("elastic-run", "elastic-ctl", "elastic-managed-etcd"):
            os.symlink(os.path.join(BUILD, program), self.path("bin", program))
        with open(self.path("hosts"), "w", encoding="utf-8") as f:
            f.write(f"127.0.0.1 localhost {host}\n" + "".join(f"{a} {n}\n" for n, a in NODES.items()))
        sh("mount", "--bind", self.path("hosts"), "/etc/hosts")
        sh("hostname", host)
        sh("ip", "link", "set", "lo", "up")
        for address in NODES.values():
            sh("ip", "addr", "add", address + "/32", "dev", "lo")
        with open(self.path("key"), "wb") as f:
            os.fchmod(f.fileno(), 0o600)
            f.write(os.urandom(128))
        self.daemon("munged", "-F", "--force", "--num-threads=2", *(f"--{k}={self.path(v)}" for k, v in (
            ("key-file", "key"), ("socket", "munge.sock"), ("pid-file", "munge.pid"), ("log-file", "munge.log"), ("seed-file", "seed"))))
        wait_for(lambda: os.path.exists(self.path("munge.sock")))
        conf = self.path("slurm.conf")
        with open(conf, "w", encoding="utf-8") as f:
            f.write(CONF.format(folder=self.folder, host=host))
        os.environ["SLURM_CONF"] = conf
        self.daemon("slurmctld", "-D", "-i", "-f", conf)
        for node in NODES:
            self.daemon("slurmd", "-D", "-N", node, "-f", conf)
        wait_for(lambda: sh("sinfo", "-h", "-t", "idle", "-o", "%D", check=False).stdout.strip() == "3")

    def environment(self, folder):
        return dict(environment(folder), PATH=self.path("bin") + ":" + os.environ["PATH"])


CLUSTER = None


def job_file(folder, wanted, **more):
    spec = os.path.join(folder, "job.yaml")
    with open(os.path.join(folder, "counter.py"), "w", encoding="utf-8") as f:
        f.write(COUNTER)
    with open(spec, "w", encoding="utf-8") as f:
        json.dump({"name": JOB, "command": ["counter.py", os.path.join(folder, "count"), str(wanted)],
                   "log": {"dir": os.path.join(folder, "logs")}, **more}, f)
    return spec


def events(folder, name):
    found = []
    for path in glob.glob(os.path.join(folder, "logs", JOB, "events-*.jsonl")):
        with open(path, encoding="utf-8") as f:
            found += [e for e in map(json.loads, f) if e["event"] == name]
    return found


def count_in(folder):
    with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, "count"), encoding="utf-8") as f:
        return int(f.read())
    return 0


def submit(folder, *options, script=SBATCH, arguments=()):
    done = sh("sbatch", "--parsable", f"--output={folder}/out-%j.txt", *options, script, *arguments,
              cwd=folder, env=CLUSTER.environment(folder))
    return done.stdout.strip().split(";")[0]


def shown(job, field):
    text = sh("scontrol", "-o", "show", "job", job).stdout
    return re.search(rf"\b{field}=(\S+)", text).group(1)


def finished(job, folder):
    """Its final state."""
    state = wait_for(lambda: (s := shown(job, "JobState")) in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL") and s)
    for path in glob.glob(os.path.join(folder, "out-*.txt")):
        with open(path, encoding="utf-8", errors="replace") as f:
            sys.stderr.write(f.read())
    return state


@case
def one_srun_starts_a_node_each(folder):
    job = submit(folder, "--nodes=3", arguments=[job_file(folder, 20)])
    assert finished(job, folder) == "COMPLETED"
    sealed = events(folder, "generation_sealed")
    assert {e["node_id"] for e in events(folder, "agent_started")} == set(NODES)
    assert sealed[0]["world_size"] == 3 and sealed[0]["nnodes"] == 3 and len({e["run_id"] for e in sealed}) == 1
    ranks = {e["node_id"]: e["rank"] for e in events(folder, "worker_started")}
    assert ranks == {"n1": 0, "n2": 1, "n3": 2}, ranks
    assert count_in(folder) == 20
    secret = os.path.join(folder, ".elastic-run.secret")
    assert os.stat(secret).st_mode & 0o777 == 0o600


def requeued_by(folder, *notice):
    job = submit(folder, "--nodes=3", arguments=[job_file(folder, 300)])
    wait_for(lambda: count_in(folder) > 5)
    sh("scancel", *notice, job)
    wait_for(lambda: shown(job, "Restarts") == "1" or (s := shown(job, "JobState")) == "COMPLETED" and not sys.stderr.write(s))
    before = count_in(folder)
    assert finished(job, folder) == "COMPLETED" and count_in(folder) == 300
    assert [e["exit_code"] for e in events(folder, "agent_exited")].count(75) == 3
    with open(glob.glob(os.path.join(folder, "out-*.txt"))[0], encoding="utf-8") as f:
        starts = [int(n) for n in re.findall(r"rank 0 of 3 starts at (\d+)", f.read())]
    assert starts[0] == 0 and 5 < starts[-1] <= before, (starts, before)


@case
def notice_requeues_and_the_count_goes_on(folder):
    """As --signal=B: gives it: to the batch script alone."""
    requeued_by(folder, "--batch", "--signal=TERM")


@case
def signal_to_all_processes_does_so_too(folder):
    requeued_by(folder, "--signal=TERM")


@case
def lost_node_does_not_end_the_job(folder):
    spec = job_file(folder, 400, nnodes="2:3", rendezvous={"lease_ttl": "3s", "replacement_wait": "0s"})
    job = submit(folder, "--nodes=3", arguments=[spec])
    wait_for(lambda: count_in(folder) > 5)
    guard = wait_for(lambda: guard_of("n3"))
    os.kill(guard, 9)
    wait_for(lambda: any(e["world_size"] == 2 for e in events(folder, "generation_sealed")))
    wait_for(lambda: count_in(folder) == 400)
    finished(job, folder)
    assert len(events(folder, "job_succeeded")) >= 1


def guard_of(node):
    """Process of the guard that slurmd's step of that node started."""
    for path in glob.glob("/proc/[0-9]*/environ"):
        with contextlib.suppress(OSError), open(path, "rb") as f:
            pid = int(path.split("/")[2])
            if f"SLURMD_NODENAME={node}\0".encode() in f.read() and os.readlink(f"/proc/{pid}/exe") == os.path.realpath(RUN):
                with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
                    parent = int(stat.read().rsplit(") ", 1)[1].split()[1])
                with open(f"/proc/{parent}/comm", encoding="utf-8") as comm:
                    if comm.read().startswith("slurmstepd"):
                        return pid
    return None


if __name__ == "__main__":
    into_namespaces()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        CLUSTER = Cluster(home)
        CLUSTER.start()
        main()
