"""Write the reference pages from the code, so that they always agree with it. `--check` only reports whether they are up to date."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import diagrams
import json_fields
import knowledge
import yaml
from manual import manual_pages, walk_commands

from tpuctl.app.option_help import group_of, is_shared, write_options
from tpuctl.check.ai_platform import JOB_RULES
from tpuctl.check.findings import CheckRule, Level
from tpuctl.check.rules import CATEGORIES, RETIRED_RULES, RULES
from tpuctl.cli.help_topics import EXIT_CODES, Commands, Definitions, load_topic, topic_names
from tpuctl.cli.tree import command_tree
from tpuctl.config.settings import SETTINGS
from tpuctl.doctor.rule_catalogue import DOCTOR_RULES, PROJECT_RULES, REFERENCE_CHAPTERS
from tpuctl.errors import ExitCode

FOLDER = Path(__file__).resolve().parent
_NOTE = "<!-- made by docs/reference/generate.py -->"


def exit_codes() -> str:
    """Return the page of exit codes."""
    rows = "".join(f"| {int(code)} | {EXIT_CODES[code]} |\n" for code in ExitCode)
    return f"""{_NOTE}
# Exit codes

The codes are stable: a code keeps its meaning, so scripts may rely on it.

| code | meaning |
|---|---|
{rows}
With `-o json` an error is one JSON object on stderr: `{{"error": {{"kind", "message", "exit_code", "hint", "id"}}}}`. `kind` is a word for the
code (`no_capacity`, `quota`, `not_found`, `conflict`, `timed_out`, …). `id` is the argument for `tpuctl explain ID`: the id of the recognised
message, else the kind with dashes (`no-capacity`). On a terminal and in a pipe it is the last line of the error (`more: tpuctl explain ID`; not
with `--quiet`). `tpuctl explain exit-6` explains a code. If a pipe is closed early (`tpuctl list | head -1`), tpuctl exits silently with 141, the
code of SIGPIPE. If stdout cannot be written (a full disk), this is an error with exit code 1. If stderr or the file of `--events` cannot be
written, the exit code does not change.
"""


def settings() -> str:
    """Return the page of settings."""
    return f"""{_NOTE}
# Settings

The first of these sources that has a value wins: flag · `TPUCTL_*` variable · gcloud's and Google's own variables · `tpuctl.yaml` of the project
(searched upward from the working directory) · your own file (`$XDG_CONFIG_HOME/tpuctl/config.yaml`) · gcloud's active configuration · default.
`tpuctl config show` prints each value with its source; `tpuctl config path` prints the files.

A zone from gcloud's configuration is only the zone of new nodes: it does not limit `list`, and does not hide nodes in other zones.

A file that an option or a setting names is a regular file or a pipe, so `--env-file <(command)` works; a pipe that no program writes to is an error
after two seconds. Scripts and metadata values have at most 256 KiB, seeds of the sandbox 64 MiB, all other files 4 MiB. Text is UTF-8. An option
with an empty value, such as `--zone "$ZONE"` with an unset variable, is an error.

An access token is kept for the next command, until five minutes before it expires: in `tokens/` of the state folder, in a file of mode 0600 for each
credentials file. This is done for keys of service accounts and for logins of users, not for impersonated accounts; gcloud and the metadata server keep
the tokens that tpuctl gets from them. A rejected token is removed. `TPUCTL_TOKEN_CACHE=0` turns it off.

"In files" names the files that a key is read from: your own, both, or also a project file that you trust.

<div class="stacked" markdown>

| key | meaning | default | flag, variables, gcloud | in files |
|---|---|---|---|---|
{"".join(_setting_rows())}
</div>

## Keys that need trust

A `tpuctl.yaml` may come with a cloned repository. Settings that could redirect or impersonate your requests are never read from it. The keys below
apply only after you have [trusted the file](../how-to/trust.md) with `tpuctl trust`:

