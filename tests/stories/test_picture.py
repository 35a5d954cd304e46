"""The picture of the README shows what the story prints today, with the line that says that it is the sandbox."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from tests.conftest import Console
from tests.stories.module_file import load_module
from tpuctl.workers.worker_metrics import TOP_COLUMNS

ROOT = Path(__file__).resolve().parents[2]
# What depends on the machine's speed: how long things took, a worker's name, and what was seen on the way.
_DURATION = re.compile(r"\b(?:\d+[smhd])+\b(?: ago)?|(?<=hello from )[\w-]+$")
_NOTES = re.compile(r"HEALTH(?!Y)|(?<=READY) *HEALTHY")
_SPACES = re.compile(r"[\s\u2500-\u257f]+")


def _lines(text: str) -> list[str]:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [_SPACES.sub("", _NOTES.sub("", _DURATION.sub("", line))).strip() for line in plain.splitlines()]
    # Which states are seen on the way depends on when it is asked.
    return [line for line in lines if line and not line.startswith("•")]


def _drawn(picture: Path) -> str:
    """Return the text of a picture, line by line."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for element in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text"):  # noqa: S314  # our own file
        if "clip-path" in element.attrib:
            place = float(element.attrib["y"]), float(element.attrib["x"])
            rows.setdefault(place[0], []).append((place[1], element.text or ""))
    return "\n".join("".join(text for _, text in sorted(rows[y])) for y in sorted(rows)).replace("\xa0", " ")


def test_the_picture_of_the_readme_is_current(tpuctl: Console, fake_ssh: Callable[[str], None]) -> None:
    """`make picture` draws it anew."""
    fake_ssh("echo hello from demo-0")
    script = (ROOT / "examples" / "demo.sh").read_text("utf-8")
    tpuctl("--quiet", "sandbox", "fault", "unhealthy", "--node", "demo")
    what_stays = load_module(ROOT / "docs" / "picture.py").what_stays
    printed = ""
    for line in re.findall(r"^(?:run|    tpuctl) (.*)$", script, re.MULTILINE)[1:]:
        shown = "tpuctl " + line
        out, err, code = tpuctl(*shlex.split(line), terminal=True, width=106)
        assert code == 0, err
        # ssh's own output goes past this process's streams.
        out = "hello from demo-0" if line.startswith("ssh") else out
        printed += f"$ {shown}\n{what_stays(err)}\n{out}\n"

    drawn = _lines(_drawn(ROOT / "docs" / "demo.svg"))

    assert any("nothinghereisreal" in line for line in drawn)
    assert drawn == _lines(printed)


def test_the_picture_of_top_has_the_present_columns() -> None:
    text = _drawn(ROOT / "docs" / "top.svg")
    heading = next(line for line in text.splitlines() if line.startswith("WORKER"))

    named = re.search(r"tpuctl top trainer --once --columns (\S+)", (ROOT / "examples" / "top.sh").read_text("utf-8"))
    assert named is not None
    columns = {column.name: column.heading for column in TOP_COLUMNS}
    assert heading.replace(" ", "") == "".join(columns[name].replace(" ", "") for name in named[1].split(","))
    assert "!" in text
    assert "worker 2 is at launch" in text
