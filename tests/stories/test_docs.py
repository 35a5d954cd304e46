"""The examples of the README and the docs run as they are written, and the reference pages say what the code says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console

ROOT = Path(__file__).resolve().parents[2]
# `<!-- story: NAME; command 3 exits with 9 -->`, then an indented block: what a reader would paste into a shell. A command
# without a code ends with 0. The code is not in the block: an interactive zsh passes a comment to the command. Blocks of one
# page with the same name are one story, whose commands are counted through.
_STORY = re.compile(
    r"<!-- story: (?P<name>[\w-]+)(?P<exits>(?:; command \d+ exits with \d+)*) -->\n(?P<block>(?:    .*\n|\n)+)"
)
_EXIT = re.compile(r"command (\d+) exits with (\d+)")
_HERE_DOCUMENT = re.compile(r"<<'(\w+)'")
_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# The stories that run as a script, in processes of their own.
_SMOKE = ("README-sandbox", "script-to-model-model")


def _stories(*, is_smoke: bool) -> list[Any]:
    found: dict[str, tuple[str, dict[int, int]]] = {}
    for page in _PAGES:
        for match in _STORY.finditer(page.read_text("utf-8")):
            name = f"{page.stem}-{match['name']}"
            block, exits = found.get(name, ("", {}))
            exits |= {int(at): int(code) for at, code in _EXIT.findall(match["exits"])}
            found[name] = (block + match["block"], exits)
    return [
        pytest.param(block, exits, id=name)
        for name, (block, exits) in found.items()
        if _is_smoke(name, block) is is_smoke
    ]


def _is_smoke(name: str, block: str) -> bool:
    return name in _SMOKE or re.search(r"&$", block, re.MULTILINE) is not None


@pytest.mark.sshd
@pytest.mark.parametrize(("block", "exits"), _stories(is_smoke=False))
def test_story_runs_as_it_is_written(
    block: str, exits: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command ends with 0 or with the code that the story's mark has for it, in order, in a fresh home."""
    environ, folder = _environment(block, tmp_path, monkeypatch)
    shell = _Shell(environ, folder)
    for command, expected in _commands(block, exits):
        code, stderr = shell.run(command)
        assert (code, "Traceback" in stderr) == (expected, False), f"{command}\n{stderr}"


@pytest.mark.sshd
@pytest.mark.parametrize(("block", "exits"), _stories(is_smoke=True))
def test_story_runs_as_a_script(
    block: str, exits: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with the installed program, in one shell: what a new user reads first, and stories with background jobs."""
    script = ["set -e"]
    for command, code in _commands(block, exits):
        # `! command` would accept any code.
        script.append(f"code=0; {command} || code=$?; test $code -eq {code}" if code else command)

    environ, folder = _environment(block, tmp_path, monkeypatch)
    done = subprocess.run(
        ["sh", "-c", "\n".join(script)],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )

    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def _environment(block: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, str], Path]:
    """Return the environment of a reader who has installed tpuctl and set nothing, and a folder below the home.

    The programs of a story get the environment, too.
    """
    if re.search(r"(^|[|;] *)jq ", block, re.MULTILINE) and not shutil.which("jq"):
        pytest.skip("jq is not installed")
    folder = home / "work"
    folder.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    for name in [name for name in os.environ if name.startswith(("TPUCTL_", "CLOUDSDK_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TPUCTL_SANDBOX", "1")
    # A hook of a `watch` must end before the `watch` does: it gets the real time that a reader has.
    monkeypatch.setenv("TPUCTL_SANDBOX_SPEED", "60" if "--on-recover" in block else "300")
    return dict(os.environ), folder


def _commands(block: str, exits: dict[int, int]) -> Iterator[tuple[str, int]]:
    """Yield each command of a story, with its here-document and its continued lines, and the exit code it must have."""
    commands = list(_split_commands(block))
    assert set(exits) <= set(range(1, len(commands) + 1)), f"no such command: {exits}"
    for number, command in enumerate(commands, 1):
        yield command, exits.get(number, 0)


def _split_commands(block: str) -> Iterator[str]:
    """Yield the commands of a block, with their here-documents and continued lines."""
    lines = iter(re.sub(r"^    ", "", block, flags=re.MULTILINE).splitlines())
    for first in lines:
        command = first
        while command.endswith("\\"):
            command += "\n" + next(lines)
        if marker := _HERE_DOCUMENT.search(command):
            while command.rpartition("\n")[2] != marker[1]:
                command += "\n" + next(lines)
        if command.strip():
            yield command


@dataclass
class _Shell:
    """Runs the commands of a story: tpuctl in this process, everything else, pipes too, with `sh`."""

    environ: dict[str, str]
    folder: Path
    parameters: list[str] = field(default_factory=list)

    def run(self, command: str) -> tuple[int, str]:
        """Run one command; return its exit code and stderr."""
        words = _plain_words(command)
        match words:
            case ["export", assignment]:
                name, _, value = assignment.partition("=")
                self.environ[name] = value
                return 0, ""
            case ["set", "--", *parameters]:
                self.parameters = parameters
                return 0, ""
            case ["tpuctl", *arguments]:
                at = arguments.index("$@") if "$@" in arguments else len(arguments)
                arguments[at : at + 1] = self.parameters if at < len(arguments) else []
                _, stderr, code = Console(self.environ, self.folder, by_real_clock=True)(*arguments)
                return code, stderr
        done = subprocess.run(
            ["sh", "-ec", command],
            env=self.environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return done.returncode, done.stderr


def _plain_words(command: str) -> list[str] | None:
    """Return the words of a command, or None if only a shell can run it."""
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    return None if any(set(word) <= set("();<>|&") for word in words if word) else words


def test_there_are_stories() -> None:
    """The pattern that finds them is not broken, and matches each mark."""
    texts = [page.read_text("utf-8") for page in _PAGES]
    assert sum(len(_STORY.findall(text)) for text in texts) == sum(text.count("<!-- story: ") for text in texts)
    assert len(_stories(is_smoke=False)) >= 30
    assert len(_stories(is_smoke=True)) >= 2


def test_reference_pages_are_up_to_date() -> None:
    """`python docs/reference/generate.py` would change nothing."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/reference/generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
