#!/usr/bin/env python3
"""The layout of every public struct and the value of every public constant, as static assertions.

    layout.py --update      writes runtime/plugin/abi_layout.c from the headers, by asking the compiler
    layout.py               says in TAP whether that file lacks something that the headers have

The assertions themselves are checked by every build. A change of layout is therefore always a change of that file, too."""
import os
import re
import subprocess
import sys
import tempfile

SOURCE = os.environ.get("SOQ_TEST_SRC") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
INCLUDE = os.path.join(SOURCE, "runtime", "include")
RESULT = os.path.join(SOURCE, "runtime", "plugin", "abi_layout.c")
HEADERS = ["error", "dtype", "host", "step", "kv", "backend", "sampler", "plugin", "soquete", "calibration"]

HEAD = """/* The layout of the public structs on machines of 64 bits, and the values of the public constants. A build in which one differs
 * stops here: docs/abi.md says what that means. Written by tests/abi/layout.py --update; not to be edited. */
#include <stddef.h>

#include "soquete/calibration.h"
#include "soquete/soquete.h"

#define SIZE(type, bytes)                                                                                                      \\
    _Static_assert(sizeof(void *) != 8 || sizeof(struct type) == (bytes), "the size of struct " #type " changed")
#define FIELD(type, member, bytes)                                                                                             \\
    _Static_assert(sizeof(void *) != 8 || offsetof(struct type, member) == (bytes), #type "." #member " moved")
#define VALUE(name, number) _Static_assert((name) == (number), "the value of " #name " changed")
"""


def read(header):
    with open(os.path.join(INCLUDE, "soquete", header + ".h"), encoding="utf-8") as f:
        return re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)


def fields(body):
    for declaration in body.split(";"):
        declaration = " ".join(declaration.split())
        pointer = re.search(r"\(\*\s*(\w+)\)\s*\(", declaration)
        if pointer:
            yield pointer.group(1)
        elif declaration:
            first, *others = declaration.split(",")
            for part in [first] + others:
                yield re.search(r"(\w+)\s*(\[[^\]]*\])?$", part.strip()).group(1)


def structs(text):
    for name, body in re.findall(r"^struct (soq_\w+) \{\n(.*?)^\};", text, re.S | re.M):
        yield name, list(fields(body))


def constants(text):
    for listed in re.findall(r"X\((SOQ_\w+), \d+,", text):
        yield listed
    for body in re.findall(r"^enum[^{;]*\{(.*?)\};", text, re.S | re.M):
        if "#define" not in body:
            yield from re.findall(r"(SOQ_\w+) =", body)
    yield from re.findall(r"^#define (SOQ_ABI_MAJOR|SOQ_BLOCK_\w+|SOQ_ERROR_TEXT_MAX) ", text, re.M)


def questions():
    for header in HEADERS:
        text = read(header)
        for name, members in structs(text):
            yield f"SIZE({name}, %zu);", f"sizeof(struct {name})"
            for member in members:
                yield f"FIELD({name}, {member}, %zu);", f"offsetof(struct {name}, {member})"
        for name in constants(text):
            yield f"VALUE({name}, %lld);", f"(long long)({name})"


def ask(rows):
    lines = "".join(f'    printf("{text}\\n", {value});\n' for text, value in rows)
    includes = "".join(f"#include {name}\n" for name in ["<stddef.h>", "<stdio.h>", '"soquete/calibration.h"', '"soquete/soquete.h"'])
    program = f"{includes}int main(void) {{\n{lines}return 0;\n}}\n"
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "ask")
        with open(path + ".c", "w", encoding="utf-8") as f:
            f.write(program)
        subprocess.run([*os.environ.get("CC", "cc").split(), "-I", INCLUDE, "-o", path, path + ".c"], check=True)
        return subprocess.run([path], check=True, capture_output=True, text=True).stdout


def update():
    text = HEAD
    for line in ask(list(questions())).splitlines():
        text += ("\n" if line.startswith("SIZE") else "") + line + "\n"
    with open(RESULT, "w", encoding="utf-8") as f:
        f.write(text)


def check():
    with open(RESULT, encoding="utf-8") as f:
        recorded = set(re.findall(r"^(\w+\([\w, ]+), -?\d+\);$", f.read(), re.M))
    wanted = {re.sub(r", %\w+\);$", "", text) for text, _ in questions()}
    for number, (name, missing) in enumerate(
            [("every public field and constant is recorded in abi_layout.c", wanted - recorded),
             ("what is recorded there is still in the headers", recorded - wanted),
             ("there is something to record", set() if len(wanted) > 300 else {str(len(wanted))})], 1):
        print(f"{'not ok' if missing else 'ok'} {number} - {name}")
        for item in sorted(missing):
            print(f"# {item}")
    print("1..3")


if sys.argv[1:] == ["--update"]:
    update()
else:
    check()
