"""What the tests of the program share: running it in a clean environment, test models, and TAP.

SOQUETE names the program (else it is the build's), SOQ_TEST_DATA the test data, SOQ_TEST_PLUGINS the plugins, SOQ_MODELS a folder
that may hold smollm2.gguf; SOQ_TEST_SHORT asks for less, where a sanitizer makes all slow."""
import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback

SRC = os.environ.get("SOQ_TEST_SRC", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
DATA = os.environ.get("SOQ_TEST_DATA", os.path.join(SRC, "tests", "data"))
PROGRAM = os.environ.get("SOQUETE") or os.path.join(os.environ.get("SOQ_TEST_BUILD", SRC), "soquete")
GOLDEN = os.path.join(DATA, "golden")
LLAMA = os.path.join(GOLDEN, "llama", "model.gguf")
GEMMA = os.path.join(GOLDEN, "gemma3", "model.gguf")
SMOLLM = os.path.join(os.environ.get("SOQ_MODELS", os.path.join(SRC, "models")), "smollm2.gguf")

# Reference arithmetic, for comparisons with golden figures.
EXACT = ["--backend.cpu.activations=f32", "--kv.codec_k=f32", "--kv.codec_v=f32"]
# The backends of tests/plugins/mixed.am.
MIXED = ["--plugin-dir", os.environ.get("SOQ_TEST_MIXED", "")]
# So many tokens that only an interruption ends them within the test's time.
ENDLESS = ["-c", "60000", "-n", "50000"]

WORK = tempfile.mkdtemp(prefix="soquete-cli-")
atexit.register(shutil.rmtree, WORK, ignore_errors=True)


def environment():
    """No configuration, no history, no model of the user's."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "SOQUETE"))}
    env.update(HOME=WORK, LC_ALL="C.UTF-8", TERM="xterm")
    env.pop("NO_COLOR", None)
    if "SOQ_TEST_PLUGINS" in os.environ:
        env["SOQUETE_PLUGIN_PATH"] = os.environ["SOQ_TEST_PLUGINS"]
    return env


class Result:
    def __init__(self, done):
        self.rc = done.returncode
        self.bytes = done.stdout
        self.out = done.stdout.decode("utf-8", "replace")
        self.err = done.stderr.decode("utf-8", "replace")

    def json(self):
        return json.loads(self.out)

    def lines(self):
        """JSON lines."""
        return [json.loads(line) for line in self.out.split("\n") if line]

    def __repr__(self):
        return "rc %d\nstdout: %s\nstderr: %s" % (self.rc, self.out[-2000:], self.err[-2000:])


def soquete(*args, text=None, rc=0, timeout=120):
    """Runs the program; standard input is `text` (str or bytes), by default empty. The exit code must be rc, unless that is
    None."""
    if isinstance(text, str):
        text = text.encode()
    done = subprocess.run([PROGRAM, *map(str, args)], input=text or b"", capture_output=True, env=environment(), cwd=WORK,
                          timeout=timeout)
    result = Result(done)
    assert rc is None or result.rc == rc, "%s: expected exit code %d, got %r" % (" ".join(map(str, args)), rc, result)
    return result


def start(*args, **options):
    return subprocess.Popen([PROGRAM, *map(str, args)], env=environment(), cwd=WORK, **options)


def path(name, content=None):
    """A path in the work folder; with content the file is written."""
    full = os.path.join(WORK, name)
    if content is not None:
        with open(full, "wb" if isinstance(content, bytes) else "w") as f:
            f.write(content)
    return full


def golden(name):
    with open(os.path.join(GOLDEN, name, "expect.json")) as f:
        return json.load(f)


def ids_text(ids):
    return ",".join(map(str, ids))


_tests = []


def test(function):
    """Registers a test; its name is the first line of its docstring."""
    _tests.append(function)
    return function


def needs_smollm(function):
    function.needs = SMOLLM
    return function


def judges_smollm(function):
    """A test of how well SmolLM2 does: seconds of arithmetic, about which a sanitizer has nothing to say that it does not say about
    the small models, too."""
    function.judges = True
    return needs_smollm(function)


class Skip(Exception):
    """Raised by a test that cannot run here; the text says why."""


def main():
    failures = 0
    if not os.access(PROGRAM, os.X_OK):
        print("Bail out! %s is no program; set SOQUETE" % PROGRAM)
        sys.exit(1)
    print("1..%d" % len(_tests), flush=True)
    for number, function in enumerate(_tests, 1):
        name = function.__doc__.splitlines()[0].rstrip(".")
        needs = getattr(function, "needs", None)
        if needs and not os.path.exists(needs):
            print("ok %d - %s # SKIP no %s" % (number, name, os.path.basename(needs)), flush=True)
            continue
        if getattr(function, "judges", False) and "SOQ_TEST_SHORT" in os.environ:
            print("ok %d - %s # SKIP SOQ_TEST_SHORT" % (number, name), flush=True)
            continue
        try:
            function()
            print("ok %d - %s" % (number, name), flush=True)
        except Skip as why:
            print("ok %d - %s # SKIP %s" % (number, name, why), flush=True)
        except Exception:
            failures += 1
            print("not ok %d - %s" % (number, name), flush=True)
            for line in traceback.format_exc().splitlines():
                print("# " + line, flush=True)
    sys.exit(0 if not failures else 1)
