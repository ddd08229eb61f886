"""trace: what KV policies kept, as a table, as JSON, as a picture."""
import json
import re
import xml.etree.ElementTree as xml

from cli import LLAMA, ids_text, main, path, soquete, test

LAYERS, HEADS = 3, 2


def line(sequence, position, layer, head, kept, size=64):
    return {"event": "keep", "sequence": sequence, "position": position, "layer": layer, "head": head, "kept": kept,
            "bytes": size * len(kept)}


def decision(sequence, position, kept):
    """kept(layer, head) are the positions."""
    return [line(sequence, position, l, h, kept(l, h)) for l in range(LAYERS) for h in range(HEADS)]


def write(name, lines):
    return path(name, "".join(json.dumps(l, separators=(",", ":")) + "\n" for l in lines))


def example():
    return write("kept.jsonl", decision(1, 100, lambda l, h: list(range(4)) + list(range(84 + l, 100))) +
                 decision(1, 128, lambda l, h: list(range(96, 128))) + decision(2, 10, lambda l, h: list(range(10))))


@test
def table():
    """one line for each decision: tokens, entries kept at least and at most, their share, their bytes."""
    rows = [row.split() for row in soquete("trace", example()).out.splitlines()]
    assert rows[0][:4] == ["SEQUENCE", "POSITION", "LAYERS", "HEADS"]
    assert rows[1] == ["1", "100", "3", "6", "18", "to", "20", "19.0%", "7.1", "KiB"], rows
    assert rows[2] == ["1", "128", "3", "6", "32", "25.0%", "12.0", "KiB"], rows
    assert rows[3] == ["2", "10", "3", "6", "10", "100.0%", "3.8", "KiB"], rows
    assert len(rows) == 4


@test
def as_json():
    """--json has the same figures, exactly."""
    first = soquete("trace", "--json", example()).lines()[0]
    assert first == {"sequence": 1, "position": 100, "layers": 3, "heads": 6, "kept": 114, "kept_min": 18, "kept_max": 20,
                     "share": 0.19, "bytes": 114 * 64}, first


@test
def filters():
    """--sequence, --position, --layer and --head leave those lines; none at all is said."""
    kept = example()
    assert [l["position"] for l in soquete("trace", kept, "--json", "--sequence", "1").lines()] == [100, 128]
    assert [l["sequence"] for l in soquete("trace", kept, "--json", "--position", "10").lines()] == [2]
    one = soquete("trace", kept, "--json", "--layer", "2", "--head", "1", "--position", "100").lines()
    assert [(l["heads"], l["kept"]) for l in one] == [(1, 18)]
    assert "no line is of that" in soquete("trace", kept, "--layer", "3", rc=1).err


@test
def strips():
    """--lines shows for each layer and head where its entries lie."""
    out = soquete("trace", "--lines", "--position", "128", example()).out.splitlines()
    assert len(out) == 1 + LAYERS * HEADS
    for row in out[1:]:
        assert re.search(r" 32  \|( {48})(█{16})\|$", row), row


@test
def picture():
    """--svg draws the last decision: a row for each layer and head, marks exactly where entries are kept."""
    svg = path("kept.svg")
    soquete("trace", example(), "--position", "100", "--svg", svg)
    space = "{http://www.w3.org/2000/svg}"
    root = xml.parse(svg).getroot()
    assert root.tag == space + "svg"
    rows = root.findall(space + "path[@class='kept']")
    assert len(rows) == len(root.findall(space + "rect[@class='row']")) == LAYERS * HEADS
    for row, (layer, head) in zip(rows, [(l, h) for l in range(LAYERS) for h in range(HEADS)]):
        assert row.find(space + "title").text == "layer %d, head %d: %d kept" % (layer, head, 20 - layer)
        at, got = 0, []
        for gap, n in re.findall(r"m(\d+) 0h(\d+)", row.get("d")):
            got += range(at + int(gap), at + int(gap) + int(n))
            at = got[-1] + 1
        assert got == list(range(4)) + list(range(84 + layer, 100)), got
    style = root.find(space + "style").text
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    for name in ["text", ".title", ".paper", ".row", ".kept", ".axis"]:
        assert all(re.search(r"^ +%s {.*#[0-9a-f]{3,6};" % re.escape(name), part, re.M) for part in (light, dark)), style
    assert "var(" not in style, "many viewers know no variables"
    texts = [t.text for t in root.findall(space + "text")]
    assert {"layer 0", "layer 1", "layer 2", "0", "50", "100"} <= set(texts), texts
    assert any("after 100 tokens: 19 of 100 entries" in t for t in texts), texts


