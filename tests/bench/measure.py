"""What the benchmark scripts share: running an engine and seeing who else was using the CPUs, results in a file, tables.

A record is what an engine says of one test, one JSON object ({"engine", "model", "test", "depth", "tok_s", "best", ...}, the
keys of `soquete bench --json`), and is written to the results file at once, so that an interruption loses nothing."""
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BUSY = 0.02  # share of the CPUs that others may use before it is worth a warning


class Failure(Exception):
    """Something that the user has to know; the message says what to do."""


def progress(text):
    print(text, file=sys.stderr, flush=True)


# ---- Running


def busy_seconds():
    """CPU seconds that the machine has been computing, for whomever; 0 where /proc does not tell."""
    try:
        with open("/proc/stat") as f:
            fields = f.readline().split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq = map(int, fields[:7])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


class Run:
    """A program that ended: its output, wall time, CPU time, peak memory, and what share of the CPUs others used."""

    def __init__(self, command, text=""):
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            stdin.write(text.encode())
            stdin.seek(0)
            busy, start = busy_seconds(), time.monotonic()
            try:
                child = subprocess.Popen(command, stdin=stdin, stdout=out, stderr=err)
            except OSError as e:
                raise Failure("cannot run %s: %s" % (command[0], e.strerror))
            try:
                _, status, usage = os.wait4(child.pid, 0)
            except KeyboardInterrupt:
                child.kill()
                child.wait()
                raise
            self.seconds = time.monotonic() - start
            child.returncode = os.waitstatus_to_exitcode(status)
            self.cpu = usage.ru_utime + usage.ru_stime
            self.peak_bytes = usage.ru_maxrss * 1024
            others = busy_seconds() - busy - self.cpu
            self.others = max(0.0, others / (self.seconds * os.cpu_count()))
            out.seek(0)
            err.seek(0)
            self.out, self.err = out.read().decode("utf-8", "replace"), err.read().decode("utf-8", "replace")
        if child.returncode:
            said = self.err.strip()[-500:] or "no message"
            raise Failure("%s ended with %d: %s" % (" ".join(command), child.returncode, said))
        if self.others > BUSY and self.seconds > 1:
            progress("  others used %.0f %% of the CPUs meanwhile" % (100 * self.others))

    def lines(self):
        """JSON lines."""
        return [json.loads(line) for line in self.out.splitlines() if line]


# ---- Results


class Results:
    """Records, in memory and, with a path, in a file of JSON lines that is read first and then appended to."""

    def __init__(self, path=None):
        self.path, self.records = path, []
        if path and os.path.exists(path):
            with open(path) as f:
                self.records = [json.loads(line) for line in f if line.strip()]

    def add(self, record):
        self.records.append(record)
        if self.path:
            with open(self.path, "a") as f:
                f.write(json.dumps(record) + "\n")


def best(records, key="best"):
    """The highest value of a key; None where no record has one."""
    return max((r[key] for r in records if r.get(key) is not None), default=None)


def ratio(a, b):
    return a / b if a and b else None


def busy_note(records):
    """A sentence about runs that did not have the machine to themselves, or ""."""
    shared = [r for r in records if r.get("others", 0) > BUSY]
    if not shared:
        return ""
    return "Other processes used more than %.0f %% of the CPUs during %d of %d runs." % (100 * BUSY, len(shared), len(records))


# ---- Tables


def cell(value, digits=0):
    """A number of a table; "-" for None."""
    return "-" if value is None else value if isinstance(value, str) else "%.*f" % (digits, value)


def table(heads, rows, n_left=1):
    """A Markdown table; all columns but the first ones are aligned to the right."""
    rule = "|" + "---|" * n_left + "---:|" * (len(heads) - n_left)
    head, *body = ["| " + " | ".join(line) + " |" for line in [heads] + rows]
    return "\n".join([head, rule] + body)


def put(text, where):
    """Prints it or, with "FILE#NAME", puts it into FILE, between the lines <!-- NAME --> and <!-- /NAME -->."""
    if not where:
        print(text)
        return
    path, _, name = where.partition("#")
    begin, end = "<!-- %s -->\n" % name, "<!-- /%s -->\n" % name
    try:
        with open(path) as f:
            before, found, rest = f.read().partition(begin)
    except OSError as e:
        raise Failure("%s: %s" % (path, e.strerror))
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise Failure("%s has no lines %s and %s" % (path, begin.strip(), end.strip()))
    with open(path, "w") as f:
        f.write(before + begin + text + "\n" + end + after)


def add_common(parser):
    parser.add_argument("--soquete", default="soquete", metavar="FILE", help="the program (%(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N", help="of both engines (%(default)s)")
    parser.add_argument("--results", metavar="FILE", help="JSON lines: what is there counts too, new results are appended")
    parser.add_argument("--render", action="store_true", help="measure nothing, print what --results holds")
    parser.add_argument("--into", metavar="FILE#NAME", help="put the tables into FILE, between <!-- NAME --> and its end")


def run_main(main):
    """main(), with failures and Ctrl-C as a user wants them."""
    try:
        main()
    except Failure as e:
        sys.exit("%s: %s" % (os.path.basename(sys.argv[0]), e))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
