"""tokenize, logits, kvcalc, bench, perplexity, inspect, plugins."""
import ast
import csv
import io
import json
import math
import os
import random
import re
import signal
import stat
import struct
import subprocess
import sys
import time
from array import array

from cli import EXACT, GEMMA, GOLDEN, LLAMA, MIXED, SMOLLM, Skip, golden, ids_text, judges_smollm, main, path, soquete, start, test

PEER_KEYS = {"engine", "model", "test", "depth", "fa", "tok_s", "best"}


def read_npy(data):
    assert data[:8] == b"\x93NUMPY\x01\x00"
    n = struct.unpack("<H", data[8:10])[0]
    header = ast.literal_eval(data[10:10 + n].decode())
    assert (10 + n) % 64 == 0 and header["descr"] == "<f4" and not header["fortran_order"], header
    values = array("f", data[10 + n:])
    if sys.byteorder == "big":
        values.byteswap()
    assert len(values) == math.prod(header["shape"]), header
    return header["shape"], values


def npy_file(name):
    with open(name, "rb") as f:
        return read_npy(f.read())


def worst(a, b):
    assert len(a) == len(b)
    return max(abs(x - y) for x, y in zip(a, b))


# ---- tokenize


@test
def tokenize_golden():
    """tokenize gives the reference's ids, on one line or in JSON."""
    for name, model in [("llama", LLAMA), ("gemma3", GEMMA)]:
        for sample in golden(name).get("tokenizer_samples", []):
            result = soquete("tokenize", "-m", model, text=sample["text"])
            assert result.out == " ".join(map(str, sample["ids"])) + "\n", (sample, result)
            told = soquete("tokenize", "-m", model, "--json", text=sample["text"]).json()
            assert told["ids"] == sample["ids"] and len(told["tokens"]) == len(sample["ids"])


@test
def tokenize_round_trip():
    """--decode gives back the text, byte for byte, valid UTF-8 or not."""
    noise = random.Random(1)
    for text in [b"", b"Hello", "na\u00efve \u65e5\u672c\u8a9e \U0001f600\n".encode(), b"\xff\xfe\x00\x80abc", b"a\xc3",
                 bytes(noise.randrange(256) for _ in range(3000)), b"\n\n  \t x \r\n"]:
        ids = soquete("tokenize", "-m", LLAMA, text=text).out
        if text:
            assert soquete("tokenize", "-m", LLAMA, "--decode", text=ids).bytes == text, text[:40]
        assert soquete("tokenize", "-m", LLAMA, "-f", path("t.bin", text)).out == ids


@test
def tokenize_special():
    """control tokens count with --special only; --bos adds one where the vocabulary does."""
    text = "a<|eos|>"
    plain = soquete("tokenize", "-m", LLAMA, text=text).out.split()
    special = soquete("tokenize", "-m", LLAMA, "--special", text=text).out.split()
    assert len(plain) > 2 and special[1:] == ["2"], (plain, special)
    ids = " ".join(special)
    assert soquete("tokenize", "-m", LLAMA, "-d", text=ids).out == "a"
    assert soquete("tokenize", "-m", LLAMA, "-d", "--special", text=ids).out == text
    assert soquete("tokenize", "-m", LLAMA, "-d", "--special", "--json", text=ids).json() == {"text": text}
    assert soquete("tokenize", "-m", GEMMA, "--bos", text=text).out.split()[0] == "1"


@test
def tokenize_wrong():
    """ids that are none are refused."""
    for text, word in [("", "no token ids"), ("12 x", "x"), ("100000", "100000"), ("1.5", "1.5")]:
        assert word in soquete("tokenize", "-m", LLAMA, "--decode", text=text, rc=2).err


# ---- logits


@test
def logits_golden():
    """logits are the reference's, within the tolerances of golden/README.md; all positions or the last."""
    for name, limit in [("llama", 1e-3), ("llama_rope_linear", 1e-3), ("llama_rope_llama3", 1e-3), ("llama_rope_yarn", 1e-3),
                        ("gemma3", 2e-2)]:
        model, expect, out = os.path.join(GOLDEN, name, "model.gguf"), golden(name), path("l.npy")
        short = ids_text(expect["short_ids"])
        soquete("logits", "-m", model, "--ids", short, "--all", "--out", out, *EXACT)
        shape, values = npy_file(out)
        reference = npy_file(os.path.join(GOLDEN, name, expect["logits_short"]))
        assert shape == reference[0] and worst(values, reference[1]) < limit, (name, shape)
        soquete("logits", "-m", model, "--ids", ids_text(expect["long_ids"]), "--out", out, *EXACT)
        shape, values = npy_file(out)
        reference = npy_file(os.path.join(GOLDEN, name, expect["logits_long_last"]))
        assert shape == (1, len(reference[1])) and worst(values, reference[1]) < limit, (name, shape)


