"""`tpuctl explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.cli.options import cli_command, complete_node, yes_option
from tpuctl.cli.reach_options import reach_options
from tpuctl.errors import ExitCode, InvalidInputError

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.cli.explain_source import Asked
    from tpuctl.diagnosis.explanation import Explanation

# The value of `--topic` without a name: list all topics.
_WHICH = ""


@cli_command("explain", asks_trust=False)
@click.argument("words", metavar="[FILE|-|TEXT|ID]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--node", metavar="NODE", shell_complete=complete_node, help="Node of the log; its state is checked before the log."
)
@click.option(
    "--topic",
    metavar="[NAME]",
    is_flag=False,
    flag_value=_WHICH,
    help="Advice on a topic; without NAME: list the topics.",
)
@click.option("--act", is_flag=True, help="Run the remedy, if tpuctl can, after confirmation; needs --node.")
@reach_options
@yes_option
def command(app: App, *, words: tuple[str, ...], node: str | None, topic: str | None, act: bool, yes: bool) -> int:
    """Explain what is wrong in a log or a message, and what to do about it.

    Reads logs of any size: files (.gz too), or stdin. Shows the cause first, then its symptoms; each with the line that shows
    it, how often it occurred, the worker that logged it first, and a remedy. --node checks the state of the node before
    training code is blamed. Several files, such as one for each worker, count as one log. Exits with 1 if the log has no
    known message; never guesses. An ID is printed with tpuctl's own errors and findings.

    \b
    Examples:
      tpuctl explain train.log
      tpuctl explain --node trainer < train.log
      tpuctl explain "Unable to enqueue when not opened"
      tpuctl explain capacity-zone
      tpuctl explain --topic batch-size
      tpuctl explain train.log --node trainer --act
    """
    if topic is not None:
        from tpuctl.cli.explain_topic import show_topic, show_topics  # noqa: PLC0415  # completion and --help need not wait

        if words or node or act:
            raise InvalidInputError(
                "`--topic` cannot be combined with a log, `--node` or `--act`",
                hint="`tpuctl explain --topic NAME` shows one topic",
            )
        return show_topic(app, topic) if topic != _WHICH else show_topics(app)
    if act and node is None:
        raise InvalidInputError("`--act` needs `--node`", hint="name the node with `--node NODE`")
    from tpuctl.cli.explain_source import is_id, what_was_asked  # noqa: PLC0415  # completion and --help need not wait

    if node is not None:
        app.reference(node)  # reject an invalid name before reading a log
    asked = what_was_asked(app, words)
    if not is_id(asked):
        return _explain(app, asked, node, act=act, yes=yes)
    if act:
        raise InvalidInputError("`--act` needs a log or a message, not an id", hint="give the log")
    from tpuctl.cli.explain_topic import show_entry  # noqa: PLC0415  # as above

    return show_entry(app, asked.text, {"node": node} if node else {})


def _explain(app: App, asked: Asked, node: str | None, *, act: bool, yes: bool) -> int:
    from tpuctl.cli.explain_source import explain  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.output import explanations  # noqa: PLC0415  # as above
    from tpuctl.output.terminal import Format  # noqa: PLC0415  # as above

    if node is not None:
        app.require_trust()
    explanation, was_interrupted = explain(app, asked, node)
    terminal, form = app.terminal, app.format
    if form in {Format.JSON, Format.YAML}:
        terminal.data(explanations.to_json(explanation) | ({"sandbox": True} if app.is_sandbox else {}), form)
    elif form is Format.NAME:
        terminal.names(one.id for one in explanation.conclusions)
    elif terminal.is_interactive:
        terminal.page(explanations.page(explanation, width=terminal.streams.width, colored=terminal.colors_out))
    else:
        terminal.table((), list(explanations.rows(explanation)))
    exit_code = ExitCode.OK if explanation.conclusions else _report_no_verdict(app, explanation, asked)
    if was_interrupted:
        return ExitCode.INTERRUPTED
    if act and node is not None and explanation.conclusions:
        from tpuctl.cli.explain_act import act_on  # noqa: PLC0415  # rarely needed

        return act_on(app, explanation, node, yes=yes)
    return exit_code


def _report_no_verdict(app: App, explanation: Explanation, asked: Asked) -> ExitCode:
    """Report that no message was recognized, with the lines that look most like an error."""
    from tpuctl.output import explanations  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.output.terminal import Format  # noqa: PLC0415  # as above

    terminal = app.terminal
    if explanation.harmless and not explanation.suspicious:
        named = ", ".join(f"`{one.id}`" for one in explanation.harmless)
        terminal.note(f"no failure found: the messages that tpuctl recognized are harmless, or recovered ({named})")
        return ExitCode.OK
    count = "this line" if explanation.lines == 1 else f"these {explanation.lines} lines"
    about = " (not text)" if explanation.is_binary else ""
    terminal.warn(f"no known message in {count}{about}")
    if asked.text and not asked.text.count(" "):
        terminal.note(f"`{asked.text}` is not a file, so tpuctl read it as a message")
    if explanation.suspicious and app.format is Format.TABLE:
        terminal.note("the lines that look most like an error:")
        terminal.page(explanations.suspects(explanation, colored=terminal.colors_out))
    return ExitCode.FAILURE
