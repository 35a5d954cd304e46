"""Several zones and capacity types for one node: which ones the user allows, and in which order they are tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.accelerators import suggest_listed_type
from tpuctl.app.app import ANY_ZONE
from tpuctl.check.zone_ranking import zones_with_type
from tpuctl.errors import CheckFailedError, InvalidInputError, SettingError
from tpuctl.names import check_zone
from tpuctl.nodes.zone_order import Offer, order_zones
from tpuctl.prices import budget_words, within_budget

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tpuctl.app.app import App
    from tpuctl.check.gate import PreflightCheck
    from tpuctl.models.node import Tier
    from tpuctl.models.spec import NodeSpec


@dataclass(frozen=True, slots=True)
class ZoneChoice:
    """The zones that the user allows; none for any."""

    zones: tuple[str, ...]

    @property
    def text(self) -> str:
        """The choice as the user writes it."""
        return ",".join(self.zones) or ANY_ZONE


def zone_choice(app: App) -> ZoneChoice | None:
    """Return the zones of the flag `--zone`, else of the setting `zones`; None for one zone or the default.

    Raises `InvalidInputError` for `any` beside others.
    """
    given = app.zone_flags or (() if app.settings["zone"] and not is_default_zone(app) else app.settings.items("zones"))
    if ANY_ZONE in given and len(set(given)) > 1:
        raise InvalidInputError("`--zone any` excludes other zones", hint="leave out `any`, or the other zones")
    if ANY_ZONE in given:
        return ZoneChoice(())
    if len(given) == 1 and not app.zone_flags:
        app.choose_zone(check_zone(given[0]))
    return ZoneChoice(tuple(dict.fromkeys(map(check_zone, given)))) if len(set(given)) > 1 else None


def choice_for(app: App, node: str, choice: ZoneChoice | None) -> ZoneChoice | None:
    """Return the choice for a node; None if its name has the zone, as in `ZONE/NODE`.

    Raises `InvalidInputError` for a zone that the flag leaves out.
    """
    zone = app.reference(node).zone
    if zone is None or choice is None:
        return choice
    if app.zone_flags and choice.zones and zone not in choice.zones:
        raise InvalidInputError(
            f"`{node}` is in {zone}, which `--zone {choice.text}` leaves out", hint="leave out one of the zones"
        )
    app.choose_zone(zone)
    return None


def one_zone(app: App, node: str) -> ZoneChoice | None:
    """Return the only zone of a node as a choice, to try several tiers there; None if no zone is set."""
    zone = app.reference(node).zone or app.place.zone or app.place.default_zone
    return ZoneChoice((zone,)) if zone else None


def is_default_zone(app: App) -> bool:
    """Return whether the zone of the settings is only gcloud's default, which does not limit a search."""
    setting = app.settings["zone"]
    return setting is not None and setting.source.kind in {"gcloud", "cloudsdk environment"}


def order_offers(
    app: App,
    preflight: PreflightCheck,
    choice: ZoneChoice,
    spec: NodeSpec,
    *,
    tiers: Sequence[Tier],
) -> tuple[Offer, ...]:
    """Return the zones that offer the type, for each capacity type, in the order in which to try them: as named, else ranked.

    Notes the zones that do not offer it. Raises `InvalidInputError` with the zones that do if none is left.
    """
    ranking = preflight.ranking(app.project, spec, choice.zones)
    if ranking.offline is not None:
        # Without the API's list, the documentation says what a zone offers: the service has the last word.
        app.terminal.note(f"which zones offer `{spec.accelerator_type}` is from the documentation: {ranking.offline}")
    ranked = [rank.zone for rank in ranking.zones]
    if not ranked:
        offers = zones_with_type(app.services.client.offers(app.project), spec)
        near = None if offers else suggest_listed_type(spec.accelerator_type)
        hint = f"it is offered in {', '.join(sorted(offers)[:8])}" if offers else "see `tpuctl types`"
        hint = f"did you mean `{near}`? {hint}" if near else hint
        raise InvalidInputError(f"no zone of `--zone {choice.text}` offers `{spec.accelerator_type}`", hint=hint)
    for zone in choice.zones:
        if zone not in ranked:
            app.terminal.note(f"{zone} does not offer `{spec.accelerator_type}`: left out")
    limit, allow_unknown = preflight.max_price, preflight.settings.allow_unknown_price
    ordered: list[Offer] = []
    too_dear: list[str] = []
    several: Sequence[Tier | None] = tiers if len(tiers) > 1 else (None,)
    for tier in several:
        asked = tier or spec.tier
        price_of, count = preflight.settings.hourly_price, spec.slices or 1
        prices = {zone: price_of(spec.accelerator_type, zone, asked).times(count) for zone in ranked}
        memories = app.services.journal.zone_memories(app.project, spec.accelerator_type, asked)
        zones = choice.zones or order_zones(ranking.zones, prices, memories)
        for zone in zones:
            if zone not in prices:
                continue
            offer = Offer(zone, tier, prices[zone])
            if within_budget(prices[zone], limit, allow_unknown=allow_unknown):
                ordered.append(offer)
            elif limit is not None:
                too_dear.append(f"{offer} {budget_words(prices[zone], limit)}")
    if not ordered:
        raise CheckFailedError(
            f"no zone of `--zone {choice.text}` has `{spec.accelerator_type}` for at most ${limit}/h:",
            details=[f"  {text}" for text in too_dear[:20]],
            hint="raise `--max-price`, or allow cheaper tiers: `--tier spot,on-demand`; "
            "`--allow-unknown-price` allows unknown prices",
        )
    for text in too_dear[:8]:
        app.terminal.note(f"{text}: left out")
    return tuple(ordered)


def check_zone_options(
    choice: ZoneChoice | None,
    nodes: Collection[str],
    *,
    tiers: Sequence[Tier],
    wait: bool,
    race: bool,
) -> None:
    """Raise `InvalidInputError` for options that exclude one another, and for several nodes in several zones."""
    if race and not wait:
        raise InvalidInputError(
            "cannot combine `--race` and `--no-wait`: the losers are cancelled by the run that waits",
            hint="leave one out",
        )
    if len(tiers) > 1 and (race or choice is None):
        given = f"`--tier {','.join(tiers)}`"
        if race:
            raise InvalidInputError(f"cannot use `--race` with several tiers ({given})", hint="name one tier")
        raise InvalidInputError(f"{given} needs a zone", hint="name it with `--zone ZONE`, or use `--zone any`")
    if choice is None:
        if race:
            raise InvalidInputError(
                "`--race` needs several zones", hint="name them: `--zone ZONE,ZONE`, or use `--zone any`"
            )
    elif len(nodes) > 1 and race:
        raise InvalidInputError(
            f"`--race` takes one node, not {len(nodes)}",
            hint="run the command once for each node, or leave `--race` out",
        )


def require_type(spec: NodeSpec | None, choice: ZoneChoice | None) -> NodeSpec:
    """Return the spec. Raises `SettingError` without one."""
    if spec is None:
        where = f" for `--zone {choice.text}`" if choice else ""
        raise SettingError(f"no accelerator type given{where}", hint="name one: `--type v6e-8`; see `tpuctl types`")
    return spec
