"""soquete run: prompts, sampling, output, interruption."""
import json
import os
import re
import signal
import subprocess

from cli import ENDLESS, EXACT, GEMMA, LLAMA, MIXED, SMOLLM, golden, ids_text, main, needs_smollm, path, soquete, start, test

GREEDY = ["--temp", "0"]
PLAIN = ["--ignore-eos", "-q"]
STATS = {"prompt_tokens", "cached_tokens", "prefix_tokens", "prefix", "swap", "generated_tokens", "ttft_s", "itl_s", "prefill_s",
         "decode_s", "prefill_tok_s", "decode_tok_s", "kv_bytes", "kv_evicted", "kv_freed_bytes", "peak_memory_bytes",
         "steps", "drafted_tokens", "accepted_tokens", "kv_draft_bytes"}


def tokens(result):
    return [e["id"] for e in result.lines() if e["event"] == "token"]


def run_json(*args, **options):
    return soquete("run", "--json", "-q", *args, **options)


@test
def golden_greedy():
    """greedy tokens of golden models are the reference's."""
    for name, model in [("llama", LLAMA), ("gemma3", GEMMA)]:
        expect = golden(name)
        got = tokens(run_json("-m", model, "--ids", ids_text(expect["long_ids"]), "-n", len(expect["greedy_ids"]), "--ignore-eos",
                              *GREEDY, *EXACT))
        assert got == expect["greedy_ids"], (name, got)


@test
def counts():
    """-n 0, 1 and 2 give exactly that many tokens, with the reason length."""
    for n in [0, 1, 2, 7]:
        result = run_json("-m", LLAMA, "--ids", "5,6,7", "-n", n, "--ignore-eos")
        events = result.lines()
        end = events[-1]
        assert len(tokens(result)) == n, result
        assert end["event"] == "end" and end["reason"] == "length", end
        assert end["stats"]["generated_tokens"] == n and end["stats"]["prompt_tokens"] == 3
    assert soquete("run", "-m", LLAMA, "--ids", "5,6,7", "-n", 0, "-q").out == ""


@test
def drafts():
    """a drafter with a lossy cache changes no token, and says how it fared; kvcalc and --stats count both views."""
    args = ["-m", LLAMA, "--ids", ids_text(range(4, 90)), "-n", 30, "--ignore-eos", *GREEDY]
    drafting = ["--decoding.drafter=self", "--draft.policy=snapkv capacity:24 window:8"]
    plain, end = tokens(run_json(*args)), {}
    for more in [[], ["--decoding.draft_tokens=3"], ["--decoding.draft_tokens=3", "--temp", "1", "--decoding.draft_accept=equal"]]:
        result = run_json(*args, *drafting, *more, "--stats")
        end = result.lines()[-1]
        assert "--temp" in more or tokens(result) == plain, more
        assert end["stats"]["steps"] + end["stats"]["accepted_tokens"] == 30, end
    assert end["stats"]["drafted_tokens"] > 0 and end["stats"]["kv_draft_bytes"] > 0, end
    assert [p["view"] for p in end["kv"]["pools"]] == ["full", "lossy"], end
    shown = soquete("run", *args, *drafting, "--decoding.draft_tokens=3")
    assert re.search(r"drafts +\d+ tokens, \d+ accepted, .* tokens a step; lossy view", shown.err), shown
    groups = json.loads(soquete("kvcalc", "-m", LLAMA, "--json", *drafting).out)["groups"]
    assert [g["view"] for g in groups] == ["full", "lossy"], groups