@test
def logits_ways():
    """standard output and standard input serve too, and chunks do not matter."""
    ids = golden("llama")["long_ids"]
    out = path("l.npy")
    soquete("logits", "-m", LLAMA, "--ids", ids_text(ids), "--all", "--out", out, *EXACT)
    shape, values = npy_file(out)
    assert shape == (len(ids), 288)
    piped = soquete("logits", "-m", LLAMA, "--ids", "-", "--all", "--out", "-", "--engine.chunk=7", *EXACT,
                    text=" ".join(map(str, ids))).bytes
    assert read_npy(piped) == (shape, values)


@test
def logits_failures():
    """what cannot be written is a failure and leaves no file."""
    assert "cannot write" in soquete("logits", "-m", LLAMA, "--ids", "1", "--out", "/nowhere/x.npy", rc=1).err
    assert "No space" in soquete("logits", "-m", LLAMA, "--ids", "1", "--out", "/dev/full", rc=1).err
    assert os.path.exists("/dev/full")
    soquete("logits", "-m", LLAMA, "--ids", "1,100000", "--out", path("gone.npy"), rc=2)
    assert not os.path.exists(path("gone.npy"))
    assert "context" in soquete("logits", "-m", LLAMA, "--ids", ids_text(range(4, 40)), "-c", 8, "-o", path("gone.npy"), rc=1).err


# ---- kvcalc


@test
def kvcalc_by_hand():
    """kvcalc of a shape by hand: 2 x layers x heads x width x bytes."""
    told = soquete("kvcalc", "--layers", 3, "--kv-heads", 5, "--head-dim", 64, "--context", "32,64", "--batch", 4, "--json").json()
    per_token = 2 * 3 * 5 * 64 * 2
    assert told["bytes_per_token"] == per_token and told["batch"] == 4
    assert [l["block_bytes"] for l in told["lengths"]] == [32 * per_token, 64 * per_token]
    assert all(l["total_bytes"] == 4 * l["sequence_bytes"] >= l["block_bytes"] for l in told["lengths"])
    f32 = soquete("kvcalc", "--layers", 3, "--kv-heads", 5, "--head-dim", 64, "--json", "--codec-k", "f32").json()
    assert f32["bytes_per_token"] == per_token * 3 // 2


@test
def kvcalc_windows():
    """windows bound what a sequence holds: the model's, one by hand, and the policy's."""
    model = soquete("kvcalc", "-m", GEMMA, "--json").json()
    assert sorted(g["window"] for g in model["groups"]) == [0, 16]
    hand = soquete("kvcalc", "--layers", 12, "--kv-heads", 1, "--head-dim", 64, "--window", 64, "--window-pattern", 6, "-c",
                   "10000,100000", "--json").json()
    assert sorted((g["layers"], g["window"]) for g in hand["groups"]) == [(2, 0), (10, 64)]
    policy = soquete("kvcalc", "-m", LLAMA, "--policy", "window", "--kv.window.capacity=64", "--kv.window.sinks=4", "-c",
                     "10000,100000", "--json").json()
    assert policy["policy"] == "window" and policy["lengths"][0]["block_bytes"] == policy["lengths"][1]["block_bytes"]


