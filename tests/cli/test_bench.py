"""The scripts of tests/bench: what they compute, and that they run, with a tiny model and a peer that makes its figures up."""
import json
import math
import os
import signal
import subprocess
import sys

from cli import LLAMA, PROGRAM, SRC, WORK, environment, main, path, test

BENCH = os.path.join(SRC, "tests", "bench")
sys.path.insert(0, BENCH)
import compare  # noqa: E402
import kl  # noqa: E402
import load  # noqa: E402
import measure  # noqa: E402
import peer  # noqa: E402
import policies  # noqa: E402
import tensor_types  # noqa: E402

TEXT = "kalomi tenu saro. It's 12345 o'clock. " * 4
# Says what bench says, of the tests that it was asked for.
FAKE_PEER = """
import json, sys
a = dict(zip(sys.argv[2::2], sys.argv[3::2]))
for test, rate in [("pp" + a["--prompt"], 50.0), ("tg" + a["--gen"], 20.0)]:
    print(json.dumps({"engine": "fake", "model": sys.argv[1].split("/")[-1], "test": test, "depth": int(a["--depth"]),
                      "fa": "on", "tok_s": [rate], "best": rate}))
"""


def interruptible():
    """A shell's background jobs, and so their children, begin with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def script(name, *args, rc=0, text=""):
    done = subprocess.run([sys.executable, os.path.join(BENCH, name), *map(str, args)], input=text, capture_output=True,
                          text=True, env=environment(), cwd=WORK, timeout=120, preexec_fn=interruptible)
    assert done.returncode == rc, done
    return done


def fake_peer(extra=""):
    return "%s %s" % (sys.executable, path("fake_peer.py", extra + FAKE_PEER))


def record(engine, best, **keys):
    defaults = {"model": "smollm2.gguf", "bench": "decode-0", "parallel": 1, "backend": "cpu/a"}
    if engine != "soquete":
        defaults = {"model": "smollm2.gguf", "bench": "decode-0"}
    return dict(defaults, engine=engine, best=best, **keys)


# ---- What they compute


@test
def tables():
    """tables are Markdown; what was not measured is a dash."""
    assert measure.table(["a", "b"], [["x", "1"], ["y", "2"]]) == "| a | b |\n|---|---:|\n| x | 1 |\n| y | 2 |"
    assert measure.table(["a", "b"], [], 2) == "| a | b |\n|---|---|"
    assert [measure.cell(v, 2) for v in (None, 1.005, "x")] == ["-", "1.00", "x"]
    assert measure.best([{"best": 1}, {"best": 3}, {}]) == 3 and measure.best([]) is None
    assert measure.ratio(None, 1) is measure.ratio(1, 0) is None and measure.ratio(3, 2) == 1.5


@test
def comparison():
    """the best of all turns counts, backends apart, and goals are met or not."""
    records = [record("soquete", 100), record("soquete", 120), record("fake", 100), record("fake", 110),
               record("soquete", 50, backend="cpu/b"), record("fake", 80, bench="prefill-512"),
               record("soquete", 400, bench="parallel-8", parallel=8), record("soquete", 100, bench="parallel-8")]
    lines = {(l["backend"], l["bench"]): l for l in peer.compare(records)}
    assert set(lines) == {("cpu/a", "decode-0"), ("cpu/b", "decode-0"), ("cpu/a", "parallel-8")}, lines
    a, b, eight = lines["cpu/a", "decode-0"], lines["cpu/b", "decode-0"], lines["cpu/a", "parallel-8"]
    assert (a["ours"], a["peer"], a["goal"], a["met"]) == (120, 110, 1.1, False), a
    assert b["met"] is False and eight["ratio"] == 4 and eight["met"] is True, lines
    out = peer.render(records)
    assert "| smollm2 | decode, empty context | 120 | 110 | 1.09 | 1.10 | no |" in out, out
    assert "| smollm2 | 8 sequences over one | 400 | 100 | 4.00 | 4.00 | yes |" in out, out


@test
def comparison_of_limits():
    """shares of the machine's limits have goals of their own; an unknown model has none beside the peer."""
    records = [record("soquete", 9, memory_share=0.9, matmul_share=None, memory_gb_s=30, int8_gop_s=900, fp32_gflop_s=200,
                      others=0.5)]
    line, = peer.shares(records)
    assert (line["share"], line["goal"], line["met"]) == (0.9, 0.85, True), line
    worse = dict(records[0], memory_gb_s=40, memory_share=0.3)  # of a higher limit: the first run reached 27 of 40
    assert abs(peer.shares(records + [worse])[0]["share"] - 0.675) < 1e-9
    out = peer.render(records)
    assert "| smollm2 | decode, empty context | of the memory bandwidth | 90 % | 85 % | yes |" in out, out
    assert "memory 30.0 GB/s, int8 900 GOP/s, fp32 200 GFLOP/s" in out and "during 1 of 1 runs" in out, out
    assert peer.goal("other.gguf", "decode-0") is None
    assert peer.wanted(["smollm2"], "smollm2.gguf", "decode-0") and peer.wanted(["decode-0"], "x.gguf", "decode-0")
    assert not peer.wanted(["smollm2/decode-0"], "gemma3.gguf", "decode-0")