@test
def drafts_that_cannot_be():
    """where a drafter can never draft it says so, and why."""
    args = ["-m", LLAMA, "--ids", "5,6,7", "-n", 4, "--ignore-eos", *GREEDY, "--decoding.drafter=self", "-q"]
    for more, says in [(["--draft.policy=tova capacity:24 when:always every:1"], "[draft] policy = tova selects behind every token"),
                       (["--draft.policy=full"], "the view of [draft] keeps all of a context of"),
                       (["--draft.policy=snapkv capacity:100000"], "in hardly fewer bytes than that of [kv]")]:
        shown = soquete("run", *args, *more).err
        assert "warning: [decoding] drafter = self drafts nothing: " in shown and says in shown, shown
    for more in [["--draft.policy=tova capacity:24 when:always every:2"], ["--draft.policy=full", "--draft.codec=int8"],
                 ["--draft.policy=snapkv capacity:64"], ["--draft.policy=full", "--decoding.draft_tokens=2"]]:
        assert soquete("run", *args, *more).err == "", more


@test
def context_is_the_limit():
    """generation ends with reason length where the context is full; a prompt beyond it is refused with the setting."""
    end = run_json("-m", LLAMA, "--ids", "5,6,7", "-c", 8, "-n", 100, "--ignore-eos").lines()[-1]
    assert end["reason"] == "length" and 5 <= end["stats"]["generated_tokens"] <= 6, end
    result = run_json("-m", LLAMA, "--ids", ids_text(range(4, 13)), "-c", 8, rc=1)
    assert "context" in result.err and result.lines()[-1]["event"] == "error", result


@test
def json_events():
    """JSON lines: tokens with log-probabilities, then the end with statistics; the texts are the text."""
    args = ["-m", LLAMA, "--ids", "5,6,7", "-n", 40, "--ignore-eos", *GREEDY]
    result = run_json(*args)
    events = result.lines()
    for e in events[:-1]:
        assert e["event"] in ("token", "text") and isinstance(e["text"], str), e
        if e["event"] == "token":
            assert set(e) == {"event", "id", "text", "logprob"} and e["logprob"] <= 0
    assert events[-1]["event"] == "end" and set(events[-1]["stats"]) == STATS, events[-1]
    text = soquete("run", *args, "-q")
    assert "".join(e.get("text", "") for e in events).rstrip("\n") == text.out.rstrip("\n")


@test
def text_and_summary():
    """text on standard output ends in one newline; the summary is on standard error, unless --quiet."""
    args = ["run", "-m", LLAMA, "--ids", "5,6,7", "-n", 20, "--ignore-eos", *GREEDY]
    full, quiet = soquete(*args), soquete(*args, "-q")
    assert full.bytes == quiet.bytes and full.bytes.endswith(b"\n") and b"\033" not in full.bytes
    assert quiet.err == ""
    assert "\033" not in full.err and "\r" not in full.err
    for word in ["prompt", "generated", "TTFT", "ITL", "tok/s", "KV cache", "peak memory"]:
        assert word in full.err, full


@test
def seeds():
    """the same seed gives the same tokens, others give others; temperature 0 is top-k 1."""
    args = ["-m", LLAMA, "--ids", "5,6,7", "-n", 30, "--ignore-eos"]
    hot = ["--temp", "1.5", "--top-k", "0", "--top-p", "1", "--min-p", "0"]
    a, b, c = (tokens(run_json(*args, *hot, "--seed", seed)) for seed in (1, 1, 2))
    assert a == b != c
    assert tokens(run_json(*args, *GREEDY)) == tokens(run_json(*args, "--top-k", "1", "--temp", "1"))
    assert a == tokens(run_json(*args, *hot, "-s", "1", "--backend.cpu.threads=1"))
    assert a == tokens(run_json(*args, "--seed", 1, "--decoding.standard.temperature=1.5", "--decoding.standard.top_k=0",
                                "--decoding.standard.top_p=1", "--decoding.standard.min_p=0"))


