"""The program as a whole: dispatch, help, options, configuration, manual pages."""
import os
import re
import subprocess

from cli import LLAMA, PROGRAM, SRC, environment, main, path, soquete, test

COMMANDS = ["run", "chat", "plugins", "new", "config", "inspect", "kvcalc", "trace", "tokenize", "logits", "bench", "perplexity", "eval",
            "calibrate"]
WITH_MODEL = ["run", "chat", "kvcalc", "tokenize", "logits", "bench", "perplexity", "calibrate"]


def settings(*args):
    return soquete("config", "--json", *args).json()["settings"]


def long_options(command):
    return set(re.findall(r"--([a-z][a-z-]+)", soquete(command, "--help").out))


@test
def version():
    """--version prints name and version."""
    assert re.fullmatch(r"soquete \d+\.\d+\.\d+\n", soquete("--version").out)


@test
def version_of_commands():
    """--version behind a command is the same; behind -- it is an argument."""
    assert soquete("run", "--version").out == soquete("--version").out
    assert soquete("run", "-m", LLAMA, "--raw", "-n", "1", "--", "--version").out != soquete("--version").out


@test
def help_has_defaults():
    """--help says what the default of a setting is."""
    assert re.search(r"-n, --max-tokens N The most tokens .* The default is 512\.", " ".join(soquete("run", "--help").out.split()))


@test
def comment_hint():
    """# behind a value is no comment, which the message says."""
    ini = path("hash.ini", "[engine]\nmax_tokens = 3 # foo\n")
    err = soquete("config", "--config", ini, rc=2).err
    assert "max_tokens" in err and "a comment begins with ';'" in err, err
    fine = path("semicolon.ini", "[engine]\nmax_tokens = 3 ; foo\n")
    assert settings("--config", fine)["engine"]["max_tokens"]["value"] == 3


@test
def help_lists_commands():
    """--help lists every command and the exit codes; help COMMAND is COMMAND --help."""
    out = soquete("--help").out
    assert out == soquete("help").out == soquete("-h").out
    for command in COMMANDS:
        assert re.search(r"^  %s " % command, out, re.M), command
        assert soquete("help", command).out == soquete(command, "--help").out
    assert "130 interrupted" in out


@test
def wrong_commands():
    """no command, an unknown one and an unknown option are exit code 2; the nearest command is named."""
    assert "see soquete --help" in soquete(rc=2).err
    assert "did you mean 'tokenize'" in soquete("tokenise", rc=2).err
    assert "did you mean 'run'" in soquete("help", "rnu", rc=2).err
    assert "unknown option" in soquete("--what", rc=2).err
    assert "unknown command" in soquete("", rc=2).err


@test
def wrong_options():
    """every command refuses unknown options and arguments that it does not take."""
    for command in COMMANDS:
        result = soquete(command, "--no-such-option", rc=2)
        assert "--no-such-option" in result.err and not result.out, result
    for command in ["chat", "kvcalc", "tokenize", "logits", "bench", "perplexity", "calibrate", "config"]:
        assert "stray" in soquete(command, "stray", rc=2).err
    assert "did you mean --temp" in soquete("run", "--tmep", "1", rc=2).err
    assert "expected a value" in soquete("run", "-n", rc=2).err
    assert "unknown option" in soquete("run", "-Z", rc=2).err
    assert "wrongly used" in soquete("run", "--json=yes", rc=2).err


@test
def wrong_values():
    """values that are no numbers, or out of range, are refused with the option, the value and what is expected."""
    for args, words in [
        (["run", "-m", LLAMA, "x", "-n", "ten"], ["ten", "integer"]),
        (["run", "-m", LLAMA, "x", "-n", "-2"], ["-2"]),
        (["run", "-m", LLAMA, "x", "--temp", "hot"], ["--temp hot", "number"]),
        (["run", "-m", LLAMA, "x", "--temp", "nan"], ["--temp nan"]),
        (["run", "-m", LLAMA, "x", "--temp", "-1"], ["temperature", "-1"]),
        (["run", "-m", LLAMA, "x", "--top-p", "7"], ["top_p", "7"]),
        (["run", "-m", LLAMA, "x", "--seed", "-1"], ["--seed -1"]),
        (["bench", "-m", LLAMA, "--reps", "0"], ["--reps 0"]),
        (["bench", "-m", LLAMA, "--depth", "1,,2"], ["--depth 1,,2"]),
        (["bench", "-m", LLAMA, "--prompt", "512,x"], ["--prompt 512,x"]),
        (["bench", "-m", LLAMA, "--format", "xml"], ["xml", "table, csv, md or json"]),
        (["kvcalc", "-m", LLAMA, "-c", "0"], ["--context 0"]),
        (["kvcalc", "--layers", "2"], ["--kv-heads"]),
        (["kvcalc", "--head-dim", "2"], ["--layers"]),
        (["logits", "-m", LLAMA, "--ids", "1"], ["--out"]),
        (["logits", "-m", LLAMA, "--out", "x.npy"], ["--ids"]),
    ]:
        err = soquete(*args, rc=2).err
        for word in words:
            assert word in err, (args, err)


