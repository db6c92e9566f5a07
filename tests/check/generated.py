#!/usr/bin/env python3
"""Man pages and completions are sound: roff without warnings, scripts that their shells can read, answers from bash.

That they are up to date is the unit suite's business (keys/docs_are_up_to_date). Shells and man that are not installed are
left out.
"""

import glob
import os
import shutil
import subprocess

import tree

PACKAGING = os.path.join(tree.SOURCE_ROOT, "packaging")
COMPLETIONS = (("bash", "elastic-run.bash"), ("bash", "elastic-ctl.bash"), ("zsh", "_elastic-run"), ("fish", "elastic-run.fish"),
               ("fish", "elastic-ctl.fish"))

# What stands on the command line, and what bash must offer for its last word.
OFFERS = [
    (["elastic-run", "--nno"], "--nnodes"),
    (["elastic-run", "--set", "restart.ma"], "restart.max="),
    (["elastic-run", "--numa-binding", "so"], "socket"),
    (["elastic-run", "--rdzv-backend", "c10"], "c10d"),
    (["elastic-run", "--nnodes", "1", "--dry"], "--dry-run"),
    (["elastic-run", "python3", "--nno"], ""),
    (["elastic-run", "--help", "resta"], "restart"),
    (["elastic-ctl", "sta"], "status"),
]


def said(*command, **options):
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False, **options)
    return done.stderr.strip() or (f"exit status {done.returncode}" if done.returncode else "")


def man_pages():
    if not shutil.which("man") or not shutil.which("groff"):
        return
    for page in sorted(glob.glob(os.path.join(PACKAGING, "man", "*.[0-9]"))):
        warnings = said("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page, env=dict(os.environ, LC_ALL="C.UTF-8"))
        if warnings:
            yield f"{os.path.basename(page)}: {warnings}"


def scripts():
    for shell, name in COMPLETIONS:
        if shutil.which(shell):
            wrong = said(shell, "-n", os.path.join(PACKAGING, "completion", name))
            if wrong:
                yield f"{name}: {wrong}"


def bash_offers():
    for words, wanted in OFFERS:
        function = "_elastic_run" if words[0] == "elastic-run" else "_elastic_ctl"
        completion = os.path.join(PACKAGING, "completion", words[0] + ".bash")
        script = (f'compopt() {{ :; }}; source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); {function}; '
                  'echo "${COMPREPLY[*]}"')
        done = subprocess.run(["bash", "-c", script, "bash", completion, *words], capture_output=True, text=True, check=False, cwd="/")
        if done.stdout.strip() != wanted or done.stderr:
            yield f"bash offers {done.stdout.strip()!r} for {' '.join(words)}, not {wanted!r} {done.stderr}"


tree.report("generated", [*man_pages(), *scripts(), *bash_offers()])