@test
def prompts():
    """the same prompt as arguments, file, standard input and ids gives the same answer."""
    text = "kalomi tenu saro"
    args = ["-m", LLAMA, "--raw", "-n", 12, *GREEDY, *PLAIN]
    expected = soquete("run", *args, text).bytes
    assert soquete("run", *args, *text.split()).bytes == expected
    assert soquete("run", *args, "-f", path("p.txt", text + "\n")).bytes == expected
    assert soquete("run", *args, "-f", "-", text=text).bytes == expected
    assert soquete("run", *args, text=text + "\n").bytes == expected
    assert soquete("run", *args, "-", text=text).bytes == expected
    ids = soquete("tokenize", "-m", LLAMA, "--bos", text=text).out
    assert soquete("run", *args[:2], *args[3:], "--ids", ids).bytes == expected
    assert soquete("run", *args, "--", text).bytes == expected
    assert soquete("run", *args, text + "\n").bytes != expected


@test
def wrong_prompts():
    """no, two or impossible prompts are exit code 2."""
    file = path("p.txt", "x")
    for args, word in [
        (["x", "-f", file], "give one of them"),
        (["x", "--ids", "1"], "give one of them"),
        (["--ids", ""], "no token ids"),
        (["--ids", "1,two"], "two"),
        (["--ids", "99999999999"], "99999999999"),
        (["--ids", "100000"], "100000"),
        (["--ids", "-3"], "-3"),
        (["--raw", "--system", "s", "x"], "--raw"),
        (["--ids", "1", "--system", "s"], "--ids"),
        (["--raw", "-f", path("zero.txt", b"a\0b")], "zero byte"),
    ]:
        result = soquete("run", "-m", LLAMA, *args, rc=2)
        assert word in result.err and not result.out, (args, result)
    assert "missing.txt" in soquete("run", "-m", LLAMA, "-f", path("missing.txt"), rc=1).err


@test
def errors_in_json():
    """with --json a failure is an event too."""
    result = run_json("-m", path("missing.gguf"), "x", rc=1)
    event = result.lines()[-1]
    assert event["event"] == "error" and "missing.gguf" in event["message"] and event["code"], result
    assert "missing.gguf" in result.err


@test
def stop_strings():
    """an answer ends before a stop string, which never shows; several may be given."""
    args = ["-m", LLAMA, "--ids", "5,6,7", "-n", 60, "--ignore-eos", *GREEDY]
    whole = soquete("run", *args, "-q").bytes
    stop = re.search(rb"(?<=.)[!-~]{2,}", whole).group().decode() # of several tokens
    before = whole[:whole.index(stop.encode())]
    for extra in [[], ["--stop", "not in there"]]:
        assert soquete("run", *args, "-q", *extra, "--stop", stop).bytes == before + b"\n"
        assert run_json(*args, *extra, "--stop", stop).lines()[-1]["reason"] == "stop_string"
    assert "--stop" in soquete("run", "-m", LLAMA, "x", *["--stop", "x"] * 65, rc=2).err


@test
def invalid_utf8():
    """bytes that are no UTF-8 come out as they are, in JSON as U+FFFD."""
    args = ["-m", LLAMA, "--ids", "5,6,7", "-n", 60, "--ignore-eos", *GREEDY]
    raw = soquete("run", *args, "-q").bytes.rstrip(b"\n")
    result = run_json(*args)
    told = "".join(e.get("text", "") for e in result.lines()).rstrip("\n")
    assert "\ufffd" in told and b"\xef\xbf\xbd" not in raw
    assert soquete("tokenize", "-m", LLAMA, "--decode", text=ids_text(tokens(result))).bytes.rstrip(b"\n") == raw
    rest = raw.decode("utf-8", "surrogateescape")
    assert told == "".join("\ufffd" if "\udc80" <= c <= "\udcff" else c for c in rest)


@test
def hostile_text():
    """control tokens in a prompt are text."""
    for args in [[], ["--raw"]]:
        end = run_json("-m", LLAMA, *args, "a<|eos|>b<|bos|>", "-n", 1).lines()[-1]
        plain = run_json("-m", LLAMA, *args, "a", "-n", 1).lines()[-1]
        assert end["stats"]["prompt_tokens"] >= plain["stats"]["prompt_tokens"] + 10