@test
def kvcalc_real_bits():
    """kvcalc counts all that a codec keeps: scales, minima, outliers, sketches, padding."""
    def bits(*options):
        groups = soquete("kvcalc", "--layers", 2, "--kv-heads", 3, "--head-dim", 64, "--json", *options).json()["groups"]
        return groups[0]["bits_per_number"]

    f16 = 16
    tile = 32 * 64
    for want, options in [
            (8 + f16 / 32, ["codec=int8"]), (4 + f16 / 32, ["codec=int4"]), (4 + 2 * f16 / 32, ["codec=int4", "int4.format=q4_1"]),
            (5 + 2 * f16 / 32, ["codec=int4", "int4.format=q5_1"]), (8 + 64 / tile, ["codec=fp8"]),
            (2 + 2 * f16 / 32, ["codec=kivi"]), (4 + 2 * f16 / 16, ["codec=kivi", "kivi.bits=4", "kivi.group=16"]),
            (2 + 2 * 32 / 32, ["codec=kivi", "kivi.metadata=f32"]), (3 + f16 / 64, ["codec=turboquant"]),
            (1 + 32 / 64, ["codec=turboquant", "turboquant.bits=1", "turboquant.metadata=f32"]),
            (3 + 2 * f16 / 64, ["codec=turboquant", "turboquant.variant=prod"]),
            # a position and 8 bytes per tile; thresholds per channel (keys) or row (values); an outlier of 2 + 2 bytes for each
            (3 + 64 / tile + (64 + 32) / 2 * (2 * f16 + 32) / tile, ["codec=kvquant"]),
            (3 + 64 / tile + (64 + 32) / 2 * 2 * f16 / tile, ["codec=kvquant", "kvquant.outliers=0"]),
            ((8.5 + 4.5) / 2, ["codec_k=int8", "codec_v=int4"]), (16, ["codec=bf16"])]:
        told = bits(*["--kv." + option for option in options])
        assert abs(told - want) < 1e-9, (options, told, want)


@test
def kvcalc_refuses():
    """Groups, residuals, bits and head sizes that a codec cannot have are refused by their key, with what would do."""
    shape = ["kvcalc", "--layers", 2, "--kv-heads", 3, "--head-dim"]
    for width, options, says in [
            (64, ["codec=kivi", "kivi.group=24"], ["[kv.kivi] group = 24", "8, 16, 32, 64 or 128"]),
            (64, ["codec=kivi", "kivi.group=64"], ["group = 64", "block_tokens to 64"]),
            (64, ["codec=kivi", "kivi.group=256"], ["kv.kivi.group=256", "8 to 128"]),
            (64, ["codec=kivi", "kivi.bits=3"], ["kv.kivi.bits=3", "2|4"]),
            (64, ["codec=kivi", "kivi.residual=31"], ["residual = 31", "set it to 32"]),
            (64, ["codec=turboquant", "turboquant.bits=5"], ["turboquant.bits=5", "1 to 4"]),
            (64, ["codec=kvquant", "kvquant.bits=1"], ["kvquant.bits=1", "2 to 4"]),
            (64, ["codec=kvquant", "kvquant.outliers=9"], ["kvquant.outliers=9", "0 to 5"]),
            (64, ["codec=kvquant", "policy=snapkv"], ["[kv] codec = kvquant with policy = snapkv", "full, window or streaming"]),
            (64, ["codec=int4", "int4.format=q8_0"], ["int4.format=q8_0", "q4_0|q4_1|q5_1"]),
            (64, ["codec=int8", "pack_grid=4"], ["pack_grid=4", "8 to 65536"]),
            (80, ["codec=int8", "int8.rotation=on"], ["rotation = on", "heads of 80 numbers", "off or auto"]),
            (80, ["codec=turboquant"], ["heads of 80 numbers", "choose another codec"]),
            (2048, ["codec=fp8"], ["32 tokens x 2048 numbers", "65536 x 1024"])]:
        result = soquete(*shape, width, *["--kv." + option for option in options], rc=None)
        assert result.rc == 2 and all(text in result.err for text in says), (options, result)


@test
def kvcalc_of_what_cannot_be():
    """kvcalc refuses what the runtime refuses, and knows codecs that are made for one model."""
    selecting = ["kvcalc", "-m", LLAMA, "--policy=snapkv", "--kv.snapkv.capacity=64", "-c", 200]
    for args in [["--codec=kvquant"], ["--decoding.drafter=self"]]:
        result = soquete(*selecting, *args, rc=2)
        assert "policy = snapkv" in result.err, result
    for args in [["--codec=kvquant", "--kv.kvquant.keys=post_rope"], ["--kv.codec_v=kvquant"]]:
        soquete(*selecting, *args)
    for shape in [["-m", LLAMA], ["--layers", 2, "--kv-heads", 2, "--head-dim", 64]]:
        group, = soquete("kvcalc", *shape, "--codec", "kvquant", "-c", 100, "--json").json()["groups"]
        assert group["codec_k"] == "kvquant" and 3 < group["bits_per_number"] < 8, group


@test
def kvcalc_table():
    """the table names policy, codecs and every length."""
    out = soquete("kvcalc", "-m", LLAMA, "-c", "100,1000").out
    for word in ["policy full", "keys f16", "256 bytes per token", "100", "1000"]:
        assert word in out, out


