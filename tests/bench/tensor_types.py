#!/usr/bin/env python3
"""Every tensor type of the reader, ours beside another engine: prefill 512 and decode 128 of one model in each type.

    tensor_types.py --soquete build/soquete --peer "/venv/bin/python peer_ik.py" --quantize llama-quantize --dir DIR model.gguf

The model is requantised with --quantize, the peer's llama-quantize (--allow-requantize --pure SOURCE RESULT TYPE THREADS),
into DIR, where files that are there already are used. Where a row is no multiple of a type's block (256 for the K types) that
program takes another type for the matrix: the column "in it" says what share of the matrices' bytes really is in the type."""
import argparse
import json
import os
import shlex

from measure import Failure, Results, Run, add_common, best, busy_note, cell, progress, put, ratio, run_main, table

TYPES = "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS".split()
TESTS = ["--prompt", "512", "--gen", "128", "--depth", "0"]
# The quantizer's names, where they are others: a mixture is the pure type with --pure.
FTYPES = {"Q3_K": "Q3_K_S", "Q4_K": "Q4_K_S", "Q5_K": "Q5_1"}
# Its options. What it takes instead of Q5_K, a type of its own, nobody else reads: so the matrices that can be are named.
OPTIONS = {"Q5_K": ["--custom-q", "ffn_down=q5_K", "--token-embedding-type", "q5_1"]}


def quantise(name, args):
    path = os.path.join(args.dir, "%s-%s.gguf" % (os.path.basename(args.model).removesuffix(".gguf"), name.lower()))
    if os.path.exists(path):
        return path
    if not args.quantize:
        raise Failure("%s is not there, and no --quantize to make it with" % path)
    os.makedirs(args.dir, exist_ok=True)
    partial = path + ".partial"
    progress("requantising to %s" % name)
    command = shlex.split(args.quantize) + ["--allow-requantize"] + OPTIONS.get(name, ["--pure"])
    Run(command + [args.model, partial, FTYPES.get(name, name), str(args.threads)])
    os.rename(partial, path)
    return path


def share_of_type(path, name, args):
    """Of the bytes of the matrices."""
    tensors = json.loads(Run([args.soquete, "inspect", "--json", path]).out)["tensors"]
    matrices = [t for t in tensors if len(t["shape"]) > 1]
    return sum(t["bytes"] for t in matrices if t["type"] == name) / sum(t["bytes"] for t in matrices)


def measure(name, args, results):
    path = quantise(name, args)
    share = share_of_type(path, name, args)
    tests = TESTS + ["--threads", str(args.threads), "--reps", str(args.reps)]
    commands = [[args.soquete, "bench", "-m", path, "--json", "--no-memory"], shlex.split(args.peer) + [path]]
    for round_ in range(args.rounds):
        progress("%s, round %d of %d" % (name, round_ + 1, args.rounds))
        for command in commands:
            run = Run(command + tests)
            for record in run.lines():
                results.add(dict(record, type=name, share=share, others=round(run.others, 3)))
                progress("  %-14s %-6s %8.1f tok/s" % (record["engine"], record["test"], record["best"]))


def render(records):
    rows = []
    for name in TYPES:
        of_type = [r for r in records if r["type"] == name]
        figures = []
        for test in ["pp", "tg"]:
            own = best([r for r in of_type if r["engine"] == "soquete" and r["test"].startswith(test)])
            peer = best([r for r in of_type if r["engine"] != "soquete" and r["test"].startswith(test)])
            figures += [cell(own), cell(peer), cell(ratio(own, peer), 2)]
        if of_type:
            rows.append([name, "%.0f %%" % (100 * of_type[0]["share"])] + figures)
    heads = ["type", "in it", "prefill 512", "peer", "ratio", "decode 128", "peer", "ratio"]
    return (table(heads, rows) + "\n\n" + busy_note(records)).rstrip()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model", nargs="?", help="the GGUF file to requantise")
    p.add_argument("--peer", default="", metavar="COMMAND", help="the other engine's benchmark")
    p.add_argument("--quantize", metavar="COMMAND", help="the other engine's quantizer")
    p.add_argument("--dir", default=".", help="where requantised files are (%(default)s)")
    p.add_argument("--only", action="append", choices=TYPES, metavar="TYPE", help="one of " + " ".join(TYPES))
    p.add_argument("--rounds", type=int, default=1, metavar="N", help="turns of each engine (%(default)s)")
    p.add_argument("--reps", type=int, default=3, metavar="N", help="repetitions in a turn, after its warm-up (%(default)s)")
    add_common(p)
    args = p.parse_args()
    results = Results(args.results)
    if not args.render:
        if not args.model or not args.peer:
            raise Failure("a model and --peer are needed; see --help")
        for name in args.only or TYPES:
            measure(name, args, results)
    put(render(results.records), args.into)


if __name__ == "__main__":
    run_main(main)