@test
def kvcalc_agrees():
    """kvcalc gives the bytes that run reports."""
    for codec in ["f16", "f32"]:
        end = run_json("-m", LLAMA, "--ids", ids_text(range(4, 104)), "-n", 1, "--ignore-eos", "--kv.codec_k=" + codec,
                       "--kv.codec_v=" + codec).lines()[-1]
        told = soquete("kvcalc", "-m", LLAMA, "-c", "100,200", "--codec-k", codec, "--codec-v", codec, "--json").json()
        assert end["stats"]["kv_bytes"] == told["lengths"][0]["block_bytes"], (end, told)
        assert told["lengths"][1]["total_bytes"] >= told["lengths"][1]["block_bytes"]
    for codec in [["--kv.codec=int8"], ["--kv.codec=odd", "--kv.odd.tail=f32", "--kv.residual=40", "--kv.pack_grid=32"]]:
        settings = [*codec, *MIXED, "--kv.block_tokens=16"]
        lines = run_json("-m", LLAMA, "--ids", ids_text(range(4, 204)), "-n", 1, "--ignore-eos", "--stats", *settings).lines()
        told = soquete("kvcalc", "-m", LLAMA, "-c", "200", "--json", *settings).json()
        assert lines[-1]["stats"]["kv_bytes"] == told["lengths"][0]["block_bytes"], (lines[-1], told)
        assert told["groups"][0]["bits_per_number"] < 9.1 < 15 < told["groups"][0]["plain_bytes_per_token"]


# With a budget of 40 entries: the policy's options.
POLICIES = {
    "full": [], "window": ["sinks=4"], "streaming": ["sinks=4"], "h2o": ["recent=8"], "snapkv": ["window=8"], "pyramidkv": ["window=8"],
    "adakv": ["window=8"], "tova": [], "keydiff": [], "l2norm": [], "observed": [], "random": [],
}


@test
def kvcalc_agrees_with_policies():
    """kvcalc, run and the pools have the same bytes for every policy; kvcalc's are a bound where heads keep what they like."""
    for policy, options in POLICIES.items():
        for model in [LLAMA, GEMMA]:
            settings = ["--kv.policy=" + policy, "--kv.block_tokens=8", "--kv.prefix_cache=off"]
            settings += ["--kv.%s.%s" % (policy, o) for o in options + (["capacity=40"] if policy != "full" else [])]
            end = run_json("-m", model, "--ids", ids_text(range(4, 104)), "-n", 1, "--ignore-eos", "--stats", *settings).lines()[-1]
            told = soquete("kvcalc", "-m", model, "-c", "100", "--json", *settings).json()["lengths"][0]
            used = sum(pool["used_bytes"] for pool in end["kv"]["pools"])
            assert end["stats"]["kv_bytes"] == used, (policy, end)
            assert used == told["kept_bytes"] or policy == "adakv" and used < told["kept_bytes"], (policy, model, used, told)
            assert (used < told["block_bytes"]) == (policy != "full" or model == GEMMA), (policy, used, told)
            assert end["kv"]["peak_bytes"] <= told["sequence_bytes"], (policy, end, told)
            if policy not in ["full", "window", "streaming"] and model == LLAMA:
                assert end["stats"]["kv_freed_bytes"] == told["block_bytes"] and end["stats"]["kv_evicted"] > 0, (policy, end, told)


@test
def pools():
    """--stats counts what the pools hold, which is what the session holds where nothing else is kept."""
    settings = ["--kv.policy=snapkv", "--kv.snapkv.capacity=40", "--kv.snapkv.window=8", "--kv.block_tokens=8"]
    packed = ["--kv.codec=int8", "--kv.pack_grid=32"]
    for policy in [[], settings, packed, packed + settings]:
        end = run_json("-m", LLAMA, "--ids", ids_text(range(4, 104)), "-n", 1, "--ignore-eos", "--kv.prefix_cache=off", "--stats",
                       *policy).lines()[-1]
        used = sum(pool["used_bytes"] for pool in end["kv"]["pools"])
        assert used == end["stats"]["kv_bytes"] > 0, end
        assert any(pool["packed"] and pool["blocks"] for pool in end["kv"]["pools"]) == (packed[0] in policy), end
        assert sum(pool["slab_bytes"] for pool in end["kv"]["pools"]) == end["kv"]["used_bytes"] <= end["kv"]["peak_bytes"]
    text = soquete("run", "-m", LLAMA, "--ids", "4,5,6", "-n", 1, "--ignore-eos", "--stats").err
    assert "KV pools" in text and "blocks of" in text, text


