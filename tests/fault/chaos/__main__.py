#!/usr/bin/env python3
"""elastic-chaos: breaks jobs of elastic-run on purpose, by a seeded schedule, and reports what they survived.

    elastic-chaos list                                     the catalogue
    elastic-chaos run [--seed S] [--trials N] [NAME...]    each entry alone (all, when none is named)
    elastic-chaos run --default                            every entry once, and 20 pairs by the day's seed
    elastic-chaos pairs [--seed S] [--count N | --all]     two faults at once, chosen by the seed among the dangerous ones, or all pairs of them
    elastic-chaos storm [--seed S] [--minutes M]           fault after fault on one job
    elastic-chaos soak [--seed S] [--minutes M]            entries, pairs and storms in turn until the time is over
    elastic-chaos shrink NAME --seed S                     the least part of a failing trial that still fails
    elastic-chaos replay FILE                              a trial from its plan: what shrink wrote, or a line of result.jsonl
    elastic-chaos report [--docs FILE]                     HTML and JUnit of the last result; docs/reliability.md

A trial is run again with the seed and the name that the result gives. Exit status: 0 all as it must be, 1 not, 64 usage,
69 the folder of results belongs to another run.
"""

import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path.insert(0, HERE)

OWN = {"observe": 1, "relay": 4, "trial": 1}  # the suite's own, with how many arguments


def arguments(argv):
    parser = argparse.ArgumentParser(prog="elastic-chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["list", "run", "pairs", "storm", "soak", "shrink", "replay", "report", *OWN])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--build", default=os.environ.get("ER_TEST_BUILD", os.path.join(SOURCE, "build")), help="folder with the built programs")
    parser.add_argument("--results", help="where result.jsonl and what is kept of failed trials go (BUILD/chaos)")
    parser.add_argument("--seed", type=int, help="1; with --default the number of the day")
    parser.add_argument("--default", action="store_true", help="run: every entry once, and 20 pairs")
    parser.add_argument("--trials", type=int, default=1, help="of each entry, with seeds S, S+1, ...")
    parser.add_argument("--count", type=int, default=20, help="pairs")
    parser.add_argument("--all", action="store_true", help="pairs: all of the dangerous ones, once")
    parser.add_argument("--jobs", type=int, default=1, help="trials side by side: most of a trial is waiting; 3 for each core go well")
    parser.add_argument("--mean", type=float, default=3, help="seconds between the faults of a storm")
    parser.add_argument("--lease", type=int, help="seconds of the nodes' leases; without it by how busy the machine is")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--patience", type=float, default=1, help="bounds are multiplied by it (and by ER_TEST_PATIENCE), beside what the machine's load makes of them")
    parser.add_argument("--shrink", type=float, default=0, metavar="MINUTES", help="for so long, shrink each pair and storm that failed")
    parser.add_argument("--tap", action="store_true", help="report on stdout as TAP")
    parser.add_argument("--keep", action="store_true", help="keep the files of trials that went well, too")
    parser.add_argument("--add", action="store_true", help="to the results that are there, instead of beginning anew")
    parser.add_argument("--docs", help="report: also write this page")
    args = parser.parse_intermixed_args(argv)
    if args.verb in OWN and len(args.names) != OWN[args.verb]:
        parser.error(f"{args.verb} is the suite's own")
    if args.jobs < 1 or args.trials < 1 or args.count < 1 or args.minutes <= 0 or args.mean <= 0:
        parser.error("--jobs, --trials, --count, --minutes and --mean are greater than 0")
    if args.verb != "trial":  # it is given what has been multiplied
        args.patience *= float(os.environ.get("ER_TEST_PATIENCE", "1"))
    args.build = os.path.abspath(args.build)
    args.results = os.path.abspath(args.results or os.path.join(args.build, "chaos"))
    return args


def main(argv):
    # pylint: disable=import-outside-toplevel
    args = arguments(argv)
    if args.verb == "observe":
        import observer
        observer.main(*args.names)
        return 0
    if args.verb == "relay":
        import relay
        relay.main(*args.names)
    if args.verb == "trial":
        import course
        return course.main(args.names[0], args)
    import schedule
    return schedule.main(args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
