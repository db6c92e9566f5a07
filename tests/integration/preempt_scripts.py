#!/usr/bin/env python3
"""packaging/preempt/{aws,gcp,azure} against a metadata service that this test plays."""

import contextlib
import glob
import http.server
import os
import shutil
import subprocess
import sys
import threading

TOKEN = f"token-of-{os.getpid()}-{os.urandom(4).hex()}"
SCRIPTS = os.path.join(os.environ["ER_TEST_SOURCE"], "packaging", "preempt")
AZURE_NAME = ("GET", "/metadata/instance/compute/name?api-version=2021-02-01&format=text")
AZURE_EVENTS = ("GET", "/metadata/scheduledevents?api-version=2020-07-01")
AWS_TOKEN = ("PUT", "/latest/api/token")
AWS_ACTION = ("GET", "/latest/meta-data/spot/instance-action")
AWS_STATE = ("GET", "/latest/meta-data/autoscaling/target-lifecycle-state")
GCP_PREEMPTED = ("GET", "/computeMetadata/v1/instance/preempted")
GCP_MAINTENANCE = ("GET", "/computeMetadata/v1/instance/maintenance-event")
HEADERS = {"aws": ("X-aws-ec2-metadata-token", TOKEN), "gcp": ("Metadata-Flavor", "Google"), "azure": ("Metadata", "true")}


def event(kind, *machines):
    return '{"EventId": "1", "EventType": "%s", "Resources": [%s]}' % (kind, ", ".join(f'"{m}"' for m in machines))


def events(*items):
    return '{"DocumentIncarnation": 3,\n "Events": [%s]}' % ",\n".join(items)


# script, what the service answers, exit code
CASES = [
    ("aws", {}, 2),
    ("aws", {AWS_TOKEN: TOKEN}, 1),
    ("aws", {AWS_TOKEN: TOKEN, AWS_ACTION: '{"action": "terminate", "time": "2026-01-02T03:04:05Z"}'}, 0),
    ("aws", {AWS_TOKEN: TOKEN, AWS_STATE: "InService"}, 1),
    ("aws", {AWS_TOKEN: TOKEN, AWS_STATE: "Terminated"}, 0),
    ("gcp", {}, 2),
    ("gcp", {GCP_PREEMPTED: "FALSE", GCP_MAINTENANCE: "NONE"}, 1),
    ("gcp", {GCP_PREEMPTED: "FALSE", GCP_MAINTENANCE: "MIGRATE_ON_HOST_MAINTENANCE"}, 1),
    ("gcp", {GCP_PREEMPTED: "FALSE", GCP_MAINTENANCE: "TERMINATE_ON_HOST_MAINTENANCE"}, 0),
    ("gcp", {GCP_PREEMPTED: "TRUE"}, 0),
    ("azure", {}, 2),
    ("azure", {AZURE_NAME: "vm-1", AZURE_EVENTS: events()}, 1),
    ("azure", {AZURE_NAME: "vm-1", AZURE_EVENTS: events(event("Preempt", "vm-2"))}, 1),
    ("azure", {AZURE_NAME: "vm-1", AZURE_EVENTS: events(event("Preempt", "vm-2"), event("Freeze", "vm-1"))}, 1),
    ("azure", {AZURE_NAME: "vm-1", AZURE_EVENTS: events(event("Freeze", "vm-1"), event("Preempt", "vm-2", "vm-1"))}, 0),
]


def told_by_arguments():
    """Processes whose arguments have the token. The script's are among those that run: it waits for an answer."""
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError), open(path, "rb") as f:
            if TOKEN.encode() in (arguments := f.read()):
                yield arguments.replace(b"\0", b" ").decode()


class Service(http.server.BaseHTTPRequestHandler):
    answers, header, told = {}, ("", ""), []

    def answer(self):
        self.told.extend(told_by_arguments())
        key = (self.command, self.path)
        name, value = self.header
        asked_well = self.command == "PUT" or self.headers.get(name) == value
        text = self.answers.get(key, "").encode() if asked_well else b""
        self.send_response(200 if text else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = answer

    def log_message(self, format, *args):
        pass


def run(script, answers, url):
    Service.answers, Service.header = answers, HEADERS[script]
    environment = dict(os.environ, ELASTIC_METADATA_URL=url)
    return subprocess.run([os.path.join(SCRIPTS, script)], env=environment, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False, timeout=60).returncode


def main():
    if not shutil.which("curl"):
        print("curl is not installed")
        return 77
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    failures = 0
    for script, answers, want in CASES:
        got = run(script, answers, f"http://127.0.0.1:{server.server_port}")
        if got != want:
            print(f"{script} with {answers}: exit {got}, not {want}")
            failures += 1
    server.shutdown()
    for arguments in Service.told:
        print(f"every user could read the token: {arguments}")
    return 1 if failures or Service.told else 0


sys.exit(main())
