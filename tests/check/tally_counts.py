#!/usr/bin/env python3
"""tests/tally, on which every verdict rests: it counts cases one by one and lets no failure or unlisted skip through."""

import json
import os
import subprocess
import sys
import tempfile

import tree

TALLY = os.path.join(tree.SOURCE_ROOT, "tests", "tally")


def tally(tests, *options):
    """Exit status and last line for a made-up run: tests is [(name, protocol, record or None)]."""
    with tempfile.TemporaryDirectory() as build:
        os.makedirs(os.path.join(build, "meson-info"))
        os.makedirs(os.path.join(build, "meson-logs"))
        planned = [{"name": name, "suite": ["elastic-run:unit"], "protocol": protocol} for name, protocol, record in tests]
        with open(os.path.join(build, "meson-info", "intro-tests.json"), "w", encoding="utf-8") as f:
            json.dump(planned, f)
        with open(os.path.join(build, "meson-logs", "testlog.json"), "w", encoding="utf-8") as f:
            for name, protocol, record in tests:
                if record is not None:
                    f.write(json.dumps({"name": f"elastic-run:unit / {name}", **record}) + "\n")
        done = subprocess.run([sys.executable, "-B", TALLY, *options, build], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines()[-1]


def tap(text, result="OK", status=0):
    return {"stdout": text, "result": result, "returncode": status}


def plain(result, status):
    return {"stdout": "", "result": result, "returncode": status}


CASES = (
    ("cases of a TAP program count one by one",
     [("a", "tap", tap("TAP version 13\n1..2\nok - m::x  (0.00s)\nok - m::y  (0.01s)\n"))], (), (0, "2 passed, 0 failed, 0 skipped")),
    ("a numbered failure counts, the others pass",
     [("a", "tap", tap("1..2\nok 1 - x\nnot ok 2 - y\n", "FAIL", 1))], (), (1, "1 passed, 1 failed, 0 skipped")),
    ("a planned case without result has failed",
     [("a", "tap", tap("1..3\nok 1 - x\n", "ERROR", -11))], (), (1, "1 passed, 2 failed, 0 skipped")),
    ("a program that passes its cases and then crashes has failed",
     [("a", "tap", tap("1..1\nok 1 - x\n", "ERROR", -11))], (), (1, "1 passed, 1 failed, 0 skipped")),
    ("a TAP program without cases has failed",
     [("a", "tap", tap("1..0\n"))], (), (1, "0 passed, 1 failed, 0 skipped")),
    ("other programs count as one",
     [("a", "exitcode", plain("OK", 0)), ("b", "exitcode", plain("TIMEOUT", -15))], (), (1, "1 passed, 1 failed, 0 skipped")),
    ("a test that did not run has failed",
     [("a", "exitcode", plain("OK", 0)), ("b", "exitcode", None)], (), (1, "1 passed, 1 failed, 0 skipped")),
    ("an unlisted skip is a failure",
     [("a", "tap", tap("1..2\nok - x\nok - y # SKIP no reason\n"))], (), (1, "1 passed, 1 failed, 0 skipped")),
    ("an unlisted skip of a whole program is a failure",
     [("a", "exitcode", plain("SKIP", 77))], (), (1, "0 passed, 1 failed, 0 skipped")),
    ("stages count",
     [("a", "exitcode", plain("OK", 0))], ("--stage", "asan=0", "--stage", "valgrind=1"), (1, "2 passed, 1 failed, 0 skipped")),
    ("no test at all is a failure", [], (), (1, "0 passed, 1 failed, 0 skipped")),
)


def problems():
    for what, tests, options, want in CASES:
        have = tally(tests, *options)
        if have != want:
            yield f"{what}: want {want}, have {have}"


tree.report("tally", list(problems()))