@test
def interruption():
    """Ctrl-C ends the answer with exit code 130 and the end event; the text so far stays."""
    process = start("run", "-m", GEMMA, "--ids", "5,6", "--ignore-eos", "--json", *ENDLESS, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, text=True)
    lines = [process.stdout.readline() for _ in range(5)]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    events = [json.loads(line) for line in lines + out.split("\n") if line]
    assert process.returncode == 130, (process.returncode, err)
    assert events[-1]["event"] == "end" and events[-1]["reason"] == "cancelled", events[-1]
    assert events[-1]["stats"]["generated_tokens"] >= 5 and "TTFT" in err


@test
def session():
    """--session: a second run goes on where the first one ended, with its cache, and gives what one run would."""
    args = ["-m", LLAMA, *GREEDY, "--ignore-eos", "-n", 10]
    ids = list(range(5, 45))
    for more in [[], ["--kv.policy=snapkv", "--kv.snapkv.capacity=20", "--kv.snapkv.window=8", "--kv.block_tokens=8"]]:
        file = path("run%d.session" % len(more))
        first = tokens(run_json(*args, *more, "--session", file, "--ids", ids_text(ids)))
        result = run_json(*args, *more, "--session", file, "--ids", "8,9,10,11,12,13,14,15,16,17")
        assert result.lines()[-1]["stats"]["cached_tokens"] == 49, result
        if not more:
            whole = run_json(*args, "--ids", ids_text(ids + first + list(range(8, 18))))
            assert tokens(whole) == tokens(result), (whole, result)
    raw = soquete("run", "-q", *args, "--raw", "--session", path("raw.session"), "kalomi").out
    soquete("run", "-q", *args, "--raw", "--session", path("raw.session"), "tenu")
    assert soquete("run", "-q", *args, "--raw", "kalomi").out == raw
    link = path("link.session")
    os.symlink("raw.session", link)
    before = os.path.getsize(path("raw.session"))
    soquete("run", "-q", *args, "--raw", "--session", link, "kalomi")
    assert os.path.islink(link) and os.path.getsize(path("raw.session")) > before
    assert "no conversation" in soquete("run", *args, "--session", path("raw.session"), "hello", rc=2).err


@test
def wrong_sessions():
    """a file that is no session, or another's, is refused with the reason and stays as it is."""
    args = ["-m", LLAMA, "-n", 3, "--ids", "5,6,7"]
    file = path("good.session")
    soquete("run", "-q", *args, "--session", file)
    with open(file, "rb") as f:
        good = f.read()
    for content, word in [(b"", "no session file"), (b"hello", "no session file"), (good[:-1], "cut off"),
                          (good[:60] + b"x" + good[61:], "damaged")]:
        result = soquete("run", *args, "--session", path("bad.session", content), rc=1)
        assert word in result.err and "bad.session" in result.err, result
        with open(path("bad.session"), "rb") as f:
            assert f.read() == content
    for other, word in [(["--kv.codec_k=f32"], "codec_k = f16"), (["--kv.policy=window", "--kv.window.capacity=64"], "policy = full")]:
        assert word in soquete("run", *args, *other, "--session", file, rc=2).err
    assert "model = " in soquete("run", "-m", GEMMA, "--ids", "5", "--session", file, rc=2).err
    assert "cannot create" in soquete("run", *args, "--session", "/nowhere/x", rc=1).err


