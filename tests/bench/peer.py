#!/usr/bin/env python3
"""Soquete beside another engine: prefill, decode, decode at depth, and eight sequences beside one.

    peer.py --soquete build/soquete --peer "/venv/bin/python peer_ik.py" models/

The peer is a command that takes the options of `soquete bench` that are used here (MODEL --prompt N --gen N --depth N
--threads N --reps N) and prints JSON lines with the same keys. The engines take turns, so that a machine whose clock or
neighbours change treats both alike, and the best of all repetitions counts. The whole takes half an hour; --only and --results
let it be measured in pieces and put together with --render."""
import argparse
import json
import os
import shlex
import sys
import time

from measure import Failure, Results, Run, add_common, best, busy_note, cell, progress, put, ratio, run_main, table

GEN = 128
LANES = 8
MODELS = ["smollm2.gguf", "gemma3.gguf"]  # of a folder

# Tests: name -> (title, prompt, depth); prompt 0: decode.
TESTS = {
    "prefill-512": ("prefill 512", 512, 0),
    "prefill-4096": ("prefill 4096", 4096, 0),
    "decode-0": ("decode, empty context", 0, 0),
    "decode-2048": ("decode after 2048", 0, 2048),
    "decode-6000": ("decode after 6000, f16 KV", 0, 6000),
    "parallel-8": ("8 sequences over one", 0, 0),
}

# Ratios to reach, by the beginning of the model file's name, in the order of the tests.
GOALS = {"smollm2": [1.4, 1.3, 1.1, 1.5, 1.8, 4], "gemma3": [1.4, 1.3, 1.0, 1.0, 1.05, 3]}

# Shares of the machine's limits to reach: keys of the share and of the limit it was taken of.
SHARES = {
    "prefill": ("matmul_share", "int8_gop_s", "matmuls, of the int8 peak", 0.50),
    "decode": ("memory_share", "memory_gb_s", "of the memory bandwidth", 0.85),
}


def goal(model, test):
    for name, goals in GOALS.items():
        if model.startswith(name):
            return goals[list(TESTS).index(test)]
    return None


def wanted(only, model, test):
    """Whether --only names it: "decode-0", "smollm2" or "smollm2/decode-0"."""
    name = model.removesuffix(".gguf")
    return not only or any(o in (test, name, name + "/" + test) for o in only)


# ---- Measuring


def bench_args(prompt, gen, depth, args):
    values = {"prompt": prompt, "gen": gen, "depth": depth, "threads": args.threads, "reps": args.reps}
    return [word for name, value in values.items() for word in ("--" + name, str(value))]


def run_soquete(path, test, parallel, args):
    _, prompt, depth = TESTS[test]
    context = depth + prompt + args.gen + 64
    command = [args.soquete, "bench", "-m", path, "--json", "--parallel", str(parallel), "-c", str(context)]
    if args.variant:
        command += ["--backend.use=" + args.variant]
    return Run(command + bench_args(prompt, 0 if prompt else args.gen, depth, args))


def run_peer(path, test, args):
    """Its prefill and its decode always both run: the one that is not wanted is made short."""
    _, prompt, depth = TESTS[test]
    return Run(shlex.split(args.peer) + [path] + bench_args(prompt or 1, 1 if prompt else args.gen, depth, args))


def keep(results, run, test, args):
    kind = "pp" if TESTS[test][1] else "tg"
    records = [r for r in run.lines() if r["test"].startswith(kind)]
    if not records:
        raise Failure("an engine said nothing of %s: %s" % (test, run.err.strip()[-300:]))
    for r in records:
        results.add(dict(r, bench=test, threads=args.threads, others=round(run.others, 3), time=int(time.time())))
        lanes = r.get("parallel", 1)
        progress("  %-14s %8.1f tok/s" % (r["engine"] + (" x%d" % lanes if lanes > 1 else ""), r["best"]))


def measure(path, test, args, results):
    for round_ in range(args.rounds):
        progress("%s %s, round %d of %d" % (os.path.basename(path), test, round_ + 1, args.rounds))
        if test == "parallel-8":
            keep(results, run_soquete(path, test, LANES, args), test, args)
            keep(results, run_soquete(path, test, 1, args), test, args)
        else:
            keep(results, run_soquete(path, test, 1, args), test, args)
            if args.peer:
                keep(results, run_peer(path, test, args), test, args)


# ---- Comparing


