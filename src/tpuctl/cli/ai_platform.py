"""`tpuctl check --ai-platform FILE`: read a job of AI Platform Training, report findings, write a `tpuctl.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.cli.check_options import accepted_checks
from tpuctl.errors import ExitCode, InvalidInputError, NotConfirmedError
from tpuctl.output.findings import SCHEMA_VERSION, finding_to_json, page, summary
from tpuctl.output.terminal import Format
from tpuctl.preflight.ai_platform import from_ai_platform
from tpuctl.preflight.findings import Level
from tpuctl.userfile import expand, read_stream, read_text

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.preflight.ai_platform import Translation

_TARGET = "tpuctl.yaml"
_SUFFIXES = (".yaml", ".yml")
_STDIN = "-"


def translate(
    app: App,
    name: str,
    *,
    write: str | None = None,
    yes: bool = False,
    strict: bool = False,
    skip_checks: tuple[str, ...] = (),
) -> int:
    """Convert a job to a `tpuctl.yaml`, written to `write`, else to stdout. Return the exit code.

    Findings go to stderr, as stdout has the file; with `write` stdout has the command that replaces the job. An existing file
    is overwritten only with `yes` or after confirmation. No request is sent. Raises `InvalidInputError` for an unknown check
    id and for a file that cannot be read or has no job with a TPU, `NotConfirmedError` if the user declines.
    """
    target = write or _TARGET
    if not target.endswith(_SUFFIXES):
        raise InvalidInputError(
            f"`--write {target}`: `tpuctl run --up` needs the ending `.yaml` or `.yml`",
            hint=f"write to `{target}.yaml`",
        )
    accepted = accepted_checks(app, skip_checks)
    if name == _STDIN:
        text, source = read_stream(app.invocation.streams.stdin), "stdin"
    else:
        text, source = read_text(app.invocation.folder / expand(Path(name)), what=f"`--ai-platform {name}`"), name
    translation = from_ai_platform(text, source, target=target, accepted=accepted)
    if write is not None and translation.file is not None:
        _write(app, app.invocation.folder / expand(Path(write)), translation.file, yes=yes)
    _show(app, translation, is_written=write is not None)
    return ExitCode.CHECK_FAILED if translation.report.fails(strict=strict) else ExitCode.OK


def _show(app: App, translation: Translation, *, is_written: bool) -> None:
    terminal, report = app.terminal, app.as_typed(translation.report)
    if app.format in {Format.JSON, Format.YAML}:
        counts = {str(level): len(report.of(level)) for level in Level}
        findings = [finding_to_json(finding) for finding in report.findings]
        body = {"schemaVersion": SCHEMA_VERSION, **translation.to_json(), "summary": counts, "findings": findings}
        terminal.data(body, app.format)
        return
    if app.format is Format.NAME:
        terminal.names(dict.fromkeys(finding.id for finding in report.findings if finding.level is not Level.OK))
        return
    width = terminal.streams.width
    terminal.note(*page(report, width=width, colored=False, verbose=app.is_verbose))
    terminal.note(summary(report))
    if translation.file is None:
        terminal.warn("no tpuctl.yaml was written, because of the errors")
    elif is_written and translation.command:
        terminal.write(translation.command)
    else:
        terminal.document(translation.file)


def _write(app: App, path: Path, text: str, *, yes: bool) -> None:
    """Write the file. An identical file is not written again."""
    try:
        if not path.exists():
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        elif not path.is_file():
            raise InvalidInputError(f"cannot write {path}: it is not a regular file")
        elif path.stat().st_size != len(text.encode()) or path.read_bytes() != text.encode():
            if not app.terminal.confirm(f"overwrite {path}?", yes=yes):
                raise NotConfirmedError(f"{path} was not changed", hint="name another file with `--write`")
            path.write_text(text, "utf-8")
    except OSError as error:
        raise InvalidInputError(f"cannot write {path}: {error.strerror or error}") from error
