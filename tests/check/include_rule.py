#!/usr/bin/env python3
"""Which folder may include which, and how: ARCHITECTURE.md gives the reasons.

Includes of ours are written from the source root; a .c file includes its own header first, system headers then, ours last;
only the named files know a heavy library.
"""

import os
import re

import tree

MAY_INCLUDE = {
    "base": {"base"},
    "rendezvous": {"rendezvous", "base"},
    "agent": {"agent", "rendezvous", "base"},
    "runtime": {"runtime", "base"},
    "ckpt": {"ckpt", "base"},
    "trainer": {"trainer", "runtime", "ckpt", "base"},
    "examples": set(tree.FOLDERS) - {"tests", "bench"},
    "tests": set(tree.FOLDERS),
    "bench": set(tree.FOLDERS),
}

# A header of a library, and the files that may include it.
ONLY_IN = (
    (r"grpc/|protobuf-c/", r"rendezvous/etcd_"),
    (r"systemd/", r"agent/"),
    (r"yaml\.h$", r"agent/"),
    (r"openssl/", r"(agent/keeper_tls|rendezvous/etcd_cert)\.c$"),
    (r"microhttpd\.h$", r"agent/"),
    (r"cuda|nccl|cublas", r"runtime/(nccl_calls|device_cuda|blas_calls)\.c$|tests/fakecuda/"),
    (r"cblas\.h$|openblas", r"trainer/"),
    (r"criterion/", r"tests/"),
)

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)


def problems_of(name):
    folder = name.split("/")[0]
    found = INCLUDE.findall(tree.read(name))
    for kind, target in found:
        if kind == '"':
            target_folder = target.split("/")[0]
            if "/" not in target or not os.path.isfile(os.path.join(tree.SOURCE_ROOT, target)):
                yield f'{name}: "{target}" is not a path from the source root'
            elif target_folder not in MAY_INCLUDE[folder]:
                yield f'{name}: {folder}/ may not include "{target}"'
            elif target.endswith("_internal.h") and target_folder != folder and folder != "tests":
                yield f'{name}: "{target}" is private to {target_folder}/'
        else:
            for header, where in ONLY_IN:
                if re.search(header, target) and not re.match(where, name):
                    yield f"{name}: <{target}> belongs to {where} alone"
    yield from order_problems(name, found)


def order_problems(name, found):
    """Own header first, then system headers, then ours. Several files may implement one header: any of ours may come first."""
    own = name[:-2] + ".h"
    if not name.endswith(".c"):
        return
    if os.path.isfile(os.path.join(tree.SOURCE_ROOT, own)):
        if not found or found[0] != ('"', own):
            yield f'{name}: "{own}" is not the first include'
    if found and found[0][0] == '"':
        found = found[1:]
    kinds = [kind for kind, target in found]
    if "<" in kinds and '"' in kinds[:len(kinds) - kinds[::-1].index("<")]:
        yield f"{name}: an include of ours stands before a system header"


tree.report("include rule", [p for name in tree.sources() for p in problems_of(name)])
