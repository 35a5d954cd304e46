"""The reference page of what `tpuctl explain` knows: messages by the place where they arise, and topics."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.explain.lookup import Topic, known_topics
from tpuctl.explain.messages import Action, CheckFirst, Message, MessageOrigin, MessageRole
from tpuctl.explain.messages import known_messages as every_message

_PLACES = {
    MessageOrigin.TRAINING_LOG: "Logs of programs",
    MessageOrigin.API: "Refusals of the API",
    MessageOrigin.OPERATION: "Operations that failed",
    MessageOrigin.QUEUED_RESOURCE: "Queued resources",
    MessageOrigin.SSH: "ssh and gcloud",
    MessageOrigin.NODE: "The node, with `--node`",
}
_INTRODUCTIONS = {
    MessageOrigin.TRAINING_LOG: "libtpu, JAX, TensorFlow, PyTorch/XLA, and the machine that they run on.",
    MessageOrigin.API: "What the Cloud TPU API and Cloud Storage answer, and what credentials and gcloud say before they ask.",
    MessageOrigin.OPERATION: "The error of an operation that was begun and did not succeed.",
    MessageOrigin.QUEUED_RESOURCE: "The state and the error of a queued resource.",
    MessageOrigin.SSH: "What OpenSSH and gcloud print where a worker cannot be reached.",
    MessageOrigin.NODE: "No message, but what the API says of the node just now.",
}
_ACTIONS = {
    Action.NONE: "nothing: it is harmless, or only tells of another failure",
    Action.WAIT: "wait; it passes by itself, or is tried again",
    Action.FIX_AUTH: "log in, or give the program credentials",
    Action.FIX_IAM: "grant a role or permission",
    Action.ENABLE_API: "enable an API of the project",
    Action.FIX_REQUEST: "change what is asked for: a name, type, zone, option or state",
    Action.QUOTA: "free quota, or ask for more",
    Action.CAPACITY_TRY_ELSEWHERE: "another zone or tier, or later",
    Action.RESTART_NODE: "make the node fresh; its disk is kept",
    Action.RECREATE_NODE: "make the node anew; its disk is lost",
    Action.HOST_MEMORY: "use less of the worker machine's memory, which is not the TPU's",
    Action.FIX_TRAINING_CODE: "change the program, its settings or its packages",
    Action.FIX_BUCKET: "mend place, rights or use of a bucket",
    Action.KILL_STALE_PROCESS: "end the process that holds the TPU",
    Action.FIX_SSH_KEY: "mend an ssh key, its modes, or the host keys that are known",
}
_DONE_BY_TPUCTL = {
    Action.WAIT: "tpuctl wait NODE",
    Action.RESTART_NODE: "tpuctl reset NODE",
    Action.RECREATE_NODE: "tpuctl up NODE",
    Action.KILL_STALE_PROCESS: "tpuctl unstick NODE",
}
_ROLES = {
    MessageRole.CAUSE: "it says itself what is wrong",
    MessageRole.SYMPTOM: "what others see of a failure elsewhere",
    MessageRole.WRAPPER: "it carries another message, which stands near it",
    MessageRole.PROGRESS: "something is still being tried",
    MessageRole.RECOVERY: "it tells that something is over",
    MessageRole.HARMLESS: "nothing, whatever it looks like",
}
_LOOK_FIRST = {
    CheckFirst.NODE_STATE: "the node's state",
    CheckFirst.NODE_HEALTH: "the node's health",
    CheckFirst.OTHER_WORKERS_LOG: "the logs of other workers",
}


def messages() -> str:
    """Return the page of known messages and topics."""
    return f"""# What `tpuctl explain` knows

These are the messages that `tpuctl explain` finds in [logs](../explain.md). `tpuctl explain ID` tells more of one: what to do, what it usually
follows from, and where that is known from. An id keeps its meaning and is never used for something else. Words in capitals stand for what
the message itself names. Ids of findings are in [checks](checks.md) and [doctor](doctor.md).

`action` is the kind of thing that helps:

<!-- table: actions -->
| action | what helps | `--act` does |
|---|---|---|
{"".join(map(_action, Action))}
What a message usually is:

| | |
|---|---|
{"".join(map(_role, MessageRole))}
{"".join(_places())}## Topics

Advice that belongs to no single message: `tpuctl explain --topic NAME`. Other names of a topic, and the beginning of one, will do.

| topic | about |
|---|---|
{"".join(map(_topic, known_topics()))}"""


def _places() -> Iterator[str]:
    for place, title in _PLACES.items():
        known = sorted((one for one in every_message() if one.where is place), key=lambda one: one.id)
        yield f"## {title}\n\n`{place}`. {_INTRODUCTIONS[place]}\n\n"
        yield "| id | action | usually | meaning |\n|---|---|---|---|\n"
        yield from map(_row, known)
        yield "\n"


def _action(action: Action) -> str:
    done = f"`{_DONE_BY_TPUCTL[action]}`" if action in _DONE_BY_TPUCTL else ""
    return f"| `{action}` | {_ACTIONS[action]} | {done} |\n"


def _role(role: MessageRole) -> str:
    return f"| {role} | {_ROLES[role]} |\n"


def _topic(topic: Topic) -> str:
    return f"| `{topic.id}` | {_cell(topic.title)} |\n"


def _row(message: Message) -> str:
    look = f"; look first at {_LOOK_FIRST[message.check_first]}" if message.check_first else ""
    meaning = _cell(message.filled(message.meaning, {}))
    return f"| `{message.id}` | `{message.action}` | {message.role}{look} | {meaning} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
