#!/usr/bin/env python3
"""What KV policies gain and cost: decoding after a long prompt of which they keep 1024 entries, one sequence and eight, and the
prompt itself, each beside the full cache in the same run.

    policies.py --soquete build/soquete model.gguf

Both take turns, and the best of all repetitions counts. The eight sequences share no blocks; one computes the prompt, the others
begin with a copy of its cache. --only, --policy and --results let it be measured in pieces and put together with --render."""
import argparse
import os
import time

from measure import Failure, Results, Run, add_common, best, busy_note, cell, progress, put, ratio, run_main, table

CAPACITY = 1024
DEPTH = 6000
PROMPT = 4096
LANES = 8

# Tests: name -> (title, policies, arguments of `soquete bench`, sequences).
TESTS = {
    "decode-one": ("decode after %d" % DEPTH, ["snapkv"], ["-p", "0", "-n", "64", "-d", str(DEPTH)], 1),
    "decode-eight": ("decode after %d, 8 sequences" % DEPTH, ["snapkv"], ["-p", "0", "-n", "32", "-d", str(DEPTH)], LANES),
    "prompt": ("prompt of %d" % PROMPT, ["snapkv", "pyramidkv", "adakv", "h2o"], ["-p", str(PROMPT), "-n", "0"], 1),
}

# Ratios to the full cache to reach, for SmolLM2.
GOALS = {("decode-one", "snapkv"): 1.75, ("decode-eight", "snapkv"): 3.0, ("prompt", "snapkv"): 0.95, ("prompt", "pyramidkv"): 0.95,
         ("prompt", "adakv"): 0.95, ("prompt", "h2o"): 0.80}


def measure(test, policy, args, results):
    title, _, words, lanes = TESTS[test]
    command = [args.soquete, "bench", "-m", args.model, "--json", "--no-memory", "-c", str(DEPTH + 256), "-r", str(args.reps),
               "-t", str(args.threads), "--parallel", str(lanes), "--kv.policy=" + policy] + words
    if policy != "full":
        command.append("--kv.%s.capacity=%d" % (policy, CAPACITY))
    if policy == "h2o":
        command.append("--kv.h2o.recent=%d" % (CAPACITY // 2))
    run = Run(command)
    for r in run.lines():
        results.add(dict(r, bench=test, policy=policy, others=round(run.others, 3), time=int(time.time())))
        progress("  %-30s %-10s %8.1f tok/s" % (title, policy, r["best"]))


def render(records):
    rows = []
    for test, (title, policies, _, _) in TESTS.items():
        of_test = [r for r in records if r["bench"] == test]
        full = best([r for r in of_test if r["policy"] == "full"])
        for policy in policies:
            own = best([r for r in of_test if r["policy"] == policy])
            if own is None:
                continue
            quotient, goal = ratio(own, full), GOALS[test, policy]
            met = "-" if quotient is None else "yes" if round(quotient, 2) >= goal else "no"
            rows.append([title, policy, cell(own), cell(full), cell(quotient, 2), cell(goal, 2), met])
    text = table(["test", "policy", "tok/s", "full cache", "ratio", "goal", "met"], rows, 2)
    return (text + "\n\n" + busy_note(records)).rstrip()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model", nargs="?", help="a GGUF file")
    p.add_argument("--only", action="append", choices=list(TESTS), metavar="NAME", help="one of: " + ", ".join(TESTS))
    p.add_argument("--policy", action="append", metavar="NAME", help="only these, full among them, as pieces of a comparison")
    p.add_argument("--rounds", type=int, default=2, metavar="N", help="turns of each policy (%(default)s)")
    p.add_argument("--reps", type=int, default=1, metavar="N", help="repetitions in a turn, after its warm-up (%(default)s)")
    add_common(p)
    args = p.parse_args()
    results = Results(args.results)
    if not args.render:
        if not args.model or not os.path.exists(args.model):
            raise Failure("name a model file; %s is none" % args.model)
        for test in args.only or TESTS:
            for _ in range(args.rounds):
                for policy in ["full"] + TESTS[test][1]:
                    if not args.policy or policy in args.policy:
                        measure(test, policy, args, results)
    put(render(results.records), args.into)


if __name__ == "__main__":
    run_main(main)