@test
def divergences():
    """the divergence is the sum of p log(p / q), whatever is added to the logits."""
    p, q = [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]
    by_hand = sum(a * math.log(a / b) for a, b in zip(p, q))
    told = kl.divergence([math.log(x) + 700 for x in p], [math.log(x) - 700 for x in q])
    assert abs(told - by_hand) < 1e-12 and kl.divergence(p, p) == 0
    told = kl.summary([(0.0, True)] * 98 + [(1.0, False), (3.0, True)])
    assert (told["median"], told["p99"], told["max"], told["same_top"]) == (0, 1, 3, 0.99) and abs(told["mean"] - 0.04) < 1e-12


@test
def other_tables():
    """the tables of types, of loading and of neighbours."""
    out = tensor_types.render([{"type": "Q4_K", "share": 0.15, "engine": e, "test": t, "best": b} for e, t, b in
                               [("soquete", "pp512", 30), ("fake", "pp512", 20), ("soquete", "tg128", 9)]])
    assert "| Q4_K | 15 % | 30 | 20 | 1.50 | 9 | - | - |" in out, out
    first = {"bench": "first", "model": "m.gguf", "cache": "cold", "engine": "soquete", "wall_s": 0.5, "python_s": 0,
             "ttft_s": 0.25, "rss": 30 << 20, "weights": 19 << 20, "kv": 1 << 20}
    pair = {"bench": "neighbour", "model": "m.gguf", "test": "tg128", "engine": "soquete", "best": 20.0, "busy": False}
    out = load.render([first, dict(first, wall_s=0.6), pair, dict(pair, best=15.0, busy=True),
                       {"bench": "idle", "model": "m.gguf", "cpu_s": 0.01, "seconds": 5}])
    assert "| m | cold | soquete | 500 | 500 | 250 | 30 | 10 |" in out, out
    assert "| model | test | engine | alone | neighbour | ratio |" in out, out
    assert "| m | tg128 | soquete | 20 | 15 | 0.75 |" in out, out
    assert "10 ms of CPU time in 5 s" in out, out


# ---- That they run


