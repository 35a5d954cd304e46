"""Names of API resources: valid forms, and errors for invalid ones."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuctl.errors import InvalidInputError
from tpuctl.names import (
    BucketPath,
    NodeReference,
    check_new_node_id,
    check_node_id,
    check_project,
    check_zone,
    file_stem,
    last_segment,
    node_id_of_file,
    parse_node_reference,
    region_of_zone,
)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("trainer", NodeReference("trainer")),
        ("us-central2-b/trainer", NodeReference("trainer", "us-central2-b")),
        ("projects/p/locations/us-central1-ai1a/nodes/t", NodeReference("t", "us-central1-ai1a", "p", "nodes")),
        (
            "//tpu.googleapis.com/projects/p/locations/us-east1-d/nodes/t",
            NodeReference("t", "us-east1-d", "p", "nodes"),
        ),
        (
            "https://tpu.googleapis.com/v2/projects/p/zones/us-east1-d/nodes/t",
            NodeReference("t", "us-east1-d", "p", "nodes"),
        ),
        ("team-v6e-8_000103", NodeReference("team-v6e-8_000103")),
        ("us-east1-d/8.Chips~+%", NodeReference("8.Chips~+%", "us-east1-d")),
    ],
)
def test_parse_reference_accepts_four_forms(text: str, reference: NodeReference) -> None:
    assert parse_node_reference(text) == reference


def test_empty_name_is_refused_without_a_proposal() -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_node_reference("")

    assert (refused.value.hint or "").endswith("does not end with a hyphen")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "`` is not a node name"),
        ("..", "`..` is not a node name"),
        ("a;b", "`a;b` is not a node name"),
        ("a\x1b", "`a\x1b` is not a node name"),
        ("a" * 251, f"`{'a' * 251}` is not a node name"),
        ("trainer\n", "`trainer\n` is not a node name"),
        ("a/b/c", "`a/b/c` is not a node name"),
        ("-rf", "`-rf` is not a node name"),
        ("US/trainer", "`US` is not a zone"),
        ("us-central2/trainer", "`us-central2` is a region, not a zone"),
        ("projects/p/locations/-/nodes/t", "`-` is not a zone"),
        ("projects/../locations/us-east1-d/nodes/t", "`..` is not a project id"),
        ("projects/p?x=1/locations/us-east1-d/nodes/t", "`p?x=1` is not a project id"),
    ],
)
def test_parse_reference_invalid_part_is_named(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_node_reference(text)

    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("text", "proposal"),
    [("My Trainer!", "my-trainer"), ("8-chips", "tpu-8-chips"), ("_", "tpu"), ("a" * 70, "a" * 63)],
)
def test_name_of_a_new_node_suggests_a_valid_one(text: str, proposal: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_new_node_id(text)

    assert (refused.value.hint or "").endswith(f"did you mean `{proposal}`?")


@given(
    # What begins with `#` is taken for a comment, and gets no proposal.
    st.from_regex(r"[^#].{0,79}", fullmatch=True) | st.from_regex(r"[0-9][-a-z0-9]{50,70}", fullmatch=True)
)
def test_suggested_node_name_is_valid(text: str) -> None:
    for check in (check_node_id, check_new_node_id):
        try:
            assert check(text) == text
        except InvalidInputError as error:
            proposed = re.search(r"did you mean `(.*)`\?", error.hint or "")
            assert proposed
            assert check_new_node_id(proposed[1]) == proposed[1]


@given(st.sets(st.from_regex(r"[A-Za-z0-9_.~+%][A-Za-z0-9_.~+%-]{0,20}", fullmatch=True)))
def test_file_stem_differs_between_nodes_on_every_file_system(node_ids: set[str]) -> None:
    stems = {file_stem(node_id).lower(): node_id for node_id in node_ids}

    assert {*stems.values()} == node_ids
    assert {node_id_of_file(file_stem(node_id)) for node_id in node_ids} == node_ids
    assert not any("." in stem or "/" in stem for stem in stems)


@pytest.mark.parametrize(
    "url", ["gs://data", "gs://Old_Data", "gs://artifacts.example.com:old.appspot.com", f"gs://{'a' * 255}"]
)
def test_bucket_of_any_age_is_accepted(url: str) -> None:
    assert str(BucketPath.parse(url)) == url


@pytest.mark.parametrize("zone", ["us-central2-b", "us-central1-ai1a", "northamerica-northeast1-a"])
def test_check_zone_accepts_old_and_new_zones(zone: str) -> None:
    assert check_zone(zone) == zone


@pytest.mark.parametrize(
    ("project", "is_right"),
    [
        ("my-project", True),
        ("example.com:old", True),
        ("123456", True),
        ("١٢٣", False),
        ("My Project", False),
        ("", False),
    ],
)
def test_check_project_accepts_ids_and_numbers(project: str, is_right: bool) -> None:
    try:
        assert check_project(project) == project
    except InvalidInputError:
        assert not is_right
    else:
        assert is_right


def test_region_of_a_zone_and_last_segment_of_a_name() -> None:
    assert (
        region_of_zone("europe-west4-a"),
        last_segment("projects/p/global/networks/default"),
        last_segment("default"),
    ) == (
        "europe-west4",
        "default",
        "default",
    )


def test_comment_of_zsh_as_a_node_name_is_explained() -> None:
    """`tpuctl down trainer  # delete it`: an interactive zsh has no comments by default."""
    with pytest.raises(InvalidInputError) as refused:
        check_node_id("#")

    assert (
        refused.value.hint
        == "zsh passes a comment to the command: leave it out, or run `setopt interactive_comments` first"
    )