| key | effect in a project file |
|---|---|
{"".join(f"| `{spec.key}` | {spec.effect} |{chr(10)}" for spec in SETTINGS.values() if spec.effect)}
## Examples

    # tpuctl.yaml
    project: vision-research
    zone: us-central2-b
    type: v4-8
    labels: {{team: vision}}
    data_buckets: [gs://vision-data/train]
    checkpoint_buckets: [gs://vision-checkpoints]

Only in your own file: [grants](../check.md#grants).

    # config.yaml
    grants:
      - {{zone: us-central2-b, type: v4, tier: spot, count: 32, until: 2026-12-31}}
    no_billing_outside_grants: true
"""


def _setting_rows() -> Iterator[str]:
    for spec in SETTINGS.values():
        names = (*(spec.flag or "").split("|"), spec.environment, *spec.foreign, spec.gcloud)
        sources = " ".join(_code(name) for name in names if name)
        yield f"| `{spec.key}` | {spec.description} | {_code(spec.default)} | {sources} | {spec.policy or '—'} |\n"


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""


def commands() -> str:
    """Return the list of all commands, in the sections of `tpuctl --help`, and the options of tpuctl itself."""
    tree = command_tree()
    sections = "\n".join(
        f"## {title}\n\n| command | what it does |\n|---|---|\n"
        + "".join(f"| [`tpuctl {name}`](commands/{name}.md) | {tree.table[name][1]} |\n" for name in names)
        for title, names in tree.sections.items()
    )
    return f"{_NOTE}\n# Commands\n\n{sections}\n## Options of many commands\n\n{_options_of(_COMMON)}"


def command_pages() -> dict[str, Callable[[], str]]:
    """Return a page for each command: its help, the guides that use it, and the help of its subcommands."""
    guides = yaml.safe_load((FOLDER / "guides.yaml").read_text("utf-8"))
    of_command: dict[str, list[click.Context]] = {}
    for context in _contexts():
        _, *path = context.command_path.split()
        if path:
            of_command.setdefault(path[0], []).append(context)
    summaries = command_tree().table
    return {
        f"commands/{name}.md": partial(_command_page, contexts, summaries[name][1], guides.get(name, []))
        for name, contexts in of_command.items()
    }


def _command_page(contexts: list[click.Context], summary: str, guides: list[str]) -> str:
    first, *below = contexts
    more = " · ".join(f"[{_title(guide)}](../../{guide})" for guide in guides)
    see_also = f"More: {more}\n\n" if more else ""
    rest = "".join(f"\n## {context.command_path}\n\n{_help_of(context)}" for context in below)
    return f"{_NOTE}\n# {first.command_path}\n\n{summary}\n\n{see_also}{_help_of(first)}{rest}"


def _title(guide: str) -> str:
    lines = (FOLDER.parent / guide).read_text("utf-8").splitlines()
    return next(line.removeprefix("# ") for line in lines if line.startswith("# "))


def _contexts() -> Iterator[click.Context]:
    return walk_commands(command_tree(), max_content_width=100, terminal_width=100)


def _help_of(context: click.Context) -> str:
    """Return the help of a command with all of its options, but the text of those that many commands have."""
    command, formatter = context.command, context.make_formatter()
    command.format_usage(context, formatter)
    command.format_help_text(context, formatter)
    if isinstance(command, click.Group):
        command.format_commands(context, formatter)
    own = [option for option in _own_options(command) if _record(option, context) not in _COMMON]
    are_many = len(own) > _UNGROUPED
    write_options(((group_of(option) if are_many else None, option) for option in own), context, formatter)
    common = [option for option in _own_options(command) if _record(option, context) in _COMMON]
    names = " ".join(f"`{_long_name(option)}`" for option in common)
    more = f"\nAlso: {names} ([options of many commands](../commands.md#options-of-many-commands))\n" if names else ""
    return _indented(formatter.getvalue()) + more


def _options_of(common: dict[tuple[str, str], click.Option]) -> str:
    formatter = next(_contexts()).make_formatter()
    write_options([(None, option) for option in common.values()], next(_contexts()), formatter)
    return f"`tpuctl options` prints those of every command.\n\n{_indented(formatter.getvalue())}"


def _indented(text: str) -> str:
    return "".join(f"    {line}".rstrip() + "\n" for line in text.strip("\n").splitlines())


def _own_options(command: click.Command) -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option) and not is_shared(each)]


def _long_name(option: click.Option) -> str:
    return next(name for name in option.opts if name.startswith("--"))


def _record(option: click.Option, context: click.Context) -> tuple[str, str] | None:
    return option.get_help_record(context)


def _common_options() -> dict[tuple[str, str], click.Option]:
    """Return the options that many commands have with the same text, each name once."""
    found: dict[tuple[str, str], list[click.Option]] = {}
    for context in _contexts():
        for option in _own_options(context.command):
            if record := _record(option, context):
                found.setdefault(record, []).append(option)
    common: dict[str, tuple[str, str]] = {}
    for record in sorted(found, key=lambda record: -len(found[record])):
        if len(found[record]) >= _MANY:
            common.setdefault(_long_name(found[record][0]), record)
    return {record: found[record][0] for record in common.values()}


# Options with the same text in so many commands are explained in one place.
_MANY = 3
# As many options are shown without headings.
_UNGROUPED = 6
_COMMON = _common_options()


def topics() -> str:
    """Return the page of the topics of `tpuctl help`, without those that have pages of their own."""
    found = [load_topic(name) for name in topic_names() if f"{name}.md" not in PAGES]
    chapters = "\n\n".join(
        f"## {topic.name}: {topic.title}\n\n" + "\n\n".join(map(_block, topic.blocks)) for topic in found
    )
    return f"{_NOTE}\n# Topics\n\n`tpuctl help TOPIC` prints each of these.\n\n{chapters}\n"


def _block(block: str | Definitions | Commands) -> str:
    match block:
        case Commands(lines):
            return "\n".join(f"    {line}" for line in lines)
        case Definitions(rows):
            return "| | |\n|---|---|\n" + "\n".join(f"| `{term}` | {text} |" for term, text in rows)
        case _:
            return block


LEVELS = {
    Level.ERROR: "it will not work, or has unintended costs; the check fails, and `up`, `create` and `run --up` stop before anything is created",
    Level.WARNING: "it works, but slowly, at a high cost, or not for long; with `--strict` the check fails",
    Level.UNKNOWN: "it could not be read; the text says why, and which permission reading it takes; with `--strict` the check fails",
    Level.NOTE: "information",
}


def checks() -> str:
    """Return the page about the checks of `tpuctl check`."""
    levels = "".join(f"| `{level}` | {LEVELS[level]} |\n" for level in Level)
    return f"""{_NOTE}
# Checks

`tpuctl check` runs these checks before money is spent; `tpuctl up`, `create` and `run --up` run them before they create a node. An id keeps
its meaning and is never reused: scripts may rely on it. `--skip-check ID` accepts the findings of a check: an error becomes a warning, a
warning becomes a note, and neither stops a command.

| level | meaning |
|---|---|
{levels}
A check that finds no problem is silent; `--all` and `-v` name all checks that were run, JSON always. A check does not report what another one
reports, such as a bucket that cannot be read.

{"".join(_check_chapters())}{_CHECKS_JSON}"""


def _check_chapters() -> Iterator[str]:
    for prefix, category in CATEGORIES.items():
        every: tuple[CheckRule[Any], ...] = (*RULES, *JOB_RULES)
        rules = sorted((rule for rule in every if rule.id.startswith(prefix)), key=lambda rule: rule.id)
        if rules:
            yield f"## {category}\n\n"
            yield from (f"### {rule.id}: {rule.title}\n\n{rule.text}\n\n" for rule in rules)
    yield "## Retired ids\n\n"
    yield from (f"- {id_}: {successor}.\n" for id_, successor in RETIRED_RULES.items())
    yield "\n"


_CHECKS_JSON = """## For scripts

A pipe gets one line for each finding: level, id, subject, text, reason and remedies, separated by tabs. `-o name` prints the ids of findings.

`tpuctl check -o json` prints one object, `-o yaml` the same: [its fields](json.md#check), also without a zone, when it ranks zones. Every field is
always present: `null`, `[]` or `{}` without a value. Fields may be added; none is removed or changes its meaning without a new `schemaVersion`.
"""


def doctor() -> str:
    """Return the page of the findings of `tpuctl doctor`."""
    shared = ", ".join(f"[{rule.id}](checks.md)" for rule in sorted(PROJECT_RULES, key=lambda rule: rule.id))
    return f"""{_NOTE}
# Findings of `tpuctl doctor`

`tpuctl doctor` checks this machine, the account, the network and the project; `tpuctl doctor NODE` also the node and each of its workers. It needs
neither a network nor an account: a check without a result is `unknown`, with the reason. The levels are those of [checks](checks.md). The exit
code is 9 if there is an error, with `--strict` also for a warning or an unknown result. An id keeps its meaning and is never reused. `--skip ID`
accepts a finding, which becomes one level milder. For the project it runs the checks {shared}; for a NODE all checks that
`tpuctl check NODE` runs. Retired ids are listed with [the checks](checks.md#retired-ids).

`--fix` applies safe fixes after a confirmation (`--yes`): it removes file modes that let others in, creates a missing ssh key, adds a key to the
agent, and enables an API. It deletes nothing.

{"".join(_doctor_chapters())}{_DOCTOR_JSON}"""


def _doctor_chapters() -> Iterator[str]:
    every = sorted(DOCTOR_RULES, key=lambda rule: rule.id)
    starts = [*REFERENCE_CHAPTERS, "TPU999"]
    for (start, title), end in zip(REFERENCE_CHAPTERS.items(), starts[1:], strict=True):
        yield f"## {title}\n\n"
        yield from (f"### {rule.id}: {rule.title}\n\n{rule.text}\n\n" for rule in every if start <= rule.id < end)


_DOCTOR_JSON = """## For scripts

A pipe gets one line for each finding, as for [`tpuctl check`](checks.md#for-scripts). `-o json` prints one object: [its fields](json.md#doctor).
"""


def messages() -> str:
    """Return the page of messages that `tpuctl explain` knows."""
    return f"{_NOTE}\n{knowledge.messages()}"


def json_output() -> str:
    """Return the page of JSON output."""
    return f"{_NOTE}\n{json_fields.json_page()}"


_GUIDE = FOLDER.parent / "how-to" / "from-gcloud.md"
_GUIDE_MARKS = ("<!-- made by docs/reference/generate.py from gcloud.yaml -->\n", "<!-- end of the made part -->\n")


def from_gcloud() -> str:
    """Return the guide for users of gcloud, with the current list of all commands and flags."""
    known = yaml.safe_load((FOLDER / "gcloud.yaml").read_text("utf-8"))
    before, rest = _GUIDE.read_text("utf-8").split(_GUIDE_MARKS[0])
    after = rest.split(_GUIDE_MARKS[1])[1]
    made = "".join(_gcloud_group(group) for group in known["groups"])
    everywhere = "".join(f"| `{flag}` | {_our_flag(ours)} |\n" for flag, ours in known["everywhere"].items())
    made += f"""
### Flags of most commands

| gcloud | tpuctl |
|---|---|
{everywhere}
Not here: the {len(known["ended"])} commands directly below `gcloud compute tpus` for TPU Nodes, the architecture before TPU VMs.
"""
    return f"{before}{_GUIDE_MARKS[0]}{made}{_GUIDE_MARKS[1]}{after}"


def _gcloud_group(group: dict[str, Any]) -> str:
    prefix = f"gcloud compute tpus {group['prefix']}".strip()
    rows = "".join(_gcloud_row(name, entry) for name, entry in group["commands"].items())
    return f"\n### {group['title']}: `{prefix}`\n\n| gcloud | tpuctl | flags that differ |\n|---|---|---|\n{rows}"


def _gcloud_row(name: str, entry: dict[str, Any]) -> str:
    """Return the row of a command, with those of its flags that are not the same here."""
    alpha = " (alpha)" if entry.get("only") == "alpha" else ""
    ours = f"`tpuctl {entry['ours']}`" if entry["ours"] else "not here"
    flags: dict[str, list[str]] = {}
    for track in ("flags", "alpha"):
        for flag, answer in entry.get(track, {}).items():
            if answer != "same":
                mark = " (alpha)" if track == "alpha" else ""
                flags.setdefault(_our_flag(answer), []).append(f"`{flag}`{mark}")
    differ = "; ".join(f"{', '.join(named)}: {answer}" for answer, named in flags.items())
    return f"| `{name}`{alpha} | {ours}{'; ' + entry['note'] if 'note' in entry else ''} | {differ} |\n"


def _our_flag(answer: str | None) -> str:
    if answer is None:
        return "not here"
    if answer.startswith("--"):
        return f"`{answer}`"
    return f"the {answer}" if answer.startswith("same") else answer


# Data for look-up: the hook of the site adds all of it to the page, and a box to filter it. In the terminal it is one command.
SITE_PAGES = {
    "checks.md": (checks, "`tpuctl explain TPU101` prints a check, `tpuctl check --all` names all of them"),
    "doctor.md": (doctor, "`tpuctl explain TPU960` prints a finding, `tpuctl doctor --all` names all checks"),
    "json.md": (json_output, "`tpuctl schema COMMAND` prints the fields of one command"),
    "messages.md": (messages, "`tpuctl explain ID` prints a message, its remedies and its sources"),
}


def _beginning(name: str) -> str:
    """Return the part of a page of `SITE_PAGES` that is kept in the repository: what comes before its first chapter."""
    page, how = SITE_PAGES[name]
    before = page().partition("\n## ")[0].rstrip()
    return f"{before}\n\nThe [site](https://tpuctl.github.io/tpuctl/reference/{Path(name).stem}/) has the whole list, to search; {how}.\n"


PAGES = {
    "../how-to/from-gcloud.md": from_gcloud,
    "../life.svg": diagrams.life,
    "../repair.svg": diagrams.repair,
    "../survives.svg": diagrams.survives,
    "exit-codes.md": exit_codes,
    "settings.md": settings,
    "commands.md": commands,
    **command_pages(),
    "topics.md": topics,
    **{name: partial(_beginning, name) for name in SITE_PAGES},
}


def main() -> int:
    """Write the pages, or report which are not up to date."""
    manual = FOLDER.parent / "man"
    pages = {FOLDER / name: page() for name, page in PAGES.items()}
    pages |= {manual / name: page for name, page in manual_pages().items()}
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text("utf-8") != text]
    removed = [path for path in (*manual.rglob("*.[0-9]"), *FOLDER.glob("commands/*.md")) if path not in pages]
    if "--check" in sys.argv:
        names = ", ".join(os.path.relpath(path, FOLDER) for path in (*stale, *removed))
        if names:
            sys.stderr.write(f"not up to date: {names}; run `python docs/reference/generate.py`\n")
        return 1 if names else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages[path], encoding="utf-8")
    for path in removed:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
