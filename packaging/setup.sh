#!/bin/sh
# Install what building, testing or running the demo needs. Does nothing, fast, when nothing is missing.
#
#   packaging/setup.sh [-y] [build|data|tests|interop|bench|deb|peers|fuzz|model]...     (no group: build, data and tests)
#
# Says what it will install and why. Asks first when it runs on a terminal, unless CI is set or -y is given.
# Without root and without sudo it prints the one line to run and fails.
set -eu

packages_of() {
    case $1 in
    build) echo gcc libc6-dev make meson ninja-build pkg-config libsystemd-dev libyaml-dev libjansson-dev \
        libxxhash-dev zlib1g-dev libopenblas-dev libssl-dev libmicrohttpd-dev libgrpc-dev libprotobuf-c-dev protobuf-c-compiler ;;
    data) echo dataset-fashion-mnist ;;
    tests) echo libcriterion-dev g++ valgrind clang-format-14 git etcd-server etcd-client openssl \
        python3-jsonschema python3-yaml ;;
    interop) echo python3-torch python3-tqdm prometheus python3-prometheus-client chromium slurm-wlm munge python3-kubernetes ;;
    bench) echo fio python3-venv ;;
    deb) echo debhelper dh-python dpkg-dev fakeroot lintian python3 ;;
    peers) echo libgloo-dev libopenmpi-dev openmpi-bin ;;
    model) echo spin gcc libc6-dev ;;
    fuzz) echo clang llvm ;;
    esac
}

why() {
    case $1 in
    build) echo 'compiler, build system and the libraries elastic-run links' ;;
    data) echo 'the Fashion-MNIST images that the demo and its tests train on' ;;
    tests) echo 'test framework, leak check, formatter, and the etcd that tests start in private folders' ;;
    interop) echo 'PyTorch, whose unmodified scripts are run, what reads metrics and draws the page, Slurm: 1.5 GB, three minutes' ;;
    peers) echo "Gloo and Open MPI, built against for \`make bench BENCH=collectives PEERS=1\` alone" ;;
    model) echo "spin, the model checker, for \`make model\` alone" ;;
    deb) echo 'what make deb makes Debian packages with, and their checker' ;;
    fuzz) echo 'clang, whose libFuzzer the fuzzers run on, and the program that counts what they reach' ;;
    bench) echo 'fio, beside which checkpoints are measured, and virtual environments for the peers' ;;
    esac
}

say() {
    printf 'setup: %s\n' "$*" >&2
}

yes=false
groups=
for arg in "$@"; do
    case $arg in
    -y) yes=true ;;
    build | data | tests | interop | bench | deb | peers | fuzz | model) groups="$groups $arg" ;;
    *)
        echo "usage: packaging/setup.sh [-y] [build|data|tests|interop|bench|deb|peers|fuzz|model]..." >&2
        exit 64
        ;;
    esac
done
[ -n "$groups" ] || groups='build data tests'
if [ -n "${CI:-}" ]; then
    yes=true
fi

if ! command -v dpkg-query >/dev/null; then
    say 'not a Debian system: nothing is installed for you. Meson names what is missing.'
    exit 0
fi

wanted=
for group in $groups; do
    wanted="$wanted $(packages_of "$group")"
done
# One query for all; a package it has never heard of is simply not in the answer.
# shellcheck disable=SC2086 # a list of words
installed=" $(dpkg-query -W -f '${db:Status-Status}:${Package}\n' $wanted 2>/dev/null |
    sed -n 's/^installed://p' | tr '\n' ' ')"

missing=
for group in $groups; do
    of_group=
    for package in $(packages_of "$group"); do
        case $installed in
        *" $package "*) ;;
        *) of_group="$of_group $package" ;;
        esac
    done
    if [ -n "$of_group" ]; then
        say "missing for $group ($(why "$group")):$of_group"
        missing="$missing$of_group"
    fi
done
[ -n "$missing" ] || exit 0

install="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" -eq 0 ]; then
    as_root=
elif command -v sudo >/dev/null; then
    as_root=sudo
else
    say 'neither root nor sudo here. Have this run as root, then try again:'
    printf '    apt-get update && %s\n' "$install" >&2
    exit 1
fi

say "will run: ${as_root:+$as_root }$install"
if ! $yes && [ -t 0 ]; then
    printf 'setup: go on? [Y/n] ' >&2
    read -r answer
    case $answer in
    '' | [Yy]*) ;;
    *)
        say 'nothing was installed'
        exit 1
        ;;
    esac
fi

run_apt() {
    # shellcheck disable=SC2086 # as_root may be empty
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" </dev/null >&2
}

# Old lists are no reason to fail here: the installation below tells.
run_apt update || say 'the package lists could not be refreshed; trying with those that are here'
# shellcheck disable=SC2086 # a list of words
if ! run_apt install -y --no-install-recommends $missing; then
    say "apt could not install:$missing"
    say 'the reason stands above. elastic-run needs Debian 12 (or newer) with its main archive enabled.'
    exit 1
fi
