#!/usr/bin/env python3
"""Every C file is formatted as .clang-format says. `--fix` rewrites those that are not (make format)."""

import subprocess
import sys

import tree

TOOL = "clang-format-14"
names = tree.sources()
try:
    if "--fix" in sys.argv[1:]:
        sys.exit(subprocess.run([TOOL, "-i", *names], cwd=tree.SOURCE_ROOT, check=False).returncode)
    done = subprocess.run([TOOL, "--dry-run", "-Werror", *names], cwd=tree.SOURCE_ROOT, capture_output=True, text=True,
                          check=False)
except FileNotFoundError:
    print(f"{TOOL} is not installed: packaging/setup.sh tests")
    sys.exit(1)
bad = sorted({line.split(":")[0] for line in done.stderr.splitlines() if "clang-format-violations" in line})
tree.report("format", [f"{name}: not formatted; run `make format`" for name in bad] or done.stderr.splitlines())
