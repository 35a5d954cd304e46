"""Symlinks of a cloned repository where a user writes output: no file outside of the folder is created or changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.hostile.test_hostile_copies import files

JOB = "trainingInput:\n  scaleTier: CUSTOM\n  masterType: cloud_tpu\n"
LOG = "Traceback (most recent call last):\nStrangeError: never seen before\n"


@dataclass(frozen=True)
class Output:
    """A command that writes `name`, or a file in the folder `name`."""

    words: tuple[str, ...]
    name: str = "out"
    environ: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""
    is_folder: bool = False
    code: int = 2


OUTPUTS = {
    "ssh-config": Output(("ssh-config", "trainer", "--file", "{}")),
    "events": Output(("wait", "trainer", "--for", "ready", "--events", "{}")),
    "bundle": Output(("bundle", "trainer", "--force", "--no-workers", "--file", "{}")),
    "logs": Output(("run", "trainer", "--log-dir", "{}", "--", "true"), is_folder=True),
    "job": Output(("check", "--ai-platform", "job.yaml", "--write", "{}", "--yes"), "out.yaml"),
    "report": Output(("explain", "-", "--report", "{}"), stdin=LOG),
    "project": Output(("config", "set", "--here", "zone", "us-central2-b"), "tpuctl.yaml"),
    "summary": Output(
        ("wait", "trainer", "--for", "ready"), environ={"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "{}"}, code=0
    ),
}


def to_a_file(here: Path, outside: Path, name: str) -> str:
    (outside / "authorized_keys").touch()
    (here / name).symlink_to(outside / "authorized_keys")
    return name


def to_a_new_file(here: Path, outside: Path, name: str) -> str:
    (here / name).symlink_to(outside / "new")
    return name


def through_a_link(here: Path, outside: Path, name: str) -> str:
    (here / "second").symlink_to(outside)
    (here / name).symlink_to("second/authorized_keys")
    return name


def in_a_folder(here: Path, outside: Path, name: str) -> str:
    (here / "folder").symlink_to(outside)
    return f"folder/{name}"


def by_its_full_path(here: Path, outside: Path, name: str) -> str:
    return str(here / to_a_file(here, outside, name))


def beside(here: Path, outside: Path, name: str) -> str:
    (here.parent / "beside").mkdir()
    to_a_file(here.parent / "beside", outside, name)
    return f"../beside/{name}"


def to_itself(here: Path, outside: Path, name: str) -> str:
    (here / name).symlink_to(name)
    return name


LINKS = (to_a_file, to_a_new_file, through_a_link, in_a_folder, by_its_full_path, beside, to_itself)


NAMELESS = {to_a_file, to_a_new_file, through_a_link}  # `config set` names no path, and reads the file first
ROWS = {
    f"{name} {link.__name__}": (output, link)
    for name, output in OUTPUTS.items()
    for link in LINKS
    if name != "project" or link in NAMELESS
}


@pytest.mark.parametrize(("output", "link"), ROWS.values(), ids=list(ROWS))
def test_output_follows_no_link_out_of_the_folder(
    tpuctl: Console, sandbox: Sandbox, output: Output, link: Callable[[Path, Path, str], str]
) -> None:
    sandbox.add_node("trainer", zone="us-central2-b")
    here, outside = tpuctl.folder, tpuctl.folder.parent / "outside"
    outside.mkdir()
    (here / "job.yaml").write_text(JOB)
    if output.is_folder and link is to_a_file:
        (here / output.name).symlink_to(outside)
        name = output.name
    else:
        name = link(here, outside, output.name)
    before = files(outside)
    environ = {**tpuctl.environ, **{key: text.format(name) for key, text in output.environ.items()}}
    console = replace(tpuctl, environ=environ)

    _, err, code = console(*(word.format(name) for word in output.words), piped=output.stdin)

    assert files(outside) == before
    assert code == output.code, err
    assert ("a symlink in it leads out of" in err) != ("a symlink to itself" in err), err


def test_output_follows_a_link_within_the_folder(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("trainer", zone="us-central2-b")
    (tpuctl.folder / "results").mkdir()
    (tpuctl.folder / "out").symlink_to("results/out")

    for name in ("ssh-config", "bundle"):
        tpuctl(*(word.format("out") for word in OUTPUTS[name].words))
        assert ((tpuctl.folder / "out").is_symlink(), (tpuctl.folder / "results" / "out").stat().st_size > 0) == (
            True,
            True,
        )
        (tpuctl.folder / "results" / "out").unlink()


def test_output_may_go_to_a_device_and_to_the_users_own_file(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("trainer", zone="us-central2-b")
    (tpuctl.folder / "null").symlink_to("/dev/null")
    own = Path(tpuctl.environ["HOME"], ".ssh", "tpuctl_config")
    own.parent.mkdir()
    own.symlink_to("../dotfiles")

    results = [
        tpuctl("wait", "trainer", "--for", "ready", "--events", place)[2]
        for place in ("null", "/dev/null", "/dev/stdout")
    ]
    written = tpuctl("ssh-config", "trainer", "--file", str(own))[2]

    assert (results, written, own.is_symlink()) == ([0, 0, 0], 0, True)
    assert "Host trainer trainer-0" in (own.parent.parent / "dotfiles").read_text()
