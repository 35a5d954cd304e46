"""The budget: what all nodes of the project may cost together."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.check.offer_facts import facts, node, request, resources, spec, wanted
from tests.conftest import Console, Sandbox
from tests.lifecycle import EventfulClock, told
from tpuctl.check.facts import CheckFacts, Unknown, WantedNode
from tpuctl.check.rules.quota_rules import project_is_within_budget
from tpuctl.models.grants import Grant
from tpuctl.models.node import Tier

EAST = "us-east5-b"
BEYOND = (
    "all nodes cost $43.20/h now, more than the budget of $40/h: another run created some at the same time; "
    "besides this one: `us-east5-b/other` ($21.60/h); nothing was deleted"
)
GRANT = Grant(EAST, "v6e", "on-demand", 8, None)
CALM = node(f"{EAST}/calm", "v6e-8")


def about(limit: str | None = "40", **more: Any) -> WantedNode:
    tier = more.pop("tier", None)
    return wanted(spec("v6e-8", tier), zone=EAST, budget=Decimal(limit) if limit else None, **more)


@pytest.mark.parametrize(
    ("given", "level", "part"),
    [
        pytest.param(facts(about(None), resources=resources()), None, "", id="no-budget"),
        pytest.param(facts(about("1", creates=False), resources=resources()), None, "", id="existing-node"),
        pytest.param(
            facts(about("21.60"), resources=resources()), None, "all nodes with `trainer` cost $21.60/h", id="as-much"
        ),
        pytest.param(
            facts(about("21.59"), resources=resources()), "error", "$21.59/h; now nothing is billed", id="a-cent-more"
        ),
        pytest.param(
            facts(about(), resources=resources(CALM)), "error",
            "all nodes with `trainer` would cost $43.20/h, more than the budget of $40/h; "
            "now: `us-east5-b/calm` ($21.60/h)",
            id="with-what-runs",
        ),
        pytest.param(facts(about("43.20"), resources=resources(CALM)), None, "cost $43.20/h", id="within-with-what-runs"),
        pytest.param(
            facts(about(tier=Tier.SPOT), resources=resources(CALM)), None, "cost $31.32/h", id="spot-is-cheaper"
        ),
        *(
            pytest.param(
                facts(about(), resources=resources(node(f"{EAST}/x", "v6e-8", state=state))), level, "", id=f"state-{state}"
            )
            for state, level in (
                ("CREATING", "error"), ("STARTING", "error"), ("REPAIRING", "error"), ("HIDDEN", "error"),
                ("STOPPED", None), ("STOPPING", None), ("DELETING", None), ("PREEMPTED", None), ("TERMINATED", None),
            )
        ),
        pytest.param(
            facts(about(siblings=(spec("v6e-8"),)), resources=resources()), "error", "would cost $43.20/h", id="siblings"
        ),
        pytest.param(facts(about(replaces=CALM), resources=resources(CALM)), None, "cost $21.60/h", id="replaced"),
        pytest.param(
            facts(about(), resources=resources(node("us-central1-b/old", "v2-8"))), "error",
            "unknown prices, and the budget is $40/h: `us-central1-b/old` (?); now: `us-central1-b/old` (?)",
            id="unknown-price",
        ),
        pytest.param(
            facts(about(allow_unknown_price=True), resources=resources(node("us-central1-b/old", "v2-8"))), None,
            "cost at least $21.60/h", id="unknown-price-allowed",
        ),
        pytest.param(
            facts(about(allow_unknown_price=True), resources=resources(CALM, node("us-central1-b/old", "v2-8"))), "error",
            "would cost $43.20/h", id="known-is-not-unknown",
        ),
        pytest.param(facts(about(tier=Tier.RESERVED), resources=resources()), "error", "the new v6e-8 (?)", id="reserved"),
        pytest.param(
            facts(about(), resources=resources(unreachable=("us-east5-a",))), "error",
            "the nodes in us-east5-a, which did not answer", id="zone-did-not-answer",
        ),
        pytest.param(facts(about(), resources=Unknown("no answer")), "error", "no answer", id="nodes-not-listed"),
        pytest.param(
            facts(about(allow_unknown_price=True), resources=Unknown("no answer")), None, "", id="not-listed-allowed"
        ),
        pytest.param(facts(about("1", grants=(GRANT,)), resources=resources()), None, "cost $0/h", id="granted"),
        pytest.param(
            facts(about("22", grants=(GRANT,)), resources=resources(CALM)), None, "cost $21.60/h", id="grant-used-up"
        ),
        pytest.param(
            facts(about(), resources=resources(request(f"{EAST}/q", [], state="WAITING_FOR_RESOURCES"))), None,
            "cost $21.60/h", id="waiting-request",
        ),
    ],
)  # fmt: skip
def test_rule_compares_the_sum_of_all_nodes(given: CheckFacts, level: str | None, part: str) -> None:
    found = list(project_is_within_budget.judge(given))

    assert [str(one.level) for one in found] == ([level] if level else [])
    assert all(part in one.text for one in found)


def test_creation_beyond_the_budget_names_what_runs(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("calm", zone=EAST, acceleratorType="v6e-8")
    create = ("create", "trainer", "--type", "v6e-8", "--zone", EAST, "--no-wait", "--budget", "$40")

    out, err, code = tpuctl(*create)

    assert (out, code, sandbox.changes()) == ("", 9, [])
    assert (
        "  TPU409 sandbox: all nodes with `trainer` would cost $43.20/h, more than the budget of $40/h; "
        "now: `us-east5-b/calm` ($21.60/h)\n"
    ) in err
    assert "    → see what each node costs: `tpuctl cost" in err
    assert tpuctl(*create, "--skip-check", "tpu409")[2] == 0


def test_second_node_is_checked_again(tpuctl: Console, sandbox: Sandbox) -> None:
    """A check that passed a minute ago says nothing about what was created since."""
    node = ("--type", "v6e-8", "--zone", EAST, "--no-wait", "--budget", "40")
    tpuctl("create", "one", *node)
    tpuctl("delete", "one", "--yes")
    sandbox.add_node("other", zone=EAST, acceleratorType="v6e-8")

    assert tpuctl("create", "one", *node)[2] == 9


@pytest.mark.parametrize(
    ("project", "own", "code"),
    [
        pytest.param("20", "30", 9, id="project-file-lowers"),
        pytest.param("30", "20", 9, id="project-file-cannot-raise"),
        pytest.param("30", "22", 0, id="within-both"),
        pytest.param("-1", "30", 2, id="no-dollars"),
    ],
)
def test_lower_budget_of_two_files_counts(tpuctl: Console, project: str, own: str, code: int) -> None:
    (tpuctl.folder / "tpuctl.yaml").write_text(f"budget: {project}\n")
    user_file = tpuctl.folder.parent / "home" / ".config" / "tpuctl" / "config.yaml"
    user_file.parent.mkdir(parents=True)
    user_file.write_text(f"budget: {own}\n")

    assert tpuctl("create", "one", "--type", "v6e-8", "--zone", EAST, "--no-wait")[2] == code


@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param(("--budget", "40"), [BEYOND], id="beyond-together"),
        pytest.param(("--budget", "43.20"), [], id="within-together"),
        pytest.param(("--budget", "40", "--skip-check", "tpu409"), [], id="check-skipped"),
        pytest.param((), [], id="no-budget"),
    ],
)
def test_budget_is_looked_at_again_after_the_creation(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, options: tuple[str, ...], says: list[str]
) -> None:
    """Another run creates a node between the check and the creation of this one: neither has seen the other."""
    sandbox.fault("drop-before", method="*.nodes.create")
    clock.after(timedelta(seconds=1), lambda: sandbox.add_node("other", zone=EAST, acceleratorType="v6e-8"))

    out, err, code = tpuctl("up", "trainer", "--type", "v6e-8", "--zone", EAST, "--for", "ready", *options)

    assert (out, code, sandbox.changes()) == ("trainer\tREADY\n", 0, ["create"]), err
    assert [line for line in told(err, "trainer") if "budget" in line] == says
