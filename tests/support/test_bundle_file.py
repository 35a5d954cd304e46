"""Where a bundle is written to, and what is refused before anything is gathered."""

from __future__ import annotations

import json
import stat

import pytest

from tests.conftest import Console
from tests.support.conftest import Site, opened

_IS_THERE = "error: `{path}` already exists\n  hint: name another with `--file FILE`, or replace it with `--force`\n"


def test_existing_file_is_replaced_only_with_force(tpuctl: Console, one_worker: Site) -> None:
    path = tpuctl.folder / "mine.tar.gz"
    path.write_text("mine")
    words = ("bundle", "demo", "--no-workers", "--file", "mine.tar.gz")

    out, err, code = tpuctl(*words)
    assert (out, err.startswith(_IS_THERE.format(path=path)), code) == ("", True, 8)
    assert path.read_text() == "mine"
    assert tpuctl(*words, "--force")[::2] == ("mine.tar.gz\n", 0)
    assert (stat.S_IMODE(path.stat().st_mode), "node.json" in opened(path)) == (0o600, True)
    assert list(tpuctl.folder.iterdir()) == [path]


def test_default_file_name_has_node_and_time(tpuctl: Console, one_worker: Site) -> None:
    out, err, code = tpuctl("bundle", "demo", "--no-workers", "-o", "json")

    summary = json.loads(out)
    path = tpuctl.folder / "tpuctl-bundle-demo-20260101T000000Z.tar.gz"
    assert (code, summary["path"], summary["size"]) == (0, str(path), path.stat().st_size)
    assert summary["missing"] == [{"path": "workers", "why": "skipped: `--no-workers`"}]
    assert "warning" not in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max-size", "1M"), "`--max-size` is too small for a bundle"),
        (("--max-size", "much"), "`--max-size much`: it must be a size like 1.2TB or 500GiB"),
        (("--timeout", "forever"), "a bundle needs a time limit, not `forever`"),
        (("-o", "jsn"), "`jsn` is not one of"),
        (("--worker", "7"), "`demo` has no worker 7"),
        (("--file", "no/such/folder/x"), "error: folder `"),
        (("--file", "."), "` is a folder"),
    ],
)
def test_invalid_options_fail_before_collecting(
    tpuctl: Console, one_worker: Site, options: tuple[str, ...], message: str
) -> None:
    out, err, code = tpuctl("bundle", "demo", *options)

    assert (out, code, message in err) == ("", 2, True)
    assert list(tpuctl.folder.iterdir()) == []


def test_write_failure_is_reported(tpuctl: Console, site: Site) -> None:
    out, err, code = tpuctl("bundle", "demo", "--no-workers", "--file", "/proc/x.tar.gz")

    assert (out, code) == ("", 1)
    assert err.startswith("error: cannot write the bundle: ")
    assert "  hint: its parts are stored in `" in err


def test_bundle_on_terminal_is_rejected(tpuctl: Console, site: Site) -> None:
    _, err, code = tpuctl("bundle", "demo", "--file", "-", terminal=True)

    assert (code, "cannot write a bundle to a terminal" in err) == (2, True)


def test_home_folder_is_hidden(one_worker: Site) -> None:
    home = one_worker.tpuctl.environ["HOME"]
    # A finding names this file.
    made = one_worker.bundle("--no-workers", "--ssh-key", f"{home}/no-such-key")

    assert [
        path for path in ("doctor.json", "settings.json", "versions.json") if home.encode() in made.files[path]
    ] == []
    assert made.files["doctor.json"].count(b"~/") > 0
