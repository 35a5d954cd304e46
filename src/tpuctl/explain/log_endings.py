"""How a log ends, for each worker: whether its last lines show a program that works or has ended well. Pure.

A failure that such a line follows is over: the program survived it, or tried again. What a program logs as information or as a
warning is over as soon as it goes on to log other things calmly. After a line that ends a program, only its steps count, the
work of a server, and tests that passed: a `finally` block, an uploader or another process may say that it is done, or serves.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.explain.log_lines import LogLevel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.explain.log_lines import LogPlace

# Lines at the end of a log that tell how it ends.
ENDING_LINES = 60
# A line with this score of an error, or a higher one, is no good end; with the lower one it is not calm.
_FAILED_SCORE, _ALARMING_SCORE = 6, 4
# A line with this score names an exception, or another reason for which a program ends.
_FATAL_SCORE = 7
# A line with this score begins with the name of an exception, as a traceback ends, or says that the process crashed.
CRASHED_SCORE = 8
_GCLOUD_ERROR = "ERROR: (gcloud"
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|\s{0,8}File \"")
# Lines without an alarm that show that a program has gone on after a warning.
_CALM_LINES = 3
# The same of lines that may not be of the program.
_CALM_PRINTED_LINES = 6
# Lines of a larger text, such as the details of an error.
_FRAGMENT = re.compile(r"[\s\"'{}\[\]()|,-]|'?@?[\w.]{1,40}'?: |$")
# Behind it, another program prints.
_PROMPT = re.compile(
    r"(?:\([\w.-]{1,40}\) )?\[?[\w.-]{1,40}@[\w.-]{1,80}[: ]\S{0,200}[$#](?: |$)|[$%#] \S|(?:>>>|In \[\d{1,5}\]:|PS \S{1,80}>)|"
    r"(?:ba)?sh-\d[\d.]{0,6}[$#](?: |$)|[\w.-]{1,40}% \S"
)
_MAX_JUDGED_LENGTH = 1000

_ENDED_WELL = re.compile(
    r"(?i)\b(?:training|job|run|trial|task|test|upload|download|experiment|evaluation|benchmark|export|build|program|script|"
    r"workload|trajectory|execution|all \w{1,20})(?: ['\"`(]?[\w.-]{1,40}[\"'`):]?){0,2} (?:is |has |was )?"
    r"(?:finished|completed?|succeeded|successful|done|passed)\b|"
    r"\b(?:finished|completed|succeeded|done|exit(?:ed|ing)?) (?:successfully|cleanly|"
    r"with (?:exit )?(?:code|status):? (?:0\b|completed))|"
    r"\bexit(?:ed|ing)?(?: with)? (?:code|status):? 0\b|(?-i:\bSUCCEEDED\b)|^apply complete!|^Operation completed over \d|"
    r"\.service: succeeded\b|"
    r"\bsuccessfully (?:finished|completed|saved|uploaded|trained|written|exported)|\bexiting \w{1,20} cleanly\b|"
    r"(?:^\W{0,3}|[:,] )(?:OK|PASS(?:ED)?|done|finished|success)\b[.!]?(?: \(.{0,60}\))?$"
)
# A step, with what it measured; a request that was answered with work.
_STEP = re.compile(
    r"(?i)\b(?:(?:train|val|valid|eval|test|dev)(?:ing|idation)?[_/ ]?)?(?:loss|acc(?:uracy)?|perplexity|ppl|bleu|rouge\w?|"
    r"reward|f1|mfu)\b['\"]?[^\w\n]{0,4}(?:is |of )?[^\w\n]{0,3}\d|"
    # Names that also mean other things.
    r"\b(?:top[-_]?[15]|r?mse|mae|auc|psnr|fid|[wc]er)(?:[_@]\w{1,20})?['\"]?\s?[=:]\s{0,3}\d{1,6}\.\d{1,12}(?![\w.])|"
    r"\b\d[\d.]{0,12}[kKMG]? ?(?:steps?|tok(?:en)?s?|examples?|samples?|images?|imgs?|wps|rows)/s(?:ec(?:ond)?)?\b|"
    r"\b\d[\d.]{0,12} ?s/step\b|\b(?:steps|examples|tokens|samples)_?(?:/|per_)(?:s|sec(?:ond)?)\b|"
    r"\b(?:global_)?(?:step|iter(?:ation)?|epoch|generation)s?\b[ =:#\[(/-]{1,4}\d{1,9}\b.{0,200}\d(?:\.\d|s\b|m\b)|"
    r"^\W{0,3}train(?:ing)?\W{1,3}step\W{1,2}\d{1,9}$|"
    r"\"POST /(?:v\d/)?(?:chat/)?(?:generate|completions|predict|infer)[^\"]{0,100} HTTP/[\d.]{1,3}\" 20\d\b"
)
_WORKS = re.compile(
    r"(?i)\b(?:restored|resumed)\b.{0,60}\b(?:checkpoint|ckpt|step|model|weights)|"
    r"\b(?:checkpoint|ckpt|model|weights)\b.{0,60}\brestored\b|"
    # A server that serves.
    r"\bstartup complete\b|\bserver (?:is )?(?:now )?(?:started|running|ready|listening)\b|"
    r"\b(?:listening|serving|running) (?:on|at) (?:\S{1,20} )?(?:https?://|\[?::|port \d|[\d.]{7})|"
    r"\bHTTP/[\d.]{1,3}\" 20\d\b|\b20[01] OK\b|(?<![:.\w])ok,? \(?(?:in |after )?\d[\d.]{0,9} ?m?s\b|"
    # A machine, a pod, a cluster that is there; devices that were found.
    r"\bsuccessfully (?:assigned|provisioned|created|pulled|connected|initialized|started|acquired|restored|launched)|"
    r"\bdeployments? stabilized\b|\bcontainer (?:is )?healthy\b|\bhttps?://\S{1,200} -> 200\b|"
    r"\bstarted container\b|\bcreation complete after\b|"
    r"\breturns successfully\b|\bsuccessfully booted\b|"
    r"\b(?:re-?launched|recovered successfully|up and running)\b|-> ?(?:READY|ACTIVE|RUNNING)\b|"
    r"\bNormal (?:Started|Admitted|Scheduled|Pulled|Created|Completed)\b|\b(?-i:TpuDevice|TPU_|LogicalDevice)\(|"
    r"\bnum tpu cores: [1-9]|\b(?:global|local)?[_ ]?device[_ ]?count\W{1,4}[1-9]|\bdevices[=: ]{1,2}[1-9]"
)
# What a launcher says of a job that failed before and was tried again.
_JOB_SUCCEEDED = re.compile(
    r"(?i)(?<!cleanup )(?<!upload )(?<!clean-up )\b(?:job|workload|jobset|training|run|pipeline)\b"
    r"(?: ['\"`]?[\w./-]{1,80}['\"`]?:?){0,2} "
    r"(?:has |was |is )?(?:(?:finished|completed|ended) )?(?:succeeded|successfully|successful|SUCCEEDED)\b"
)
# What a run of tests says last: failures in it were wanted.
_TESTS_PASSED = re.compile(
    r"^=+ \d{1,6} passed\b(?!.{0,200}\b(?:failed|error))|"
    r"^\d{1,6} passed(?:, \d{1,6} (?:warnings?|skipped|deselected|xfailed)){0,4} in \d"
)
# What a program also says after it has failed: what was reached last, what is saved or sent.
_LAST_WORDS = re.compile(
    r"(?i)^\W{0,9}(?:final|last|best|summary)\b|\b(?:sav(?:ed|ing)|wrote|writ|upload|sync|flush|export)"
)
# What was asked for is there at last.
_MADE = re.compile(
    r"(?i)\bsuccessfully (?:assigned|provisioned|created)|\bcreated (?:tpu|node|instance|queued resource)\b|"
    r"\bup and running\b|-> ?(?:READY|ACTIVE|RUNNING)\b|\bcreation complete after\b|"
    r"\bconnected to ssh\b"
)
# A state that was saved: a program that is asked to end, or fails, may do so last.
_SAVED = re.compile(
    r"(?i)\b(?:saved|wrote|written|uploaded)\b.{0,60}\b(?:checkpoint|ckpt|step|model|weights)|"
    r"\b(?:checkpoint|ckpt|model|weights)\b.{0,60}\b(?:saved|written|uploaded)\b"
)
_ASKED_TO_END = re.compile(
    r"(?i)\bSIG(?:TERM|INT|KILL)\b|\bsignal (?:2|9|15)\b|pre-?empt|\bterminat|\bmaintenance|\bshutdown|\binterrupt"
)
# What a script also does when it gives up, or tries once more.
_CLEANS_UP = re.compile(
    r"(?i)^\+ (?:rm|sleep|trap|exit|kill|pkill|return|false)\b|clean|delet|retry|upload|sync|\bcp\b"
)
# What starts again and again does not work.
_CRASH_LOOP = re.compile(
    r"\bBack-off restarting\b|\b(?:CrashLoop|ImagePull)BackOff\b|"
    # The program's own last word, whatever the level.
    r"\bexit(?:ed|ing)?(?: with)?(?: code| status)?:? [1-9]\d{0,2}$"
)
# A bar that is not full is drawn once more by a program that ends with an error.
_BAR = re.compile(r"\d{1,3}%\|.{0,300}(?:(?:it|ba|ex|batch(?:es)?|steps?)/s|s/(?:it|ba|ex|batch|step))\b")
_FULL_BAR, _MIN_BARS = re.compile(r"\b100%\|"), 2
_NOT_WELL = re.compile(
    r"(?i)\b(?:not|never|before|until|without|fail\w{0,5}|0 of|unsuccessful\w{0,2}|cannot|unable|waiting(?!: \d)|would|will|if|"
    r"error|prefer\w{0,4}|exception|abort\w{0,3}|timed out|last (?:saved|good|successful)|nan|killed|cancell?ed|emergency)\b|"
    r"\b(?:code|status|rc|signal)\W{1,3}-?[1-9]\d{0,2}\b"
    # A summary that it also prints after a failure; an operation that is over, with or without success.
    r"|^wandb: |^\W{0,4}status\W{1,4}DONE\b"
)
# Counts of failures that are none, and codes of an end without one.
_NO_FAILURES = re.compile(
    r"(?i)\b(?:no|0|zero|without) (?:errors?|failures?|failed)\b|\b(?:errors?|failed|failures)[=: ]{1,3}0\b|"
    r"\bexit(?:ing|ed|s)? (?:with )?(?:code |status )?0\b"
)
_ALARMED = re.compile(
    r"(?i)\b(?:retry|attempt|wait|exit|shut|terminat|kill|abort|stop|cancel|clos|giv\w{1,3} up|hang|stuck|trace|lost|unhealthy|"
    r"reboot|didn't|NotTrigger|back-?off|drop|fail)|_FAILED\b"
)


@dataclass(frozen=True, slots=True)
class JudgedLine:
    """One of the last lines of a worker."""

    place: LogPlace
    score: int  # how much it looks like an error


@dataclass(frozen=True, slots=True)
class LogEnding:
    """How the log of a worker ends, or that of a program that names no worker."""

    worker: str | None = None
    works: LogPlace | None = None  # the last line that shows that the program works or ended well; no failure follows
    is_well: bool = False  # and no line after it looks like an error
    is_done: bool = False  # and it says that the program has ended
    calm: LogPlace | None = None  # from here on there is no alarm
    at_peace: LogPlace | None = None  # the last line, if it is no alarm
    quiet: LogPlace | None = None  # the same as `calm`, of what programs print, behind the prompt
    prompt: LogPlace | None = None  # the last prompt of a shell, behind which another program prints
    failure: LogPlace | None = None  # the last line that looks like the end of a program, unless it works afterwards
    resumed: LogPlace | None = None  # the last line before that failure that shows that the program worked
    steps: LogPlace | None = None  # the last line that shows a training step, or an answered request for work
    made: LogPlace | None = None  # the last line that says that what was asked for is there
    passed: LogPlace | None = None  # the line that says that all tests passed
    traced: LogPlace | None = None  # a script went on from here, by what it traced
    goes_on: LogPlace | None = None  # the last line that tells of success, perhaps not that of the program
    source: str | None = None  # the file, if several are read


def judge_ending(worker: str | None, lines: Sequence[JudgedLine]) -> LogEnding:
    """Return how a log ends whose last lines are these."""
    works = goes_on = calm = at_peace = quiet = prompt = failure = resumed = None
    end = _last_crash(lines) + 1
    tail = lines[end:]
    steps, made = _last_step(tail), _last_made(tail)
    passed = next((line.place for line in reversed(tail) if _TESTS_PASSED.search(line.place.text)), None)
    has_succeeded = passed is not None or any(_JOB_SUCCEEDED.search(line.place.text) for line in tail)
    may_work = not any(map(_is_traceback, lines[:end])) or steps is not None or made is not None or has_succeeded
    is_only_saved, is_well, is_done, is_calm, has_failed = False, True, False, True, False
    bars = calm_lines = printed_lines = 0
    for line in reversed(lines):
        place, text = line.place, line.place.text[:_MAX_JUDGED_LENGTH]
        bars += _BAR.search(text) is not None
        is_failure = is_error(place, line.score) or _CRASH_LOOP.search(text) is not None
        if is_only_saved and (line.score >= _FATAL_SCORE if is_failure else _ASKED_TO_END.search(text)):
            works, is_only_saved, is_well = None, False, False
        if is_failure:
            if works is not None:
                break
            has_failed, is_calm = True, False
            failure = failure or (place if line.score >= _FATAL_SCORE else None)
        elif shows_success(text) or bars >= _MIN_BARS:
            if has_failed:
                resumed = place
                break
            goes_on = goes_on or place
            if not may_work:
                is_well = False
                continue
            is_end = _ENDED_WELL.search(text) or _TESTS_PASSED.search(text)
            is_done = is_done or (works is None and is_end is not None)
            works, is_only_saved = place if is_only_saved else works or place, False
        elif works is None and not has_failed and shows_saved(text):
            works, is_only_saved = place, True
        elif works is None and line.score >= _ALARMING_SCORE and place.level is not LogLevel.INFO:
            is_well = False
        is_calm = is_calm and line.score < _ALARMING_SCORE and not _ALARMED.search(_NO_FAILURES.sub("", text))
        if prompt is None and _PROMPT.match(text):
            prompt = place
        printed_lines += is_calm and prompt is None and not _FRAGMENT.match(text)
        if is_calm and (place.level or place.time or place.is_logged):
            calm_lines += 1
            at_peace = at_peace or place
        if _CRASH_LOOP.search(text):
            at_peace = None
        calm = place if is_calm and calm_lines >= _CALM_LINES else calm
        quiet = place if is_calm and prompt is None and printed_lines >= _CALM_PRINTED_LINES else quiet
    return LogEnding(
        worker,
        works,
        is_well=is_well and works is not None,
        is_done=is_done,
        calm=calm,
        at_peace=at_peace,
        quiet=quiet,
        prompt=prompt,
        failure=failure,
        resumed=resumed,
        steps=steps,
        made=made,
        passed=passed,
        traced=_last_trace(tail),
        goes_on=goes_on,
    )


def is_error(place: LogPlace, score: int) -> bool:
    """Return whether a line with this score of an error is one, by its level if it has one."""
    return place.level is LogLevel.ERROR or (score >= _FAILED_SCORE and place.level is None)


def _last_crash(lines: Sequence[JudgedLine]) -> int:
    """Return the index of the last line that may end a program, -1 if there is none."""
    for at in reversed(range(len(lines))):
        place = lines[at].place
        if (lines[at].score >= CRASHED_SCORE and place.level is None) or place.text.startswith(_GCLOUD_ERROR):
            return at
    return -1


def _is_traceback(line: JudgedLine) -> bool:
    """Return whether a line is of a traceback of Python, or an error of gcloud, so that the program has ended."""
    return line.place.text.startswith(_GCLOUD_ERROR) or _TRACEBACK.match(line.place.text) is not None


def _last_step(lines: Sequence[JudgedLine]) -> LogPlace | None:
    """Return the last line that shows a training step, or the last but one of the bars."""
    bars = 0
    for line in reversed(lines):
        text = line.place.text[:_MAX_JUDGED_LENGTH]
        is_bar = _BAR.search(text) is not None
        if not (is_bar or _STEP.search(text)) or _LAST_WORDS.search(text):
            continue
        bars += is_bar
        if bars >= _MIN_BARS or shows_success(text):
            return line.place
    return None


def _last_made(lines: Sequence[JudgedLine]) -> LogPlace | None:
    for line in reversed(lines):
        text = line.place.text[:_MAX_JUDGED_LENGTH]
        if _MADE.search(text) and shows_success(text):
            return line.place
    return None


def _last_trace(lines: Sequence[JudgedLine]) -> LogPlace | None:
    """Return the first of the last commands that a script traced, if it goes on: it does not end at the first error."""
    traced = [line.place for line in lines if line.place.text.startswith("+ ")]
    last = traced[-_CALM_LINES:]
    return None if len(traced) <= len(last) or any(_CLEANS_UP.search(one.text) for one in last) else last[0]


def is_newest_first(places: Sequence[LogPlace]) -> bool:
    """Return whether lines, in the order of their log, run back in time."""
    times = [place.time for place in places if place.time is not None and place.time.tzinfo is not None]
    times = times or [place.time for place in places if place.time is not None]
    return len(times) > 1 and times[0] > times[-1]


def shows_saved(text: str) -> bool:
    """Return whether a line says that a state was saved."""
    return _SAVED.search(text) is not None and not _NOT_WELL.search(_NO_FAILURES.sub("", text))


# Every line that shows success has one of these, in lower case.
_SUCCESS_WORDS = (  # noqa: SIM905  # a list would fill a page
    "loss|acc|perplexity|ppl|bleu|rouge|reward|f1|mfu|top|mse|mae|auc|psnr|fid|wer|cer|/s|per_s|step|iter|epoch|"
    "generation|restored|resumed|complete|server|"
    "listening|serving|running|http|ok|succe|start|launched|recovered|ready|active|normal |tpudevice(|tpu_|"
    "logicaldevice(|tpu cores|device|healthy|200|operation|connected|created|returns|finished|done|pass|exit|100%|stabilized"
).split("|")


@functools.lru_cache(maxsize=2 * ENDING_LINES)
def shows_success(text: str) -> bool:
    """Return whether a line shows that a program works, or that it has ended well."""
    lower = text.lower()
    if not any(word in lower for word in _SUCCESS_WORDS):
        return False
    if _BAR.search(text) and not _FULL_BAR.search(text):
        return False
    if not any(pattern.search(text) for pattern in (_STEP, _WORKS, _MADE, _ENDED_WELL, _TESTS_PASSED, _FULL_BAR)):
        return False
    return not _NOT_WELL.search(_NO_FAILURES.sub("", text))