@test
def standard_input():
    """- reads standard input."""
    with open(example()) as f:
        text = f.read()
    assert soquete("trace", "-", text=text).out == soquete("trace", example()).out


@test
def wrong_files():
    """what is no trace is refused with the line and the key."""
    good = line(1, 10, 0, 0, [1, 2])
    for wrong, words in [
        (dict(good, kept=[2, 1]), ['"kept"[1] = 1 does not come after 2']),
        (dict(good, kept=[1, 1]), ['"kept"[1] = 1 does not come after 1']),
        (dict(good, kept=[1, 10]), ['"kept"[1] is no position below 10']),
        (dict(good, kept=[1, -1]), ['"kept"[1]']),
        (dict(good, kept=[1.5]), ['"kept"[0]']),
        (dict(good, kept=3), ['"kept" is no array']),
        (dict(good, layer="0"), ['"layer" is no integer']),
        (dict(good, head=-1), ['"head" is no integer']),
        (dict(good, event="step"), ['"event" is "step"', "keep"]),
        ({k: v for k, v in good.items() if k != "bytes"}, ['the key "bytes" is missing']),
        ({k: v for k, v in good.items() if k != "kept"}, ['the key "kept" is missing']),
        ({"x": 1}, ['"event" is missing']),
        ([1], ['"event" is missing']),
    ]:
        name = write("wrong.jsonl", [good, wrong])
        result = soquete("trace", name, rc=1)
        for word in ["wrong.jsonl:2: "] + words:
            assert word in result.err, result
        assert not result.out, result
    assert "wrong.jsonl:1: no JSON" in soquete("trace", path("wrong.jsonl", "what\n"), rc=1).err
    assert "is empty" in soquete("trace", path("wrong.jsonl", ""), rc=1).err
    assert "missing.jsonl" in soquete("trace", path("missing.jsonl"), rc=1).err
    assert "expected one FILE" in soquete("trace", rc=2).err
    assert "--layer -1" in soquete("trace", "--layer", "-1", example(), rc=2).err
    assert "nodir" in soquete("trace", example(), "--svg", path("nodir/x.svg"), rc=1).err
    piped = soquete("trace", example(), "--svg", "-").out
    assert xml.fromstring(piped).tag.endswith("svg") and "SEQUENCE" not in piped


# ---- What the engine writes

KEYS = ["event", "sequence", "position", "layer", "head", "kept", "bytes"]
SHAPE = [(layer, head) for layer in range(2) for head in range(2)]


def traced(prompt, n, *options):
    name = path("traced.jsonl", "left over\n")
    soquete("run", "-m", LLAMA, "--ids", ids_text(prompt), "-n", n, "--ignore-eos", "-q", "--kv.trace=" + name, *options)
    with open(name) as f:
        return [json.loads(row) for row in f]


@test
def traces_everything():
    """--kv.trace=FILE: with policy = full every position stays, said once, at the end of the prompt."""
    rows = traced(range(5, 55), 4)
    assert [(r["layer"], r["head"]) for r in rows] == SHAPE, rows
    for row in rows:
        assert list(row) == KEYS and row["event"] == "keep" and row["sequence"] == 1 and row["position"] == 50
        assert row["kept"] == list(range(50)) and row["bytes"] > 0


@test
def traces_selections():
    """and of a policy that selects, what is kept after the prompt and after each later selection."""
    rows = traced(range(5, 105), 70, "--kv.policy=snapkv", "--kv.snapkv.capacity=24", "--kv.snapkv.window=8", "--kv.snapkv.when=always",
                  "--kv.snapkv.every=32")
    assert sorted({r["position"] for r in rows}) == [100, 128, 160], rows
    for row in rows:
        position, kept = row["position"], row["kept"]
        assert kept == sorted(set(kept)) and len(kept) == 24 and kept[-8:] == list(range(position - 8, position)), row
    name = path("traced.jsonl")
    assert [l["kept"] for l in soquete("trace", "--json", name).lines()] == [24 * len(SHAPE)] * 3


@test
def untraceable():
    """a file that cannot be written is a failure that names the key."""
    result = soquete("run", "-m", LLAMA, "--ids", "5,6", "--kv.trace=" + path("no/where"), rc=1)
    assert "[kv] trace = " in result.err and "No such file" in result.err


main()
