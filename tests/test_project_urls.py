"""The addresses of the project are those of pyproject.toml, wherever they stand."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = re.compile(
    r"https://(?:github\.com/tpuctl|raw\.githubusercontent\.com/tpuctl|tpuctl\.github\.io)[^\s\"'`)\]>]*"
)
# Not the tests, which have made-up addresses.
FOLDERS = ("docs", "examples", "src", ".github")
KINDS = {".html", ".md", ".py", ".toml", ".yaml", ".yml", ""}


def test_addresses_are_those_of_the_project() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        urls = tomllib.load(file)["project"]["urls"]
    raw = urls["Repository"].replace("github.com", "raw.githubusercontent.com")
    # The tarball or the git URL of the repository is one of its addresses, another repository is not.
    known = re.compile("|".join(rf"{re.escape(url.rstrip('/'))}(?:[/#.].*)?" for url in (*urls.values(), raw)))

    files = [*ROOT.glob("*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    found = {
        (str(path.relative_to(ROOT)), address)
        for path in files
        if path.suffix in KINDS and path.is_file()
        for address in ADDRESS.findall(path.read_text("utf-8"))
    }

    assert {("pyproject.toml", url) for url in urls.values()} <= found
    assert {(name, address) for name, address in found if not known.fullmatch(address)} == set()