@test
def peer_in_pieces():
    """peer.py measures in pieces and puts them together."""
    results = path("results.jsonl")
    args = ["--soquete", PROGRAM, "--peer", fake_peer(), "--reps", 1, "--rounds", 2, "--gen", 4, "--results", results]
    script("peer.py", *args, LLAMA, "--only", "decode-0")
    script("peer.py", *args, LLAMA, "--only", "model/parallel-8", "--variant", "cpu/generic")
    lines = [json.loads(l) for l in script("peer.py", "--results", results, "--render", "--json").stdout.splitlines()]
    assert [l["bench"] for l in lines] == ["decode-0", "parallel-8"] and all(l["ours"] > 0 for l in lines), lines
    assert lines[0]["peer"] == 20 != lines[1]["peer"], lines
    assert lines[1]["backend"] == "cpu/generic" and lines[1]["peer"] > 0, lines
    page = path("page.md", "a\n<!-- x -->\nold\n<!-- /x -->\nb\n")
    script("peer.py", "--results", results, "--render", "--into", page + "#x")
    with open(page) as f:
        told = f.read()
    assert told.startswith("a\n<!-- x -->\nBackend") and told.endswith("\n<!-- /x -->\nb\n") and "old" not in told, told
    assert "<!-- y -->" in script("peer.py", "--results", results, "--render", "--into", page + "#y", rc=1).stderr
    with open(results) as f:
        records = [json.loads(l) for l in f]
    assert [(r["engine"], r["test"]) for r in records[:4]] == [("soquete", "tg4"), ("fake", "tg4")] * 2, records


@test
def peer_interrupted():
    """Ctrl-C ends the measuring, not the report."""
    peer_command = fake_peer("import os, signal, time\nos.kill(os.getppid(), signal.SIGINT)\ntime.sleep(10)\n")
    args = ["--soquete", PROGRAM, "--peer", peer_command, "--reps", 1, "--gen", 4, "--only", "decode-0", LLAMA]
    done = script("peer.py", *args, rc=130)
    assert "| model | decode, empty context |" in done.stdout and "interrupted" in done.stderr, done


@test
def scripts_refuse():
    """what is wrong is named, without a traceback."""
    for args, words in [([path("no.gguf")], "no.gguf"), (["--soquete", "/no/such/program", LLAMA], "cannot run"),
                        (["--peer", "false", "--only", "decode-0", "--gen", "2", "--reps", "1", LLAMA], "false"),
                        ([], "nothing to measure")]:
        done = script("peer.py", "--soquete", PROGRAM, *args, rc=1)
        assert words in done.stderr and "Traceback" not in done.stderr, done
    assert "--peer" in script("tensor_types.py", rc=1).stderr and "no model" in script("load.py", rc=1).stderr
    done = script("kl.py", "--soquete", PROGRAM, "-m", LLAMA, "--base", "kv.nosuch=1", text=TEXT, rc=1)
    assert "unknown key" in done.stderr and "Traceback" not in done.stderr, done


@test
def kl_of_activations():
    """kl.py: nothing between equal settings, little between activations of 8 bits and floats."""
    args = ["--soquete", PROGRAM, "-m", LLAMA, "--tokens", 40, "--json"]
    same = json.loads(script("kl.py", *args, text=TEXT).stdout)
    assert same["mean"] == same["max"] == 0 and same["same_top"] == 1 and same["positions"] == 40, same
    args += ["--base", "backend.cpu.activations=f32", "--other", "kv.codec_k=f32"]
    told = json.loads(script("kl.py", *args, text=TEXT).stdout)
    assert 0 < told["mean"] <= told["max"] < 0.1 and told["base"] == ["backend.cpu.activations=f32"], told


@test
def load_of_a_tiny_model():
    """load.py measures a process until its first token, from the page cache and from the disk."""
    done = script("load.py", "--soquete", PROGRAM, "--only", "first", "--reps", 1, "--threads", 1, LLAMA)
    assert "| model | warm | soquete |" in done.stdout and "| model | cold | soquete |" in done.stdout, done


@test
def policies_table():
    """policies.py compares each policy with the best of the full cache."""
    records = [{"bench": "decode-one", "policy": "full", "best": 40.0}, {"bench": "decode-one", "policy": "full", "best": 50.0},
               {"bench": "decode-one", "policy": "snapkv", "best": 80.0}, {"bench": "prompt", "policy": "h2o", "best": 1.0}]
    text = compare.render(policies.POLICIES, records)
    assert "| decode after 6000 | snapkv | 80 | 50 | 1.60 | 1.75 | no |" in text, text
    assert "| prompt of 4096 | h2o | 1 | - | - | 0.80 | - |" in text, text
    assert "no.gguf is none" in script("policies.py", "no.gguf", rc=1).stderr


main()
