"""eval kv: what configurations of the KV cache cost, on models with random weights and, where it is there, on SmolLM2."""
import csv
import io
import json
import math
import os
import signal
import time
import xml.etree.ElementTree as xml

from cli import GEMMA, LLAMA, SMOLLM, ids_text, judges_smollm, main, path, soquete, start, test

SMALL = ["eval", "kv", "-m", LLAMA, "--lengths", "224,256", "-n", "2", "--scored", "8", "--depths", "0,100"]


def rows(*args, **options):
    """{(config, length): row}, length None: all."""
    told = soquete(*args, "--format", "json", **options).json()
    return {(r["config"], r["length"]): r for r in told["rows"]}


def lines(name):
    with open(name) as f:
        return [json.loads(line) for line in f]


@test
def formats():
    """table, markdown, CSV and JSON have the same configurations and lengths; the full cache in f32 is always there."""
    results = path("formats.jsonl")
    args = SMALL + ["snapkv@0.5", "--results", results]
    table = soquete(*args).out.splitlines()
    assert table[0].split()[:3] == ["config", "length", "PPL"], table
    assert [l.split()[:2] for l in table[1:7]] == [[c, l] for c in ("full/f32", "snapkv@0.5") for l in ("224", "256", "all")], table
    told = rows(*args)
    assert list(told) == [(c, l) for c in ("full/f32", "snapkv@0.5") for l in (224, 256, None)]
    listed = list(csv.DictReader(io.StringIO(soquete(*args, "--format", "csv").out)))
    for line, row in zip(listed, told.values()):
        assert line["model"] == "model.gguf" and line["config"] == row["config"] and line["length"] == str(row["length"] or "all")
        for key, value in row.items():
            if key == "passkey_by_depth":
                assert [float(line["passkey_at_%s" % d]) for d in ("0", "100")] == value, (line, row)
            elif key not in ("config", "length"):
                assert (line[key] == "") == (value is None) and (value is None or abs(float(line[key]) - value) < 1e-6), (key, row)
    markdown = soquete(*args, "--format", "md").out
    assert markdown.startswith("| config | length | PPL |") and "\n| snapkv@0.5 | all | " in markdown, markdown
    assert "seed 1" in markdown and "bootstrap" in markdown
    full = told["full/f32", None]
    assert full["log_ppl_difference"] == full["kl"] == full["passkey_difference"] == 0 and full["same_top"] == 1, full
    assert full["text_items"] == 4 and full["passkey_items"] == 8 and full["recall_items"] == 4, full
    assert told["snapkv@0.5", None]["kl"] > 0
    long = "snapkv:window=16:kernel=15:pool=max/f16+int8:rotation=on@0.5"
    assert f"\n| {long} | 224 | " in soquete(*SMALL, long, "--tasks", "passkey", "--format", "md").out


@test
def perplexity_agrees():
    """the perplexity of the full cache is what `soquete logits` says."""
    text = path("text.txt", "kalomi tenu saro. It's 12345 o'clock, isn't it? " * 20)
    told = rows("eval", "kv", "-m", LLAMA, "full", "--tasks", "text", "--text", text, "--lengths", "48", "-n", "1", "--scored", "16")
    with open(text) as f:
        ids = [int(i) for i in soquete("tokenize", "-m", LLAMA, "--bos", text=f.read()).out.split()][:48 + 16]
    scores = []
    soquete("logits", "-m", LLAMA, "--ids", ids_text(ids), "--all", "--out", path("p.npy"), "--kv.codec_k=f32", "--kv.codec_v=f32")
    with open(path("p.npy"), "rb") as f:
        data = f.read()
    header = 10 + int.from_bytes(data[8:10], "little")
    values = memoryview(data[header:]).cast("f")
    width = len(values) // len(ids)
    for p in range(47, 63):
        row = values[p * width:(p + 1) * width]
        scores.append(math.log(math.fsum(map(math.exp, row))) - row[ids[p + 1]])
    expected = math.exp(math.fsum(scores) / len(scores))
    assert abs(told["full/f32", 48]["ppl"] / expected - 1) < 1e-5, (told, expected)


