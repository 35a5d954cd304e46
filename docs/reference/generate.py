"""Write the reference pages from the code, so that they cannot say something else. `--check` only tells whether they are up to date."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import knowledge

from tpuctl.check.ai_platform import JOB_RULES
from tpuctl.check.findings import CheckRule, Level
from tpuctl.check.report_rendering import FINDINGS_SCHEMA_VERSION
from tpuctl.check.report_rendering import ZONES_SCHEMA_VERSION as ZONES_VERSION
from tpuctl.check.rules import CATEGORIES, RULES
from tpuctl.cli.tree import command_tree
from tpuctl.config.settings import SETTINGS
from tpuctl.doctor.rule_catalogue import DOCTOR_RULES, PROJECT_RULES, REFERENCE_CHAPTERS
from tpuctl.errors import ExitCode

FOLDER = Path(__file__).resolve().parent
_NOTE = "<!-- made by docs/reference/generate.py -->"

EXIT_CODES = {
    ExitCode.OK: "done",
    ExitCode.FAILURE: "failure without a better word, such as an API that does not answer; a bug keeps its traceback",
    ExitCode.USAGE: "usage: an unknown flag, a value or setting that cannot be right, a confirmation that nobody could give, "
    "a request that the service refuses as it stands",
    ExitCode.NOT_FOUND: "not found",
    ExitCode.NOT_ALLOWED: "not allowed: no credentials, scopes, IAM, API disabled, billing",
    ExitCode.TIMED_OUT: "the deadline passed; the text says what is still going on in the cloud and how to go on; of `run --timeout`: "
    "the command was ended",
    ExitCode.NO_CAPACITY: "no capacity: the zone has no such TPU free",
    ExitCode.QUOTA: "quota used up, or zero",
    ExitCode.CONFLICT: "conflict: the node differs, or is in a state that forbids this",
    ExitCode.CHECK_FAILED: "a check failed",
    ExitCode.BROKEN: "the node is broken and repair is used up or impossible",
    ExitCode.REMOTE_FAILED: "something failed on a worker: a command, a copy, or the way to it (`tpuctl ssh NODE -- COMMAND` on one "
    "worker ends with the command's own code)",
    ExitCode.INTERRUPTED: "Ctrl-C; what goes on in the cloud is named, nothing is undone (but `run` ends its command, and with `--rm` its node)",
    ExitCode.TERMINATED: "SIGTERM; the same",
}


def exit_codes() -> str:
    """Return the page of exit codes."""
    rows = "".join(f"| {int(code)} | {EXIT_CODES[code]} |\n" for code in ExitCode)
    return f"""{_NOTE}
# Exit codes

They are a contract with scripts: a code keeps its meaning.

| code | meaning |
|---|---|
{rows}
With `-o json` an error is one JSON object on stderr: `{{"error": {{"kind", "message", "exit_code", "hint", "id"}}}}`, where `kind` is a word
for the code (`no_capacity`, `quota`, `not_found`, `conflict`, `timed_out`, …) and `id` is what `tpuctl explain ID` tells more of: that
of the message that was recognised, else the kind with dashes (`no-capacity`). A terminal and a pipe get it as the last line of the error
(`more: tpuctl explain ID`; not with `--quiet`), and `tpuctl explain exit-6` tells of a code. A closed pipe (`tpuctl list | head -1`)
ends quietly with 141, the code of SIGPIPE. Data that stdout does not take (a full disk) is an error, exit 1; messages that stderr does not
take, and events that the file of `--events` does not take, change no exit code.
"""


def settings() -> str:
    """Return the page of settings."""
    return f"""{_NOTE}
# Settings

The first of these that has a value wins: flag · `TPUCTL_*` variable · gcloud's and Google's own variables · `tpuctl.yaml` of the project
(found upward from the working directory) · your own file (`$XDG_CONFIG_HOME/tpuctl/config.yaml`) · gcloud's active configuration · default.
`tpuctl config show` prints each value with the place that it comes from; `tpuctl config path` the files.

