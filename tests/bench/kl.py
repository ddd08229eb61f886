#!/usr/bin/env python3
"""What settings cost in accuracy: the KL divergence of the next token's distribution from the one under other settings.

    kl.py --soquete build/soquete -m model.gguf --base backend.cpu.activations=f32 < text

Both distributions come from `soquete logits`, of every position of the text's first tokens, which both runs read alike.
Printed are the mean, median, 99th percentile and maximum over positions of KL(base || other) = sum p log(p / q) in nats, and
how often the likeliest token is the same. Plain Python: some six seconds for ten million logits."""
import argparse
import ast
import json
import math
import os
import struct
import subprocess
import sys
from array import array

from measure import Failure, Run, run_main


def read_exactly(stream, n):
    data = stream.read(n)
    if len(data) != n:
        raise Failure("soquete logits ended early, with a message of its own")
    return data


def rows_of(stream):
    """The rows of a NumPy file of float32."""
    magic = read_exactly(stream, 10)
    if magic[:6] != b"\x93NUMPY":
        raise Failure("soquete logits wrote no NumPy file")
    header = ast.literal_eval(read_exactly(stream, struct.unpack("<H", magic[8:10])[0]).decode())
    n_rows, n_cols = header["shape"]
    for _ in range(n_rows):
        row = array("f", read_exactly(stream, 4 * n_cols))
        if sys.byteorder == "big":
            row.byteswap()
        yield row


def log_sum(row):
    """log of the sum of exp."""
    top = max(row)
    return top + math.log(math.fsum(map(math.exp, (x - top for x in row))))


def divergence(base, other):
    """KL(softmax(base) || softmax(other)) in nats."""
    a, b = log_sum(base), log_sum(other)
    return max(0.0, math.fsum(math.exp(x - a) * ((x - a) - (y - b)) for x, y in zip(base, other)))


def likeliest(row):
    return max(range(len(row)), key=row.__getitem__)


def percentile(values, share):
    """The smallest value that so many are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def summary(pairs):
    """Of (divergence, same likeliest token) of each position."""
    values = [kl for kl, _ in pairs]
    return {"positions": len(values), "mean": math.fsum(values) / len(values), "median": percentile(values, 0.5),
            "p99": percentile(values, 0.99), "max": max(values), "same_top": sum(same for _, same in pairs) / len(pairs)}


def compare(streams):
    return [(divergence(base, other), likeliest(base) == likeliest(other)) for base, other in zip(*map(rows_of, streams))]


def logits(ids, settings, args):
    command = [args.soquete, "logits", "-m", args.model, "--ids", ids, "--all", "--out", "-", "-c", str(args.tokens + 1)]
    return subprocess.Popen(command + ["--" + s for s in settings], stdout=subprocess.PIPE)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("-m", "--model", required=True, help="the GGUF file")
    p.add_argument("-f", "--file", help="the text; the default is standard input")
    p.add_argument("--soquete", default="soquete", metavar="FILE", help="the program (%(default)s)")
    p.add_argument("--base", action="append", default=[], metavar="KEY=VALUE", help="a setting of the one to compare with")
    p.add_argument("--other", action="append", default=[], metavar="KEY=VALUE", help="a setting of the one to judge")
    p.add_argument("--tokens", type=int, default=512, metavar="N", help="positions (%(default)s)")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    args = p.parse_args()
    text = open(args.file).read() if args.file else sys.stdin.read()
    ids = Run([args.soquete, "tokenize", "-m", args.model, "--bos"], text).out.split()[:args.tokens]
    if len(ids) < 2:
        raise Failure("the text is empty")
    runs = [logits(",".join(ids), settings, args) for settings in (args.base, args.other)]
    try:
        told = summary(compare([r.stdout for r in runs]))
    finally:
        for r in runs:
            r.stdout.close()
            r.wait()
    if args.json:
        print(json.dumps(dict(told, model=os.path.basename(args.model), base=args.base, other=args.other)))
    else:
        print("KL divergence over %(positions)d positions, nats: mean %(mean).5f, median %(median).5f, 99 %% below %(p99).5f, "
              "maximum %(max).5f; the same likeliest token at %(top).1f %%" % dict(told, top=100 * told["same_top"]))


if __name__ == "__main__":
    run_main(main)
