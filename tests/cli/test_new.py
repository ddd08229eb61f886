"""new: a KV policy to begin with, which builds, passes the kit and is found."""
import os
import shutil
import subprocess

from cli import PROGRAM, SRC, environment, main, path, soquete, test


def files(name):
    return sorted(os.listdir(path(name)))


@test
def writes_files():
    """new kvpolicy NAME writes a source file, a manifest, a Makefile and a README, in which the plugin has that name."""
    out = soquete("new", "kvpolicy", "my-own_2").out
    assert "cd my-own_2 && make && make check" in out
    assert files("my-own_2") == ["Makefile", "README.md", "my-own_2.c", "my-own_2.ini"]
    for name in files("my-own_2"):
        with open(path(os.path.join("my-own_2", name))) as f:
            text = f.read()
        assert "heaviest" not in text and "my-own_2" in text, name
    with open(os.path.join(SRC, "examples", "new-kvpolicy", "heaviest.c")) as f:
        example = f.read()
    with open(path("my-own_2/my-own_2.c")) as f:
        assert f.read() == example.replace("heaviest", "my-own_2")


@test
def other_folder():
    """DIR is another folder, whose parent must exist."""
    soquete("new", "kvpolicy", "other", path("elsewhere"))
    assert "other.c" in files("elsewhere")
    assert "No such file" in soquete("new", "kvpolicy", "other", path("no/where"), rc=1).err


@test
def builds_and_passes():
    """what it wrote builds without warnings, passes soquete check, is found and has its options."""
    soquete("new", "kvpolicy", "fresh")
    headers = "-I" + os.path.join(SRC, "runtime", "include")
    tool = path("pkg-config", "#!/bin/sh\ncase $1 in --cflags) echo '%s' ;; *) echo /nowhere ;; esac\n" % headers)
    os.chmod(tool, 0o755)
    env = dict(environment(), PATH=os.environ["PATH"])
    make = ["make", "-C", path("fresh"), "SOQUETE=" + PROGRAM, "PKG_CONFIG=" + tool, "CFLAGS=-O2 -Wall -Wextra -Wconversion -Werror",
            "CC=" + os.environ.get("CC", "cc")]
    done = subprocess.run(make + ["check"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done
    assert " 0 failed, 0 crashed, 0 hung" in done.stdout and "policy.again" in done.stdout, done.stdout
    stage = path("stage")
    subprocess.run(make + ["install", "DESTDIR=" + stage], check=True, capture_output=True, env=env)
    assert sorted(os.listdir(stage + "/nowhere")) == ["fresh.ini", "fresh.so"]
    subprocess.run(make + ["uninstall", "clean", "DESTDIR=" + stage], check=True, capture_output=True, env=env)
    assert not os.listdir(stage + "/nowhere") and "fresh.so" not in files("fresh")
    subprocess.run(make, check=True, capture_output=True, env=env)
    out = soquete("plugins", "--plugin-dir", path("fresh"), "fresh").out
    assert "[kv.fresh]" in out and "capacity = 1024" in out and "works with chunked prefill" in out


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
    assert "[kv.layers]" in soquete("new", "kvpolicy", "layers", rc=2).err
    taken = soquete("new", "kvpolicy", "window", rc=2).err
    assert "window: a plugin of that name is installed" in taken and "window.ini" in taken
    assert not os.path.exists(path("window"))
    assert "backend: there is no template of that kind; expected kvpolicy" in soquete("new", "backend", "mine", rc=2).err
    assert "expected kvpolicy NAME" in soquete("new", rc=2).err
    assert "expected kvpolicy NAME" in soquete("new", "kvpolicy", "a", "b", "c", rc=2).err


main()
