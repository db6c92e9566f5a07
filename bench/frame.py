"""What bench/run and bench/report share: the table of figures and targets, and where results are kept."""

import datetime
import json
import os
import platform
import subprocess

BENCH = os.path.dirname(os.path.abspath(__file__))
SOURCE_ROOT = os.path.dirname(BENCH)


def read_targets(path=os.path.join(BENCH, "targets.json")):
    """{member: {about, peers, quick_s, full_s, figures: {figure: {unit, better, target, with_peers}}}}; a figure without target is for
    information, one with `with_peers` is there with PEERS=1 alone. quick_s, full_s: how long it may take, where not the usual time."""
    with open(path, encoding="utf-8") as f:
        members = json.load(f)
    for member, entry in members.items():
        for figure, want in entry["figures"].items():
            if "target" in want and want.get("better") not in ("less", "more"):
                raise ValueError(f"targets.json: {member}.{figure}: `better` must be less or more")
    return members


def results_folder(build):
    return os.path.join(build, "bench-results")


def first_line(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def cpu_model():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
    return names[0] if names else platform.machine()


def memory_gib():
    with open("/proc/meminfo", encoding="utf-8") as f:
        return round(int(f.readline().split()[1]) / (1 << 20))


def machine():
    """Where and with what a measurement was made."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": memory_gib(),
        "kernel": platform.release(),
        "compiler": first_line(["gcc", "--version"]),
        "revision": first_line(["git", "-C", SOURCE_ROOT, "describe", "--always", "--dirty"]),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
    }
