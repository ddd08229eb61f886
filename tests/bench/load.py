#!/usr/bin/env python3
"""Loading, threads, neighbours, idling: what a user of one machine meets beside the speed of a step.

    load.py --soquete build/soquete --peer "/venv/bin/python peer_ik.py" model.gguf...

first      a fresh process until its first token, with the file in the page cache and not: the least time, the most memory
threads    prefill 512 and decode 128 with one thread and with all
neighbour  decode 128 with a busy loop pinned to one CPU
idle       CPU time of `soquete chat` while it waits for a question

The peer, which may be left out, is the benchmark of peer.py; its interpreter also runs peer_first.py."""
import argparse
import json
import os
import pty
import select
import shlex
import subprocess
import sys
import time

from measure import HERE, Failure, Results, Run, add_common, best, cell, progress, put, ratio, run_main, table

TESTS = ["first", "threads", "neighbour", "idle"]
PROMPT = "The capital of France is"
IDLE_SECONDS = 5


# ---- The first token


def drop_from_cache(path):
    with open(path, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def first_of_soquete(path, ids, args):
    options = ["--temp", "0", "--json", "-c", "512", "-t", str(args.threads)]
    run = Run([args.soquete, "run", "-m", path, "--ids", ids, "-n", "1"] + options)
    stats = run.lines()[-1]["stats"]
    return {"engine": "soquete", "wall_s": run.seconds, "python_s": 0, "ttft_s": stats["ttft_s"],
            "rss": run.peak_bytes, "kv": stats["kv_bytes"]}


def first_of_peer(path, ids, args):
    run = Run([shlex.split(args.peer)[0], os.path.join(HERE, "peer_first.py"), path, ids, str(args.threads)])
    told = run.lines()[-1]
    return {"engine": "peer", "wall_s": run.seconds, "python_s": run.seconds - told["load_s"] - told["prompt_s"],
            "ttft_s": told["prompt_s"], "rss": run.peak_bytes}


def measure_first(path, args, results):
    ids = ",".join(Run([args.soquete, "tokenize", "-m", path, "--bos"], PROMPT).out.split())
    for _ in range(args.reps):
        for cache in ["warm", "cold"]:
            for measure in [first_of_soquete] + ([first_of_peer] if args.peer else []):
                if cache == "cold":
                    drop_from_cache(path)
                record = dict(measure(path, ids, args), bench="first", cache=cache, model=os.path.basename(path),
                              weights=os.path.getsize(path))
                results.add(record)
                progress("%s %s, %s: %.3f s, %.0f MiB" % (record["model"], record["engine"], cache, record["wall_s"],
                                                       record["rss"] / 2**20))


def render_first(records):
    rows = []
    for model, cache, engine in dict.fromkeys((r["model"], r["cache"], r["engine"]) for r in records):
        of_row = [r for r in records if (r["model"], r["cache"], r["engine"]) == (model, cache, engine)]
        least = {k: min(r[k] for r in of_row) for k in ["wall_s", "ttft_s"]}
        rss = max(r["rss"] for r in of_row)
        bare = min(r["wall_s"] - r["python_s"] for r in of_row)
        beyond = (rss - of_row[0]["weights"] - of_row[0].get("kv", 0)) / 2**20
        rows.append([model.removesuffix(".gguf"), cache, engine, cell(1e3 * least["wall_s"]), cell(1e3 * bare),
                     cell(1e3 * least["ttft_s"]), cell(rss / 2**20), cell(beyond if engine == "soquete" else None)])
    return table(["model", "file", "engine", "process, ms", "without Python, ms", "TTFT, ms", "peak RSS, MiB",
                  "beyond weights and KV, MiB"], rows, 3)


# ---- Threads, neighbours


def bench(path, engine, tests, threads, args):
    tests = tests + ["--threads", str(threads), "--reps", str(args.reps)]
    if engine == "peer":
        return Run(shlex.split(args.peer) + [path] + tests)
    return Run([args.soquete, "bench", "-m", path, "--json", "--no-memory"] + tests)


def add_bench(path, engine, tests, threads, args, results, **keys):
    for record in bench(path, engine, tests, threads, args).lines():
        if record["test"] == "pp1":  # the peer's prefill cannot be left out
            continue
        results.add(dict(keys, engine=engine, model=record["model"], test=record["test"], best=record["best"], threads=threads))
        progress("%s %s %s, %d threads: %.1f tok/s" % (record["model"], engine, record["test"], threads, record["best"]))


def engines(args):
    return ["soquete"] + (["peer"] if args.peer else [])


def measure_threads(path, args, results):
    both = ["--prompt", "512", "--gen", "128", "--depth", "0"]
    for threads in [1, args.threads]:
        for engine in engines(args):
            add_bench(path, engine, both, threads, args, results, bench="threads")


class BusyLoop:
    """A process that computes, on the first CPU and nowhere else."""

    def __enter__(self):
        self.child = subprocess.Popen([sys.executable, "-c", "import os\nos.sched_setaffinity(0, [0])\nwhile True: pass"])

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()


def measure_neighbour(path, args, results):
    decode = ["--prompt", "1", "--gen", "128", "--depth", "0"]
    for engine in engines(args):
        add_bench(path, engine, decode, args.threads, args, results, bench="neighbour", busy=False)
        with BusyLoop():
            add_bench(path, engine, decode, args.threads, args, results, bench="neighbour", busy=True)


def render_pairs(records, key, names):
    """Rows of the two values of a key, and how the second stands to the first."""
    rows = []
    values = sorted({r[key] for r in records})
    for what in dict.fromkeys((r["model"], r["test"], r["engine"]) for r in records):
        of_row = [r for r in records if (r["model"], r["test"], r["engine"]) == what]
        pair = [best([r for r in of_row if r[key] == v]) for v in values]
        rows.append([what[0].removesuffix(".gguf"), *what[1:]] + [cell(v) for v in pair] + [cell(ratio(pair[-1], pair[0]), 2)])
    return table(["model", "test", "engine"] + names(values) + ["ratio"], rows, 3)


# ---- Idling


def cpu_seconds(pid):
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_until_quiet(fd, seconds):
    """Output of the program until it says nothing for so long."""
    said = b""
    while select.select([fd], [], [], seconds)[0]:
        said += os.read(fd, 4096)
    return said


def measure_idle(path, args, results):
    pid, fd = pty.fork()
    if pid == 0:
        os.execvp(args.soquete, [args.soquete, "chat", "-m", path, "-n", "8"])
    try:
        read_until_quiet(fd, 3)
        os.write(fd, b"Hello\r")  # one answer, so that all threads have been started
        if not read_until_quiet(fd, 3):
            raise Failure("soquete chat does not answer")
        before = cpu_seconds(pid)
        time.sleep(IDLE_SECONDS)
        used = cpu_seconds(pid) - before
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    results.add({"bench": "idle", "model": os.path.basename(path), "cpu_s": used, "seconds": IDLE_SECONDS})
    progress("%s idle: %.0f ms of CPU time in %d s" % (os.path.basename(path), 1e3 * used, IDLE_SECONDS))


# ---- The whole


def render(records):
    by = {name: [r for r in records if r["bench"] == name] for name in TESTS}
    out = []
    if by["first"]:
        out += ["Until the first token:", "", render_first(by["first"]), ""]
    if by["threads"]:
        out += ["Threads, tokens per second:", "",
                render_pairs(by["threads"], "threads", lambda v: ["%d thread%s" % (n, "s" if n > 1 else "") for n in v]), ""]
    if by["neighbour"]:
        out += ["A busy loop on one CPU, tokens per second:", "",
                render_pairs(by["neighbour"], "busy", lambda v: ["neighbour" if b else "alone" for b in v]), ""]
    for r in by["idle"]:
        out += ["`soquete chat` with %s, waiting: %.0f ms of CPU time in %d s." % (r["model"], 1e3 * r["cpu_s"], r["seconds"])]
    return "\n".join(out).rstrip()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("models", nargs="*", metavar="MODEL", help="GGUF files")
    p.add_argument("--peer", default="", metavar="COMMAND", help="the other engine's benchmark")
    p.add_argument("--only", action="append", choices=TESTS, help="one of them; may be repeated")
    p.add_argument("--reps", type=int, default=3, metavar="N", help="repetitions, of which the best counts (%(default)s)")
    add_common(p)
    args = p.parse_args()
    results = Results(args.results)
    if not args.render:
        if not args.models:
            raise Failure("no model; see --help")
        for path in args.models:
            for name in args.only or TESTS:
                globals()["measure_" + name](path, args, results)
    put(render([r for r in results.records if r["bench"] in (args.only or TESTS)]), args.into)


if __name__ == "__main__":
    run_main(main)
