#!/usr/bin/env python3
"""Every file that is installed is in one Debian package: packaging/debian/*.install name it, and nothing that is not there."""

import glob
import json
import os
import re
import subprocess
import sys

SOURCE, BUILD = os.environ["ER_TEST_SOURCE"], os.environ["ER_TEST_BUILD"]
DEBIAN = os.path.join(SOURCE, "packaging", "debian")
# What packaging/debian/rules does to paths below the prefix.
MOVED = [(r"^lib/systemd/system/", "lib/systemd/system/"), (r"^libexec/", "usr/lib/"),
         (r"^lib/python3[^/]*/(site|dist)-packages/", "usr/lib/python3/dist-packages/"), (r"^", "usr/")]
REMOVED = ("usr/share/doc/elastic-run/LICENSE",)
# Not built everywhere.
OPTIONAL = ("elastic-run-nccl", "elastic-run-etcd", "elastic-run-http", "python3-elastic-run")


def option(options, name):
    return next(o["value"] for o in options if o["name"] == name)


def installed():
    def ask(what):
        return json.loads(subprocess.run(["meson", "introspect", what, BUILD], capture_output=True, text=True, check=True).stdout)
    prefix = option(ask("--buildoptions"), "prefix")
    for path in ask("--installed").values():
        path = os.path.relpath(path, prefix)
        for pattern, new in MOVED:
            if re.search(pattern, path):
                yield re.sub(pattern, new, path, count=1)
                break


def patterns():
    for path in glob.glob(os.path.join(DEBIAN, "*.install")):
        with open(path, encoding="utf-8") as f:
            for line in f.read().split():
                yield os.path.basename(path)[:-len(".install")], re.compile(line.replace(".", r"\.").replace("*", "[^/]*") + "(/.*)?$")


def main():
    files = [path for path in installed() if path not in REMOVED]
    problems, used = [], set()
    for path in files:
        found = {(package, pattern.pattern) for package, pattern in patterns() if pattern.match(path)}
        used |= found
        if len({package for package, _ in found}) != 1:
            problems.append(f"{path}: in {sorted(p for p, _ in found) or 'no package'} (packaging/debian/*.install)")
    for package, pattern in patterns():
        if (package, pattern.pattern) not in used and package not in OPTIONAL:
            problems.append(f"packaging/debian/{package}.install: nothing is installed at {pattern.pattern}")
    print("\n".join(problems + [f"debian files: {len(problems)} problem(s)" if problems else "debian files: ok"]))
    return bool(problems)


sys.exit(main())