def compare(records):
    """One line for each model, backend and test of the records: {"model", "backend", "bench", "ours", "peer", "ratio", "goal",
    "met"}. The "peer" of eight sequences is one of them alone."""
    lines = []
    ours = [r for r in records if r["engine"] == "soquete"]
    for model, backend in dict.fromkeys((r["model"], r["backend"]) for r in ours):  # in the order of measuring
        for test in TESTS:
            of_test = [r for r in records if r["model"] == model and r["bench"] == test]
            own = [r for r in of_test if r["engine"] == "soquete" and r["backend"] == backend]
            one = [r for r in own if r["parallel"] == 1]
            if test == "parallel-8":
                own, other = [r for r in own if r["parallel"] == LANES], one
            else:
                own, other = one, [r for r in of_test if r["engine"] != "soquete"]
            if not own:
                continue
            quotient, least = ratio(best(own), best(other)), goal(model, test)
            met = None if quotient is None or least is None else round(quotient, 2) >= least
            lines.append({"model": model, "backend": backend, "bench": test, "ours": best(own), "peer": best(other),
                          "ratio": quotient, "goal": least, "met": met})
    return lines


def shares(records):
    """One line for each model, backend and test: the best share, of the highest limit that any run measured."""
    lines = []
    for line in compare(records):
        key, limit, what, least = SHARES.get(line["bench"].split("-")[0], (None, None, None, None))
        own = [r for r in records if all(r.get(k) == line[k] for k in ("model", "backend", "bench")) and r.get(key)]
        if own:
            share = max(r[key] * r[limit] for r in own) / best(records, limit)
            lines.append(dict(line, limit=what, share=share, goal=least, met=round(share, 2) >= least))
    return lines


# ---- Printing


def yes(met):
    return "-" if met is None else "yes" if met else "no"


def render(records):
    lines, out = compare(records), []
    for backend in dict.fromkeys(l["backend"] for l in lines):
        rows = [[l["model"].removesuffix(".gguf"), TESTS[l["bench"]][0], cell(l["ours"]), cell(l["peer"]), cell(l["ratio"], 2),
                 cell(l["goal"], 2), yes(l["met"])] for l in lines if l["backend"] == backend]
        out += ["Backend %s, tokens per second:" % backend, "",
                table(["model", "test", "ours", "peer", "ratio", "goal", "met"], rows, 2), ""]
        rows = [[l["model"].removesuffix(".gguf"), TESTS[l["bench"]][0], l["limit"], "%.0f %%" % (100 * l["share"]),
                 "%.0f %%" % (100 * l["goal"]), yes(l["met"])] for l in shares(records) if l["backend"] == backend]
        if rows:
            out += [table(["model", "test", "share", "ours", "goal", "met"], rows, 3), ""]
    memory, int8, fp32 = (best(records, k) for k in ("memory_gb_s", "int8_gop_s", "fp32_gflop_s"))
    if memory:
        machine = "The machine, best seen: memory %.1f GB/s, int8 %.0f GOP/s, fp32 %.0f GFLOP/s." % (memory, int8, fp32)
        out += [machine + " " + busy_note(records)]
    return "\n".join(out).rstrip()


def find_models(paths):
    found = []
    for path in paths:
        found += [os.path.join(path, name) for name in MODELS] if os.path.isdir(path) else [path]
    missing = [p for p in found if not os.path.exists(p)]
    if missing:
        raise Failure("no %s; name model files, or a folder that holds %s" % (missing[0], " and ".join(MODELS)))
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("models", nargs="*", metavar="MODEL", help="GGUF files, or a folder with %s" % " and ".join(MODELS))
    p.add_argument("--peer", default="", metavar="COMMAND", help="the other engine's benchmark; without it ours runs alone")
    p.add_argument("--only", action="append", metavar="NAME", help="model, test or model/test; the tests: " + ", ".join(TESTS))
    p.add_argument("--variant", metavar="NAME", help="the backend to force, cpu/x86-64-v3 for example")
    p.add_argument("--rounds", type=int, default=2, metavar="N", help="turns of each engine (%(default)s)")
    p.add_argument("--reps", type=int, default=3, metavar="N", help="repetitions in a turn, after its warm-up (%(default)s)")
    p.add_argument("--gen", type=int, default=GEN, metavar="N", help="tokens of the decode tests (%(default)s)")
    p.add_argument("--json", action="store_true", help="print JSON lines instead of tables")
    add_common(p)
    args = p.parse_args()
    results = Results(args.results)
    interrupted = False
    if not args.render:
        pairs = [(m, t) for m in find_models(args.models) for t in TESTS if wanted(args.only, os.path.basename(m), t)]
        if not pairs:
            raise Failure("nothing to measure: name models, and with --only what is there (see --help)")
        try:
            for path, test in pairs:
                measure(path, test, args, results)
        except KeyboardInterrupt:
            interrupted = True
            progress("interrupted; this is what was measured:")
    if args.json:
        for line in compare(results.records):
            print(json.dumps(line))
    else:
        put(render(results.records), args.into)
    sys.exit(130 if interrupted else 0)


if __name__ == "__main__":
    run_main(main)
