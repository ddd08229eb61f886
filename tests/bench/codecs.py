#!/usr/bin/env python3
"""What KV codecs gain: decoding at depth, one sequence and eight, each beside the full cache in F16 in the same run.

    codecs.py --soquete build/soquete model.gguf

The eight sequences share no blocks. See compare.py."""
from compare import Comparison, compare
from measure import run_main

DEPTH = 6000

CODECS = Comparison(
    about=__doc__.split("\n\n")[0],
    kind="codec",
    base="f16",
    base_title="f16",
    options={
        "f16": [],
        "int8": ["--kv.codec=int8"],
        "int4": ["--kv.codec=int4"],
        "kivi2": ["--kv.codec=kivi", "--kv.kivi.bits=2"],
        "fp8": ["--kv.codec=fp8"],
        "turboquant": ["--kv.codec=turboquant"],
    },
    tests={
        "codec-one": ("decode after %d" % DEPTH, ["-p", "0", "-n", "64", "-d", str(DEPTH)], 1),
        "codec-eight": ("decode after %d, 8 sequences" % DEPTH, ["-p", "0", "-n", "32", "-d", str(DEPTH)], 8),
    },
    goals={  # for SmolLM2
        ("codec-one", "int8"): 1.25, ("codec-one", "int4"): 1.45, ("codec-one", "kivi2"): 1.5, ("codec-eight", "int8"): 1.5,
        ("codec-eight", "int4"): 2.3, ("codec-eight", "kivi2"): 2.5,
        **{(test, codec): None for test in ("codec-one", "codec-eight") for codec in ("fp8", "turboquant")},
    },
    context=DEPTH + 256)

if __name__ == "__main__":
    run_main(lambda: compare(CODECS))
