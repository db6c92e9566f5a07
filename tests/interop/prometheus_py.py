#!/usr/bin/env python3
"""What Prometheus' own tools make of /metrics, and a browser of the page. Each part skips where its tool is not installed.

promtool reads the text form 0.0.4 only; prometheus_client's parser checks OpenMetrics; headless Chromium draws the page.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request

sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "lib"))
from py_cases import BUILD, DEADLINE_S, RUN, SOURCE, case, environment, main, skip, wait_for  # noqa: E402

STEPPER = os.path.join(BUILD, "tests", "integration", "stepper")
RULES = os.path.join(SOURCE, "packaging", "prometheus")


class Job:
    """Three ranks that report steps; one fails once, so that a recovery is there to tell of."""

    def __init__(self, folder):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{s.getsockname()[1]}"
        spec = os.path.join(folder, "job.yaml")
        with open(spec, "w", encoding="utf-8") as f:
            json.dump({"name": "prometheus", "command": [STEPPER, "1000000", "20"], "nproc_per_node": 3, "log": {"dir": folder},
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


def promtool(*arguments, **more):
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=DEADLINE_S, **more)


@case
def promtool_finds_nothing_wrong(folder):
    if not shutil.which("promtool"):
        return
    with Job(folder) as job:
        done = promtool("check", "metrics", input=job.get("/metrics"))
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr


@case
def alert_rules_do_what_they_say(_folder):
    if not shutil.which("promtool"):
        return
    done = promtool("check", "rules", "elastic-run.rules.yml", cwd=RULES)
    assert done.returncode == 0, done.stderr
    done = promtool("test", "rules", "elastic-run.rules.test.yml", cwd=RULES)
    assert done.returncode == 0, done.stdout + done.stderr


@case
def both_forms_are_read_as_the_same_families(folder):
    try:
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
        from prometheus_client.parser import text_string_to_metric_families as read_plain
    except ImportError:
        return
    with Job(folder) as job:
        opened = {f.name: f.type for f in read_open(job.get("/metrics", "application/openmetrics-text"))}
        plain = {f.name: f.type for f in read_plain(job.get("/metrics"))}
    assert opened["elastic_run_build"] == "info" and opened["elastic_run_job_phase"] == "stateset"
    assert opened["elastic_run_recovery_duration_seconds"] == plain["elastic_run_recovery_duration_seconds"] == "histogram"
    assert {n for n, t in opened.items() if t == "counter"} == {n for n, t in plain.items() if t == "counter"}


@case
def rules_use_metrics_that_exist(folder):
    with open(os.path.join(RULES, "elastic-run.rules.yml"), encoding="utf-8") as f:
        rules = f.read()
    with open(os.path.join(SOURCE, "docs", "metrics.md"), encoding="utf-8") as f:
        known = f.read()
    names = set(re.findall(r"\belastic_run_\w+", rules))
    assert len(names) >= 8 and all(f"`{name}`" in known for name in names), names


@case
def browser_draws_the_page(folder):
    browser = shutil.which("chromium")
    if not browser:
        return
    picture = os.environ.get("ER_PAGE_PICTURE", os.path.join(folder, "page.png"))
    with Job(folder) as job:
        done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1140,940",
                               "--timeout=6000", "--enable-logging=stderr", f"--screenshot={picture}", job.url + "/"],
                              capture_output=True, text=True, check=True, timeout=DEADLINE_S, env=environment(folder))
    assert "Uncaught" not in done.stderr and "Refused to" not in done.stderr, done.stderr
    # Cards, plots and tables with something in them; without the stream it is less than half of that.
    assert os.path.getsize(picture) > 45000, os.path.getsize(picture)


if not os.path.exists(os.path.join(BUILD, "er_http.so")):
    skip("prometheus", "this build has no HTTP server (libmicrohttpd-dev)")
main()
