"""The options that say what a node works with and what may be spent, and the gate that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.places import checked_file
from tpuctl.errors import InvalidInputError, SettingError
from tpuctl.names import nearest
from tpuctl.settings import SourceKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.actions.checking.gate import Gate
    from tpuctl.actions.checking.sources import Sources
    from tpuctl.cli.app import App
    from tpuctl.preflight.wanted import BucketUse, Purpose, Wishes
    from tpuctl.settings import Settings

_OPTIONS = (
    click.option(
        "--bucket", "buckets", metavar="URL", multiple=True, help="gs:// place that the node reads and writes."
    ),
    click.option("--data-bucket", "data_buckets", metavar="URL", multiple=True, help="One that it only reads."),
    click.option(
        "--checkpoint-bucket", "checkpoint_buckets", metavar="URL", multiple=True, help="One that it writes to."
    ),
    click.option("--dataset-size", metavar="SIZE", help="What one epoch reads, like 1.2TB."),
    click.option("--billing-project", metavar="ID", help="Who pays for buckets whose requester pays."),
    click.option(
        "--no-billing-outside-grants",
        is_flag=True,
        default=None,
        help="Create nothing that no grant covers (up, create, run --up; not start and watch).",
    ),
    click.option(
        "--skip-check",
        "skip_checks",
        metavar="ID",
        multiple=True,
        help="Checks that stop nothing, like TPU101,TPU401, or all.",
    ),
    click.option("--check-timeout", metavar="TIME", help="How long the checks may ask the cloud. [default: 15s]"),
)
_NAMES = (
    "buckets", "data_buckets", "checkpoint_buckets", "dataset_size", "billing_project", "no_billing_outside_grants",
    "skip_checks", "check_timeout",
)  # fmt: skip


# What may be billed is for whoever pays to say.
_NOT_FOR_A_PROJECT_FILE = frozenset({"all", "TPU405"})


def check_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that the checks go by; each is a setting too."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def take_checks(options: dict[str, Any]) -> dict[str, Any]:
    """Take these options out of a command's options; those not given are left out."""
    taken = {name: options.pop(name) for name in _NAMES}
    return {name: value for name, value in taken.items() if value not in (None, ())}


def gate(app: App, given: dict[str, Any], *, purpose: Purpose | None = None, machine: str | None = None) -> Gate:
    """Return the gate that these options and the settings make.

    Raises `InvalidInputError` for a place that is no bucket and for an id that no check has.
    """
    from tpuctl.actions.checking.gate import Gate  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.checked import Checked  # noqa: PLC0415  # as above
    from tpuctl.clock import SystemClock  # noqa: PLC0415  # as above
    from tpuctl.preflight.wanted import parse_bucket  # noqa: PLC0415  # as above

    for name in ("buckets", "data_buckets", "checkpoint_buckets"):
        for text in given.get(name, ()):
            parse_bucket(text)  # also what is empty, and would not count as a value
    settings = app.settings_with({name: _as_setting(name, value) for name, value in given.items()})
    return Gate(
        lambda: sources(app),
        _wishes(settings, purpose, machine),
        Checked(checked_file(app.invocation.environ, sandbox=app.is_sandbox), app.clock),
        accepted=_accepted(settings),
        timeout=settings.duration("check_timeout"),
        # A network takes real time, whatever the clock of a sandbox says.
        real=app.invocation.clock or SystemClock(),
        now=app.now,
        identity=_identity(app),
    )


def accepted_checks(app: App, given: tuple[str, ...]) -> frozenset[str]:
    """Return the ids that `--skip-check`, else the settings, name. Raises `InvalidInputError` for one that no check has."""
    flags = {"skip_checks": _as_setting("skip_checks", given)} if given else {}
    return _accepted(app.settings_with(flags))


def sources(app: App) -> Sources:
    """Return what the checks ask. Nothing is sent."""
    from tpuctl.actions.checking.sources import Sources  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.api import connections  # noqa: F401, PLC0415  # 60 ms, for which threads that begin to ask would queue
    from tpuctl.api.buckets import BucketsClient  # noqa: PLC0415  # as above
    from tpuctl.api.compute import ComputeClient  # noqa: PLC0415  # as above
    from tpuctl.api.projects import ProjectsClient  # noqa: PLC0415  # as above
    from tpuctl.api.retry import SHORT_PATIENCE  # noqa: PLC0415  # as above
    from tpuctl.api.tpu import TpuClient  # noqa: PLC0415  # as above
    from tpuctl.cli.connect import http_access  # noqa: PLC0415  # as above

    factory, endpoint = http_access(app)
    return Sources(
        # Not the app's own, which waits half a minute for a service that is down: what is asked here is good to know.
        tpu=TpuClient(factory, app.clock, endpoint=endpoint, policy=SHORT_PATIENCE),
        buckets=BucketsClient(factory, app.clock, endpoint=endpoint),
        compute=ComputeClient(factory, app.clock, endpoint=endpoint),
        projects=ProjectsClient(factory, app.clock, endpoint=endpoint),
    )


