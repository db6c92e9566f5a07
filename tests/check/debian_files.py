#!/usr/bin/env python3
"""Every file that is installed is in one Debian package: packaging/debian/*.install name it, and nothing that is not there. Making
packages and purging them removes nothing of anybody else's."""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile

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


def left_by_purge():
    """What postrm leaves of a root folder with logs, node ids, a store and checkpoints in it."""
    with open(os.path.join(DEBIAN, "elastic-run.postrm"), encoding="utf-8") as f:
        script = f.read()
    with tempfile.TemporaryDirectory() as root:
        for name in ("lib/elastic-run/a/node-id", "lib/elastic-run/a/etcd-0/member/wal", "lib/elastic-run/a/checkpoints/step-1",
                     "lib/elastic-run/b/node-id", "log/elastic-run/a/events"):
            path = os.path.join(root, "var", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            open(path, "w", encoding="utf-8").close()
        subprocess.run(["sh", "-c", script.replace("/var/", root + "/var/"), "postrm", "purge"], check=True)
        return [os.path.relpath(os.path.join(folder, name), root) for folder, _, files in os.walk(root) for name in files]


def spares_what_is_not_its_own():
    """Whether packaging/deb, here without a git that answers, leaves a stranger's files in the folder it is given."""
    with tempfile.TemporaryDirectory() as folder:
        git, mine = os.path.join(folder, "git"), os.path.join(folder, "mine")
        for path, text in ((git, "#!/bin/sh\nexit 1\n"), (mine, "")):
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        os.chmod(git, 0o755)
        subprocess.run([os.path.join(SOURCE, "packaging", "deb"), folder], check=False, capture_output=True,
                       env=dict(os.environ, PATH=folder + ":" + os.environ["PATH"]))
        return os.path.exists(mine)


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
    if (left := left_by_purge()) != ["var/lib/elastic-run/a/checkpoints/step-1"]:
        problems.append(f"packaging/debian/elastic-run.postrm: purge leaves {left}, and is to leave a checkpoint")
    if not spares_what_is_not_its_own():
        problems.append("packaging/deb: removes what others have in the folder")
    print("\n".join(problems + [f"debian files: {len(problems)} problem(s)" if problems else "debian files: ok"]))
    return bool(problems)


sys.exit(main())