@test
def kept_statistics():
    """the end tells what the prefix index and the swap memory hold."""
    stats = run_json("-m", LLAMA, "-n", 3, "--ids", ids_text(range(5, 105)), "--kv.block_tokens=8").lines()[-1]["stats"]
    assert stats["prefix"]["entries"] == 12 and stats["prefix"]["lookups"] == 1 and stats["prefix"]["hits"] == 0, stats
    assert 0 < stats["prefix"]["used_bytes"] <= stats["prefix"]["limit_bytes"] and stats["swap"]["used_bytes"] == 0, stats
    off = run_json("-m", LLAMA, "-n", 3, "--ids", "5,6", "--kv.prefix_cache=off").lines()[-1]["stats"]
    assert off["prefix"]["limit_bytes"] == 0 and off["prefix"]["lookups"] == 0, off


@test
def pinned_prefix():
    """[kv] prefix_pin: the system message is computed before the first prompt, which then need not."""
    file = path("system.txt", "kalomi tenu saro " * 6)
    with open(file) as f:
        system = f.read()
    args = ["-m", LLAMA, "-n", 3, "--kv.block_tokens=8", "--system", system, "hello"]
    stats = run_json(*args, "--kv.prefix_pin=" + file).lines()[-1]["stats"]
    assert stats["prefix_tokens"] >= 32 and stats["prefix"]["pinned_bytes"] > 0, stats
    assert run_json(*args).lines()[-1]["stats"]["prefix_tokens"] == 0
    result = soquete("run", *args, "--kv.prefix_pin=" + path("short.txt", ""), "--kv.block_tokens=256", rc=2)
    assert "prefix_pin" in result.err and "block" in result.err, result
    result = soquete("run", *args, "--kv.prefix_pin=" + file, "--kv.prefix_cache=off", rc=2)
    assert "prefix_cache" in result.err, result


@test
def closed_pipe():
    """a reader that goes away ends the program quietly."""
    process = start("run", "-m", GEMMA, "--ids", "5,6", "--ignore-eos", *ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read().decode()
    assert process.wait(timeout=60) == 0, err
    assert "cannot" not in err and "Broken" not in err, err


@test
@needs_smollm
def smollm_answers():
    """SmolLM2 answers with its chat template, and ends by itself."""
    result = soquete("run", "-m", SMOLLM, *GREEDY, *EXACT, "-n", 100, "What is the capital of France?")
    assert "Paris" in result.out, result
    assert re.search(r"generated .* stop ", result.err), result
    assert result.out == soquete("run", "-m", SMOLLM, *GREEDY, *EXACT, "-n", 100, text="What is the capital of France?\n").out


@test
@needs_smollm
def smollm_system():
    """a system message changes the answer."""
    args = ["run", "-m", SMOLLM, *GREEDY, "-n", 40, "-q", "Who are you?"]
    assert soquete(*args).out != soquete(*args, "--system", "You are a pirate captain called Redbeard.").out


@test
def empty_prompts():
    """an empty prompt is refused with a hint."""
    for args, text in [([""], ""), (["-"], ""), (["-f", path("empty.txt", "")], ""), ([], "\n"), (["--raw", ""], "")]:
        assert "the prompt is empty" in soquete("run", "-m", LLAMA, *args, text=text, rc=2).err


@test
def unlimited():
    """-n -1 ends where the context does."""
    result = soquete("run", "-m", LLAMA, "--ids", "5,6,7", "-n", "-1", "-c", "20", "--ignore-eos", "--json", "-q")
    events = result.lines()
    assert events[-1]["reason"] == "length" and len([e for e in events if e["event"] == "token"]) >= 17, events


@test
def template_errors():
    """a chat template that is not there is named once."""
    err = soquete("run", "-m", LLAMA, "x", "--model.template=" + path("none.jinja"), rc=1).err
    assert err.count("none.jinja") == 1 and "No such file" in err, err


main()