@test
def wrong_models():
    """no model, a missing file, a folder, something else: each command says so."""
    other = path("other.gguf", "this is no model\n" * 100)
    cut = path("cut.gguf", open(LLAMA, "rb").read()[:20000])
    extra = {"run": ["hello"], "logits": ["--ids", "1", "--out", path("x.npy")], "bench": ["--no-memory"],
             "calibrate": ["--out", path("x.npy")]}
    for command in WITH_MODEL:
        more = extra.get(command, [])
        assert "-m FILE" in soquete(command, *more, rc=2).err
        assert "No such file" in soquete(command, "-m", path("missing.gguf"), *more, rc=1).err
        assert "regular file" in soquete(command, "-m", os.path.dirname(other), *more, rc=1).err
        assert "other.gguf" in soquete(command, "-m", other, *more, rc=1).err
        assert "cut.gguf" in soquete(command, "-m", cut, *more, rc=1).err
    assert not os.path.exists(path("x.npy"))


@test
def globals_anywhere():
    """--config and overrides stand before or after the command; the command line wins over the file."""
    ini = path("a.ini", "[engine]\nchunk = 33\nmax_tokens = 5\n")
    for args in [["--config", ini, "config", "--json"], ["config", "--json", "--config", ini], ["--config=" + ini, "config", "--json"],
                 ["config", "--config=" + ini, "--json"]]:
        s = soquete(*args).json()["settings"]
        assert s["engine"]["chunk"]["value"] == 33 and s["engine"]["chunk"]["origin"].endswith("a.ini:2"), s["engine"]
    for args in [["--engine.chunk=44", "--config", ini, "config", "--json"], ["config", "--json", "--config", ini, "--engine.chunk=44"]]:
        s = soquete(*args).json()["settings"]
        assert s["engine"]["chunk"]["value"] == 44 and s["engine"]["chunk"]["origin"] == "command line"
        assert s["engine"]["max_tokens"]["value"] == 5
    assert settings()["engine"]["chunk"]["origin"] == "default"


@test
def user_configuration():
    """the user's file is found, and its model path is the default for -m."""
    folder = path(os.path.join("state", "soquete"))
    os.makedirs(folder)
    with open(os.path.join(folder, "soquete.ini"), "w") as f:
        f.write("[model]\npath = %s\n[engine]\nmax_tokens = 3\n" % LLAMA)
    env = dict(environment(), XDG_CONFIG_HOME=path("state"))
    done = subprocess.run([PROGRAM, "run", "--ids", "5,6", "--ignore-eos", "--json", "-q"], capture_output=True, env=env, text=True)
    assert done.returncode == 0 and done.stdout.count('"event":"token"') == 3, done
    done = subprocess.run([PROGRAM, "run", "--ids", "5,6", "--ignore-eos", "--json", "-q", "-n", "2"], capture_output=True, env=env,
                          text=True)
    assert done.stdout.count('"event":"token"') == 2, done


@test
def wrong_configuration():
    """a wrong file or override is exit code 2 and names file, line, key, value and the nearest key, for every command."""
    for content, words in [
        ("[engine]\n\nchnk = 3\n", ["bad.ini:3", "chnk", "chunk"]),
        ("[engine]\nchunk = many\n", ["bad.ini:2", "many"]),
        ("[engin]\nchunk = 3\n", ["engin", "engine"]),
        ("[backend.cpo]\nthreads = 3\n", ["cpo"]),
        ("[kv]\nblock_tokens = 33\n", ["33", "power of two"]),
        ("no section\n", ["bad.ini:1"]),
    ]:
        bad = path("bad.ini", content)
        err = soquete("run", "-m", LLAMA, "x", "--config", bad, rc=2).err
        for word in words:
            assert word in err, (content, err)
    for command in WITH_MODEL:
        more = {"run": ["x"], "logits": ["--ids", "1", "--out", path("x.npy")]}.get(command, [])
        assert "policy" in soquete(command, "-m", LLAMA, *more, "--kv.polcy=full", rc=2).err
    assert "missing.ini" in soquete("config", "--config", path("missing.ini"), rc=2).err
    assert "treads" in soquete("run", "-m", LLAMA, "x", "--backend.cpu.treads=2", rc=2).err
    assert "nowhere" in soquete("run", "-m", LLAMA, "x", "--plugin-dir", path("nowhere"), rc=2).err


