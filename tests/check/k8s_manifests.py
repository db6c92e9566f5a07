#!/usr/bin/env python3
"""The manifests for Kubernetes: fields as the API's models have them (Debian's python3-kubernetes, where it is installed), job
specs that elastic-run itself accepts, exit codes as docs/exit-codes.md has them.

Usage: k8s_manifests.py ELASTIC_RUN"""

import os
import re
import subprocess
import sys
import tempfile

import yaml
from tree import SOURCE_ROOT, read, report

FOLDER = "packaging/kubernetes"
# Newer than Debian's models (1.22), or no part of the core API.
NEWER = {"podFailurePolicy"}
try:
    import kubernetes.client as models
except ImportError:
    models = None


def walk(what, model, where, problems):
    """Compare a mapping with the class that stands for its type."""
    if isinstance(what, list) and model.startswith("list["):
        for i, item in enumerate(what):
            walk(item, model[5:-1], f"{where}[{i}]", problems)
        return
    known = getattr(models, model, None)
    if known is None or not isinstance(what, dict):
        return
    names = {name: python for python, name in known.attribute_map.items()}
    for key, value in what.items():
        if key in names:
            walk(value, known.openapi_types[names[key]], f"{where}.{key}", problems)
        elif key not in NEWER:
            problems.append(f"{where}: no field '{key}' in {model}")


def check_document(document, where, problems):
    for key in ("apiVersion", "kind", "metadata"):
        if key not in document:
            problems.append(f"{where}: no {key}")
    jobs = [j["template"]["spec"] for j in document["spec"]["replicatedJobs"]] if document["kind"] == "JobSet" else []
    if models and document["kind"] != "JobSet":
        walk(document, "V1" + document["kind"], where, problems)
    for job in jobs:
        if models:
            walk(job, "V1JobSpec", where, problems)
    if document["kind"] == "Job":
        jobs = [document["spec"]]
    for job in jobs:
        check_job(job, where, problems)


def check_job(job, where, problems):
    pod = job["template"]["spec"]
    volumes = {v["name"] for v in pod["volumes"]}
    mounts = {m["name"] for c in pod["containers"] for m in c["volumeMounts"]}
    fatal = [r["onExitCodes"] for r in job["podFailurePolicy"]["rules"] if "onExitCodes" in r]
    listed = set(map(int, re.search(r"FailJob on ([0-9, ]+)", read("docs/exit-codes.md")).group(1).replace(",", " ").split()))
    if volumes != mounts:
        problems.append(f"{where}: volumes {sorted(volumes)}, mounted {sorted(mounts)}")
    if set(fatal[0]["values"]) != listed:
        problems.append(f"{where}: FailJob on {fatal[0]['values']}, docs/exit-codes.md says {sorted(listed)}")
    if fatal[0]["containerName"] not in {c["name"] for c in pod["containers"]} or pod["restartPolicy"] != "Never":
        problems.append(f"{where}: podFailurePolicy needs its container and restartPolicy: Never")
    if pod.get("automountServiceAccountToken") is not False:
        problems.append(f"{where}: workers get a token of the cluster")
    if any(c.get("securityContext", {}).get("allowPrivilegeEscalation") is not False for c in pod["containers"]):
        problems.append(f"{where}: workers may gain privileges")


def check_spec(text, where, problems):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write(text)
        f.flush()
        done = subprocess.run([sys.argv[1], "--print-config", "--set", "nproc_per_node=1", f.name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        problems.append(f"{where}: {done.stderr.strip()}")


def main():
    problems = []
    for name in sorted(os.listdir(os.path.join(SOURCE_ROOT, FOLDER))):
        if not name.endswith(".yaml"):
            continue
        for i, document in enumerate(yaml.safe_load_all(read(os.path.join(FOLDER, name)))):
            where = f"{FOLDER}/{name}, document {i + 1}"
            check_document(document, where, problems)
            if document["kind"] == "ConfigMap":
                check_spec(document["data"]["job.yaml"], where, problems)
    report("k8s_manifests", problems)


main()
