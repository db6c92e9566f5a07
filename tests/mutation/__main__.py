#!/usr/bin/env python3
"""make mutation: each bug of bugs/ in turn, in a copy of HEAD; the test that it names must fail, for the reason that it names.

    mutation [--build FOLDER] [--list] [NAME...]

Works in FOLDER/mutation (build/mutation): tree/ is a clone of HEAD, build/ what is built of it; both stay, so that the next run is
fast. First the tests must pass without a bug. Then result.jsonl has one line for each. Exit status: 0 all were caught, 1 one was
not, 2 one could not be tried (it does not apply or build, or the test did not run), 64 usage.
"""

import argparse
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)

import bugs  # pylint: disable=wrong-import-position

LIMIT_S = 400  # of a run; the programs have deadlines of their own
TAIL_LINES = 25
WORDS = {"caught": "caught", "missed": "MISSED", "error": "ERROR"}


class CannotTry(Exception):
    """Says nothing about the test: the harness, the build or the bug is at fault."""


# ---- processes ----

def run(command, limit_s=LIMIT_S, env=None, cwd=None, enough=None):
    """(exit status or None when it took too long or enough had been read, what it wrote)."""
    out, until = b"", time.monotonic() + limit_s
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, cwd=cwd) as child:
        try:
            while time.monotonic() < until and not (enough and enough(out.decode(errors="replace"))):
                if select.select([child.stdout], [], [], max(0, until - time.monotonic()))[0]:
                    piece = os.read(child.stdout.fileno(), 65536)
                    out += piece
                    if not piece:
                        return child.wait(), out.decode(errors="replace")
            return None, out.decode(errors="replace")
        finally:
            child.terminate()
            child.wait()


def must(command, what, **options):
    status, out = run(command, limit_s=3600, **options)
    if status != 0:
        raise CannotTry(f"{what} (exit status {status}):\n" + tail(out))
    return out


def lines_with(words, text):
    return [line.strip() for line in text.splitlines() if words in line]


def tail(text):
    return "\n".join("    " + line for line in text.splitlines()[-TAIL_LINES:])


# ---- the copy ----

def head():
    return must(["git", "-C", SOURCE, "rev-parse", "HEAD"], "this is no checkout of git; mutations are made of HEAD").strip()


def make_tree(tree, commit):
    """A clone that shares the objects: files that HEAD has not changed keep their times, and are not built again."""
    checkout = ["git", "-C", tree, "checkout", "-q", "-f", "--detach", commit]
    if os.path.isdir(os.path.join(tree, ".git")) and run(checkout)[0] == 0:
        return
    shutil.rmtree(tree, ignore_errors=True)
    must(["git", "clone", "-q", "--shared", "--no-checkout", SOURCE, tree], "clone HEAD")
    must(checkout, "check out HEAD")


def write(tree, texts):
    for file, text in texts.items():
        with open(os.path.join(tree, file), "w", encoding="utf-8") as f:
            f.write(text)


class Copy:
    """The clone and its build."""

    def __init__(self, folder):
        self.tree = os.path.join(folder, "tree")
        self.build = os.path.join(folder, "build")
        self.revision = head()
        make_tree(self.tree, self.revision)
        env = dict(os.environ)
        if "CC" not in env and shutil.which("ccache"):
            env.update(CC="ccache cc", CXX="ccache c++")
        must([os.path.join(self.tree, "packaging", "configure.sh"), self.build, "-Dtests=enabled"], "set up the build", env=env, cwd=self.tree)
        must(["ninja", "-C", self.build, "build.ninja"], "set up the build")
        names = {t["id"]: t["filename"] for t in self.introspect("--targets")}
        self.tests = {}
        for test in self.introspect("--tests"):
            suite = test["suite"][0].split(":")[1]
            test["targets"] = [os.path.relpath(file, self.build) for one in test["depends"] for file in names.get(one, [])]
            self.tests[f"{suite}/{test['name']}"] = test

    def introspect(self, what):
        return json.loads(must(["meson", "introspect", what, self.build], "read what Meson knows"))

    def test_of(self, bug):
        where = bug.test.split()[0]
        if where not in self.tests:
            raise CannotTry(f"there is no test '{where}' in this build: was a library missing?")
        return self.tests[where]

    def make(self, tests):
        targets = sorted({target for test in tests for target in test["targets"]})
        must(["ninja", "-C", self.build] + targets, "the build failed")

    def run_case(self, test, case, reason=None):
        """(whether the case passed, what the program wrote). A check that fails for `reason` is enough; the rest is not waited for."""
        env = dict(os.environ, **test["env"])
        command = [sys.executable, "-B", os.path.join(HERE, "reap.py"), os.path.join(self.build, test["cmd"][0])] + test["cmd"][1:]
        command += ["--filter", case.replace("::", "/")] if "--tap" in test["cmd"] else [case]
        def failed(text):
            return reason and any(": not true: " in line for line in lines_with(reason, text))

        status, out = run(command, env=env, cwd=test["workdir"] or self.build, enough=failed)
        if status is None and failed(out):
            return False, out
        if status is None:
            raise CannotTry(f"the test did not end within {LIMIT_S} s:\n" + tail(out))
        line = re.search(rf"^(not ok|ok)\b[ \d]*- {re.escape(case)}\b(.*)$", out, re.MULTILINE)
        if not line:
            raise CannotTry(f"the test has not said how '{case}' went (exit status {status}):\n" + tail(out))
        if line[1] == "ok" and re.search(r"# skip", line[2], re.IGNORECASE):
            raise CannotTry(f"'{case}' was skipped:\n" + tail(out))
        return line[1] == "ok", out