@test
def identity():
    """a budget that holds the whole prompt changes nothing, and half of it keeps half of the bytes."""
    told = rows(*SMALL, "snapkv/f32@4000", "streaming/f32@4000", "tova/f32@0.5")
    for config in ("snapkv/f32@4000", "streaming/f32@4000"):
        row = told[config, None]
        assert row["kl"] == row["kl_high"] == row["log_ppl_difference"] == 0 and row["same_top"] == 1, row
        assert row["kv_bytes"] == told["full/f32", None]["kv_bytes"], row
    assert 0.4 < told["tova/f32@0.5", 256]["kv_bytes"] / told["full/f32", 256]["kv_bytes"] < 0.75, told


@test
def parallel():
    """how many items are computed at the same time changes no result, nor does it whether prompts share what they begin with."""
    one, eight = path("one.jsonl"), path("eight.jsonl")
    soquete(*SMALL, "h2o/f16@64", "adakv@64", "--parallel", "1", "--results", one)
    soquete(*SMALL, "h2o/f16@64", "adakv@64", "--parallel", "8", "--results", eight)
    assert lines(one) == lines(eight)


@test
def memory():
    """results are the same, bytes too, where the cache holds so few sequences that those that are done give way to others."""
    wide, narrow = path("wide.jsonl"), path("narrow.jsonl")
    args = ["eval", "kv", "-m", LLAMA, "full/f16", "--tasks", "passkey", "--lengths", "224", "-n", "80", "--depths", "0", "--parallel", "80"]
    soquete(*args, "--results", wide)
    soquete(*args, "--kv.memory=2MiB", "--results", narrow)
    by_item = [{(r["config"], r["index"]): r for r in lines(name)} for name in (wide, narrow)]
    assert by_item[0] == by_item[1], narrow


@test
def loads():
    """weights are loaded once for each configuration, even where it turns out that its prompts can share nothing."""
    told = soquete(*SMALL, "h2o/f16@64", "--tasks", "passkey,recall", "--parallel", "1", "--runtime.log_level=info").err
    assert told.count("the KV cache takes up to") == 2, told


@test
def models():
    """--results: models of the same name are told apart; lines that name no fingerprint are of any model of that name."""
    name, args = path("models.jsonl"), SMALL[4:] + ["full/f16", "--tasks", "passkey", "--results"]
    soquete("eval", "kv", "-m", LLAMA, *args, name)
    llama = lines(name)
    soquete("eval", "kv", "-m", GEMMA, *args, name)
    both = lines(name)
    assert both[:len(llama)] == llama and len(both) == 2 * len(llama), both
    assert len({(r["model"], r["fingerprint"]) for r in both}) == 2 and {r["model"] for r in both} == {"model.gguf"}, both
    for r in llama:
        del r["fingerprint"]
    old = path("old.jsonl", "".join(json.dumps(r) + "\n" for r in llama))
    soquete("eval", "kv", "-m", LLAMA, *args, old)
    assert lines(old) == llama


@test
def resumes():
    """--results: nothing is measured twice, a new configuration only itself; a torn last line is measured again."""
    name = path("resume.jsonl")
    first = soquete(*SMALL, "tova@64", "--results", name).out
    before = lines(name)
    assert soquete(*SMALL, "tova@64", "--results", name).out == first and lines(name) == before
    soquete(*SMALL, "tova@64", "keydiff@64", "--results", name)
    after = lines(name)
    assert after[:len(before)] == before and {r["config"] for r in after[len(before):]} == {"keydiff@64"}
    with open(name) as f:
        text = f.read()
    torn = path("torn.jsonl", text[:-30])
    soquete(*SMALL, "tova@64", "keydiff@64", "--results", torn)
    assert lines(torn) == after


@test
def interrupted():
    """Ctrl-C: what was finished is kept and reported, the exit code is 130, and the same command goes on."""
    name = path("interrupted.jsonl")
    args = ["eval", "kv", "-m", LLAMA, "--lengths", "224", "-n", "400", "--scored", "8", "--tasks", "passkey", "--results", name, "full",
            "snapkv@64"]
    process = start(*args, stdout=-1, stderr=-1)
    deadline = time.time() + 60
    while time.time() < deadline and not (os.path.exists(name) and os.path.getsize(name)):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (process.returncode, err)
    assert "goes on from" in err.decode() and "full/f32" in out.decode(), (out, err)
    assert lines(name)


