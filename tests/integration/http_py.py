#!/usr/bin/env python3
"""http.listen and metrics.textfile, asked as a scraper, a probe and a browser would."""

import contextlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "lib"))
from py_cases import BUILD, DEADLINE_S, RUN, case, environment, main, skip, wait_for  # noqa: E402

STEPPER = os.path.join(BUILD, "tests", "integration", "stepper")


def free_port(family=socket.AF_INET, host="127.0.0.1"):
    with socket.socket(family) as s:
        s.bind((host, 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def job(folder, command, *settings, port=None):
    """A running job whose HTTP server answers; stopped at the end."""
    port = port or free_port()
    spec = os.path.join(folder, "job.yaml")
    with open(spec, "w", encoding="utf-8") as f:
        json.dump({"name": f"http-{os.getpid()}", "command": command, "log": {"dir": folder}}, f)
    sets = [x for s in (f"http.listen=127.0.0.1:{port}", *settings) for x in ("--set", s)]
    with subprocess.Popen([RUN, *sets, spec], env=environment(folder), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as agent:
        try:
            wait_for(lambda: agent.poll() is not None or answers(port))
            yield agent, f"http://127.0.0.1:{port}"
        finally:
            if agent.poll() is None:
                agent.terminate()
            sys.stderr.write(agent.communicate(timeout=DEADLINE_S)[1])


def answers(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def get(url, **headers):
    request = urllib.request.Request(url, headers={k.replace("_", "-"): v for k, v in headers.items()})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return answer.read().decode()


def refused(url, method="GET", **headers):
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S):
            return None
    except urllib.error.HTTPError as error:
        return error.code


def value(text, name, **labels):
    """The one sample of that name with those labels, None: there is none."""
    for line in text.splitlines():
        match = re.fullmatch(re.escape(name) + r"\{(.*)\} (\S+)", line)
        if match and all(f'{k}="{v}"' in match.group(1) for k, v in labels.items()):
            return float(match.group(2))
    return None


@case
def both_forms_have_the_same_samples(folder):
    with job(folder, ["sleep", "100"], "nproc_per_node=2") as (_, url):
        plain, opened = get(url + "/metrics"), get(url + "/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert opened.endswith("# EOF\n") and "# EOF" not in plain
        names = [{line.split("{")[0] for line in text.splitlines() if not line.startswith("#")} for text in (plain, opened)]
        assert names[0] == names[1] and len(names[0]) > 25
        assert "# TYPE elastic_run_worker_exits_total counter" in plain and "# TYPE elastic_run_worker_exits counter" in opened
        assert value(plain, "elastic_run_world_size") == 2
        assert value(plain, "elastic_run_job_phase", elastic_run_job_phase="running") == 1
        assert all('job_name="' in line for line in plain.splitlines() if not line.startswith("#"))


@case
def failure_and_recovery_are_counted(folder):
    with job(folder, [STEPPER, "1000000", "30"], "nproc_per_node=2") as (_, url):
        text = wait_for(lambda: (t := get(url + "/metrics")) and value(t, "elastic_run_recovery_duration_seconds_count") and t)
        assert value(text, "elastic_run_worker_exits_total", kind="exited") == 1
        assert value(text, "elastic_run_restarts_total") == 1 and value(text, "elastic_run_restarts_remaining") == 2
        assert value(text, "elastic_run_generations_total", reason="formed") == 1
        assert value(text, "elastic_run_generations_total", reason="worker_failed") == 1
        assert value(text, "elastic_run_samples_total") > 0
        for state in ("useful", "detect", "stop", "rendezvous", "replay"):
            assert value(text, "elastic_run_time_seconds_total", state=state) >= 0, state
        assert wait_for(lambda: value(get(url + "/metrics"), "elastic_run_time_seconds_total", state="replay"))
        step = value(get(url + "/metrics"), "elastic_run_worker_step", rank="1")
        assert wait_for(lambda: value(get(url + "/metrics"), "elastic_run_worker_step", rank="1") > step)


@case
def steps_and_lines_are_counted(folder):
    command = ["sh", "-c", f"echo one; echo two; echo three >&2; exec {STEPPER} 1000000"]
    with job(folder, command) as (_, url):
        name = "elastic_run_step_duration_seconds"
        text = wait_for(lambda: (t := get(url + "/metrics")) and (value(t, name + "_count") or 0) > 20 and t)
        assert value(text, name + "_bucket", le="+Inf") == value(text, name + "_count") < value(text, "elastic_run_worker_step", rank="0") + 1
        assert 0 < value(text, name + "_sum") < DEADLINE_S
        assert value(text, "elastic_run_log_lines_total", stream="stdout") == 2
        assert value(text, "elastic_run_log_lines_total", stream="stderr") == 1
        assert value(text, "elastic_run_store_requests_total") is None


@case
def status_and_stream_show_the_job(folder):
    with job(folder, [STEPPER, "1000000"]) as (_, url):
        status = wait_for(lambda: (s := json.loads(get(url + "/status.json")))["workers"] and s["useful_ratio"] > 0 and s)
        assert status["phase"] == "running" and status["workers"][0]["loss"] > 0 and status["useful_ratio"] <= 1
        with urllib.request.urlopen(url + "/events", timeout=DEADLINE_S) as stream:
            seen = []
            while len(seen) < 4:
                line = stream.readline().decode()
                if line.startswith("event: "):
                    seen.append((line[7:].strip(), json.loads(stream.readline().decode().removeprefix("data: "))))
        assert [name for name, _ in seen] == ["history", "status", "status", "status"]
        assert seen[0][1]["generations"][0]["reason"] == "formed"
        assert seen[3][1]["workers"][0]["step"] >= seen[1][1]["workers"][0]["step"]
        page = get(url + "/")
        assert "<!doctype html>" in page and "://" not in page.replace("http://www.w3.org/2000/svg", "")


@case
def token_is_asked_for(folder):
    token = os.path.join(folder, "token")
    with open(token, "w", encoding="utf-8") as f:
        f.write("a secret word\n")
    done = subprocess.run([RUN, f"--set=http.listen=127.0.0.1:{free_port()}", f"--set=http.token_file={token}", "true"], env=environment(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 78 and "every user of this host may read it" in done.stderr, done.stderr
    os.chmod(token, 0o600)
    with job(folder, ["sleep", "100"], f"http.token_file={token}") as (_, url):
        for path in ("/metrics", "/status.json", "/events"):
            assert refused(url + path) == 401 and refused(url + path, Authorization="Bearer a secret") == 401
        assert get(url + "/healthz") == "ok\n" and "<!doctype html>" in get(url + "/")
        assert "elastic_run" in get(url + "/metrics", Authorization="Bearer a secret word")
        assert json.loads(get(url + "/status.json?token=a+secret+word"))["job"]


@case
def what_is_not_there_is_refused(folder):
    with job(folder, ["sleep", "100"]) as (agent, url):
        assert refused(url + "/../etc/passwd") == 404 and refused(url + "/metrics", method="POST") == 405
        port = int(url.rsplit(":", 1)[1])
        streams = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
        for s in streams:
            s.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        codes = [s.recv(15).split()[1] for s in streams]
        assert codes.count(b"200") == 8 and codes.count(b"503") == 4, codes
        for s in streams:
            s.close()
        for garbage in (b"\0" * 4096, b"GET /" + b"a" * 100000, b"GET / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port)) as s, contextlib.suppress(OSError):
                s.sendall(garbage)
        wait_for(lambda: refused(url + "/events") is None)  # places are free again
        assert get(url + "/healthz") == "ok\n" and agent.poll() is None


@case
def slow_clients_lock_nobody_out(folder):
    with job(folder, ["sleep", "100"]) as (_, url):
        port = int(url.rsplit(":", 1)[1])
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        for s in slow:
            with contextlib.suppress(OSError):
                s.sendall(b"GET / HTTP/1.1\r\n")
        assert get(url + "/healthz") == "ok\n"
        for s in slow:
            s.close()


@case
def streams_end_with_the_job(folder):
    with job(folder, [STEPPER, "60"]) as (agent, url):
        port = int(url.rsplit(":", 1)[1])
        streams = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
        for s in streams:
            s.settimeout(DEADLINE_S)
            s.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        texts = [b"".join(iter(lambda s=s: s.recv(65536), b"")) for s in streams]
        assert all(text.endswith(b"\r\n0\r\n\r\n") for text in texts)
        assert agent.wait(DEADLINE_S) == 0


@case
def textfile_replaces_files_alone(folder):
    path = os.path.join(folder, "pipe.prom")
    os.mkfifo(path)
    with job(folder, ["touch", "started"], f"metrics.textfile={path}") as (agent, _):
        assert "not a regular file" in agent.communicate(timeout=DEADLINE_S)[1] and agent.returncode in (64, 78)
    assert stat.S_ISFIFO(os.stat(path).st_mode) and not os.path.exists(os.path.join(folder, "started"))


@case
def wrong_settings_start_nothing(folder):
    for setting, text in (("http.listen=9400", "is not HOST:PORT"), ("http.listen=::1:9400", "is not HOST:PORT"),
                          ("http.listen=127.0.0.1:70000", "port"), ("http.listen=nowhere.invalid:0", "nowhere.invalid")):
        with job(folder, ["touch", "started"], setting) as (agent, _):
            said = agent.communicate(timeout=DEADLINE_S)[1]
            assert agent.returncode in (64, 78) and text in said, (setting, agent.returncode, said)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with job(folder, ["touch", "started"], port=taken.getsockname()[1]) as (agent, _):
            assert agent.wait(DEADLINE_S) != 0
    assert not os.path.exists(os.path.join(folder, "started"))


@case
def textfile_is_complete_and_stays(folder):
    path = os.path.join(folder, "job.prom")
    with job(folder, [STEPPER, "20"], f"metrics.textfile={path}") as (agent, _):
        assert agent.wait(DEADLINE_S) == 0
    with open(path, encoding="utf-8") as f:
        text = f.read()
    assert value(text, "elastic_run_job_phase", elastic_run_job_phase="succeeded") == 1
    assert [name for name in os.listdir(folder) if name.startswith("job.prom")] == ["job.prom"]


if not os.path.exists(os.path.join(BUILD, "er_http.so")):
    skip("http", "this build has no HTTP server (libmicrohttpd-dev)")
main()