def _wishes(settings: Settings, purpose: Purpose | None, machine: str | None) -> Wishes:
    from tpuctl.preflight.grants import Grant  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.preflight.wanted import Purpose, Wishes  # noqa: PLC0415  # as above

    return Wishes(
        purpose=purpose or Purpose.TRAIN,
        buckets=_buckets(settings),
        machine=machine,
        dataset_size=settings.size("dataset_size"),
        billing_project=settings.text("billing_project"),
        iap=settings.is_on("iap"),
        internal_ip=settings.is_on("internal_ip"),
        grants=tuple(Grant.parse(record) for record in settings.records("grants")),
        no_billing_outside_grants=settings.is_on("no_billing_outside_grants"),
        egress_prices=_prices(settings),
    )


def _prices(settings: Settings) -> dict[str, str]:
    prices = settings.pairs("egress_prices")
    if not prices:
        return prices
    from tpuctl.colocation import own_prices  # noqa: PLC0415  # few have prices of their own

    try:
        own_prices(prices)
    except ValueError as error:
        raise SettingError(f"{_stands(settings, 'egress_prices')}: {error}") from None
    return prices


def _stands(settings: Settings, key: str) -> str:
    """Return where a setting stands, and its name."""
    setting = settings[key]
    return f"{setting.source}: `{key}`" if setting else f"`{key}`"


def _buckets(settings: Settings) -> tuple[BucketUse, ...]:
    uses = (
        *_parsed(settings, "buckets"),
        *_parsed(settings, "data_buckets", writes=False),
        *_parsed(settings, "checkpoint_buckets", reads=False),
    )
    return tuple(dict.fromkeys(uses))


def _parsed(settings: Settings, key: str, **use: bool) -> tuple[BucketUse, ...]:
    from tpuctl.preflight.wanted import parse_bucket  # noqa: PLC0415  # completion and --help need not wait for it

    try:
        return tuple(parse_bucket(text, **use) for text in settings.items(key))
    except InvalidInputError as error:
        raise SettingError(f"{_stands(settings, key)}: {error.message}", hint=error.hint) from None


def _accepted(settings: Settings) -> frozenset[str]:
    from tpuctl.preflight.evaluation import ALL  # noqa: PLC0415  # completion and --help need not wait for it

    given = frozenset(text.upper() if text.lower() != ALL else ALL for text in settings.items("skip_checks"))
    _check_who_skips(settings, given)
    if given <= {ALL}:
        return given
    from tpuctl.preflight.rules import RULES  # noqa: PLC0415  # 20 ms, and few skip a check by its id

    if wrong := sorted(given - {rule.id for rule in RULES} - {ALL}):
        _check_ids(wrong, settings)
    return given


def _check_who_skips(settings: Settings, given: frozenset[str]) -> None:
    """Raise `SettingError` where a file that may come from a stranger's repository lets pass what guards money."""
    setting, refused = settings["skip_checks"], sorted(given & _NOT_FOR_A_PROJECT_FILE)
    if setting and setting.source.kind is SourceKind.PROJECT_FILE and refused:
        raise SettingError(
            f"{setting.source}: `skip_checks` of a project file cannot name {' and '.join(f'`{id_}`' for id_ in refused)}",
            hint="it may come from a repository of others: use the flag `--skip-check`, or your own file",
        )


def _check_ids(given: list[str], settings: Settings) -> None:
    """Return if these are ids of checks of AI Platform's jobs; else raise `InvalidInputError` naming where one stands."""
    from tpuctl.preflight import ai_platform  # noqa: PLC0415  # few have such a job
    from tpuctl.preflight.rules import RULES  # noqa: PLC0415  # 20 ms, and few skip a check by its id

    known = [*(rule.id for rule in RULES), *(rule.id for rule in ai_platform.RULES)]
    setting = settings["skip_checks"]
    for text in given:
        if text not in known:
            near = nearest(text, known[: len(RULES)]) or nearest(text, known)
            hint = f"did you mean `{near}`?" if near else "`tpuctl check --all` shows the ids; `all` is every one"
            if setting is None or setting.source.kind is SourceKind.FLAG:
                raise InvalidInputError(f"`--skip-check {text}`: there is no such check", hint=hint)
            raise SettingError(f"{setting.source}: `skip_checks`: there is no check `{text}`", hint=hint)


def _as_setting(name: str, value: Any) -> Any:  # click's value, as the settings take it
    if value is True:
        return "true"
    # Of a list's items none is split: an id has no comma, a bucket's name may.
    return tuple(part.strip() for text in value for part in text.split(",")) if name == "skip_checks" else value


def _identity(app: App) -> str:
    settings = app.settings
    place = "sandbox" if app.is_sandbox else settings.text("endpoint") or "google"
    return f"{place} {settings.text('account')} {settings.text('impersonate_service_account')}"