# ---- bench


def bench(*args):
    return soquete("bench", "-m", LLAMA, "--prompt", 16, "--gen", 8, "--reps", 2, *args)


@test
def bench_json():
    """bench prints JSON lines with the peer's keys, one for prefill and one for each depth."""
    lines = bench("--depth", "0,32", "--format", "json").lines()
    assert [(l["test"], l["depth"]) for l in lines] == [("pp16", 0), ("tg8", 0), ("tg8", 32)]
    for l in lines:
        assert PEER_KEYS <= set(l) and l["engine"] == "soquete" and l["model"] == "model.gguf", l
        assert len(l["tok_s"]) == 2 and l["best"] == max(l["tok_s"]) > 0
        prefill = l["test"].startswith("pp")
        assert l["memory_gb_s"] > 0 and l["int8_gop_s"] > 0 and l["fp32_gflop_s"] > 0, l
        assert (l["memory_share"] is None) == prefill and (l["matmul_share"] is None) != prefill, l
        assert prefill is False or 0 < l["matmul_share"] < 1, l
    bare, = bench("--gen", 0, "--json", "--no-memory").lines()
    assert PEER_KEYS <= set(bare) and bare["int8_gop_s"] is bare["memory_gb_s"] is bare["matmul_share"] is None, bare


@test
def bench_formats():
    """table, CSV and Markdown have the same columns."""
    table = bench("--no-memory").out
    assert re.search(r"^tg8 +0 +1 +[\d.]+ +[\d.]+ +[\d.]+ +- +-$", table, re.M), table
    assert re.search(r"memory [\d.]+ GB/s, int8 \d+ GOP/s \(\w+\), fp32 \d+ GFLOP/s \(\w+\)$", bench("--gen", 0).out, re.M)
    rows = list(csv.DictReader(io.StringIO(bench("--format", "csv").out)))
    assert [r["test"] for r in rows] == ["pp16", "tg8"] and all(float(r["best"]) >= float(r["mean"]) > 0 for r in rows)
    assert "| tg8 | 0 | 1 |" in bench("--no-memory", "--format", "md").out


