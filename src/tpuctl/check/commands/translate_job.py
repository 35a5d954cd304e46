"""`tpuctl check --ai-platform FILE`: read a job of AI Platform Training, report findings, write a `tpuctl.yaml`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.app.hints import report_with_typed_options
from tpuctl.check.ai_platform import translate_job
from tpuctl.check.preflight import accepted_checks
from tpuctl.check.report_rendering import findings_page, findings_view, report_summary
from tpuctl.errors import ExitCode, InvalidInputError, NotConfirmedError
from tpuctl.files import expand_user_path, output_path, read_text_stream, read_user_text

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.check.ai_platform import JobTranslation
    from tpuctl.output.terminal import Terminal, View


def translate_job_file(
    app: App, name: str, *, write: str | None, yes: bool, strict: bool, skip_checks: tuple[str, ...]
) -> int:
    """Translate the job in the file `name` to a `tpuctl.yaml`, written to `write`, else to stdout. Return the exit code.

    Findings go to stderr, as stdout has the file; with `write` stdout has the command that replaces the job. An existing file
    is overwritten only with `yes` or after confirmation. Raises `InvalidInputError` for an unknown check id and for a file
    that cannot be read or has no job with a TPU, `NotConfirmedError` if the user declines.
    """
    target = write or "tpuctl.yaml"
    if not target.endswith((".yaml", ".yml")):
        raise InvalidInputError(
            f"`--write {target}`: `tpuctl run --up` needs the ending `.yaml` or `.yml`",
            hint=f"write to `{target}.yaml`",
        )
    accepted = accepted_checks(app, skip_checks)
    if name == "-":
        text, source = read_text_stream(app.invocation.streams.stdin), "stdin"
    else:
        path, source = app.invocation.folder / expand_user_path(Path(name)), name
        text = read_user_text(path, what=f"`--ai-platform {name}`")
    translation = translate_job(text, source, target=target, accepted=accepted)
    if write is not None and translation.file is not None:
        _write_settings_file(app, output_path(Path(write), app.invocation.folder), translation.file, yes=yes)
    app.show(_translation_view(app, translation, is_written=write is not None))
    return ExitCode.CHECK_FAILED if translation.report.fails(strict=strict) else ExitCode.OK


def _translation_view(app: App, translation: JobTranslation, *, is_written: bool) -> View:
    report = report_with_typed_options(app, translation.report)
    findings = findings_view(report, about=translation.to_json())

    def write(terminal: Terminal) -> None:
        width = terminal.streams.width
        terminal.note(*findings_page(report, width=width, colored=False, verbose=app.is_verbose))
        terminal.note(report_summary(report))
        if translation.file is None:
            terminal.warn("no tpuctl.yaml was written, because of the errors")
        elif is_written and translation.command:
            terminal.write(translation.command)
        else:
            terminal.document(translation.file)

    return replace(findings, text=write, is_marked=False)


def _write_settings_file(app: App, path: Path, text: str, *, yes: bool) -> None:
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
