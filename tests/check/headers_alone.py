#!/usr/bin/env python3
"""Every header compiles by itself: all as gnu17, the public ones as C11 and C++17 too."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import tree

PUBLIC = tree.read("packaging/headers.txt").split()
OURS = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
C17 = ["gcc", "-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wno-unused-parameter", "-x", "c"]
C11 = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wstrict-prototypes", "-x", "c"]
CXX = ["g++", "-std=c++17", "-Wall", "-Wextra", "-x", "c++"]


def compile_alone(job):
    header, command = job
    unit = f'#include "{header}"\n#include "{header}"\n'
    done = subprocess.run(
        command + ["-Werror", "-fsyntax-only", "-I", tree.SOURCE_ROOT, "-"], input=unit, capture_output=True, text=True,
        check=False)
    return [] if done.returncode == 0 else [f"{header} does not compile alone with {command[0]} {command[1]}:\n{done.stderr}"]


jobs = [(header, C17) for header in tree.sources(".h")]
for public in PUBLIC:
    if os.path.isfile(os.path.join(tree.SOURCE_ROOT, public)):
        jobs += [(public, C11), (public, CXX)]
    else:
        print(f"{public}: not there")
        sys.exit(1)
missing = [f"{public} is installed, {other} that it includes is not"
           for public in PUBLIC for other in OURS.findall(tree.read(public)) if other not in PUBLIC]
with ThreadPoolExecutor(os.cpu_count()) as pool:
    tree.report("headers alone", missing + [p for problems in pool.map(compile_alone, jobs) for p in problems])
