#!/usr/bin/env python3
"""What Prometheus' own tools make of /metrics, and a browser of the page. Each part skips where its tool is not installed.

promtool reads the text form 0.0.4 only; prometheus_client's parser checks OpenMetrics; headless Chromium draws the page.
"""

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request

sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "lib"))
from py_cases import BUILD, DEADLINE_S, RUN, SOURCE, Skip, case, environment, main, skip, wait_for  # noqa: E402

STEPPER = os.path.join(BUILD, "tests", "integration", "stepper")
RULES = os.path.join(SOURCE, "packaging", "prometheus")
JOB = f"prometheus-{os.getpid()}"


class Job:
    """Three ranks that report steps; one fails once, so that a recovery is there to tell of."""

    def __init__(self, folder):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{s.getsockname()[1]}"
        spec = os.path.join(folder, "job.yaml")
        with open(spec, "w", encoding="utf-8") as f:
            json.dump({"name": JOB, "command": [STEPPER, "1000000", "20"], "nproc_per_node": 3, "log": {"dir": folder},
                       "http": {"listen": self.url[7:]}}, f)
        self.agent = subprocess.Popen([RUN, spec], env=environment(folder), stderr=subprocess.DEVNULL)

    def __enter__(self):
        wait_for(self.recovered)
        return self

    def __exit__(self, *_):
        self.agent.terminate()
        self.agent.wait(DEADLINE_S)

    def get(self, path, accept="*/*"):
        request = urllib.request.Request(self.url + path, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return answer.read().decode()

    def recovered(self):
        try:
            return "elastic_run_recovery_duration_seconds_count" in self.get("/metrics")
        except OSError:
            assert self.agent.poll() is None
            return False


def need(program):
    """Its path; skips the case where it is not installed."""
    found = shutil.which(program)
    if not found:
        raise Skip(f"{program} is not installed")
    return found


def promtool(*arguments, **more):
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=DEADLINE_S, **more)


@case
def promtool_finds_nothing_wrong(folder):
    need("promtool")
    with Job(folder) as job:
        done = promtool("check", "metrics", input=job.get("/metrics"))
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr


@case
def alert_rules_do_what_they_say(_folder):
    need("promtool")
    done = promtool("check", "rules", "elastic-run.rules.yml", cwd=RULES)
    assert done.returncode == 0, done.stderr
    done = promtool("test", "rules", "elastic-run.rules.test.yml", cwd=RULES)
    assert done.returncode == 0, done.stdout + done.stderr


@case
def both_forms_are_read_as_the_same_families(folder):
    try:
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
        from prometheus_client.parser import text_string_to_metric_families as read_plain
    except ImportError as missing:
        raise Skip(missing) from missing
    with Job(folder) as job:
        opened = {f.name: f.type for f in read_open(job.get("/metrics", "application/openmetrics-text"))}
        plain = {f.name: f.type for f in read_plain(job.get("/metrics"))}
    assert opened["elastic_run_build"] == "info" and opened["elastic_run_job_phase"] == "stateset"
    assert opened["elastic_run_recovery_duration_seconds"] == plain["elastic_run_recovery_duration_seconds"] == "histogram"
    assert {n for n, t in opened.items() if t == "counter"} == {n for n, t in plain.items() if t == "counter"}


def unknown_metrics(text):
    with open(os.path.join(SOURCE, "docs", "metrics.md"), encoding="utf-8") as f:
        known = f.read()
    names = {re.sub(r"_bucket$", "", name) for name in re.findall(r"\b(?:elastic_run|process)_\w+", text)}
    assert len(names) >= 8
    return {name for name in names if f"`{name}`" not in known}


@case
def rules_use_metrics_that_exist(_folder):
    with open(os.path.join(RULES, "elastic-run.rules.yml"), encoding="utf-8") as f:
        assert unknown_metrics(f.read()) == set()


@case
def dashboard_asks_for_what_exists(folder):
    with open(os.path.join(SOURCE, "packaging", "grafana", "elastic-run.json"), encoding="utf-8") as f:
        board = json.load(f)
    panels = [p for p in board["panels"] if p["type"] != "row"]
    asked = [t["expr"] for p in panels for t in p["targets"]] + [a["expr"] for a in board["annotations"]["list"]]
    assert unknown_metrics("\n".join(asked)) == set()
    assert len({p["id"] for p in board["panels"]}) == len(board["panels"])
    need("promtool")
    rules = os.path.join(folder, "asked.yml")
    with open(rules, "w", encoding="utf-8") as f:  # each expression as a rule: promtool reads them
        json.dump({"groups": [{"name": "g", "rules": [{"record": f"r{i}", "expr": e} for i, e in enumerate(asked)]}]}, f)
    done = promtool("check", "rules", rules)
    assert done.returncode == 0, done.stdout + done.stderr


class Browser:
    """Headless Chromium, spoken to over its debugging pipe: JSON messages that end in NUL, on descriptors 3 and 4."""

    def __init__(self, program, folder):
        to_browser, self.writer = os.pipe()
        self.reader, from_browser = os.pipe()
        self.rest, self.last_id, self.complaints = b"", 0, []

        def place():
            low, high = os.dup(to_browser), os.dup(from_browser)  # either may be 3 or 4 itself
            os.dup2(low, 3)
            os.dup2(high, 4)

        self.process = subprocess.Popen([program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                                         "--window-size=1140,940", "--remote-debugging-pipe", "about:blank"], preexec_fn=place,
                                        close_fds=False, env=environment(folder), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Runtime.enable", session=self.session)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(DEADLINE_S)
        os.close(self.reader)
        os.close(self.writer)

    def message(self):
        while b"\0" not in self.rest:
            data = os.read(self.reader, 1 << 20)
            assert data, "the browser has ended"
            self.rest += data
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, session=None, **parameters):
        self.last_id += 1
        request = {"id": self.last_id, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self.writer, json.dumps(request).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(answer["params"]["exceptionDetails"])
            if answer.get("id") == self.last_id:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url):
        self.call("Page.navigate", session=self.session, url=url)

    def value(self, expression):
        return self.call("Runtime.evaluate", session=self.session, expression=expression)["result"].get("value")

    def picture(self, path):
        data = self.call("Page.captureScreenshot", session=self.session)["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))


@case
def browser_draws_the_page(folder):
    program = need("chromium")
    with Job(folder) as job, Browser(program, folder) as browser:
        browser.open(job.url + "/")
        for what in (f'document.getElementById("job").textContent === "{JOB}"',
                     'document.getElementById("phase").textContent === "running"',
                     'document.getElementById("generations").textContent.includes("worker_failed")',
                     'document.querySelectorAll("#rate polyline, #loss polyline").length === 2',
                     'document.querySelectorAll("#ranks tr").length === 4',
                     'document.getElementById("tiles").textContent.includes("2 left")'):
            wait_for(lambda expression=what: browser.value(expression))
        browser.picture(os.environ.get("ER_PAGE_PICTURE", os.path.join(folder, "page.png")))
        assert not browser.complaints, browser.complaints


if not os.path.exists(os.path.join(BUILD, "er_http.so")):
    skip("prometheus", "this build has no HTTP server (libmicrohttpd-dev)")
main()
