"""What holds for every message: patterns that cannot run for long, anchors, references and placeholders that exist."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tpuctl.explain.messages import Action, MatchedBy, Message, MessageOrigin, MessageRole, known_messages

# A contract: scripts and other tools know the messages by these words.
_IDS = """
auth-insufficient-scopes auth-no-adc auth-reauth-needed auth-no-active-account auth-no-quota-project api-disabled
billing-free-trial billing-disabled iam-permission-denied iam-location-policy iam-read-access-denied iam-project-not-found
quota-limit-zero quota-limit-exceeded quota-exhausted quota-create-rate tpu-node-architecture-denied zone-not-supported
accelerator-not-in-zone field-invalid guest-attributes-missing already-exists node-not-found stop-not-supported-qr
symptom-low-memory symptom-hbm-out-of-memory symptom-out-of-memory symptom-execute-timed-out symptom-mesh-build-fail
symptom-project-abuse health-unhealthy maintenance-none capacity-zone capacity-reserved state-forbids-action op-wait-timeout
internal-error-qr internal-error disk-not-attached qr-suspended-by-service qr-node-prefix qr-node-count qr-timing-constraint
provisioning-model-invalid ssh-terminal-state ssh-unusable-state ssh-transitional-state ssh-maintenance ssh-key-propagation
ssh-timeout ssh-refused ssh-publickey ssh-multi-worker-failed ssh-worker-command-failed ssh-worker-index ssh-needs-command
ssh-not-tpu-vm ssh-no-external-ip iap-4003 iap-unavailable ssh-hostkey-changed ssh-hostkey-verification ssh-keygen-first
ssh-closed-by-remote ssh-255 gcloud-component-manager tpu-in-use-pid tpu-in-use-other-user accel-not-permitted
no-device-found libtpu-topology tpu-init-60s barrier-timeout heartbeat-timeout missing-heartbeats hbm-oom vmem-oom
libtpu-symbol-missing jax-no-libtpu jax-no-tpu-found no-accelerator-found oom-kill-137 host-bad-alloc disk-full boot-apt-race
tf-master tf-preemption-hint tf-context-id tf-socket-closed tf-all-addresses tf-enqueue tf-step-cancelled
tf-stale-tpu-resource tf-local-fs tf-infeed-dtype tf-dynamic-shape tf-pyfunc tf-op-unavailable tf-remote-handle tf-dst-node
tf-compile-failed tf-schedule-failed tf-still-waiting tf-missing-config tf-shutdown-hook tf-params-benign gcs-libcurl-28
gcs-flush-failed gcs-denied gcs-requester-pays xla-missing-config xla-not-initialized xla-no-tpu-system xla-runstep
xla-mesh-master tpu-init-failed org-policy-shielded-vm
"""

# What the caller may know although the message does not name it, beside the facts that the message names.
_KNOWN_TO_CALLERS = {
    *("node", "zone", "project", "worker", "login", "address", "key", "alias", "known_hosts", "name"),
    "service_account",
}
_ASCII = st.characters(codec="ascii")
# Several patterns at once are quicker than one by one; too many at once are more than hypothesis wants to make.
_PARTS = 30
_UNBOUNDED = re.compile(r"\{\d{0,9},\}|[*+]")


def test_ids_are_a_contract() -> None:
    """No id occurs twice, and no promised id is missing."""
    ids = [message.id for message in known_messages()]
    assert sorted(ids) == sorted(set(ids))
    assert [id_ for id_ in _IDS.split() if id_ not in ids] == []


# How a remedy begins that only looks.
_CHECK = re.compile(r"(?:check|see|read|look|compare|search|find|run `tpuctl (?:unstick|doctor))\b|it is \{state\}")


def test_several_remedies_without_an_action_begin_with_a_check() -> None:
    several = [one for one in known_messages() if one.action is Action.NONE and one.check_first and len(one.remedy) > 1]

    assert several
    assert [one.id for one in several if not _CHECK.match(one.remedy[0])] == []


def unbounded(pattern: str) -> list[str]:
    """Return the quantifiers without an upper limit: what stands outside of escapes and of sets of characters."""
    without_escapes = re.sub(r"\\.", "a", pattern)
    return _UNBOUNDED.findall(re.sub(r"\[\^?\]?[^\]]*\]", "a", without_escapes))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"a{1,9}b?c{3}", []),
        (r"a+b", ["+"]),
        (r"(?:ab)*?c{2,}", ["*", "{2,}"]),
        (r"\+\*[+*]{1,3}[]+]x", []),
        (r"[^]*]y\[+", ["+"]),
    ],
)
def test_unbounded_quantifiers_are_found(pattern: str, found: list[str]) -> None:
    """The check itself: escapes and sets do not count."""
    assert unbounded(pattern) == found


def test_patterns_take_bounded_time() -> None:
    """For any log, hostile ones too: at most one quantifier without a limit, and none where logs are searched."""
    found = {message.id: unbounded(message.match) for message in known_messages()}
    allowed = {message.id: 0 if message.anchors else 1 for message in known_messages()}
    assert [id_ for id_, quantifiers in found.items() if len(quantifiers) > allowed[id_]] == []


def test_references_of_messages_exist() -> None:
    """Its causes, what it ends, and the latest of its facts."""
    ids = {message.id for message in known_messages()}
    referred = {message.id: message.explained_by | message.ends for message in known_messages()}
    assert {id_: others - ids for id_, others in referred.items() if others - ids} == {}
    assert [id_ for id_, others in referred.items() if id_ in others] == []
    assert [message.id for message in known_messages() if not message.latest <= _facts(message)] == []
    assert [
        message.id for message in known_messages() if message.ends and message.role is not MessageRole.RECOVERY
    ] == []


def test_what_destroys_or_kills_needs_a_specific_message() -> None:
    """The wrapper of an unknown reason is none, nor is a symptom, whose cause may be anything."""
    destructive = {Action.RESTART_NODE, Action.RECREATE_NODE, Action.KILL_STALE_PROCESS}
    vague = [
        one.id
        for one in known_messages()
        if one.action in destructive and (one.role is not MessageRole.CAUSE or one.by is not MatchedBy.TEXT)
    ]

    assert vague == []


def test_placeholders_can_be_filled() -> None:
    """By the facts that the pattern names, or by what the caller knows."""
    texts = {message.id: " ".join((message.meaning, *message.remedy)) for message in known_messages()}
    unknown = {
        message.id: set(re.findall(r"\{(\w+)\}", texts[message.id])) - _KNOWN_TO_CALLERS - _facts(message)
        for message in known_messages()
    }
    assert {id_: names for id_, names in unknown.items() if names} == {}


def test_sentences_have_one_style() -> None:
    """No full stop, paired backticks, something to do next, and a source."""
    sentences = [
        (message.id, sentence) for message in known_messages() for sentence in (message.meaning, *message.remedy)
    ]
    assert [
        (id_, sentence) for id_, sentence in sentences if sentence != sentence.strip() or sentence.endswith(".")
    ] == []
    assert [(id_, sentence) for id_, sentence in sentences if sentence.count("`") % 2] == []
    assert [message.id for message in known_messages() if not message.remedy or not message.source] == []


def test_anchors_are_long_enough() -> None:
    """A short one is in every line of every log."""
    anchors = [anchor for message in known_messages() for anchor in message.anchors]
    assert [anchor for anchor in anchors if len(_squeezed(anchor)) < 8] == []


def test_every_training_log_message_has_anchors() -> None:
    """A message without an anchor is never found in a log."""
    in_logs = [
        message
        for message in known_messages()
        if message.where is MessageOrigin.TRAINING_LOG and message.by is MatchedBy.TEXT
    ]
    assert [message.id for message in in_logs if not message.anchors] == []


@pytest.mark.parametrize("remainder", range(_PARTS))
def test_every_match_holds_an_anchor(remainder: int) -> None:
    """Otherwise the search for anchors would pass over a text that is known. Texts are made from the patterns."""
    some = [message for message in known_messages() if message.anchors][remainder::_PARTS]
    texts = [st.from_regex(re.compile(message.match, re.ASCII), alphabet=_ASCII) for message in some]

    @settings(
        max_examples=3,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(*texts))
    def check(made: tuple[str, ...]) -> None:
        without = {}
        for message, text in zip(some, made, strict=True):
            found = re.search(message.match, text)
            if found and not any(_squeezed(anchor) in _squeezed(found[0]) for anchor in message.anchors):
                without[message.id] = found[0]
        assert without == {}

    check()


def _facts(message: Message) -> set[str]:
    return set(re.compile(message.match).groupindex)


def _squeezed(text: str) -> str:
    return "".join(text.split()).lower()
