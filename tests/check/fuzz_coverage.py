#!/usr/bin/env python3
"""The kept corpora of tests/fuzz reach at least 90 % of the lines of the parsers that they are for."""

import os
import re
import shlex
import subprocess
import sys
import tempfile

import tree

LEAST = 90.0
BASE = ["buf", "cleanup", "clock", "error", "fd", "field", "hash", "parse", "parse_nearest", "utf8"]
# Target, the files that are measured, and what they need besides.
TARGETS = [
    ("codec", ["rendezvous/codec_fields.c"], ["rendezvous/codec.c", "rendezvous/key.c", "base/rand.c"]),
    ("lines", ["agent/linesplit.c"], []),
    ("options", ["agent/options.c"], ["agent/keys.c"]),
    ("spec", ["agent/spec.c", "agent/subst.c", "agent/value.c", "agent/value_list.c", "agent/value_parse.c", "agent/value_ranks.c", "agent/value_roles.c"],
     ["agent/keys.c", "agent/env.c", "agent/yaml_text.c"]),
]
CC = shlex.split(os.environ.get("CC", "gcc"))


def run(*command, cwd=tree.SOURCE_ROOT):
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def compile_all(folder, files, *options):
    objects = []
    for name in files:
        objects.append(os.path.join(folder, name.replace("/", "_")[:-2] + ".o"))
        run(*CC, "-std=gnu17", "-D_GNU_SOURCE", "-O0", "-g", "-I.", *options, "-c", name, "-o", objects[-1])
    return objects


def measure(folder, target, measured, others):
    """Percentage of lines by measured file."""
    objects = compile_all(folder, measured, "--coverage")
    objects += compile_all(folder, others + [f"tests/fuzz/fuzz_{target}.c", "tests/fuzz/replay.c"])
    program = os.path.join(folder, "replay")
    run(*CC, "--coverage", *objects, *BASE_OBJECTS, "-lyaml", "-lxxhash", "-lm", "-o", program)
    run(program, os.path.join("tests/fuzz/corpus", target))
    for name in measured:
        text = run("gcov", "-n", "-o", folder, os.path.join(folder, name.replace("/", "_")[:-2] + ".gcda"), cwd=folder)
        for found, percent in re.findall(r"File '([^']+)'\nLines executed:([0-9.]+)%", text):
            if os.path.normpath(os.path.join(tree.SOURCE_ROOT, found)).endswith(name):
                yield name, float(percent)


problems = []
with tempfile.TemporaryDirectory() as base:
    BASE_OBJECTS = compile_all(base, [f"base/{name}.c" for name in BASE])
    avx2 = os.path.join(tree.SOURCE_ROOT, "base", "hash_avx2.c")
    if os.path.exists(avx2) and os.uname().machine == "x86_64":
        BASE_OBJECTS += compile_all(base, ["base/hash_avx2.c"])
    for target, measured, others in TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            found = dict(measure(folder, target, measured, others))
        for name in measured:
            print(f"{name}: {found.get(name, 0):.1f} % of the lines by the corpus of {target}")
            if found.get(name, 0) < LEAST:
                problems.append(f"{name}: {found.get(name, 0):.1f} % is less than {LEAST:.0f} %")
tree.report("fuzz coverage", problems)
