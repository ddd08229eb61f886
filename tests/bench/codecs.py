#!/usr/bin/env python3
"""What KV codecs gain: decoding at depth, one sequence and eight, each beside the full cache in F16 in the same run.

    codecs.py --soquete build/soquete model.gguf

They take turns, and the best of all repetitions counts. The eight sequences share nothing. --only and --results let it be measured in
pieces and put together with --render."""
import argparse
import os
import time

from measure import Failure, Results, Run, add_common, best, busy_note, cell, progress, put, ratio, run_main, table

DEPTH = 6000
LANES = 8

# name -> options beside the F16 cache
CODECS = {"f16": [], "int8": ["--kv.codec=int8"], "int4": ["--kv.codec=int4"], "kivi2": ["--kv.codec=kivi", "--kv.kivi.bits=2"]}

# Tests: name -> (title, arguments of `soquete bench`, sequences).
TESTS = {
    "codec-one": ("decode after %d" % DEPTH, ["-p", "0", "-n", "64", "-d", str(DEPTH)], 1),
    "codec-eight": ("decode after %d, 8 sequences" % DEPTH, ["-p", "0", "-n", "32", "-d", str(DEPTH)], LANES),
}

# Ratios to F16 to reach, for SmolLM2.
GOALS = {("codec-one", "int8"): 1.25, ("codec-one", "int4"): 1.45, ("codec-one", "kivi2"): 1.5, ("codec-eight", "int8"): 1.5,
         ("codec-eight", "int4"): 2.3, ("codec-eight", "kivi2"): 2.5}


def measure(test, codec, args, results):
    title, words, lanes = TESTS[test]
    command = [args.soquete, "bench", "-m", args.model, "--json", "--no-memory", "-c", str(DEPTH + 256), "-r", str(args.reps),
               "-t", str(args.threads), "--parallel", str(lanes)] + CODECS[codec] + words
    run = Run(command)
    for r in run.lines():
        results.add(dict(r, bench=test, codec=codec, others=round(run.others, 3), time=int(time.time())))
        progress("  %-30s %-10s %8.1f tok/s" % (title, codec, r["best"]))


def render(records):
    rows = []
    for test, (title, _, _) in TESTS.items():
        of_test = [r for r in records if r["bench"] == test]
        plain = best([r for r in of_test if r["codec"] == "f16"])
        for codec in CODECS:
            own = best([r for r in of_test if r["codec"] == codec])
            if codec == "f16" or own is None:
                continue
            quotient, goal = ratio(own, plain), GOALS[test, codec]
            met = "-" if quotient is None else "yes" if round(quotient, 2) >= goal else "no"
            rows.append([title, codec, cell(own), cell(plain), cell(quotient, 2), cell(goal, 2), met])
    text = table(["test", "codec", "tok/s", "f16", "ratio", "goal", "met"], rows, 2)
    return (text + "\n\n" + busy_note(records)).rstrip()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model", nargs="?", help="a GGUF file")
    p.add_argument("--only", action="append", choices=list(TESTS), metavar="NAME", help="one of: " + ", ".join(TESTS))
    p.add_argument("--rounds", type=int, default=2, metavar="N", help="turns of each codec (%(default)s)")
    p.add_argument("--reps", type=int, default=1, metavar="N", help="repetitions in a turn, after its warm-up (%(default)s)")
    add_common(p)
    args = p.parse_args()
    results = Results(args.results)
    if not args.render:
        if not args.model or not os.path.exists(args.model):
            raise Failure("name a model file; %s is none" % args.model)
        for test in args.only or TESTS:
            for _ in range(args.rounds):
                for codec in CODECS:
                    measure(test, codec, args, results)
    put(render(results.records), args.into)


if __name__ == "__main__":
    run_main(main)
