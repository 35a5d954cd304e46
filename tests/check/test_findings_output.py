"""Output of findings: the page of a terminal, the lines of a pipe, names, JSON; each compared whole."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from tpuctl.check.facts import Absent, BucketUse, CheckFacts, Purpose, WantedNode
from tpuctl.check.findings import (
    CheckReport,
    CheckRule,
    EnableService,
    Finding,
    Level,
    Remedy,
    RuleResult,
    evaluate_rules,
    warning_line,
)
from tpuctl.check.report_rendering import finding_lines, findings_view, report_summary, wanted_to_json
from tpuctl.models.node import Tier
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName
from tpuctl.output.terminal import OutputFormat, StandardStreams, Terminal, show_view

WANTED = WantedNode(
    project="vision",
    zone="us-central2-b",
    spec=NodeSpec(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base", tier=Tier.SPOT),
    name=NodeName("vision", "us-central2-b", "trainer"),
    purpose=Purpose.TRAIN,
    buckets=(BucketUse("data-eu", "images"), BucketUse("ckpt")),
)
FACTS = CheckFacts(now=datetime(2026, 1, 1, tzinfo=UTC), wanted=WANTED, project=Absent())
MAKE = "gcloud storage buckets create gs://data-us-central2 --location=US-CENTRAL2 --project=vision"
FAR = RuleResult(
    level=Level.ERROR,
    subject="gs://data-eu",
    text="the bucket is in EUROPE-WEST4, the TPU in us-central2 (zone us-central2-b)",
    why="each TB that is read costs $46.57 to $139.70 (list price of 2026-06); reads from another continent are slow too",
    remedies=(Remedy("make a bucket where the TPU is", MAKE), Remedy("or rent a TPU where the data is")),
    facts={"location": "EUROPE-WEST4", "regions": ("us-central2",)},
)
OFF = RuleResult(
    level=Level.ERROR,
    subject="tpu.googleapis.com",
    text="the API is not enabled in `vision`",
    remedies=(Remedy.by(EnableService("vision", "tpu.googleapis.com"), "enable it"),),
)
SOFT = RuleResult(level=Level.NOTE, subject="gs://ckpt", text="what is deleted is kept, and billed, for 7 days")
DEAR = RuleResult(
    level=Level.WARNING, subject="gs://data-eu", text="the class is COLDLINE", why="reads are charged; by the GiB"
)
BLIND = RuleResult(level=Level.UNKNOWN, subject="gs://ckpt", text="its policy could not be read", is_passing=True)


def rule(id_: str, *found: RuleResult) -> CheckRule[CheckFacts]:
    return CheckRule(id_, f"title of {id_}", "", lambda _: found)


HEADER = "level\tid\tsubject\ttext\twhy\tadvice\n"
RULES = (
    *(rule("TPU101", FAR), rule("TPU105", DEAR), rule("TPU107", SOFT), rule("TPU201", BLIND)),
    *(rule("TPU501", OFF), rule("TPU601")),
)


def report(*accepted: str) -> CheckReport:
    return evaluate_rules(FACTS, RULES, accepted=accepted)


def shown(
    what: CheckReport,
    form: OutputFormat = OutputFormat.TABLE,
    *,
    person: bool = False,
    environ: dict[str, str] | None = None,
    sandbox: bool = False,
    **options: Any,
) -> tuple[str, str]:
    """Return what is written to stdout and to stderr."""
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(
        StandardStreams(io.StringIO(), out, err, person, person, person, options.pop("width", 80)), environ or {}
    )
    about = {"target": wanted_to_json(WANTED)}
    view = findings_view(what, about=about, elapsed=timedelta(milliseconds=640), **options)
    show_view(view, terminal, form, sandbox=sandbox)
    return out.getvalue(), err.getvalue()


@pytest.mark.parametrize("person", [True, False], ids=["terminal", "pipe"])
def test_text_shows_worst_first_with_remedies(person: bool) -> None:
    out, err = shown(report("TPU501"), person=person, environ={"NO_COLOR": "1"}, can_fix=True)

    assert out == (
        "error    TPU101  gs://data-eu\n"
        "  the bucket is in EUROPE-WEST4, the TPU in us-central2 (zone us-central2-b)\n"
        "  why: each TB that is read costs $46.57 to $139.70 (list price of 2026-06);\n"
        "       reads from another continent are slow too\n"
        "  → make a bucket where the TPU is:\n"
        f"      {MAKE}\n"
        "  → or rent a TPU where the data is\n"
        "\n"
        "warning  TPU105  gs://data-eu\n"
        "  the class is COLDLINE\n"
        "  why: reads are charged; by the GiB\n"
        "\n"
        "warning  TPU501  tpu.googleapis.com  (accepted)\n"
        "  the API is not enabled in `vision`\n"
        "  → enable it (`--fix` does this):\n"
        "      gcloud services enable tpu.googleapis.com --project=vision\n"
        "\n"
        "unknown  TPU201  gs://ckpt\n"
        "  its policy could not be read\n"
        "\n"
        "note     TPU107  gs://ckpt\n"
        "  what is deleted is kept, and billed, for 7 days\n"
        "\n"
    )
    assert err == "1 error, 2 warnings, 1 unknown, 1 note; 6 rules examined in 0.6 s\n"


def test_verbose_names_what_was_examined() -> None:
    fine = evaluate_rules(FACTS, [rule("TPU602"), rule("TPU601")])

    assert shown(fine, person=True, environ={"NO_COLOR": "1"}, verbose=True) == (
        "examined:\n  TPU601  title of TPU601\n  TPU602  title of TPU602\n",
        "no problem found; 2 rules examined in 0.6 s\n",
    )
    assert shown(fine, person=True) == ("", "no problem found; 2 rules examined in 0.6 s\n")
    assert shown(fine, OutputFormat.TSV, verbose=True)[0] == HEADER


def test_findings_are_grouped_by_subject() -> None:
    far, near = (
        RuleResult(level=Level.NOTE, subject="gs://b", text="x"),
        RuleResult(level=Level.NOTE, subject="gs://a", text="y"),
    )
    what = evaluate_rules(FACTS, [rule("TPU101", far), rule("TPU102", near), rule("TPU103", far)])

    out, _ = shown(what, person=True, environ={"NO_COLOR": "1"})

    headers = [line for line in out.splitlines() if line.startswith("note")]
    assert headers == ["note     TPU101  gs://b", "note     TPU103  gs://b", "note     TPU102  gs://a"]


@pytest.mark.parametrize(
    ("level", "code"),
    [(Level.ERROR, 31), (Level.WARNING, 33), (Level.UNKNOWN, 35), (Level.NOTE, 2)],
)
def test_levels_have_colours(level: Level, code: int) -> None:
    finding = Finding("TPU101", "", RuleResult(level=level, subject="b", text="t", remedies=(Remedy("do", "it"),)))

    assert list(finding_lines(finding, width=80, colored=True)) == [
        f"\x1b[{code}m{level:7}\x1b[0m  \x1b[1mTPU101  b\x1b[0m",
        "  t",
        "  → do:",
        "      \x1b[36mit\x1b[0m",
    ]


@pytest.mark.parametrize("person", [True, False], ids=["terminal", "pipe"])
def test_tsv_has_one_line_per_finding(person: bool) -> None:
    out, err = shown(report("all"), OutputFormat.TSV, person=person)

    assert out == (
        f"{HEADER}"
        "warning\tTPU101\tgs://data-eu\tthe bucket is in EUROPE-WEST4, the TPU in us-central2 (zone us-central2-b) (accepted)"
        f"\t{FAR.why}\tmake a bucket where the TPU is: `{MAKE}`; or rent a TPU where the data is\n"
        "warning\tTPU501\ttpu.googleapis.com\tthe API is not enabled in `vision` (accepted)\t"
        "\tenable it: `gcloud services enable tpu.googleapis.com --project=vision`\n"
        "unknown\tTPU201\tgs://ckpt\tits policy could not be read\t\t\n"
        f"note\tTPU105\tgs://data-eu\tthe class is COLDLINE (accepted)\t{DEAR.why}\t\n"
        "note\tTPU107\tgs://ckpt\twhat is deleted is kept, and billed, for 7 days\t\t\n"
    )
    assert err == "2 warnings, 1 unknown, 2 notes; 6 rules examined in 0.6 s\n"


def test_name_format_lists_ids_once() -> None:
    twice = evaluate_rules(FACTS, [rule("TPU105", DEAR, SOFT), rule("TPU101", FAR), rule("TPU601")])

    assert shown(twice, OutputFormat.NAME) == ("TPU101\nTPU105\n", "")


@pytest.mark.parametrize(("form", "read"), [(OutputFormat.JSON, json.loads), (OutputFormat.YAML, yaml.safe_load)])
def test_json_and_yaml_have_everything(form: OutputFormat, read: Any) -> None:
    what = evaluate_rules(FACTS, [rule("TPU101", FAR), rule("TPU601")], accepted=["TPU101"])
    out, err = shown(what, form, sandbox=True)

    assert err == ""
    assert read(out) == {
        "schemaVersion": 2,
        "target": {
            "project": "vision",
            "zone": "us-central2-b",
            "nodeId": "trainer",
            "acceleratorType": "v4-8",
            "topology": None,
            "runtimeVersion": "tpu-ubuntu2204-base",
            "tier": "spot",
            "creates": True,
            "purpose": "train",
            "buckets": ["gs://data-eu/images", "gs://ckpt"],
            "machine": None,
        },
        "summary": {"error": 0, "warning": 1, "unknown": 0, "note": 0},
        "findings": [
            {
                "id": "TPU101",
                "title": "title of TPU101",
                "level": "warning",
                "accepted": True,
                "subject": "gs://data-eu",
                "text": FAR.text,
                "why": FAR.why,
                "remedies": [
                    {"text": "make a bucket where the TPU is", "command": MAKE, "fixable": False},
                    {"text": "or rent a TPU where the data is", "command": None, "fixable": False},
                ],
                "facts": {"location": "EUROPE-WEST4", "regions": ["us-central2"]},
            },
        ],
        "examined": [
            {"id": "TPU101", "title": "title of TPU101"},
            {"id": "TPU601", "title": "title of TPU601"},
        ],
        "sandbox": True,
    }


@pytest.mark.parametrize(
    ("finding", "line"),
    [
        (
            Finding("TPU105", "", DEAR),
            "TPU105 gs://data-eu: the class is COLDLINE (reads are charged)",
        ),
        (Finding("TPU107", "", SOFT), f"TPU107 gs://ckpt: {SOFT.text}"),
        (
            Finding("TPU501", "", OFF, accepted=True),
            "TPU501 tpu.googleapis.com: the API is not enabled in `vision` (accepted)",
        ),
        (
            Finding("TPU601", "", RuleResult(level=Level.WARNING, subject="network lab", text="`lab` is old")),
            "TPU601 `lab` is old",
        ),
        (
            Finding("TPU1", "", RuleResult(level=Level.WARNING, subject="b", text="t\n", why="word " * 40)),
            f"TPU1 b: t ({'word ' * 22}word…)",
        ),
    ],
)
def test_warning_line_is_one_line(finding: Finding, line: str) -> None:
    assert warning_line(finding) == line


@pytest.mark.parametrize(
    ("levels", "elapsed", "text"),
    [
        ([], None, "no problem found; 1 rule examined"),
        ([Level.NOTE, Level.UNKNOWN, Level.UNKNOWN], None, "2 unknown, 1 note; 1 rule examined"),
        ([Level.WARNING, Level.ERROR], timedelta(seconds=2), "1 error, 1 warning; 1 rule examined in 2.0 s"),
    ],
)
def test_summary_counts_levels(levels: list[Level], elapsed: timedelta | None, text: str) -> None:
    found = [Finding("TPU101", "", RuleResult(level=level, subject="b", text="t")) for level in levels]

    assert report_summary(CheckReport(tuple(found), {"TPU101": ""}), elapsed) == text


def test_control_characters_are_escaped() -> None:
    evil = RuleResult(
        level=Level.ERROR, subject="a\x1b[2J", text="b\x1b]0;\x07\nc", why="\x9bd", remedies=(Remedy("\re", "f\x00g"),)
    )

    assert list(finding_lines(Finding("TPU101", "", evil), width=80, colored=False)) == [
        "error    TPU101  a\\x1b[2J",
        "  b\\x1b]0;\\x07\\nc",
        "  why: \\x9bd",
        "  → \\re:",
        "      f\\x00g",
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 200])
def test_lines_wrap_and_commands_stay_whole(width: int) -> None:
    lines = list(finding_lines(Finding("TPU101", "", FAR), width=width, colored=False))

    assert f"      {MAKE}" in lines
    assert max(len(line) for line in lines if MAKE not in line) <= min(max(width, 40), 100)


def test_inline_command_is_not_wrapped() -> None:
    result = RuleResult(
        level=Level.NOTE, subject="n", text=f"let it in (`{MAKE}`), or not; an odd ` is just ` a character `"
    )

    assert list(finding_lines(Finding("TPU604", "", result), width=60, colored=False)) == [
        "note     TPU604  n",
        "  let it in",
        f"  (`{MAKE}`),",
        "  or not; an odd ` is just ` a character `",
    ]


def soft(*names: str, level: Level = Level.NOTE, command: str | None = None) -> CheckRule[CheckFacts]:
    """Return a rule with the same finding for many buckets."""
    return rule(
        "TPU107",
        *(
            RuleResult(
                level=level, subject=f"gs://{name}", text=f"`gs://{name}` keeps it", remedies=(Remedy("do", command),)
            )
            for name in names
        ),
    )


@pytest.mark.parametrize(
    ("names", "level", "command", "blocks"),
    [
        ("abcde", Level.NOTE, "do it", 5),
        ("abcdef", Level.NOTE, "do it", 1),
        ("abcdef", Level.WARNING, None, 1),
        # Each has a command of its own.
        ("abcdef", Level.WARNING, "do it", 6),
    ],
)
def test_same_finding_of_many_subjects_is_grouped(names: str, level: Level, command: str | None, blocks: int) -> None:
    what = evaluate_rules(FACTS, [soft(*names, level=level, command=command)])

    out, _ = shown(what, person=True, environ={"NO_COLOR": "1"})

    assert out.count("TPU107") == blocks
    assert shown(what, OutputFormat.TSV)[0].count("TPU107") == len(names)


def test_grouped_finding_names_first_subjects() -> None:
    names = [f"b{number:02}" for number in range(50)]
    what = evaluate_rules(FACTS, [soft(*names), rule("TPU108", *(other(f"gs://{name}") for name in names))])

    out, err = shown(what, person=True, environ={"NO_COLOR": "1"})

    assert out == (
        "note     TPU107  gs://b00\n"
        "  `gs://b00` keeps it\n"
        "  → do\n"
        "  the same is true of gs://b01, gs://b02, gs://b03, gs://b04 and 45 more\n"
        "\n"
        "note     TPU108  gs://b00\n"
        "  it is empty\n"
        "  the same is true of gs://b01, gs://b02, gs://b03, gs://b04 and 45 more\n"
        "\n"
    )
    assert err == "100 notes; 2 rules examined in 0.6 s\n"


def other(subject: str) -> RuleResult:
    """Return a note that does not name its subject."""
    return RuleResult(level=Level.NOTE, subject=subject, text="it is empty")
