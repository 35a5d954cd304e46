"""Configuration files: find, read with line numbers, reject with the line, and change one line only."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tpuctl.config import sources
from tpuctl.config.settings import ConfigEntry, ConfigFile
from tpuctl.config.sources import load_config_file, set_in_config_file, unset_in_config_file, user_config_path
from tpuctl.errors import SettingError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tpuctl.yaml"


def test_find_project_file_searches_up_to_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    deep = home / "repo" / "src" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "tpuctl.yaml").write_text("")

    assert sources.find_project_file(deep, home=home) is None
    (home / "repo" / "tpuctl.yaml").write_text("")
    (deep / "tpuctl.yaml").mkdir()  # a folder of that name is ignored
    assert sources.find_project_file(deep, home=home) == home / "repo" / "tpuctl.yaml"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/x/tpuctl/config.yaml"),
        ({"XDG_CONFIG_HOME": "relative", "HOME": "/h"}, "/h/.config/tpuctl/config.yaml"),
        ({"HOME": "/h"}, "/h/.config/tpuctl/config.yaml"),
    ],
)
def test_user_file_follows_xdg(environ: dict[str, str], expected: str) -> None:
    assert user_config_path(environ) == Path(expected)


def test_load_keeps_text_and_lines(file: Path) -> None:
    file.write_text(
        "# TPUs of the team\nzone: us-central2-b\nversion: 1.10\nsandbox: yes\nlabels:\n  on: off\ntags: [a, 7]\n"
    )

    assert load_config_file(file) == ConfigFile(
        file,
        {
            "zone": ConfigEntry("us-central2-b", 2),
            "version": ConfigEntry("1.10", 3),
            "sandbox": ConfigEntry("yes", 4),
            "labels": ConfigEntry({"on": "off"}, 5),
            "tags": ConfigEntry(("a", "7"), 7),
        },
    )


GRANT = "zone: us-central2-b, type: v4, tier: spot, count: 8"


def test_load_grants_as_mappings_or_texts(file: Path) -> None:
    file.write_text(
        "grants:\n  # of the research cloud\n  - zone: us-central2-b\n    type: v4\n    tier: on-demand\n    count: 32\n"
        "    until: 2026-12-31\n  - zone=us-central2-b,type=v4-8,tier=spot,count=1\n"
    )

    assert load_config_file(file).entries["grants"] == ConfigEntry(
        (
            {"zone": "us-central2-b", "type": "v4", "tier": "on-demand", "count": "32", "until": "2026-12-31"},
            {"zone": "us-central2-b", "type": "v4-8", "tier": "spot", "count": "1"},
        ),
        1,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"grants: {{{GRANT}}}\n",
            " line 1: `grants`: this is a mapping; it must be a list of entries with zone, type, tier, count, until",
        ),
        ("grants: v4\n", " line 1: `grants`: it must be a list of entries with zone, type, tier, count, until"),
        (
            f"grants:\n- {{{GRANT}}}\n- {{{GRANT}, utnil: 2026-12-31}}\n",
            " line 3: `grants`: unknown key `utnil`; did you mean `until`?",
        ),
        (
            f"grants:\n- {{{GRANT}}}\n- zone: us-central2-b\n  type: v4\n",
            " line 3: `grants`: it lacks `tier`, `count`; an entry has zone, type, tier, count, until",
        ),
        ("grants:\n- zone: us-central2-b\n  tpye: v4\n", " line 3: `grants`: unknown key `tpye`; did you mean `type`?"),
        (
            f"grants:\n- {{{GRANT}}}\n- {{{GRANT.replace('v4', 'v4-9')}}}\n",
            " line 3: `grants`: `type` is `v4-9`: did you mean `v4-8`?",
        ),
        (
            f"grants:\n- {{{GRANT}, until: soon}}\n",
            " line 2: `grants`: `until` is `soon`: it must be a day like 2026-12-31",
        ),
        (f"grants:\n- {{{GRANT}, zone: b}}\n", " line 2: duplicate key `grants.zone`"),
        ("grants:\n- [a]\n", " line 2: `grants`: one plain value is expected here"),
        ("tags: [{a: b}]\n", " line 1: `tags`: one plain value is expected here"),
    ],
)
def test_load_invalid_grant_names_its_own_line(file: Path, text: str, message: str) -> None:
    file.write_text(text)

    with pytest.raises(SettingError) as caught:
        load_config_file(file)

    assert caught.value.message == f"{file}{message}"


def test_set_value_grants_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("grants:\n- zone: a # old\n  count: 1\n# next\nzone: z\n")

    set_in_config_file(file, "grants", "zone=us-central2-b,type=v4,tier=spot,count=8,until=2026-12-31;")

    assert file.read_text() == (
        "grants: [{zone: us-central2-b, type: v4, tier: spot, count: 8, until: 2026-12-31}]\n# next\nzone: z\n"
    )
    assert load_config_file(file).entries["grants"].line == 1


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "\ufeff"])
def test_load_empty_or_absent_file_has_no_entries(file: Path, text: str) -> None:
    assert load_config_file(file) == ConfigFile(file, {})
    file.write_text(text)
    assert load_config_file(file) == ConfigFile(file, {})


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("a: b\n", " line 1: unknown key `a`", "run `tpuctl config show` to see every setting"),
        ("\nzoen: x\n", " line 2: unknown key `zoen`", "did you mean `zone`?"),
        ("internal-ips: true\n", " line 1: unknown key `internal-ips`", "did you mean `internal_ips`?"),
        ("zone: a\nzone: b\n", " line 2: duplicate key `zone`, first in line 1", None),
        ("labels: {a: 1, a: 2}\n", " line 1: duplicate key `labels.a`", None),
        ("zone: [a]\n", " line 1: `zone`: this is a list; it must be one value", None),
        ("tags: {a: b}\n", " line 1: `tags`: this is a mapping; it must be a list", None),
        ("labels: a\n", " line 1: `labels`: it must be a mapping of keys to values", None),
        ("zone:\n", " line 1: `zone` has no value", None),
        ("tags:\n- [a]\n", " line 2: `tags`: one plain value is expected here", None),
        ("zone: !!python/name:os.system\n", " line 1: `zone`: one plain value is expected here", None),
        ("- zone\n", " line 1: expected `key: value` lines", "an example line: `zone: us-central2-b`"),
        (
            "hooks: rm -rf /\n",
            " line 1: `hooks` is not read from a file",
            "commands that run on this machine can only be given on the command line",
        ),
        (
            "zone: a\nb: c: d\n",
            " line 2 column 5: not valid YAML: mapping values are not allowed in this context",
            None,
        ),
        ("zone: a\n---\nzone: b\n", " line 2 column 1: not valid YAML: but found another document", None),
    ],
)
def test_load_invalid_file_names_file_and_line(file: Path, text: str, message: str, hint: str | None) -> None:
    file.write_text(text)

    with pytest.raises(SettingError) as caught:
        load_config_file(file)

    assert (caught.value.message, caught.value.hint) == (f"{file}{message}", hint)


@pytest.mark.parametrize(
    ("content", "message"), [(b"zone: \xff\n", " is not UTF-8 text"), (b"zone: \x00\n", ": not valid YAML")]
)
def test_load_bytes_that_are_not_utf8_is_an_error(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)

    with pytest.raises(SettingError) as caught:
        load_config_file(file)

    assert caught.value.message.startswith(f"{file}{message}")


SETS = [
    ("", "zone", "a-b1-c", "zone: a-b1-c\n"),
    ("# top\nproject: p", "zone", "a-b1-c", "# top\nproject: p\nzone: a-b1-c\n"),
    ("zone: old # why\n\n# end\n", "zone", "new", "zone: new\n\n# end\n"),
    ("zone: 'o#ld'\r\nproject: p\r\n", "zone", "new", "zone: new\r\nproject: p\r\n"),
    ("zone:\nproject: p\n", "zone", "new", "zone: new\nproject: p\n"),
    (
        "labels:\n  a: b # x\n# about zones\nzone: z\n",
        "labels",
        "c=d,e=",
        'labels: {c: d, e: ""}\n# about zones\nzone: z\n',
    ),
    ("tags:\n- a\n- b\n\nzone: z\n", "tags", "c,d e", 'tags: [c, "d e"]\n\nzone: z\n'),
    ("tags: # ours\n- a\nzone: z\n", "tags", "c", "tags: [c]\nzone: z\n"),
    ("description: |\n  long\n\n  text\n# end\n", "description", "a: b #c", 'description: "a: b #c"\n# end\n'),
]


@pytest.mark.parametrize(
    "value", ["a: b", "# c", "'\"\\", "null", "~ \u2028[", "\x7f\x85\u2029", "\t é😀 ", "a\nb\n", "- x", "{}"]
)
def test_set_value_any_text_round_trips(file: Path, value: str) -> None:
    file.write_text("description: old # keep\n")

    set_in_config_file(file, "description", value)

    assert load_config_file(file) == ConfigFile(file, {"description": ConfigEntry(value, 1)})


@pytest.mark.parametrize(("before", "key", "value", "after"), SETS)
def test_set_value_keeps_every_other_line(file: Path, before: str, key: str, value: str, after: str) -> None:
    file.write_text(before, newline="")

    set_in_config_file(file, key, value)

    assert file.read_bytes().decode() == after
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["tpuctl.yaml"]


def test_set_value_creates_folders_and_keeps_symlinks(tmp_path: Path) -> None:
    set_in_config_file(tmp_path / "new" / "config.yaml", "endpoint", "https://example.com/")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "new" / "config.yaml")
    set_in_config_file(tmp_path / "link.yaml", "zone", "us-central2-b")

    assert (tmp_path / "link.yaml").is_symlink()
    assert (tmp_path / "new" / "config.yaml").read_text() == "endpoint: https://example.com/\nzone: us-central2-b\n"


@pytest.mark.parametrize(
    ("before", "key", "value", "message"),
    [
        ("", "zoen", "x", "unknown setting `zoen`"),
        ("", "timeout", "soon", "{file}: `timeout` is `soon`: it must be a duration like 90s, 30m, 2h or 1h30m"),
        ("", "grants", "zone=b", "{file}: `grants` is never read from a project file"),
        ("", "endpoint", "https://e", "{file}: `endpoint` is never read from a project file"),
        ("{zone: old, project: p}\n", "zone", "z", "{file} has a layout in which `zone` cannot be changed"),
        ("{project: p}\n", "zone", "z", "{file} has a layout in which `zone` cannot be changed"),
        ("tags: &t [a]\nscopes: *t\n", "scopes", "b", "{file} has a layout in which `scopes` cannot be changed"),
        ("zone: a\nzone: b\n", "zone", "c", "{file} has a layout in which `zone` cannot be changed"),
    ],
)
def test_set_value_refused_change_keeps_the_file(file: Path, before: str, key: str, value: str, message: str) -> None:
    file.write_text(before)

    with pytest.raises(SettingError) as caught:
        set_in_config_file(file, key, value)

    assert (caught.value.message, file.read_text()) == (message.format(file=file), before)


@pytest.mark.parametrize(
    ("before", "key", "after"),
    [
        ("# top\nzone: z # x\nproject: p\n", "zone", "# top\nproject: p\n"),
        ("labels:\n  a: b\n  c: d\n# next\nzone: z\n", "labels", "# next\nzone: z\n"),
        ("zoen: typo\nzone: z", "zoen", "zone: z"),
        ("zone: z", "zone", ""),
    ],
)
def test_unset_removes_only_the_lines_of_the_key(file: Path, before: str, key: str, after: str) -> None:
    file.write_text(before)

    assert (unset_in_config_file(file, key), file.read_text()) == (True, after)
    assert (unset_in_config_file(file, key), file.read_text()) == (False, after)
