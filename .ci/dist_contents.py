"""Check what is in dist/: the wheel has all that runs and nothing else, the sdist has what git has, no link is relative."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from pathlib import Path

DIST = Path(__file__).resolve().parents[1] / "dist"
# What a link or a picture of Markdown leads to.
LINK = re.compile(r"\]\(([^)\s]+)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
METADATA = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")


def problems() -> Iterator[str]:
    """Yield what is wrong, one line each."""
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    project = wheel.name.removesuffix("-py3-none-any.whl")
    with tarfile.open(sdist) as archive:
        source = {name.removeprefix(f"{project}/") for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        times = {entry.filename: datetime(*entry.date_time, tzinfo=UTC) for entry in archive.infolist()}
        description = message_from_bytes(archive.read(f"{project}.dist-info/METADATA")).get_payload()

    expected = {f"{project}.dist-info/{name}" for name in METADATA}
    expected |= {name.removeprefix("src/") for name in source if name.startswith("src/")}
    expected |= {
        f"{project}.data/data/share/man/{name.removeprefix('docs/man/')}"
        for name in source
        if name.startswith("docs/man/")
    }
    yield from _differences(wheel.name, set(times), expected)
    # With the tests, and what they read: distributions run them.
    tracked = subprocess.run(["git", "ls-files"], cwd=DIST.parent, capture_output=True, text=True, check=True)
    yield from _differences(sdist.name, source, {*tracked.stdout.splitlines(), "PKG-INFO"})

    built = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    for name, time in times.items():
        # A zip file has times in steps of two seconds.
        if not timedelta(0) <= built - time < timedelta(seconds=2):
            yield f"{wheel.name}: `{name}` has the time {time}, not {built}"

    headings = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in HEADING.findall(description)}
    for link in LINK.findall(description):
        if not link.startswith("https://") and link.removeprefix("#") not in headings:
            yield f"{wheel.name}: the link `{link}` of the description leads nowhere"


def _differences(archive: str, found: set[str], expected: set[str]) -> Iterator[str]:
    for name in sorted(expected - found):
        yield f"{archive}: `{name}` is missing"
    for name in sorted(found - expected):
        yield f"{archive}: `{name}` does not belong into it"


if __name__ == "__main__":
    found = list(problems())
    sys.stderr.writelines(f"{line}\n" for line in found)
    sys.exit(1 if found else 0)