@test
def speed():
    """--tasks speed: tokens per second, bytes held and the most that the pools took."""
    told = rows("eval", "kv", "-m", LLAMA, "--tasks", "speed", "--lengths", "256", "--timed", "8", "-r", "2", "full", "tova@64")
    full, tova = told["full/f32", 256], told["tova@64", 256]
    assert full["speed_tests"] == 2 and full["tok_s_low"] <= full["tok_s"] <= full["tok_s_high"] and full["kl"] is None, full
    assert tova["kv_bytes"] < full["kv_bytes"] / 3 and full["kv_peak_bytes"] >= full["kv_bytes"], told
    assert all(type(row[name]) is int for row in (full, tova) for name in ("kv_bytes", "kv_peak_bytes")), told


@test
def pictures():
    """--plots writes valid SVG: a panel for each configuration, a point for each configuration."""
    folder = path("plots")
    soquete(*SMALL, "snapkv:pool=max@0.5", "streaming@0.5", "--plots", folder)
    space = "{http://www.w3.org/2000/svg}"
    for name, marks in [("heat.svg", 3 * 2 * 2), ("pareto-kl.svg", 2 * 3), ("pareto-passkey.svg", 2 * 3)]:
        root = xml.parse(os.path.join(folder, name)).getroot()
        kind = "rect[@class='heat']" if name == "heat.svg" else "circle"
        assert root.tag == space + "svg" and len(root.findall(space + kind)) == marks, name
        texts = [t.text for t in root.findall(space + "text")]
        assert any("snapkv:pool=max@0.5" in t for t in texts) and "prefers-color-scheme: dark" in root.find(space + "style").text, texts


@test
def wrong():
    """what is wrong is said before anything is measured."""
    for args, words in [
        (["eval"], "expected kv"),
        (["eval", "cache", "-m", LLAMA], "cache: expected kv"),
        (SMALL, "nothing to compare"),
        (SMALL + ["snapkv@x"], "snapkv@x"),
        (SMALL + ["full:x"], "no KEY=VALUE"),
        (SMALL + ["full", "--tasks", "text,poem"], "--tasks text,poem"),
        (SMALL + ["full", "--lengths", "8"], "--lengths 8"),
        (SMALL + ["full", "--lengths", "20"], "the question alone"),
        (SMALL + ["full", "--depths", "101"], "--depths 101"),
        (SMALL + ["full", "--format", "xml"], "--format xml"),
        (SMALL + ["full", "--results", "/dev/full"], "no regular file"),
        (SMALL + ["full", "--results", os.path.dirname(path("r.jsonl"))], "no regular file"),
        (SMALL + ["full", "--text", path("short.txt", "too short")], "give a longer text"),
        (SMALL + ["full", "snapkv:nosuch=1"], "nosuch"),
        (SMALL + ["full", "streaming:capacity=2:sinks=4"], "streaming:capacity=2"),
    ]:
        result = soquete(*args, rc=2)
        assert words in result.err and not result.out, result
    assert "nosuch" in soquete(*SMALL, "nosuch@64", rc=None).err
    assert "no JSON object" in soquete(*SMALL, "full", "--results", path("other.txt", "what\n"), rc=1).err
    assert "cannot be written" in soquete(*SMALL, "full", "--results", path("missing/r.jsonl"), rc=1).err
    assert "missing" in soquete(*SMALL, "full", "--text", path("missing"), rc=1).err


@test
@judges_smollm
def full_cache_finds():
    """SmolLM2 with the full cache finds the keys and recalls the numbers: the tasks say something about other caches."""
    told = rows("eval", "kv", "-m", SMOLLM, "full", "--tasks", "passkey,recall", "--lengths", "512", "-n", "2", "--depths", "0,50,100")
    for config in ("full/f32", "full"):
        assert told[config, 512]["passkey"] >= 0.8 and told[config, 512]["recall"] >= 0.7, told


@test
@judges_smollm
def sinks():
    """without its first tokens a window collapses, with four of them it does not (StreamingLLM)."""
    told = rows("eval", "kv", "-m", SMOLLM, "streaming:sinks=4@128", "streaming:sinks=0@128", "--tasks", "text", "--lengths", "512", "-n",
                "4", "--scored", "16")
    four, none = told["streaming:sinks=4@128", 512], told["streaming:sinks=0@128", 512]
    assert none["ppl"] > 1.5 * four["ppl"] and none["kl_low"] > four["kl_high"], (four, none)


main()
