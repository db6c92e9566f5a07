#!/usr/bin/env python3
"""bench/run judges alone: targets, missing and unlisted figures, and nothing but JSON lines on stdout."""

import json
import os
import subprocess
import sys
import tempfile

import tree

RUN = os.path.join(tree.SOURCE_ROOT, "bench", "run")
TARGETS = {
    "sample": {
        "about": "a sample",
        "figures": {
            "fast_ms": {"unit": "ms", "better": "less", "target": 10},
            "rate": {"unit": "GB/s", "better": "more", "target": 5},
            "note": {"unit": "ms"},
        },
    }
}
FIELDS = ["bench", "figure", "value", "unit", "target", "ok", "runs", "spread"]
GOOD = {"fast_ms": 10, "rate": 5.5, "note": 1e6}


def bench(figures, status=0, extra=""):
    """Exit status and printed lines of bench/run for a program that prints these figures."""
    with tempfile.TemporaryDirectory() as build:
        os.makedirs(os.path.join(build, "bench"))
        program = os.path.join(build, "bench", "bench_sample")
        raw = "".join(json.dumps({"figure": f, "value": v, "spread": 0.1, "runs": 3}) + "\n" for f, v in figures.items())
        with open(program, "w", encoding="utf-8") as f:
            f.write(f"#!/bin/sh\ncat <<'EOF'\n{raw}{extra}EOF\nexit {status}\n")
        os.chmod(program, 0o755)
        targets = os.path.join(build, "targets.json")
        with open(targets, "w", encoding="utf-8") as f:
            json.dump(TARGETS, f)
        done = subprocess.run([sys.executable, "-B", RUN, "--build", build, "--targets", targets], capture_output=True, text=True,
                              check=False)
        return done.returncode, {line["figure"]: line for line in map(json.loads, done.stdout.splitlines())}


def problems():
    status, lines = bench(GOOD)
    if status != 0 or [line["ok"] for line in lines.values()] != [True] * 3:
        yield f"figures on target were refused: {status} {lines}"
    if any(list(line) != FIELDS for line in lines.values()):
        yield f"the fields of a line are not {FIELDS}"
    for figure, value in (("fast_ms", 10.1), ("rate", 4.9)):
        status, lines = bench({**GOOD, figure: value})
        if status == 0 or lines[figure]["ok"]:
            yield f"{figure}={value} misses its target and was let through"
    status, lines = bench({"fast_ms": 1, "rate": 6})
    if status == 0 or lines["note"]["ok"] or lines["note"]["value"] is not None:
        yield "a missing figure was let through"
    for what, arguments in (("unlisted figure", {"figures": {**GOOD, "other": 1}}),
                            ("line that is not JSON", {"figures": GOOD, "extra": "hello\n"}),
                            ("failed program", {"figures": GOOD, "status": 1})):
        if bench(**arguments)[0] == 0:
            yield f"a {what} was let through"


tree.report("bench frame", list(problems()))
