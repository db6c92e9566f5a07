#!/usr/bin/env python3
"""Pure files decide and do nothing else: what their objects need from outside (`nm -u`) proves it.

pure.txt lists them, with the symbols that one may use beyond those that all may.
"""

import fnmatch
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

import tree

# Memory, strings, formatting into buffers, assertions: no I/O, no clock, no randomness, no log, no allocation.
ALLOWED = ("mem*", "__mem*", "str*", "__str*", "snprintf", "vsnprintf", "__snprintf_chk", "__vsnprintf_chk", "__assert_fail",
           "abort", "__stack_chk_fail", "_GLOBAL_OFFSET_TABLE_", "__ctype_*", "__errno_location", "__isoc*_strto*")
# Ours from files that are not pure as a whole, but these only compute, or fill the caller's struct.
HELPERS = ("er_error_set", "er_error_wrap", "er_error_name", "er_deadline_in")
FORBIDDEN = ("strdup", "strndup", "__strdup", "strerror*")
FLAGS = ["-std=gnu17", "-D_GNU_SOURCE", "-O2", "-fno-common", "-fPIC", "-fvisibility=hidden", "-c"]


def listed():
    for line in tree.read("tests/check/pure.txt").splitlines():
        words = line.split("#")[0].split()
        if words:
            yield words[0], words[1:]


def symbols(obj, kind):
    out = subprocess.run(["nm", kind, obj], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in out.splitlines() if line.strip()}


def build(name, folder):
    obj = os.path.join(folder, name.replace("/", "_") + ".o")
    done = subprocess.run(["gcc", *FLAGS, "-I", tree.SOURCE_ROOT, os.path.join(tree.SOURCE_ROOT, name), "-o", obj],
                          capture_output=True, text=True, check=False)
    return obj if done.returncode == 0 else None


def matches(symbol, patterns):
    return any(fnmatch.fnmatchcase(symbol, p) for p in patterns)


def check(pure, folder):
    problems = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = dict(zip(pure, pool.map(lambda name: build(name, folder), pure)))
    for name, obj in objects.items():
        if obj is None:
            problems.append(f"{name}: listed in pure.txt, but it does not compile")
    built = {name: obj for name, obj in objects.items() if obj}
    from_pure = set().union(*(symbols(obj, "--defined-only") for obj in built.values())) if built else set()
    for name, obj in built.items():
        for symbol in sorted(symbols(obj, "-u")):
            fine = symbol in from_pure or matches(symbol, pure[name])
            if not fine and (matches(symbol, FORBIDDEN) or not matches(symbol, ALLOWED + HELPERS)):
                problems.append(f"{name}: not pure, it uses {symbol}()")
    return problems


names = [name for name, symbols_too in listed()]
twice = [f"{name}: listed twice in pure.txt" for name in sorted(set(names)) if names.count(name) > 1]
with tempfile.TemporaryDirectory() as scratch:
    tree.report("purity", twice or check(dict(listed()), scratch))
