#!/usr/bin/env python3
"""`make install` is complete: a program outside the tree compiles and links against what it installed, in C and C++."""

import os
import subprocess
import sys
import tempfile

PROGRAM = """
#include <stdio.h>
#include "ckpt/ckpt.h"
#include "runtime/comm.h"
#include "trainer/sampler.h"
#include "trainer/train.h"

int main(void)
{
    struct er_error err = ER_ERROR_INIT;
    return er_error_set(&err, ER_E_USAGE, "installed") == ER_E_USAGE ? 0 : 1;
}
"""
OURS = ("-lelastic-train", "-lelastic-ckpt", "-lelastic")


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def find(root, name):
    for folder, _, files in os.walk(root):
        if name in files:
            return os.path.join(folder, name)
    sys.exit(f"{name} was not installed")


def whole(flags):
    """Every object of our libraries, so that what they need and the .pc files do not name shows."""
    others = [flag for flag in flags if flag not in OURS]
    folders = [flag for flag in others if not flag.startswith("-l")]
    return [*folders, "-Wl,--whole-archive", *OURS, "-Wl,--no-whole-archive", *[f for f in others if f.startswith("-l")]]


build = os.environ["ER_TEST_BUILD"]
with tempfile.TemporaryDirectory() as dest:
    run("meson", "install", "-C", build, "--no-rebuild", "--destdir", dest)
    pc = find(dest, "elastic-train.pc")
    prefix = os.path.dirname(os.path.dirname(find(dest, "elastic-run")))
    flags = run("pkg-config", f"--define-variable=prefix={prefix}", "--cflags", "--libs", "elastic-train", env=dict(
        os.environ, PKG_CONFIG_PATH=os.path.dirname(pc))).split()
    for compiler, suffix in (("cc", ".c"), ("c++", ".cpp")):
        source, program = os.path.join(dest, "use" + suffix), os.path.join(dest, "use")
        with open(source, "w", encoding="utf-8") as f:
            f.write(PROGRAM)
        run(compiler, source, "-o", program, *whole(flags))
        run(program)
    # The page's example, as the page says.
    with open(find(dest, "building.md"), encoding="utf-8") as f:
        example = f.read().split("```c\n")[1].split("```")[0]
    numbers = os.path.join(dest, "numbers.c")
    with open(numbers, "w", encoding="utf-8") as f:
        f.write(example)
    elastic = run("pkg-config", f"--define-variable=prefix={prefix}", "--cflags", "--libs", "elastic", env=dict(
        os.environ, PKG_CONFIG_PATH=os.path.dirname(pc))).split()
    run("cc", numbers, "-o", numbers[:-2], *elastic)
    lines = run(find(dest, "elastic-run"), "--nproc-per-node", "2", numbers[:-2]).splitlines()
    if sorted(line[:11] for line in lines) != ["rank 0 of 2", "rank 1 of 2"]:
        sys.exit(f"the example printed {lines}")
    for example in ("hello", "epoch_loop"):
        run("cc", os.path.join(os.environ["ER_TEST_SOURCE"], "examples", example + ".c"), "-o", os.path.join(dest, example), *flags)
    find(dest, "LICENSE")
    print(run(find(dest, "elastic-run"), "--version").strip())
    run(sys.executable, "-B", os.path.join(os.environ["ER_TEST_SOURCE"], "packaging", "uninstall.py"), build, dest)
    left = [name for _, _, names in os.walk(prefix) for name in names]
    if left or os.path.exists(os.path.join(prefix, "include", "elastic-run")):
        sys.exit(f"uninstall left {left}")
