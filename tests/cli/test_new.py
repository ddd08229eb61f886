"""new: a KV policy or codec to begin with, which builds, passes the kit and is found."""
import os
import shutil
import subprocess

from cli import PROGRAM, SRC, environment, main, path, soquete, test


def files(name):
    return sorted(os.listdir(path(name)))


@test
def writes_files():
    """new KIND NAME writes a source file, a manifest, a Makefile and a README, in which the plugin has that name."""
    for kind, example, mine in [("kvpolicy", "heaviest", "my-own_2"), ("kvcodec", "rowscale", "my-own_3")]:
        out = soquete("new", kind, mine).out
        assert "cd %s && make && make check" % mine in out and "The KV %s %s begins" % (kind[2:], mine) in out
        assert files(mine) == ["Makefile", "README.md", mine + ".c", mine + ".ini"]
        for name in files(mine):
            with open(path(os.path.join(mine, name))) as f:
                text = f.read()
            assert example not in text and "anyname" not in text and mine in text, name
        with open(os.path.join(SRC, "examples", "new-" + kind, example + ".c")) as f:
            text = f.read()
        with open(path("%s/%s.c" % (mine, mine))) as f:
            assert f.read() == text.replace(example, mine)


@test
def other_folder():
    """DIR is another folder, whose parent must exist."""
    soquete("new", "kvpolicy", "other", path("elsewhere"))
    assert "other.c" in files("elsewhere")
    assert "No such file" in soquete("new", "kvpolicy", "other", path("no/where"), rc=1).err


@test
def builds_and_passes():
    """what it wrote builds without warnings, passes soquete check, is found and has its options."""
    build("kvpolicy", "fresh", "policy.again", ["capacity = 1024", "works with chunked prefill"])
    build("kvcodec", "fresh-codec", "codec.layout", ["residual = 0", "works with policies that select entries"])


def build(kind, name, checked, told):
    soquete("new", kind, name)
    headers = "-I" + os.path.join(SRC, "runtime", "include")
    tool = path("pkg-config", "#!/bin/sh\ncase $1 in --cflags) echo '%s' ;; *) echo /nowhere ;; esac\n" % headers)
    os.chmod(tool, 0o755)
    env = dict(environment(), PATH=os.environ["PATH"])
    make = ["make", "-C", path(name), "SOQUETE=" + PROGRAM, "PKG_CONFIG=" + tool, "CFLAGS=-O2 -Wall -Wextra -Wconversion -Werror",
            "CC=" + os.environ.get("CC", "cc")]
    done = subprocess.run(make + ["check"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done
    assert " 0 failed, 0 crashed, 0 hung" in done.stdout and checked in done.stdout, done.stdout
    stage = path("stage-" + name)
    subprocess.run(make + ["install", "DESTDIR=" + stage], check=True, capture_output=True, env=env)
    assert sorted(os.listdir(stage + "/nowhere")) == [name + ".ini", name + ".so"]
    subprocess.run(make + ["uninstall", "clean", "DESTDIR=" + stage], check=True, capture_output=True, env=env)
    assert not os.listdir(stage + "/nowhere") and name + ".so" not in files(name)
    subprocess.run(make, check=True, capture_output=True, env=env)
    out = soquete("plugins", "--plugin-dir", path(name), name).out
    assert "[kv.%s]" % name in out and all(text in out for text in told), out


@test
def refuses():
    """folders that exist, names that are none or taken, and other kinds are refused; nothing is overwritten."""
    shutil.rmtree(path("kept"), ignore_errors=True)
    os.mkdir(path("kept"))
    result = soquete("new", "kvpolicy", "kept", rc=1)
    assert "kept: File exists; nothing was written" in result.err and not files("kept")
    for name in ["", "Upper", "9lives", "a b", "a/b", "../up", "ü", "x" * 33]:
        result = soquete("new", "kvpolicy", name, rc=2)
        assert "is no name for a plugin" in result.err and '"%s"' % name in result.err, result
    for kind in ["kvpolicy", "kvcodec"]:
        assert "[kv.layers]" in soquete("new", kind, "layers", rc=2).err
    taken = soquete("new", "kvpolicy", "window", rc=2).err
    assert "window: a plugin of that name is installed" in taken and "window.ini" in taken
    assert not os.path.exists(path("window"))
    assert "backend: there is no template of that kind; expected kvpolicy or kvcodec" in soquete("new", "backend", "mine", rc=2).err
    assert "expected kvpolicy|kvcodec NAME" in soquete("new", rc=2).err
    assert "expected kvpolicy|kvcodec NAME" in soquete("new", "kvpolicy", "a", "b", "c", rc=2).err


main()