@test
def unknown_plugins():
    """a policy, codec, sampler or backend that is not installed is named."""
    for key in ["kv.policy", "kv.codec_k", "decoding.sampler", "backend.use"]:
        result = soquete("run", "-m", LLAMA, "x", "--%s=nosuch" % key, rc=1)
        assert "nosuch" in result.err and not result.out, result


@test
def manuals():
    """every option in a command's --help is in its manual page, and the other way round."""
    for command in COMMANDS:
        with open(os.path.join(SRC, "docs", "man", "soquete-%s.1" % command)) as f:
            page = f.read()
        documented = set(re.findall(r"^\.It .*?Fl -([a-z][a-z-]+)", page, re.M))
        options = long_options(command) - {"config", "plugin-dir"}
        assert "help" in options, command
        assert options <= documented | {"help"}, (command, options - documented)
        assert documented <= options | {"config", "plugin-dir"}, (command, documented - options)
        assert ".Nm soquete-%s\n" % command in page


@test
def manual_of_configuration():
    """every key of the configuration is in soquete.ini(5), with its default."""
    with open(os.path.join(SRC, "docs", "man", "soquete.ini.5")) as f:
        page = f.read()
    for section, keys in settings().items():
        start = page.find(".Ss [%s]" % section)
        assert start >= 0, section
        body = page[start:page.find("\n.Ss ", start + 1)]
        for key, setting in keys.items():
            value = setting["value"]
            if isinstance(value, list):
                value = ", ".join(value)
            line = (".It Li %s = %s" % (key, value)).rstrip()
            assert line in body.splitlines(), (section, line)


@test
def policy_sections():
    """every key of every KV policy and codec is in etc/soquete.ini and soquete.ini(5), with its default and what it says of itself."""
    with open(os.path.join(SRC, "etc", "soquete.ini")) as f:
        ini = " ".join(re.sub(r"\n# ", " ", f.read()).split("\n")) + " ;["
    with open(os.path.join(SRC, "docs", "man", "soquete.ini.5")) as f:
        page = f.read()
    sections = 0
    for plugin in soquete("plugins", "--json").json():
        for role in plugin["roles"]:
            if role["role"] not in ("kv_policy", "kv_codec") or not role["options"]:
                continue
            name = "[kv.%s]" % plugin["name"]
            sections += 1
            assert ";%s " % name in ini and ".Ss %s\n" % name in page, name
            start = ini.index(";%s " % name)
            section = ini[start:ini.index(";[", start + 1)]
            start = page.index(".Ss %s\n" % name)
            body = page[start:page.index("\n.Ss ", start + 1)].splitlines()
            for option in role["options"]:
                assert (";%s = %s" % (option["key"], option["default"])).rstrip() + " " in section, (name, option)
                assert option["help"] in section, (name, option)
                assert (".It Li %s = %s" % (option["key"], option["default"])).rstrip() in body, (name, option)
    assert sections >= 7


@test
def manual_lint():
    """mandoc has no complaints about the manual pages."""
    pages = sorted(os.path.join(SRC, "docs", "man", name) for name in os.listdir(os.path.join(SRC, "docs", "man")))
    assert len(pages) >= 12
    try:
        done = subprocess.run(["mandoc", "-Tlint", "-Wwarning", *pages], capture_output=True, text=True)
    except FileNotFoundError:
        return
    assert done.returncode == 0, done.stdout


@test
def closed_output():
    """output to a full disk is a failure; a pipe that nobody reads is none."""
    for args in [["--help"], ["run", "--help"], ["config"], ["config", "--json"], ["plugins"], ["plugins", "--why", "--json"],
                 ["inspect", LLAMA], ["inspect", "--help"], ["kvcalc", "-m", LLAMA], ["logits", "-m", LLAMA, "--ids", "5", "-o", "-"],
                 ["run", "-m", LLAMA, "--ids", "5,6", "-q"], ["run", "-m", LLAMA, "--ids", "5,6", "--json", "-q"],
                 ["tokenize", "-m", LLAMA, "-f", LLAMA], ["bench", "-m", LLAMA, "-p", "4", "-n", "4", "--no-memory"]]:
        options = dict(stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(), text=True)
        with open("/dev/full", "w") as full:
            done = subprocess.run([PROGRAM, *args], stdout=full, **options)
        assert done.returncode == 1 and "No space left" in done.stderr, done
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([PROGRAM, *args], stdout=writer, **options)
        os.close(writer)
        assert done.returncode == 0 and not done.stderr, done


main()
