"""Files of a cloned repository that attack its users: no request is sent, no command hangs, one error gives the reason."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, put
from tpuctl.config import sources
from tpuctl.config.sources import load_config_file
from tpuctl.errors import InvalidInputError, SettingError
from tpuctl.sandbox.request_log import read_log
from tpuctl.yaml_reader import YAML_MAX_DEPTH, compose_yaml

SECRET = "-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n"
HEAD = f"project: theirs\nzone: {ZONE}\ntype: v4-8\n"


@pytest.fixture
def victim(tpuctl: Console) -> Console:
    """A user with a private key, in the folder of a repository that is already trusted."""
    key = Path(tpuctl.environ["HOME"]) / ".ssh" / "id_rsa"
    key.parent.mkdir()
    key.write_text(SECRET)
    return replace(tpuctl, environ={**tpuctl.environ, "TPUCTL_TRUST_PROJECT_FILE": "1"})


def requests(sandbox: Sandbox) -> list[str]:
    return [f"{entry.method} {entry.path}" for entry in read_log(sandbox.state.path)]


def nodes(sandbox: Sandbox) -> list[dict[str, Any]]:
    with sandbox.state.read() as session:
        return [node.document for node in session.nodes()]


def link(folder: Path, *, to: str) -> None:
    (folder / "link").symlink_to(to)


def sparse(file: Path) -> None:
    file.touch()
    os.truncate(file, 1 << 40)


def no_file(folder: Path) -> None:
    """Create no file beside tpuctl.yaml."""


OUTSIDE = "a project file may only name a script inside its folder, {folder}"


@pytest.mark.parametrize(
    ("script", "prepare", "why"),
    [
        pytest.param("~/.ssh/id_rsa", no_file, OUTSIDE, id="home"),
        pytest.param("../home/.ssh/id_rsa", no_file, OUTSIDE, id="above"),
        pytest.param("a/../../home/.ssh/id_rsa", no_file, OUTSIDE, id="above after a subfolder"),
        pytest.param("{home}/.ssh/id_rsa", no_file, OUTSIDE, id="absolute"),
        pytest.param("{folder}/tpuctl.yaml", no_file, OUTSIDE, id="absolute within"),
        pytest.param("link", lambda f: link(f, to="../home/.ssh/id_rsa"), OUTSIDE, id="link to a file"),
        pytest.param("link/id_rsa", lambda f: link(f, to="../home/.ssh"), OUTSIDE, id="link to a folder"),
        pytest.param("link", lambda f: link(f, to="/dev/zero"), OUTSIDE, id="device"),
        pytest.param("link", lambda f: link(f, to="link"), "cannot read it: ", id="symlink loop"),
        pytest.param("pipe", lambda f: os.mkfifo(f / "pipe"), "cannot read it: it is not a regular file", id="pipe"),
        pytest.param("dir", lambda f: (f / "dir").mkdir(), "cannot read it: Is a directory", id="folder"),
        pytest.param("absent", no_file, "cannot read it: No such file or directory", id="absent"),
        pytest.param("large", lambda f: sparse(f / "large"), "larger than 256 KiB", id="1 TB"),
        pytest.param(
            "bytes",
            lambda f: (f / "bytes").write_bytes(b"\xff"),
            "tpuctl.yaml line 4: `bytes` is not UTF-8",
            id="no text",
        ),
    ],
)
def test_startup_script_outside_the_project_is_not_sent(
    victim: Console, sandbox: Sandbox, script: str, prepare: Callable[[Path], object], why: str
) -> None:
    named = script.format(home=victim.environ["HOME"], folder=victim.folder)
    prepare(victim.folder)
    (victim.folder / "tpuctl.yaml").write_text(f"{HEAD}startup_script: {named}\n")

    out, err, code = victim("up", "demo")

    assert (out, code, requests(sandbox)) == ("", 2, [])
    assert f"{victim.folder}/tpuctl.yaml line 4: `" in err
    assert named in err
    assert why.format(folder=victim.folder) in err
    assert "secret" not in err


@pytest.mark.parametrize("script", ["start.sh", "./start.sh", "a/../start.sh", "link"])
def test_startup_script_of_the_project_is_sent(victim: Console, sandbox: Sandbox, script: str) -> None:
    (victim.folder / "start.sh").write_text("echo ours\n")
    link(victim.folder, to="start.sh")
    (victim.folder / "tpuctl.yaml").write_text(f"{HEAD}startup_script: {script}\n")

    assert victim("create", "demo", "--no-wait", "--skip-check", "all")[2] == 0
    (node,) = nodes(sandbox)
    assert node["metadata"]["startup-script"] == "echo ours\n"


def test_startup_script_content_is_that_of_the_trusted_digest(tmp_path: Path) -> None:
    """Digest and content come from the same read of each file."""
    file, script = tmp_path / "tpuctl.yaml", tmp_path / "start.sh"
    file.write_text("startup_script: start.sh\n")
    script.write_text("true\n")
    first = sources.load_project_file(file, {})
    script.write_text("evil\n")
    second = sources.load_project_file(file, {})

    assert (first.entries["startup_script"].content, second.entries["startup_script"].content) == ("true\n", "evil\n")
    assert first.digest != second.digest


@pytest.mark.parametrize("half", ["key", "key.pub"])
def test_ssh_key_replaced_in_the_repository_is_not_trusted(tmp_path: Path, half: str) -> None:
    file = tmp_path / "tpuctl.yaml"
    file.write_text("ssh_key: key\n")
    digests = {sources.load_project_file(file, {}).digest}
    for content in ("one", "other"):
        (tmp_path / half).write_text(content)
        digests.add(sources.load_project_file(file, {}).digest)

    assert len(digests) == 3


def test_ssh_key_symlink_to_another_key_is_not_trusted(tmp_path: Path) -> None:
    """A pull may change the target of the symlink, and a `tpuctl.yaml` that is a symlink names a key beside the symlink."""
    project, clone = tmp_path / "project", tmp_path / "clone" / "below"
    for folder in (project, clone):
        folder.mkdir(parents=True)
    file, link = project / "tpuctl.yaml", clone / "tpuctl.yaml"
    link.symlink_to(file)
    file.write_text("ssh_key: key\n")
    digests = []
    for key in ("/keys/mine", "/keys/theirs"):
        (project / "key").unlink(missing_ok=True)
        (project / "key").symlink_to(key)
        digests.append(sources.load_project_file(file, {}).digest)
    file.write_text("ssh_key: ../key\n")
    digests += [sources.load_project_file(path, {}).digest for path in (file, link)]

    assert len(set(digests)) == 4


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("project: theirs", id="billed elsewhere"),
        pytest.param("startup_script: start.sh", id="script"),
        pytest.param("metadata: {startup-script: curl evil}", id="script as metadata"),
        pytest.param("metadata: {ssh-keys: 'eve:ssh-ed25519 AAAA'}", id="key of an attacker"),
        pytest.param("ssh_key: ./key", id="key known to attackers"),
        pytest.param("setup: curl evil", id="setup"),
        pytest.param("service_account: eve@evil.iam.gserviceaccount.com", id="service account"),
        pytest.param("data_disks: [theirs]", id="disk"),
    ],
)
def test_cloned_repository_creates_no_node(tpuctl: Console, sandbox: Sandbox, lines: str) -> None:
    (tpuctl.folder / "start.sh").write_text("curl evil\n")
    (tpuctl.folder / "tpuctl.yaml").write_text(f"zone: {ZONE}\ntype: v4-8\n{lines}\n")

    out, err, code = tpuctl("up", "demo", "--yes")

    assert (out, code, requests(sandbox), nodes(sandbox)) == ("", 2, [], [])
    assert f"is not trusted, and it sets `{lines.partition(':')[0]}` (line 3)" in err


@pytest.mark.parametrize(
    ("owners", "uid", "environ", "expected"),
    [
        pytest.param((1000, 1000), 1000, {}, None, id="own"),
        pytest.param((0, 0), 1000, {}, None, id="root's"),
        pytest.param((1001, 1001), 1000, {}, 1001, id="another user's"),
        pytest.param((1000, 1001), 1000, {}, 1001, id="own, by another user's link"),
        pytest.param((1001, 1001), 0, {}, 1001, id="a user's, for root"),
        pytest.param((1001, 1001), 0, {"SUDO_UID": "1001"}, None, id="the caller's, for root by sudo"),
        pytest.param((1001, 1001), 1000, {"SUDO_UID": "1001"}, 1001, id="variable without sudo"),
        pytest.param((1001, 1001), 0, {"SUDO_UID": "²"}, 1001, id="no number"),
        pytest.param((), 1000, {}, None, id="absent"),
    ],
)
def test_foreign_owner_follows_the_rules_of_git(
    owners: tuple[int, ...], uid: int, environ: Mapping[str, str], expected: int | None
) -> None:
    assert sources.foreign_owner(owners, uid, environ) == expected


def test_project_file_of_another_user_is_refused_with_its_owner(tpuctl: Console, sandbox: Sandbox) -> None:
    file = tpuctl.folder / "tpuctl.yaml"
    file.write_text("type: v4-8\n")
    tpuctl.folder.chmod(0o777)
    if os.geteuid() != 0:  # only root can change the owner; the table above covers the decision
        assert sources.load_project_file(file, {}).entries["type"].value == "v4-8"
        return
    os.chown(file, 65534, -1)

    _, err, code = tpuctl("list")

    assert (code, requests(sandbox)) == (2, [])
    assert err.splitlines()[0] == f"error: {file} belongs to the user `nobody`, not to you: it is not read"
    assert tpuctl("trust", "--yes")[2] == 2
    assert tpuctl("list", "--trust-project-file")[2] == 0


LAUGHS = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10 if n else ['x'] * 10)}]\n" for n in range(10))
# The error for each text, the same for every kind of file.
BOMBS = {
    "lists": ("[" * 200_000, f"line 1: nested deeper than {YAML_MAX_DEPTH} levels"),
    "mappings": ("{a: " * 50_000, f"line 1: nested deeper than {YAML_MAX_DEPTH} levels"),
    "blocks": ("- " * 100_000, f"line 1: nested deeper than {YAML_MAX_DEPTH} levels"),
    "lists that end": ("[" * 100_000 + "]" * 100_000, f"line 1: nested deeper than {YAML_MAX_DEPTH} levels"),
    "deep by aliases": (
        "".join(f"a{n}: &a{n} [[[{f'*a{n - 1}' if n else ''}]]]\n" for n in range(20)),
        "nested deeper than",
    ),
    "laughs": (LAUGHS, "values"),
    "itself in a list": ("a: &a [*a]\n", "line 1: the alias `*a` is inside its own anchor"),
    "itself in a mapping": ("a: &a {b: *a}\n", "line 1: the alias `*a` is inside its own anchor"),
    "directives": ("".join(f"%TAG !{n}! x\n" for n in range(8000)), "more than 16 YAML directives"),
    "NUL": ("a: \0\n", "not valid YAML"),
    "open text": ('a: "' + "x" * 100_000, "not valid YAML"),
}


@pytest.mark.parametrize(("text", "why"), BOMBS.values(), ids=BOMBS)
def test_yaml_bomb_is_one_error_in_every_kind_of_file(tpuctl: Console, text: str, why: str) -> None:
    began = time.process_time()
    bomb = str(tpuctl.folder / "bomb.yaml")
    Path(bomb).write_text(text)
    ends = {
        "seed": tpuctl("sandbox", "seed", bomb),
        "scenario": tpuctl("sandbox", "scenario", bomb),
        "job": tpuctl("check", "--ai-platform", bomb),
        "settings": tpuctl("run", "--up", bomb, "--", "true"),
    }

    for what, (out, err, code) in ends.items():
        assert (out, code) == ("", 2), what
        assert "bomb.yaml" in err
        assert why in err, what
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(b"a: " + b"9" * 5000, "unknown key `a`", id="number of 5,000 digits as no key"),
        pytest.param(b"max_restarts: " + b"9" * 5000, "it must be a whole number", id="number of 5,000 digits"),
        pytest.param(b"timeout: " + b"9" * 5000 + b"h", "it must be a duration", id="duration of 5,000 digits"),
        pytest.param(b"dataset_size: " + b"9" * 5000, "it must be a size", id="size of 5,000 digits"),
        pytest.param(
            b"zone: !!python/object/apply:os.system [id]", "line 1: `zone`: this is a list", id="tag of a list"
        ),
        pytest.param(b"zone: !!python/name:os.system x", "line 1: `zone`: one plain value is expected", id="tag"),
        pytest.param(b"? [project]\n: theirs", "line 1: a key is one word", id="key that is a list"),
        pytest.param(b"zone: \xff\xfe", "is not UTF-8 text", id="no UTF-8"),
        pytest.param(b"# x\n" * 100_000, "it is larger than 256 KiB", id="400 kB"),
        pytest.param(
            b"labels: {" + b",".join(b"k%d" % n for n in range(25_000)) + b"}", "more than 20000 values", id="keys"
        ),
        pytest.param(b'quota_project: "a\\r\\nX-Evil: 1"', "`quota_project` is `", id="header"),
        pytest.param(b'project: "a\\0b"', "it has control characters", id="NUL in a project"),
        pytest.param(b'startup_script: "a\\0b"', "line 1: `startup_script`", id="NUL in a path"),
        pytest.param(b'ssh_key: "a\\0b"', "it has control characters", id="NUL in the path of a key"),
        pytest.param(b'setup: "a\\0b"', "it has control characters", id="NUL in a script"),
    ],
)
def test_project_file_invalid_value_is_one_error(victim: Console, sandbox: Sandbox, text: bytes, why: str) -> None:
    (victim.folder / "tpuctl.yaml").write_bytes(text)

    out, err, code = victim("list")

    assert (out, code, requests(sandbox)) == ("", 2, [])
    assert why in err
    assert len(err) < 8000


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({"TPUCTL_QUOTA_PROJECT": "a\r\nX-Evil: 1"}, id="quota project"),
        pytest.param({"CLOUDSDK_BILLING_QUOTA_PROJECT": "a\nb"}, id="quota project of gcloud"),
        pytest.param({"TPUCTL_QUOTA_PROJECT": "€"}, id="no header can hold it"),
        pytest.param({"TPUCTL_PROJECT": "a\r\nb"}, id="project"),
        pytest.param({"TPUCTL_IMPERSONATE_SERVICE_ACCOUNT": "a@b.c\r\nd"}, id="service account"),
    ],
)
def test_header_value_with_line_ends_is_refused(offline: Console, environ: Mapping[str, str]) -> None:
    _, err, code = replace(offline, environ={**offline.environ, "TPUCTL_PROJECT": "mine", **environ})("list")

    assert (code, err[:7]) == (2, "error: ")


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "1 TB"])
def test_user_file_not_a_regular_file_is_one_error(tpuctl: Console, kind: str) -> None:
    file = Path(tpuctl.environ["HOME"]) / ".config" / "tpuctl" / "config.yaml"
    file.parent.mkdir(parents=True)
    match kind:
        case "pipe":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
        case "device":
            file.symlink_to("/dev/zero")
        case _:
            sparse(file)

    _, err, code = tpuctl("list")

    assert (code, err.startswith(f"error: cannot read {file}: ")) == (2, True)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_project_file_not_a_regular_file_is_ignored(tpuctl: Console, kind: str) -> None:
    file = tpuctl.folder / "tpuctl.yaml"
    match kind:
        case "pipe":
            os.mkfifo(file)
        case "device":
            file.symlink_to("/dev/zero")
        case _:
            file.mkdir()

    assert tpuctl("list")[2] == 0
    assert tpuctl("check", "tpuctl.yaml")[2] == 2


@pytest.mark.parametrize("depth", [YAML_MAX_DEPTH, YAML_MAX_DEPTH + 1])
def test_yaml_depth_limit_is_exact(depth: int) -> None:
    text = "[" * depth + "]" * depth
    if depth == YAML_MAX_DEPTH:
        assert compose_yaml(text, "f.yaml") is not None
        return
    with pytest.raises(InvalidInputError, match=f"f.yaml line 1: nested deeper than {YAML_MAX_DEPTH} levels"):
        compose_yaml(text, "f.yaml")


def test_yaml_aliases_within_the_limits_are_read(tmp_path: Path) -> None:
    file = tmp_path / "tpuctl.yaml"
    file.write_text("labels: &common {team: vision}\ntags: [&one a, *one]\n")

    assert load_config_file(file).entries["tags"].value == ("a", "a")
    with pytest.raises(SettingError, match="more than 3 values"):
        compose_yaml("[a, b, c, d]", "f", error=SettingError, most=3)


ONE_OFF = ["run", "n", "--up", "v4-8", "--zone", ZONE, "--rm", "--no-sync", "--", "true"]


@pytest.mark.parametrize(
    ("link", "command"),
    [
        pytest.param("logs/worker-0.log", ["run", "n", "--log-dir", "logs", "--", "true"], id="a log"),
        pytest.param("tpuctl-logs/.gitignore", ONE_OFF, id="gitignore"),
        pytest.param("tpuctl-logs", ONE_OFF, id="the folder for logs"),
        pytest.param("tpuctl-logs/n", ONE_OFF, id="a node's folder"),
        pytest.param("got/1", ["scp", "pod:x", "got"], id="a worker's folder"),
    ],
)  # fmt: skip
def test_symlinks_of_a_repository_do_not_redirect_output_files(
    tpuctl: Console, sandbox: Sandbox, link: str, command: list[str]
) -> None:
    put(sandbox, "n")
    put(sandbox, "pod", acceleratorType="v4-32")
    key = tpuctl.folder.parent / "home" / "keys"
    key.mkdir()
    is_file = "." in link
    (key / "authorized_keys").write_text("mine\n")
    place = tpuctl.folder / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(key / "authorized_keys" if is_file else key)

    out, err, code = tpuctl(*command)

    assert (out, code) == ("", 2)
    assert f"{place.name}` is a symlink" in err or f"{place}`: it is a symlink" in err
    assert {file.name: file.read_text() for file in key.iterdir()} == {"authorized_keys": "mine\n"}
