#!/usr/bin/env python3
"""One name, one meaning: no external symbol is defined twice, and no struct, union or enum tag in two folders (within one, each
implementation of a port defines the port's handle)."""

import glob
import os
import re
import subprocess

import tree

PRODUCT = ("base", "rendezvous", "agent", "runtime", "ckpt", "trainer")
TAG = re.compile(r"^\s*(?:typedef\s+|static\s+|const\s+)*(?:struct|union|enum)\s+(\w+)\s*\{", re.MULTILINE)


def tags():
    """(tag, folder) of each definition of a tag that has our prefix, and of those that a header has without one."""
    for name in tree.sources():
        if name.split("/")[0] in PRODUCT:
            for tag in TAG.findall(tree.read(name)):
                if tag.startswith("er_") or name.endswith(".h"):
                    yield tag, name.split("/")[0] + "/"


def symbols(build):
    """(symbol, object) of each external definition in the libraries of our folders."""
    for folder in PRODUCT:
        for library in glob.glob(os.path.join(build, folder, "*.a")):
            listed = subprocess.run(["nm", "-A", "--defined-only", "--extern-only", "--format=posix", library],
                                    capture_output=True, text=True, check=True).stdout
            for line in listed.splitlines():
                member, symbol, kind = line.split()[:3]
                if kind in "TDBRC":
                    # Libraries are thin: a member is the path of an object, which several may hold.
                    obj = os.path.realpath(member[member.rindex("[") + 1:member.rindex("]")])
                    yield symbol, os.path.relpath(obj, os.path.realpath(build))


def twice(what, pairs):
    places = {}
    for name, place in pairs:
        places.setdefault(name, set()).add(place)
    return [f"{what} {name} is defined in {' and '.join(sorted(where))}" for name, where in sorted(places.items()) if len(where) > 1]


tree.report("symbols", twice("symbol", symbols(os.environ["ER_TEST_BUILD"])) + twice("tag", tags()))
