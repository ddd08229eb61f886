"""soquete chat: piped, and on a pseudo-terminal."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time

from cli import ENDLESS, GEMMA, LLAMA, PROGRAM, WORK, environment, main, path, soquete, start, test

PROMPT = "\033[1m>\033[0m "
GREEDY = ["--temp", "0"]
SHORT = ["-n", "8"]


def chat(*args, **options):
    return soquete("chat", "-m", LLAMA, *GREEDY, *args, **options)


def transcript(name):
    with open(path(name)) as f:
        return json.load(f)


# ---- Piped


@test
def piped():
    """each line is a turn; standard output has the answers only, as the transcript has them."""
    result = chat(*SHORT, text="hello\n\nkalomi tenu\n/save %s\n" % path("t.json"))
    messages = transcript("t.json")
    assert [m["role"] for m in messages] == ["user", "assistant"] * 2 and all(set(m) == {"role", "content"} for m in messages)
    assert [m["content"] for m in messages[::2]] == ["hello", "kalomi tenu"]
    answers = [m["content"] for m in messages[1::2]]
    assert result.out == "".join(a if a.endswith("\n") else a + "\n" for a in answers), (result, answers)
    assert "\033" not in result.out + result.err and "> " not in result.out


@test
def no_input():
    """nothing to read ends the program at once, with success; a last line needs no newline."""
    assert chat(text="").out == ""
    assert chat(*SHORT, text="hello").out == chat(*SHORT, text="hello\n").out != ""


@test
def turns_reuse_the_cache():
    """a turn computes only what is new: the earlier messages come from the cache."""
    err = chat(*SHORT, text="hello\n/stats\nkalomi\n/stats\n").err
    counts = [(int(a), int(b)) for a, b in re.findall(r"prompt +(\d+) tokens, (\d+) cached", err)]
    assert len(counts) == 2 and counts[0][1] == 0 and counts[1][1] >= counts[0][0] - 1 > 10, err
    assert "in all     2 answers" in err and "context" in err


@test
def same_as_run():
    """the first answer is that of run."""
    assert chat(*SHORT, text="hello\n").out == soquete("run", "-m", LLAMA, *GREEDY, *SHORT, "-q", "hello").out
    told = chat(*SHORT, "--system", "Be brief.", text="hello\n").out
    assert told == soquete("run", "-m", LLAMA, *GREEDY, *SHORT, "-q", "--system", "Be brief.", "hello").out


@test
def reset():
    """/reset forgets the conversation but not the system message."""
    result = chat(*SHORT, "--system", "s", text="hello\nkalomi\n/reset\nhello\n/save %s\n" % path("t.json"))
    messages = transcript("t.json")
    assert [m["role"] for m in messages] == ["system", "user", "assistant"], messages
    first = chat(*SHORT, "--system", "s", text="hello\n").out
    assert result.out.startswith(first) and result.out.endswith(first)


@test
def load_and_save():
    """a saved conversation goes on where it stopped."""
    part = [{"role": role, "content": content} for role, content in
            [("system", "s"), ("user", "hello"), ("assistant", "kalomi"), ("user", "tenu"), ("assistant", "saro")]]
    with open(path("part.json"), "w") as f:
        json.dump(part, f)
    chat("--load", path("part.json"), text="/save %s\n" % path("same.json"))
    assert transcript("same.json") == part
    longer = chat(*SHORT, "--load", path("part.json"), text="hello\n/stats\n/save %s\n" % path("longer.json"))
    assert transcript("longer.json")[:-2] == part and len(transcript("longer.json")) == 7
    fresh = chat(*SHORT, "--system", "s", text="hello\n/stats\n")
    sizes = [int(re.search(r"prompt +(\d+) tokens", result.err).group(1)) for result in (fresh, longer)]
    assert sizes[1] > sizes[0] + 10, sizes
    assert "cannot write" in chat(text="/save /nowhere/x.json\n").err
    assert "name of a file" in chat(text="/save\n").err


@test
def session():
    """--session: the conversation and its cache outlive the program, and the answers are those of one program."""
    file = path("chat.session")
    chat(*SHORT, "--session", file, text="hello\n")
    second = chat(*SHORT, "--session", file, text="kalomi\n/stats\n/save %s\n" % path("two.json"))
    chat(*SHORT, text="hello\nkalomi\n/save %s\n" % path("one.json"))
    assert transcript("two.json") == transcript("one.json")
    assert int(re.search(r"(\d+) cached", second.err).group(1)) > 5, second
    assert "has begun already" in chat("--session", file, "--system", "s", text="", rc=2).err


@test
def wrong_transcripts():
    """a file that is no conversation is refused with what is wrong."""
    for content, word in [("{", "bad.json:1"), ("{}", "array"), ("[1]", "entry 0"), ('[{"role": "user"}]', "content"),
                          ('[{"role": "user", "content": "x"}, {"role": "robot", "content": "x"}]', "robot"),
                          ('[{"role": "user", "content": 3}]', "entry 0")]:
        err = chat("--load", path("bad.json", content), text="hello\n", rc=2).err
        assert word in err, (content, err)
    chat("--load", path("missing.json"), rc=1)
    good = path("good.json", '[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]')
    assert "--system" in chat("--load", good, "--system", "s", rc=2).err


@test
def commands():
    """/help lists the commands; an unknown one is no message; two slashes are one in a message."""
    result = chat(*SHORT, text="/help\n/hlep\n/nonsense\n//help\n/save %s\n" % path("t.json"))
    for word in ["/help", "/reset", "/save FILE", "/stats", "Ctrl-C", "Ctrl-D", "did you mean /help", "/nonsense"]:
        assert word in result.err, (word, result)
    assert [m["content"] for m in transcript("t.json")][0] == "/help" and len(transcript("t.json")) == 2


@test
def leaves():
    """/quit and /exit leave; what comes after them is not read."""
    for word in ["/quit", "/exit"]:
        result = chat(*SHORT, text="%s\n/help\n" % word)
        assert "/help" not in result.err and not result.out, result


@test
def saved_text():
    """/save ends the file with a newline."""
    chat(*SHORT, text="hello\n/save %s\n" % path("ends.json"))
    with open(path("ends.json")) as f:
        assert f.read().endswith("]\n")


@test
def no_template():
    """a model without a chat template: said once that ChatML is used."""
    result = chat(*SHORT, text="hello\nhello\n")
    assert result.err.count("ChatML") == 1, result


@test
def full_context():
    """a conversation that no longer fits ends piped use with a failure that names the setting."""
    result = chat(*SHORT, "-c", 64, text="hello\n" + "kalomi tenu saro " * 10 + "\n", rc=1)
    assert "context" in result.err and result.out, result


@test
def interrupted_pipe():
    """Ctrl-C stops the answer, whose part stays, and the next line is answered; while waiting it ends the program."""
    process = start("chat", "-m", GEMMA, *GREEDY, *ENDLESS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    process.stdin.write(b"/save %s\n/stats\n" % path("t.json").encode())
    process.stdin.flush()
    err = b""
    while b"context" not in err.split(b"saved")[-1] or b"saved" not in err:
        err += os.read(process.stderr.fileno(), 4096)
    assert b"cancelled" in err, err
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert len(transcript("t.json")) == 2 and transcript("t.json")[1]["content"]


# ---- On a terminal


class Terminal:
    """The program on a pseudo-terminal."""

    def __init__(self, *args, state="state"):
        self.output = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(WORK)
            os.execve(PROGRAM, [PROGRAM, *map(str, args)], dict(environment(), XDG_STATE_HOME=path(state)))

    def read(self, seconds):
        """False: nothing came."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError: # the other end is closed
            data = b""
        self.output += data.decode("utf-8", "replace")
        return bool(data)

    def wait_for(self, word, seconds=60):
        """Reads until the word came; returns what came until then and forgets it."""
        end = time.monotonic() + seconds
        while word not in self.output:
            assert time.monotonic() < end, "no %r in %r" % (word, self.output[-1000:])
            self.read(0.2)
        at = self.output.index(word) + len(word)
        seen, self.output = self.output[:at], self.output[at:]
        return seen

    def prompt(self):
        """Reads until the program waits for a line: the prompt is there and the terminal is in its hands."""
        seen = self.wait_for(PROMPT)
        while termios.tcgetattr(self.fd)[3] & termios.ICANON:
            time.sleep(0.01)
        return seen

    def send(self, text):
        os.write(self.fd, text.encode())

    def finish(self, seconds=30):
        """The exit code."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            self.read(0.05)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError("still running; last output %r" % self.output[-1000:])


def terminal(*args, model=LLAMA, **options):
    t = Terminal("chat", "-m", model, *GREEDY, *args, **options)
    t.prompt()
    return t


@test
def terminal_turn():
    """a prompt, an answer, another prompt; Ctrl-D leaves with success."""
    t = terminal(*SHORT)
    t.send("hello\r")
    seen = t.prompt()
    assert seen.strip()
    t.send("/stats\r")
    assert "generated" in t.wait_for("context") and t.prompt()
    t.send("\x04")
    assert t.finish() == 0


@test
def terminal_interrupt():
    """Ctrl-C stops the answer and not the program; the part stays in the conversation."""
    t = terminal(*ENDLESS, model=GEMMA)
    t.send("hello\r")
    t.wait_for("hello") # the echo
    end = time.monotonic() + 30
    while len(t.output) < 50 and time.monotonic() < end:
        t.read(0.2)
    t.send("\x03")
    t.prompt()
    t.send("/stats\r")
    assert "cancelled" in t.wait_for("context")
    t.prompt()
    t.send("/save %s\r" % path("t.json"))
    t.wait_for("2 messages saved")
    t.prompt()
    t.send("\x04")
    assert t.finish() == 0
    assert len(transcript("t.json")) == 2 and len(transcript("t.json")[1]["content"]) > 20


@test
def terminal_line():
    """Ctrl-C at the prompt gives the line up; editing works; an unknown command says so."""
    t = terminal(*SHORT)
    t.send("some nonsense")
    t.wait_for("nonsense")
    time.sleep(0.2) # it waits for more
    t.send("\x03")
    t.prompt()
    t.send("/hepl\x7f\x7flp\r") # backspace twice
    t.wait_for("Ctrl-D")
    t.prompt()
    t.send("\x04")
    assert t.finish() == 0


@test
def terminal_history():
    """typed lines come back with the arrow key, in the same run and in the next; --no-history leaves the file alone."""
    t = terminal(*SHORT, state="h")
    t.send("/help\r")
    t.wait_for("Ctrl-D")
    t.prompt()
    t.send("\x1b[A\r") # up
    t.wait_for("Ctrl-D")
    t.prompt()
    t.send("\x04")
    assert t.finish() == 0
    file = os.path.join(path("h"), "soquete", "history")
    assert "/help" in open(file).read() and os.stat(file).st_mode & 0o77 == 0
    t = terminal(*SHORT, state="h")
    t.send("\x1b[A\r")
    t.wait_for("Ctrl-D")
    t.prompt()
    t.send("\x04")
    assert t.finish() == 0
    t = terminal(*SHORT, "--no-history", state="none")
    t.send("/help\r")
    t.prompt()
    t.send("\x04")
    assert t.finish() == 0 and not os.path.exists(path("none"))


@test
def terminal_while_loading():
    """run on a terminal shows progress there and cleans it up; Ctrl-C ends the answer."""
    t = Terminal("run", "-m", GEMMA, "--ids", "5,6", "--ignore-eos", *ENDLESS)
    end = time.monotonic() + 30
    while len(t.output) < 200 and time.monotonic() < end:
        t.read(0.2)
    t.send("\x03")
    assert t.finish() == 130
    assert "loading model.gguf" in t.output and "\033[K" in t.output and "TTFT" in t.output, t.output[:300]


main()
