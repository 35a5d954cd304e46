"""`tpuctl explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.options import cli_command, complete_node, yes_option
from tpuctl.cli.reach_options import reach_options
from tpuctl.errors import ExitCode, InvalidInputError

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.cli.explain_source import Asked
    from tpuctl.diagnosis.explanation import Explanation

# What `--topic` means where no topic is named: show which there are.
_WHICH = ""


@cli_command("explain", asks_trust=False)
@click.argument("words", metavar="[FILE|-|TEXT|ID]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--node", metavar="NODE", shell_complete=complete_node, help="Look at this node before its log is believed."
)
@click.option(
    "--topic", metavar="[NAME]", is_flag=False, flag_value=_WHICH, help="Advice on a topic; alone: the topics."
)
@click.option("--act", is_flag=True, help="With --node: do the remedy that tpuctl can do itself, after asking.")
@reach_options
@yes_option
def command(app: App, *, words: tuple[str, ...], node: str | None, topic: str | None, act: bool, yes: bool) -> int:
    """Say what is wrong, from a log or a message, and what to do about it.

    Reads logs of any size: files (.gz too), or stdin. The cause comes first, then what only follows from it; each with the
    line that tells, how often it was said, by which worker first, and a remedy. With --node the node's real state is looked
    at before training code is blamed. Several files, such as one for each worker, are one log. Ends with 1 where nothing that
    it knows is in the log; it never guesses. An ID is what tpuctl's own errors and findings carry.

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
        return _advise(app, topic, alone=not (words or node or act))
    if act and node is None:
        raise InvalidInputError("`--act` needs to know the node", hint="name it with `--node NODE`")
    from tpuctl.cli.explain_source import is_id, what_was_asked  # noqa: PLC0415  # completion and --help need not wait

    if node is not None:
        app.reference(node)  # refuse what can be no node before a log is read
    asked = what_was_asked(app, words)
    if not is_id(asked):
        return _explain(app, asked, node, act=act, yes=yes)
    if act:
        raise InvalidInputError("`--act` goes with a log or a message, not with an id", hint="give the log")
    from tpuctl.cli.explain_topic import show_entry  # noqa: PLC0415  # as above

    return show_entry(app, asked.text, {"node": node} if node else {})


def _advise(app: App, topic: str, *, alone: bool) -> int:
    from tpuctl.cli.explain_topic import show_topic, show_topics  # noqa: PLC0415  # completion and --help need not wait

    if not alone:
        raise InvalidInputError(
            "`--topic` goes with nothing else", hint="`tpuctl explain --topic NAME` shows one topic"
        )
    return show_topic(app, topic) if topic != _WHICH else show_topics(app)


def _explain(app: App, asked: Asked, node: str | None, *, act: bool, yes: bool) -> int:
    from tpuctl.cli.explain_source import explain  # noqa: PLC0415  # completion and --help need not wait for it

    if node is not None:
        app.require_trust()
    explanation, was_interrupted = explain(app, asked, node)
    _show(app, explanation)
    ending = ExitCode.OK if explanation.conclusions else _nothing(app, explanation, asked)
    if was_interrupted:
        return ExitCode.INTERRUPTED
    if act and node is not None and explanation.conclusions:
        from tpuctl.cli.explain_act import act_on  # noqa: PLC0415  # rarely asked for

        return act_on(app, explanation, node, yes=yes)
    return ending


def _show(app: App, explanation: Explanation) -> None:
    from tpuctl.output import explanations  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.output.terminal import Format  # noqa: PLC0415  # as above

    terminal, form = app.terminal, app.format
    if form in {Format.JSON, Format.YAML}:
        terminal.data(explanations.to_json(explanation) | _sandbox(app), form)
    elif form is Format.NAME:
        terminal.names(one.id for one in explanation.conclusions)
    elif terminal.is_interactive:
        terminal.page(explanations.page(explanation, width=terminal.streams.width, colored=terminal.colors_out))
    else:
        terminal.table((), list(explanations.rows(explanation)))


def _nothing(app: App, explanation: Explanation, asked: Asked) -> ExitCode:
    """Say that nothing was recognised, with the lines that look most like an error."""
    from tpuctl.output import explanations  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.output.terminal import Format  # noqa: PLC0415  # as above

    terminal = app.terminal
    if explanation.harmless and not explanation.suspicious:
        named = ", ".join(f"`{one.id}`" for one in explanation.harmless)
        terminal.note(f"nothing is wrong as far as tpuctl knows: what it recognised is harmless, or was over ({named})")
        return ExitCode.OK
    count = "this line" if explanation.lines == 1 else f"these {explanation.lines} lines"
    about = " (it is no text)" if explanation.is_binary else ""
    terminal.warn(f"nothing that tpuctl knows is in {count}{about}")
    if asked.text and not asked.text.count(" "):
        terminal.note(f"`{asked.text}` is no file, so it was taken as a message")
    if explanation.suspicious and app.format is Format.TABLE:
        terminal.note("the lines that look most like an error:")
        terminal.page(explanations.suspects(explanation, colored=terminal.colors_out))
    return ExitCode.FAILURE


def _sandbox(app: App) -> dict[str, Any]:
    return {"sandbox": True} if app.is_sandbox else {}