# ---- one after another ----

def control(copy, chosen):
    """{(program, case): why} of those that do not pass without a bug: with one, their failure would say nothing."""
    started = time.monotonic()
    bad = {}
    copy.make([copy.test_of(bug) for bug in chosen])
    built = time.monotonic()
    for where, case in sorted({(bug.test.split()[0], bug.case) for bug in chosen}):
        try:
            passed, out = copy.run_case(copy.tests[where], case)
            if not passed:
                bad[where, case] = "the test fails without any bug:\n" + tail(out)
        except CannotTry as problem:
            bad[where, case] = str(problem)
    print(f"mutation: {len(chosen)} bugs; without them {len(bad) or 'none'} of their tests fail{'s' if len(bad) == 1 else ''} "
          f"(built in {built - started:.0f} s, run in {time.monotonic() - built:.0f} s)", flush=True)
    return bad


def try_bug(copy, bug, bad):
    """The result's fields."""
    started = time.monotonic()
    originals = {}
    try:
        if (bug.test.split()[0], bug.case) in bad:
            raise CannotTry(bad[bug.test.split()[0], bug.case])
        texts = bugs.mutate(bug, copy.tree)
        for file in texts:
            with open(os.path.join(copy.tree, file), encoding="utf-8") as f:
                originals[file] = f.read()
        write(copy.tree, texts)
        test = copy.test_of(bug)
        copy.make([test])
        built = time.monotonic()
        passed, out = copy.run_case(test, bug.case, bug.because)
        reason = lines_with(bug.because, out)
        if passed:
            result, text = "missed", "the test passes with the bug"
        elif reason:
            result, text = "caught", reason[0]
        else:
            result, text = "error", f"the test failed, but not because of '{bug.because}':\n" + tail(out)
        return {"result": result, "text": text, "build_seconds": round(built - started, 1), "test_seconds": round(time.monotonic() - built, 1)}
    except (CannotTry, bugs.Broken) as problem:
        return {"result": "error", "text": str(problem)}
    finally:
        write(copy.tree, originals)


def others(results, chosen):
    """Lines of earlier runs about bugs that are not tried now, and still exist."""
    keep = {bug.name for bug in bugs.read_all()} - {bug.name for bug in chosen}
    try:
        with open(results, encoding="utf-8") as f:
            return [line for line in f if line.endswith("\n") and json.loads(line)["name"] in keep]
    except OSError:
        return []


def try_all(copy, chosen, bad, results):
    counts = dict.fromkeys(WORDS, 0)
    kept = others(results, chosen)
    with open(results, "w", encoding="utf-8") as f:
        f.writelines(kept)
        for bug in chosen:
            started = time.monotonic()
            found = try_bug(copy, bug, bad)
            counts[found["result"]] += 1
            line = {"name": bug.name, "revision": copy.revision, "doc": bug.doc, "files": bug.files, "test": bug.test, "caught": found["result"] == "caught",
                    "seconds": round(time.monotonic() - started, 1), **found}
            f.write(json.dumps(line) + "\n")
            f.flush()
            print(f"{WORDS[found['result']]:7} {line['seconds']:6.1f} s  {bug.name:34} {bug.test}", flush=True)
            if found["result"] != "caught":
                print(f"    {bug.doc}\n    {found['text']}", flush=True)
    return counts


def on_signal(number, _frame):
    raise SystemExit(128 + number)


def arguments(argv):
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--build", default=os.path.join(SOURCE, "build"))
    parser.add_argument("--list", action="store_true", help="the bugs and their tests")
    args = parser.parse_args(argv)
    known = bugs.read_all()
    unknown = set(args.names) - {bug.name for bug in known}
    if unknown:
        print(f"mutation: there is no bug '{sorted(unknown)[0]}'; --list names them", file=sys.stderr)
        sys.exit(64)
    args.chosen = [bug for bug in known if not args.names or bug.name in args.names]
    return args


def main(argv):
    args = arguments(argv)
    if args.list:
        for bug in args.chosen:
            print(f"{bug.name:34} {bug.doc}\n{'':34} {bug.test}")
        return 0
    folder = os.path.join(os.path.abspath(args.build), "mutation")
    os.makedirs(folder, exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, on_signal)
    with open(os.path.join(folder, "lock"), "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"mutation: another run works in {folder}", file=sys.stderr)
            return 2
        copy = Copy(folder)
        bad = control(copy, args.chosen)
        started = time.monotonic()
        counts = try_all(copy, args.chosen, bad, os.path.join(folder, "result.jsonl"))
    print(f"mutation: {counts['caught']} caught, {counts['missed']} missed, {counts['error']} could not be tried, "
          f"in {time.monotonic() - started:.0f} s; {os.path.relpath(folder)}/result.jsonl")
    return 2 if counts["error"] else 1 if counts["missed"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (CannotTry, bugs.Broken) as problem:
        print(f"mutation: {problem}", file=sys.stderr)
        sys.exit(2)
