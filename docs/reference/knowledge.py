"""The reference page of messages that `tpuctl explain` knows, by their origin, and of topics."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.command_text import fill_text
from tpuctl.explain.lookup import Topic, known_topics
from tpuctl.explain.messages import Action, CheckFirst, Message, MessageOrigin, MessageRole
from tpuctl.explain.messages import known_messages as every_message

_PLACES = {
    MessageOrigin.TRAINING_LOG: "Logs of programs",
    MessageOrigin.API: "Errors of the API",
    MessageOrigin.OPERATION: "Failed operations",
    MessageOrigin.QUEUED_RESOURCE: "Queued resources",
    MessageOrigin.SSH: "ssh and gcloud",
    MessageOrigin.NODE: "The node, with `--node`",
}
_INTRODUCTIONS = {
    MessageOrigin.TRAINING_LOG: "libtpu, JAX, TensorFlow, PyTorch/XLA, and the machine that they run on.",
    MessageOrigin.API: "Errors of the Cloud TPU API and Cloud Storage, of credentials and of gcloud.",
    MessageOrigin.OPERATION: "The error of an operation that was started and did not succeed.",
    MessageOrigin.QUEUED_RESOURCE: "The state and the error of a queued resource.",
    MessageOrigin.SSH: "Messages of OpenSSH and gcloud if a worker cannot be reached.",
    MessageOrigin.NODE: "No message, but the present state of the node in the API.",
}
_ACTIONS = {
    Action.NONE: "nothing: the message is harmless, only reports another failure, or tpuctl has no remedy for it",
    Action.WAIT: "wait; the problem ends by itself, or the program retries",
    Action.FIX_AUTH: "log in, or give the program credentials",
    Action.FIX_IAM: "grant a role or permission",
    Action.ENABLE_API: "enable an API of the project",
    Action.FIX_REQUEST: "change the request: a name, type, zone, option or state",
    Action.QUOTA: "free quota, or request more",
    Action.CAPACITY_TRY_ELSEWHERE: "use other zones (`--zone any`) or tiers (`--tier spot,on-demand`), or wait in the queue (`--queue`)",
    Action.RESTART_NODE: "restart the node; its boot disk is kept",
    Action.RECREATE_NODE: "recreate the node; its boot disk is lost",
    Action.HOST_MEMORY: "use less memory of the worker (not of the TPU)",
    Action.FIX_TRAINING_CODE: "change the program, its settings or its packages",
    Action.FIX_BUCKET: "fix the name, the location or the use of a bucket; permissions are `fix-iam`",
    Action.KILL_STALE_PROCESS: "terminate the process that holds the TPU",
    Action.FIX_SSH_KEY: "fix an ssh key, its file mode, or the known host keys",
}
_DONE_BY_TPUCTL = {
    Action.WAIT: "tpuctl wait NODE",
    Action.RESTART_NODE: "tpuctl reset NODE",
    Action.RECREATE_NODE: "tpuctl up NODE",
    Action.KILL_STALE_PROCESS: "tpuctl unstick NODE",
}
_ROLES = {
    MessageRole.CAUSE: "it states the problem itself",
    MessageRole.SYMPTOM: "it is the consequence of a failure elsewhere",
    MessageRole.WRAPPER: "it wraps another message, which stands near it",
    MessageRole.PROGRESS: "the program is still retrying",
    MessageRole.RECOVERY: "the program has recovered",
    MessageRole.HARMLESS: "no problem, although it looks like one",
}
_LOOK_FIRST = {
    CheckFirst.NODE_STATE: "the node's state",
    CheckFirst.NODE_HEALTH: "the node's health",
    CheckFirst.OTHER_WORKERS_LOG: "the logs of other workers",
    CheckFirst.SEVERAL_CAUSES: "which of several causes it is",
}


def messages() -> str:
    """Return the page of known messages and topics."""
    return f"""# Messages that `tpuctl explain` knows

`tpuctl explain` finds these messages in [logs](../explain.md). `tpuctl explain ID` prints remedies, usual causes and sources of one. An id keeps its
meaning and is never reused. Words in capitals stand for values from the message. Ids of findings are in [checks](checks.md) and
[doctor](doctor.md).

`action` is the kind of remedy:

<!-- table: actions -->
| action | remedy | `--act` runs |
|---|---|---|
{"".join(map(_action, Action))}
The role of a message:

| role | meaning |
|---|---|
{"".join(map(_role, MessageRole))}
{"".join(_places())}## Topics

Advice that belongs to no single message: `tpuctl explain --topic NAME`. Synonyms and the beginning of a name also work.

| topic | about |
|---|---|
{"".join(map(_topic, known_topics()))}"""


def _places() -> Iterator[str]:
    for place, title in _PLACES.items():
        known = sorted((one for one in every_message() if one.where is place), key=lambda one: one.id)
        yield f"## {title}\n\n`{place}`. {_INTRODUCTIONS[place]}\n\n"
        yield "| id | action | role | meaning |\n|---|---|---|---|\n"
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
    meaning = _cell(fill_text(message.meaning, {}))
    return f"| `{message.id}` | `{message.action}` | {message.role}{look} | {meaning} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
