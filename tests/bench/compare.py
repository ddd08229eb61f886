"""Variants of a KV cache beside one of them, in `soquete bench`: what policies.py and codecs.py share. All take turns, and the best of
all repetitions counts. --only, --variant and --results let it be measured in pieces and put together with --render."""
import argparse
import os
import time
from dataclasses import dataclass

from measure import Failure, Results, Run, add_common, best, busy_note, cell, progress, put, ratio, table


@dataclass
class Comparison:
    about: str  # one line, for --help
    kind: str  # "policy": the column of variants, and their key in a record
    base: str  # the variant that the others are compared with
    base_title: str
    options: dict  # variant -> arguments of `soquete bench`
    tests: dict  # name -> (title, arguments, sequences)
    goals: dict  # (test, variant) -> ratio to the base to reach, or None; what is not there is not measured
    context: int

    def variants(self, test):
        return [self.base] + [v for v in self.options if (test, v) in self.goals]


def measure(c, test, variant, args, results):
    title, words, lanes = c.tests[test]
    run = Run([args.soquete, "bench", "-m", args.model, "--json", "--no-memory", "-c", str(c.context), "-r", str(args.reps), "-t",
               str(args.threads), "--parallel", str(lanes)] + c.options[variant] + words)
    for r in run.lines():
        results.add({**r, "bench": test, c.kind: variant, "others": round(run.others, 3), "time": int(time.time())})
        progress("  %-30s %-10s %8.1f tok/s" % (title, variant, r["best"]))


def render(c, records):
    rows = []
    for test, (title, _, _) in c.tests.items():
        of_test = [r for r in records if r["bench"] == test]
        base, *others = [(v, best([r for r in of_test if r[c.kind] == v])) for v in c.variants(test)]
        for variant, own in others:
            if own is None:
                continue
            quotient, goal = ratio(own, base[1]), c.goals[test, variant]
            met = "-" if quotient is None or goal is None else "yes" if round(quotient, 2) >= goal else "no"
            rows.append([title, variant, cell(own), cell(base[1]), cell(quotient, 2), cell(goal, 2), met])
    text = table(["test", c.kind, "tok/s", c.base_title, "ratio", "goal", "met"], rows, 2)
    return (text + "\n\n" + busy_note(records)).rstrip()


def compare(c):
    p = argparse.ArgumentParser(description=c.about)
    p.add_argument("model", nargs="?", help="a GGUF file")
    p.add_argument("--only", action="append", choices=list(c.tests), metavar="NAME", help="one of: " + ", ".join(c.tests))
    p.add_argument("--variant", "--" + c.kind, action="append", choices=list(c.options), metavar="NAME",
                   help="only these, as pieces of a comparison: " + ", ".join(c.options))
    p.add_argument("--rounds", type=int, default=2, metavar="N", help="turns of each variant (%(default)s)")
    p.add_argument("--reps", type=int, default=1, metavar="N", help="repetitions in a turn, after its warm-up (%(default)s)")
    add_common(p)
    args = p.parse_args()
    results = Results(args.results)
    if not args.render:
        if not args.model or not os.path.exists(args.model):
            raise Failure("name a model file; %s is none" % args.model)
        for test in args.only or c.tests:
            for _ in range(args.rounds):
                for variant in c.variants(test):
                    if not args.variant or variant in args.variant:
                        measure(c, test, variant, args, results)
    put(render(c, results.records), args.into)