@test
def bench_interrupted():
    """Ctrl-C ends bench when it comes while the machine is measured, before the first test."""
    process = start("bench", "-m", LLAMA, "--prompt", 16, "--gen", 0, "--reps", 64, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    caught = 0
    while process.poll() is None and not caught >> (signal.SIGINT - 1) & 1:
        time.sleep(0.01)
        with open("/proc/%d/status" % process.pid) as f:
            caught = int(re.search(r"SigCgt:\s*(\w+)", f.read())[1], 16)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (process.returncode, out, err)


@test
def bench_parallel():
    """several sequences at once, more than the configuration allows by default."""
    for n in [3, 20]:
        lines = bench("--no-memory", "--parallel", n, "--depth", 8, "--format", "json").lines()
        assert [l["parallel"] for l in lines] == [n, n] and all(l["best"] > 0 for l in lines)


@test
def bench_limits():
    """tests can be left out; what does not fit the context is refused with the option."""
    assert [l["test"] for l in bench("--prompt", 0, "--format", "json", "--no-memory").lines()] == ["tg8"]
    assert [l["test"] for l in bench("--gen", 0, "--format", "json", "--no-memory").lines()] == ["pp16"]
    several = soquete("bench", "-m", LLAMA, "-p", "4,0,24", "-n", 0, "-r", 1, "--json", "--no-memory").lines()
    assert [l["test"] for l in several] == ["pp4", "pp24"]
    assert "-c" in soquete("bench", "-m", LLAMA, "--depth", 1000, "--prompt", 0, "--no-memory", rc=1).err


# ---- perplexity


def perplexity_by_hand(text, n):
    """From the logits that soquete logits writes."""
    bos = soquete("tokenize", "-m", LLAMA, "--bos").out.split()
    ids = [int(i) for i in soquete("tokenize", "-m", LLAMA, "--bos", text=text).out.split()]
    scores = []
    for start in range(0, len(ids) - n + 1, n):
        chunk = [int(i) for i in bos] + ids[start + len(bos):start + n]
        soquete("logits", "-m", LLAMA, "--ids", ids_text(chunk), "--all", "--out", path("p.npy"))
        shape, values = npy_file(path("p.npy"))
        for p in range(n // 2, n - 1):
            row = values[p * shape[1]:(p + 1) * shape[1]]
            scores.append(math.log(math.fsum(math.exp(x) for x in row)) - row[chunk[p + 1]])
    mean = math.fsum(scores) / len(scores)
    variance = math.fsum(s * s for s in scores) / len(scores) - mean * mean
    return math.exp(mean), math.exp(mean) * math.sqrt(variance / (len(scores) - 1)), len(scores), len(ids) // n


@test
def perplexity_agrees():
    """perplexity is what the logits say, with its error; as text and as JSON."""
    text = "kalomi tenu saro. It's 12345 o'clock, isn't it? " * 6
    ppl, error, tokens, chunks = perplexity_by_hand(text, 64)
    told = soquete("perplexity", "-m", LLAMA, "-c", 64, "--json", text=text).json()
    assert (told["tokens"], told["chunks"], told["context"]) == (tokens, chunks, 64), told
    assert abs(told["ppl"] / ppl - 1) < 1e-5 and abs(told["error"] / error - 1) < 1e-4, (told, ppl, error)
    out = soquete("perplexity", "-m", LLAMA, "-c", 64, "-f", path("text.txt", text)).out
    assert out == "PPL = %.4f +/- %.4f (%d tokens, %d chunks)\n" % (told["ppl"], told["error"], tokens, chunks), out


@test
def perplexity_chunks():
    """--chunks stops early; a text that is too short is refused."""
    told = soquete("perplexity", "-m", LLAMA, "-c", 16, "--chunks", 2, "--json", text="kalomi tenu saro. " * 20).json()
    assert told["chunks"] == 2 and told["tokens"] == 2 * 7
    assert "512" in soquete("perplexity", "-m", LLAMA, text="short", rc=2).err
    assert "missing" in soquete("perplexity", "-m", LLAMA, "-f", path("missing"), rc=1).err


@test
def perplexity_policies():
    """a policy that selects does so behind the first half of a chunk; what drops nothing changes no bit."""
    args = ["perplexity", "-m", LLAMA, "-c", 256, "--json", "--chunks", 1]
    text = "kalomi tenu saro. It's 12345 o'clock, isn't it? " * 12
    full = soquete(*args, text=text).json()
    for policy in ["snapkv", "h2o", "random", "streaming"]:
        options = ["--kv.policy=" + policy, "--kv.snapkv.window=8", "--kv.h2o.recent=8", "--kv.%s.capacity=%d"]
        few, all_ = (soquete(*args, *options[:-1], options[-1] % (policy, n), text=text).json() for n in (10, 256))
        assert few["tokens"] == full["tokens"] and abs(few["ppl"] / full["ppl"] - 1) > 1e-4, (policy, few, full)
        assert all_["ppl"] == full["ppl"], (policy, all_, full)


@test
@judges_smollm
def perplexity_smollm():
    """SmolLM2 finds English likely and noise not."""
    with open(os.path.join(GOLDEN, "README.md")) as f:
        english = f.read()
    noise = random.Random(2)
    jumble = "".join(noise.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(4000))
    args = ["perplexity", "-m", SMOLLM, "-c", 256, "--chunks", 2, "--json"]
    assert soquete(*args, text=english).json()["ppl"] < 60 < 200 < soquete(*args, text=jumble).json()["ppl"]


# ---- calibrate

# Seconds-long texts: the words that the tiny models' vocabularies were made of.
WORDS = "kalomi tenu saro. It's 12345 o'clock, isn't it? "


def calibration(name):
    """Header and numbers of a calibration file."""
    with open(name, "rb") as f:
        data = f.read()
    magic, version, layers, heads, dim, fingerprint, tokens, checksum = struct.unpack("<8s4I16s2Q", data[:56])
    values = struct.unpack("<%df" % ((len(data) - 56) // 4), data[56:])
    assert magic == b"SOQCALIB" and version == 1 and len(values) == layers * (4 * heads * dim + 6 * 28), (version, layers, heads, dim)
    hashed = 0xcbf29ce484222325
    for byte in data[:48] + data[56:]:
        hashed = (hashed ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    assert hashed == checksum
    return layers, heads, dim, tokens, values


@test
def calibrate():
    """calibrate writes ranges and tables of every layer, the same ones every time; kvquant reads them."""
    args = ["calibrate", "-m", LLAMA, "-c", 64, "--tokens", 256]
    out = soquete(*args, "--out", path("a.kvcal"), text=WORDS * 12).out
    soquete(*args, "-o", path("b.kvcal"), "-t", 1, "-f", path("words.txt", WORDS * 12))
    layers, heads, dim, tokens, values = calibration(path("a.kvcal"))
    assert (layers, heads, dim, tokens, values) == calibration(path("b.kvcal")) and tokens == 4 * 63, tokens
    soquete(*args, "-o", path("drafted.kvcal"), "--decoding.drafter=self", "--draft.policy=snapkv", text=WORDS * 12)
    assert values == calibration(path("drafted.kvcal"))[4]
    assert "%d layers, %d tokens" % (layers, tokens) in out, out
    stride = 4 * heads * dim + 6 * 28
    weighted = 0
    for layer in range(layers):
        part = values[layer * stride:(layer + 1) * stride]
        channels = 2 * heads * dim
        assert all(low < high for low, high in zip(part[:channels], part[channels:2 * channels]))
        tables = [part[2 * channels + 28 * i:2 * channels + 28 * (i + 1)] for i in range(6)]
        for table in tables:
            for entries in (table[:4], table[4:12], table[12:]):
                assert list(entries) == sorted(entries) and -1 <= entries[0] and entries[-1] <= 1, entries
        weighted += tables[0] != tables[1]
    assert weighted, "attention weighs"


@test
def calibrated_codec():
    """kvquant runs with a model's calibration; that of another model, or a damaged one, is refused."""
    soquete("calibrate", "-m", LLAMA, "-c", 64, "-o", path("c.kvcal"), text=WORDS * 12)
    told = {}
    for name, options in {"plain": [], "weighted": ["--kv.kvquant.weights=sensitivity"]}.items():
        told[name] = soquete("perplexity", "-m", LLAMA, "-c", 256, "--json", "--kv.codec=kvquant",
                             "--kv.kvquant.calibration=" + path("c.kvcal"), *options, text=WORDS * 14).json()["ppl"]
    full = soquete("perplexity", "-m", LLAMA, "-c", 256, "--json", "--kv.codec=f32", text=WORDS * 14).json()["ppl"]
    assert all(ppl != full and abs(ppl / full - 1) < 0.2 for ppl in told.values()), (told, full)
    bits = [soquete("kvcalc", "-m", LLAMA, "--json", "--kv.codec=kvquant", *options).json()["groups"][0]["bits_per_number"]
            for options in ([], ["--kv.kvquant.calibration=" + path("c.kvcal")])]
    assert 3 < bits[1] < bits[0] < 8, bits
    refused = soquete("run", "-m", GEMMA, "--raw", "-n", 1, "x", "--kv.codec=kvquant", "--kv.kvquant.calibration=" + path("c.kvcal"),
                      rc=None)
    assert refused.rc and "calibration" in refused.err and "soquete calibrate" in refused.err, refused
    with open(path("c.kvcal"), "r+b") as f:
        f.seek(99)
        f.write(b"?")
    damaged = soquete("run", "-m", LLAMA, "--raw", "-n", 1, "x", "--kv.codec=kvquant", "--kv.kvquant.calibration=" + path("c.kvcal"),
                      rc=None)
    assert damaged.rc and "checksum" in damaged.err, damaged


@test
def calibrate_refuses():
    """calibrate needs a file to write to, enough text, and chunks that the model holds."""
    assert "--out" in soquete("calibrate", "-m", LLAMA, text="x", rc=2).err
    os.mkfifo(path("pipe.kvcal"))  # as a device would be: never replaced by a file
    assert "no regular file" in soquete("calibrate", "-m", LLAMA, "-c", 64, "-o", path("pipe.kvcal"), text=WORDS * 12, rc=2).err
    assert stat.S_ISFIFO(os.stat(path("pipe.kvcal")).st_mode)
    assert "no chunk of 128" in soquete("calibrate", "-m", LLAMA, "-c", 128, "-o", path("d.kvcal"), text="short", rc=2).err
    assert "context" in soquete("calibrate", "-m", LLAMA, "-c", 1 << 20, "-o", path("d.kvcal"), text=WORDS, rc=2).err
    assert "window of 16" in soquete("calibrate", "-m", GEMMA, "-c", 17, "-o", path("d.kvcal"), text=WORDS * 12, rc=2).err
    for layers in ("policy:window capacity:64", "codec:f16"):
        refused = soquete("calibrate", "-m", LLAMA, "-c", 128, "-o", path("d.kvcal"), "--kv.layers.0=" + layers, text=WORDS * 12, rc=2).err
        assert "[kv.layers] 0 = " + layers in refused, refused
    assert "missing" in soquete("calibrate", "-m", LLAMA, "-f", path("missing"), "-o", path("d.kvcal"), rc=1).err
    soquete("calibrate", "-m", LLAMA, "-c", 16, "-o", path("no/folder.kvcal"), text=WORDS, rc=1)
    assert not os.path.exists(path("d.kvcal"))


# ---- inspect, plugins


@test
def inspect():
    """inspect prints metadata and tensors, as text and as JSON."""
    out = soquete("inspect", LLAMA).out
    assert "general.architecture" in out and "token_embd.weight" in out
    json.loads(soquete("inspect", "--json", LLAMA).out)
    soquete("inspect", path("missing.gguf"), rc=1)


@test
def inspect_unknown():
    """inspect says what the runtime would refuse: an architecture that it does not know."""
    with open(LLAMA, "rb") as f:
        data = f.read()
    assert b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama" in data
    odd = path("odd.gguf", data.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0lamma", 1))
    result = soquete("inspect", odd, rc=None)
    assert "lamma" in result.out + result.err and "architecture" in result.out + result.err, result
    assert "problem" not in soquete("inspect", LLAMA).out


@test
def plugins():
    """plugins lists what is chosen; a name gives its keys."""
    out = soquete("plugins").out
    for name in ["full", "f16", "standard"]:
        assert re.search(r"^%s .*chosen" % name, out, re.M), out
    assert re.search(r"^window .*chosen", soquete("plugins", "--kv.policy=window").out, re.M)
    assert "[kv.window]" in soquete("plugins", "window").out
    soquete("plugins", "nosuch", rc=1)


@test
def compatibility():
    """plugins says what each KV policy and codec works with: tables, a line, and true, false or "part" in --json."""
    features = {"kv_policy": ["chunked_prefill", "drafts", "prefix_hits", "fork", "save_and_load"],
                "kv_codec": ["selecting_policies"]}
    tables = [table.splitlines() for table in soquete("plugins", *MIXED).out.split("\n\n")[1:]]
    assert re.fullmatch(r"KV POLICY +CHUNKED PREFILL +DRAFTS +PREFIX HITS +FORK +SAVE AND LOAD", tables[0][0]), tables
    assert re.fullmatch(r"KV CODEC +POLICIES THAT SELECT", tables[1][0]), tables
    rows = {line.split()[0]: line.split()[1:] for table in tables for line in table[1:]}
    assert rows["full"] == ["yes"] * 5 and rows["f16"] == ["yes"] and rows["kvquant"] == ["part"]
    for plugin in soquete("plugins", "--json", *MIXED).json():
        for role in plugin["roles"]:
            if role["role"] in features:
                names = features[role["role"]]
                assert list(role["works_with"]) == names
                said = {True: "yes", False: "no", "part": "part"}
                assert rows[plugin["id"]] == [said[role["works_with"][f]] for f in names]
            else:
                assert "works_with" not in role
    assert "works with chunked prefill, drafts, prefix hits, fork, save and load\n" in soquete("plugins", "full").out
    assert "works with policies that select entries\n" in soquete("plugins", "f16").out
    where = "policies that select entries where the format of its tiles does without positions"
    assert "works with %s\n" % where in soquete("plugins", "kvquant").out
    assert "part\n    %s\n" % where.replace(" where", ": where") in soquete("plugins", "--why").out
    assert "works with" not in soquete("plugins", "cpu").out


# ---- config --placement


@test
def placement_table():
    """config --placement merges layers that are alike."""
    out = soquete("config", "--placement", "-m", GEMMA, *MIXED, "--backend.use=twin,cpu/generic",
                  "--backend.split=twin:0-2,cpu:3-").out
    rows = [line.split()[:2] for line in out.splitlines()]
    assert rows == [["LAYERS", "BACKEND"], ["input", "twin"], ["0-2", "twin"], ["3-5", "cpu/generic"], ["output", "cpu/generic"]], out
    out = soquete("config", "--placement", "-m", LLAMA, *MIXED, "--backend.use=acme,cpu/generic").out
    assert re.search(r"^0-1 +acme +attn_q attn_k attn_v attn_output ffn_gate ffn_up ffn_down$", out, re.M), out
    assert re.search(r"^0-1 +cpu/generic +rope .*attention kv_append; attn_norm ffn_norm$", out, re.M), out


@test
def placement_json():
    """config --placement --json names every layer's ops and weights once."""
    told = soquete("config", "--placement", "--json", *MIXED, "--backend.use=acme,acme-attention,cpu/generic",
                   "--backend.place=blk.1.ffn_*:cpu", "--model.path=" + LLAMA).json()
    where = {}
    for part in told:
        for name in part["ops"] + part["weights"]:
            key = part["layers"], name
            assert key not in where, key
            where[key] = part["backend"]
    assert where["0", "ffn_up.weight"] == "acme" and where["1", "ffn_up.weight"] == "cpu/generic"
    assert where["0", "attention"] == where["1", "attention"] == "acme-attention"
    assert where["input", "token_embd.weight"] == "cpu/generic" and where["output", "output.weight"] == "acme"
    assert len([k for k in where if k[0] == "0" and k[1].endswith(".weight")]) == 9


@test
def placement_refusals():
    """config --placement tells what is wrong."""
    assert "none of the backends in use" in soquete("config", "--placement", "-m", LLAMA, "--backend.split=gpu:0", rc=2).err
    assert "--placement" in soquete("config", "-m", LLAMA, rc=2).err
    assert "no model is named" in soquete("config", "--placement", rc=2).err
    assert "no/such/file" in soquete("config", "--placement", "-m", "no/such/file", rc=1).err


# ---- --profile


@test
def bench_profile():
    """bench --profile counts runs, copies and ops; in JSON with the test, else beside the table."""
    line, = soquete("bench", "-m", LLAMA, *MIXED, "--backend.use=acme,cpu/generic", "-p", 8, "-n", 0, "-r", 2, "--no-memory",
                    "--profile", "--format", "json").lines()
    runs = {b["backend"]: b["runs"] for b in line["profile"]["backends"]}
    assert runs == {"acme": 2 * 8, "cpu/generic": 2 * 12}, line
    assert line["profile"]["copies"]["count"] == 2 * 22 and line["profile"]["copies"]["bytes"] > 0, line
    calls = {o["op"]: o["calls"] for o in line["ops"]}
    assert calls["matmul"] == 2 * 7 and calls["attention"] == calls["kv_append"] == 2 and calls["embed"] == 1, line
    result = soquete("bench", "-m", LLAMA, "-p", 8, "-n", 0, "-r", 1, "--no-memory", "--profile", "--format", "csv")
    assert len(result.out.splitlines()) == 2 and re.search(r"^cpu/\S+ +[\d.]+ s in 1 runs$", result.err, re.M), result
    assert re.search(r"^  matmul +[\d.]+ s in 14 calls$", result.err, re.M), result
    assert "profile" not in soquete("bench", "-m", LLAMA, "-p", 8, "-n", 0, "-r", 1, "--no-memory", "--format", "json").out


@test
def run_profile():
    """run --profile tells where the time went, behind the summary or with the end."""
    args = ["run", "-m", LLAMA, "--raw", "--temp", 0, "-n", 2, "--ignore-eos", *MIXED, "--backend.use=acme-attention,cpu/generic", "Hello"]
    result = soquete(*args, "--profile")
    assert re.search(r"^acme-attention +[\d.]+ s in 4 runs$", result.err, re.M), result
    assert re.search(r"^copies +0.000 s for 0, 0 B", result.err, re.M), result
    end = soquete(*args, "--profile", "--json").lines()[-1]
    assert [b["runs"] for b in end["profile"]["backends"]] == [4, 6], end
    assert "profile" not in soquete(*args, "--json").lines()[-1]
    assert "copies" not in soquete(*args).err


@test
def backend_profile():
    """--profile turns on the profile of a backend that has one, unless it is turned off, and shows it, unless the log is quiet."""
    args = ["run", "-m", LLAMA, "--raw", "--temp", 0, "-n", 2, "Hello", "--backend.use=opencl"]
    if soquete("plugins", "--backend.use=opencl", rc=None).rc:
        raise Skip("no OpenCL device")
    table = re.compile(r"^soquete: info: opencl: kernel +calls ", re.M)
    assert table.search(soquete(*args, "--profile").err)
    for quiet in [[], ["--profile", "--backend.opencl.profile=off"], ["--profile", "--runtime.log_level=warn"]]:
        assert not table.search(soquete(*args, *quiet).err)



main()
