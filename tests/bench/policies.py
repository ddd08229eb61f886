#!/usr/bin/env python3
"""What KV policies gain and cost: decoding after a long prompt of which they keep 1024 entries, one sequence and eight, and the
prompt itself, each beside the full cache in the same run.

    policies.py --soquete build/soquete model.gguf

The eight sequences share no blocks; one computes the prompt, the others begin with a copy of its cache. See compare.py."""
from compare import Comparison, compare
from measure import run_main

CAPACITY = 1024
DEPTH = 6000
PROMPT = 4096


def keeping(policy, *more):
    return ["--kv.policy=" + policy, "--kv.%s.capacity=%d" % (policy, CAPACITY), *more]


POLICIES = Comparison(
    about=__doc__.split("\n\n")[0],
    kind="policy",
    base="full",
    base_title="full cache",
    options={
        "full": ["--kv.policy=full"],
        "snapkv": keeping("snapkv"),
        "pyramidkv": keeping("pyramidkv"),
        "adakv": keeping("adakv"),
        "h2o": keeping("h2o", "--kv.h2o.recent=%d" % (CAPACITY // 2)),
    },
    tests={
        "decode-one": ("decode after %d" % DEPTH, ["-p", "0", "-n", "64", "-d", str(DEPTH)], 1),
        "decode-eight": ("decode after %d, 8 sequences" % DEPTH, ["-p", "0", "-n", "32", "-d", str(DEPTH)], 8),
        "prompt": ("prompt of %d" % PROMPT, ["-p", str(PROMPT), "-n", "0"], 1),
    },
    goals={  # for SmolLM2
        ("decode-one", "snapkv"): 1.75, ("decode-eight", "snapkv"): 3.0, ("prompt", "snapkv"): 0.95, ("prompt", "pyramidkv"): 0.95,
        ("prompt", "adakv"): 0.95, ("prompt", "h2o"): 0.80,
    },
    context=DEPTH + 256)

if __name__ == "__main__":
    run_main(lambda: compare(POLICIES))