A zone from gcloud's configuration is only where new nodes are made: it never narrows `list` and never hides a node that is elsewhere.

A file that an option or a setting names is a regular file or a pipe, so `--env-file <(command)` works; a pipe that no program writes to is
refused after two seconds. Scripts and values of metadata have at most 256 KiB, seeds of the sandbox 64 MiB, all others 4 MiB. Text is UTF-8.
An option with an empty value, such as `--zone "$ZONE"` with an unset variable, is an error.

| key | what | flag | variables | in files | gcloud | default |
|---|---|---|---|---|---|---|
{"".join(_setting_rows())}
## Keys that take trust

A `tpuctl.yaml` may come from a repository that a stranger wrote. What could redirect or impersonate your calls is not read from it. These keys
count there once you have [trusted the file](../how-to/trust.md) with `tpuctl trust`:

| key | what a project file does with it |
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

In your own file only: who may be billed, and for what ([grants](../check.md#grants)).

    # config.yaml
    grants:
      - {{zone: us-central2-b, type: v4, tier: spot, count: 32, until: 2026-12-31}}
    no_billing_outside_grants: true
"""


def _setting_rows() -> Iterator[str]:
    for spec in SETTINGS.values():
        variables = " ".join(f"`{name}`" for name in (spec.environment, *spec.foreign) if name)
        cells = (
            f"`{spec.key}`",
            spec.description,
            " ".join(map(_code, (spec.flag or "").split("|"))),
            variables,
            spec.policy or "—",
            _code(spec.gcloud),
            _code(spec.default),
        )
        yield "| " + " | ".join(cells) + " |\n"


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""


def commands() -> str:
    """Return the page of commands: the help of each."""
    pages = "\n".join(_help_pages(command_tree(), ("tpuctl",)))
    return f"{_NOTE}\n# Commands\n\n{pages}"


def _help_pages(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    context = click.Context(command, info_name=" ".join(path), max_content_width=100, terminal_width=100)
    text = "\n".join(f"    {line}".rstrip() for line in command.get_help(context).splitlines())
    yield f"## {' '.join(path)}\n\n{text}\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from _help_pages(below, (*path, name))


LEVELS = {
    Level.ERROR: "it will not work, or has unintended costs; the check fails, and `up`, `create` and `run --up` stop before anything is created",
    Level.WARNING: "it works, but slowly, at a high cost, or not for long; with `--strict` the check fails",
    Level.UNKNOWN: "it could not be read; the text says why, and which permission reading it takes; with `--strict` the check fails",
    Level.NOTE: "information",
    Level.OK: "checked, without a problem; shown with `--all` or `-v`, in JSON always",
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
{"".join(_check_chapters())}{_CHECKS_JSON}"""


def _check_chapters() -> Iterator[str]:
    for prefix, category in CATEGORIES.items():
        every: tuple[CheckRule[Any], ...] = (*RULES, *JOB_RULES)
        rules = sorted((rule for rule in every if rule.id.startswith(prefix)), key=lambda rule: rule.id)
        if rules:
            yield f"## {category}\n\n"
            yield from (f"### {rule.id}: {rule.title}\n\n{rule.text}\n\n" for rule in rules)


_CHECKS_JSON = f"""## For scripts

A pipe gets one line for each finding that is not ok: level, id, subject, text, reason and remedies, separated by tabs. `-o name` prints the ids of
findings that are not ok.

`tpuctl check -o json` prints one object, `-o yaml` the same. Every field is always present: `null`, `[]` or `{{}}` without a value.
Fields may be added; none is removed or changes its meaning without a new `schemaVersion`.

<!-- table: check-json -->
| field | type | what |
|---|---|---|
| `schemaVersion` | integer | {FINDINGS_SCHEMA_VERSION} |
| `target` | object | the target of the check |
| `target.project` | string | the project |
| `target.zone` | string | the zone |
| `target.nodeId` | string or null | the node; null if none was named |
| `target.acceleratorType` | string | its type |
| `target.topology` | string or null | its topology; null if none was given |
| `target.runtimeVersion` | string | its image |
| `target.tier` | string or null | `on-demand`, `spot`, …; null if none was given |
| `target.creates` | boolean | whether the node does not exist yet |
| `target.purpose` | string | `train` or `serve` |
| `target.buckets` | array | the URLs of the buckets, as strings |
| `target.machine` | string or null | the virtual machine that works with it |
| `summary` | object | the number of findings of each level: `error`, `warning`, `unknown`, `note`, `ok` |
| `findings` | array | the worst first, then by id and subject |
| `findings[].id` | string | the id of the check |
| `findings[].title` | string | its title |
| `findings[].level` | string | the level; one step milder if accepted |
| `findings[].accepted` | boolean | whether `--skip-check` has lowered the level |
| `findings[].subject` | string | the subject: a bucket, an account, a zone, … |
| `findings[].text` | string | what was found |
| `findings[].why` | string or null | why it matters |
| `findings[].remedies` | array | how to fix it, the most useful first |
| `findings[].remedies[].text` | string | the remedy as text |
| `findings[].remedies[].command` | string or null | the command to run |
| `findings[].remedies[].fixable` | boolean | whether `--fix` can do it |
| `findings[].facts` | object | values for scripts, by the check |
| `sandbox` | boolean | true in the sandbox; elsewhere absent |

Without a zone, `tpuctl check` ranks zones:

<!-- table: zones-json -->
| field | type | what |
|---|---|---|
| `schemaVersion` | integer | {ZONES_VERSION} |
| `acceleratorType` | string | the type |
| `zones` | array | the zones that offer it, the best first |
| `zones[].zone` | string | its name |
| `zones[].region` | string | its region |
| `zones[].relation` | string or null | how near the farthest bucket is: `same-zone`, `same-region`, `dual-region`, `multi-region`, `same-area`, `other-area`, `unknown`; null without buckets |
| `zones[].pricePerTBLow` | number or null | dollars for reading 10^12 bytes, the lowest of the cheapest bucket; null if no price is known |
| `zones[].pricePerTBHigh` | number or null | the highest of the most expensive bucket |
| `zones[].singleTenant` | boolean | whether the zone needs an agreement with Google |
| `zones[].grants` | array | the grants of your settings that cover such a node there in addition to what already uses them, as strings |
| `zones[].quotaLimit` | integer or null | the tightest limit of the type there, in the unit of the type (cores or chips); null without a known limit |
| `zones[].quotaLeft` | integer or null | the rest of it, without what nodes, queued resources and dead records use; null if unknown |
| `zones[].quotaSuffices` | boolean or null | whether that is sufficient for one node; null if unknown |
| `zones[].coLocated` | array | bucket locations that would be co-located, as strings |
| `zones[].buckets` | array | each bucket, as seen from the zone |
| `zones[].buckets[].bucket` | string | its URL |
| `zones[].buckets[].location` | string or null | its location; null if it could not be read |
| `zones[].buckets[].relation` | string | how near it is |
| `zones[].buckets[].pricePerTBLow` | number or null | dollars for reading 10^12 bytes, the lowest in the sources |
| `zones[].buckets[].pricePerTBHigh` | number or null | the highest |
| `zones[].buckets[].priceDate` | string or null | the month of the list price; null if reading is free, or for your own price |
| `unplaced` | array | buckets without a known location |
| `unplaced[].bucket` | string | its URL |
| `unplaced[].reason` | string | why |
| `unplaced[].permission` | string or null | the permission that reading it takes |
| `offline` | string or null | why the zones are from the documentation and not from the API |
| `sandbox` | boolean | true in the sandbox; elsewhere absent |
"""


def doctor() -> str:
    """Return the page of what `tpuctl doctor` looks at."""
    shared = ", ".join(f"[{rule.id}](checks.md)" for rule in sorted(PROJECT_RULES, key=lambda rule: rule.id))
    return f"""{_NOTE}
# What `tpuctl doctor` looks at

`tpuctl doctor` looks at this machine, the account, the way to the cloud and the project; `tpuctl doctor NODE` also at the node and at each of
its workers. It needs neither a network nor an account: what could not be looked at is `unknown`, with the reason. It has the levels of
[checks](checks.md), and ends with 9 where there is an error, with `--strict` also by a warning or by what is unknown. An id keeps its meaning and
is never used for something else. `--skip ID` accepts what is said: it is then one level milder. Of the project it asks what {shared}
ask.

`--fix` does what is safe, after it was shown and agreed to (`--yes`): it takes modes away that let others in, makes the ssh key where there is
none, hands a key to the agent, and enables an API. It removes nothing.

{"".join(_doctor_chapters())}{_DOCTOR_JSON}"""


def _doctor_chapters() -> Iterator[str]:
    every = sorted(DOCTOR_RULES, key=lambda rule: rule.id)
    starts = [*REFERENCE_CHAPTERS, "TPU999"]
    for (start, title), end in zip(REFERENCE_CHAPTERS.items(), starts[1:], strict=True):
        yield f"## {title}\n\n"
        yield from (f"### {rule.id}: {rule.title}\n\n{rule.text}\n\n" for rule in every if start <= rule.id < end)


_DOCTOR_JSON = f"""## For scripts

A pipe gets a line for each finding, as of [`tpuctl check`](checks.md#for-scripts). `-o json` writes one object whose `summary` and `findings` have
the fields that are described there, and beside them:

<!-- table: doctor-json -->
| field | type | what |
|---|---|---|
| `schemaVersion` | integer | {FINDINGS_SCHEMA_VERSION} |
| `target` | object | what was looked at |
| `target.project` | string or null | the project, where one is set |
| `target.nodeId` | string or null | the node, where one was named |
| `surroundings` | object | versions and places, whatever is said of them; null where it is not there, or not known |
| `surroundings.python` | string | the version of Python |
| `surroundings.executable` | string | its program |
| `surroundings.tpuctl` | string | the version of tpuctl |
| `surroundings.installedBy` | string or null | what has installed it |
| `surroundings.packages` | object | the version of each package that it needs |
| `surroundings.gcloud` | string or null | the version of gcloud |
| `surroundings.programs` | object | the version of each program for workers, or its path where it has none to tell |
| `surroundings.locale` | string or null | the language of this machine |
| `surroundings.timeZone` | string | its time zone |
| `surroundings.secondsBehind` | integer or null | how far its clock is behind the cloud's; below zero where it is ahead |
| `surroundings.proxy` | string or null | the proxy, without a password |
| `surroundings.account` | string or null | the account that calls are made as |
| `surroundings.project` | string or null | the project |
| `surroundings.endpoint` | string or null | the endpoint, where it is not Google's |
| `surroundings.settings` | object | where each setting that has a value comes from |
| `summary` | object | how many findings there are of each level |
| `findings` | array | the worst first, then by id and subject |
| `sandbox` | boolean | true, and only there, where nothing is real |
"""


def messages() -> str:
    """Return the page of what `tpuctl explain` knows."""
    return f"{_NOTE}\n{knowledge.messages()}"


PAGES = {
    "exit-codes.md": exit_codes,
    "settings.md": settings,
    "commands.md": commands,
    "checks.md": checks,
    "doctor.md": doctor,
    "messages.md": messages,
}


def main() -> int:
    """Write the pages, or tell which are not up to date."""
    stale = []
    for name, page in PAGES.items():
        path = FOLDER / name
        if not path.exists() or path.read_text("utf-8") != page():
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(page(), encoding="utf-8")
    if stale and "--check" in sys.argv:
        sys.stderr.write(f"not up to date: {', '.join(stale)}; run `python docs/reference/generate.py`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
