"""The site and the README: one set of pages, one first screen, one address, and links that work on GitHub and on the site."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stories.module_file import load_module

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
REPOSITORY = "https://github.com/tpuctl/tpuctl"
_LINK = re.compile(r"\]\((?P<target>[^)\s#]+)")
_PASTED = {"shell", "console", "text", "sh", "bash"}


hooks = load_module(DOCS / "theme" / "hooks.py")


def _pages_of(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    found = entry.values() if isinstance(entry, dict) else entry
    return [page for part in found for page in _pages_of(part)]


def test_navigation_has_every_page_once() -> None:
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.parent.name != "commands"}

    assert sorted(_pages_of(CONFIG["nav"])) == sorted([*pages, hooks.INSTALL])


def _shell_comments(markdown: str) -> list[str]:
    """Return the lines of blocks and inline commands that have a comment: an interactive zsh passes it to the command."""
    found = re.findall(r"`tpuctl [^`\n]* # [^`\n]*`", markdown)
    language = ""
    for line in hooks.fence_blocks(markdown.splitlines()):
        if mark := re.match(r" *```(\w*)", line):
            language = "" if language else mark[1] or "text"
        elif language in _PASTED and re.search(r"(?:^|\s)#\s", line):
            found.append(line)
    return found


@pytest.mark.parametrize(
    "page",
    [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("examples/**/*.md")],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_no_command_of_a_page_has_a_comment(page: Path) -> None:
    assert _shell_comments(page.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        pytest.param("    tpuctl down a  # delete it", ["tpuctl down a  # delete it"], id="behind-a-command"),
        pytest.param("    # delete it\n    tpuctl down a", ["# delete it"], id="own-line"),
        pytest.param("```sh\nmake docs # build\n```", ["make docs # build"], id="fence"),
        pytest.param("run `tpuctl down a # b`", ["`tpuctl down a # b`"], id="inline"),
        pytest.param("    # tpuctl.yaml\n    type: v4-8", [], id="yaml"),
        pytest.param("# Title\n\n    tpuctl run a -- 'echo $#'", [], id="no-comment"),
    ],
)
def test_comments_of_commands_are_found(markdown: str, expected: list[str]) -> None:
    assert _shell_comments(markdown) == expected


def test_addresses_are_those_of_the_package() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]

    assert CONFIG["site_url"] == urls["Documentation"]
    assert CONFIG["repo_url"] == urls["Repository"] == REPOSITORY
    assert f"]({urls['Documentation']})" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_a_page_at_the_top_lead_to_files(name: str) -> None:
    """The pages of docs are checked when the site is built."""
    targets = [match["target"] for match in _LINK.finditer((ROOT / name).read_text("utf-8"))]

    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []


def test_links_of_pages_to_the_repository_lead_to_files() -> None:
    """For the site they become addresses, which nothing else checks."""
    links = [
        (page, match["target"]) for page in DOCS.rglob("*.md") for match in _LINK.finditer(page.read_text("utf-8"))
    ]
    relative = [(page, target) for page, target in links if "://" not in target and target.startswith("../")]

    assert [(page.name, target) for page, target in relative if not (page.parent / target).exists()] == []


def test_guides_of_commands_are_pages() -> None:
    guides = yaml.safe_load((DOCS / "reference" / "guides.yaml").read_text("utf-8"))

    assert {page for pages in guides.values() for page in pages if not (DOCS / page).exists()} == set()
    assert sorted(guides) == sorted(page.stem for page in (DOCS / "reference" / "commands").glob("*.md"))


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        pytest.param("up.md", "](wait.md)", "](wait.md)", id="page"),
        pytest.param("up.md", "](how-to/trust.md#keys)", "](how-to/trust.md#keys)", id="anchor-of-a-page"),
        pytest.param("how-to/trust.md", "](../up.md)", "](../up.md)", id="page-above"),
        pytest.param("up.md", "](#repair)", "](#repair)", id="anchor"),
        pytest.param("up.md", "](https://a.example/../x)", "](https://a.example/../x)", id="address"),
        pytest.param("up.md", "](/up)", "](/up)", id="path-of-the-host"),
        pytest.param("up.md", "](../examples/a.yaml)", f"]({REPOSITORY}/blob/main/examples/a.yaml)", id="file"),
        pytest.param(
            "how-to/a.md", "](../../README.md#x)", f"]({REPOSITORY}/blob/main/README.md#x)", id="file-and-anchor"
        ),
    ],
)
def test_links_out_of_docs_lead_to_the_repository(page: str, link: str, expected: str) -> None:
    assert hooks.link_repository(f"a [b{link} c", page, REPOSITORY) == f"a [b{expected} c"


@pytest.mark.parametrize(
    ("first", "language"),
    [
        pytest.param("tpuctl list", "shell", id="command"),
        pytest.param("# a comment", "shell", id="comment"),
        pytest.param("$ tpuctl doctor", "console", id="session"),
        pytest.param("# tpuctl.yaml", "yaml", id="file"),
        pytest.param("zone: us-central2-b", "yaml", id="key"),
        pytest.param("- name: Train", "yaml", id="item"),
        pytest.param('{"a": 1}', "json", id="object"),
        pytest.param("error: no node", "text", id="error"),
        pytest.param("Usage: tpuctl [OPTIONS]", "text", id="help"),
        pytest.param("NAME  ZONE", "text", id="table"),
    ],
)
def test_block_is_marked_with_its_language(first: str, language: str) -> None:
    assert hooks.language_of([first, "tpuctl list"]) == language


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a\n\n    tpuctl list\n\nb", "a\n\n```shell\ntpuctl list\n```\n\nb", id="block"),
        pytest.param(
            "a\n\n    tpuctl a\n\n    tpuctl b\nc",
            "a\n\n```shell\ntpuctl a\n\ntpuctl b\n```\n\nc",
            id="with-an-empty-line",
        ),
        pytest.param("a\n    b", "a\n    b", id="continued-paragraph"),
        pytest.param("- a\n\n    b\n\n    c", "- a\n\n    b\n\n    c", id="in-a-list"),
        pytest.param("- a\n\nb\n\n    {", "- a\n\nb\n\n```json\n{\n```\n", id="after-a-list"),
        pytest.param("```python\n\n    a = 1\n```", "```python\n\n    a = 1\n```", id="in-a-fence"),
        pytest.param("```python\n>>> a\n```", "```pycon\n>>> a\n```", id="session-of-python"),
    ],
)
def test_indented_blocks_become_fenced(text: str, expected: str) -> None:
    assert "\n".join(hooks.fence_blocks(text.splitlines())) == expected


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        pytest.param("# A\n\nOne `b` and [c](d.md)\ntwo.\n\nThree.", "One b and c two.", id="first-paragraph"),
        pytest.param("# A\n\n    tpuctl a\n\n| x |\n\nmakes **b**:\n", "makes b", id="after-a-block-and-a-table"),
        pytest.param("`tpuctl gc` finds.", "tpuctl gc finds.", id="begins-with-code"),
        pytest.param("word " * 40, "word " * 31 + "word …", id="cut-at-a-word"),
        pytest.param("# A\n", "", id="none"),
    ],
)
def test_description_is_the_first_paragraph(markdown: str, expected: str) -> None:
    assert hooks.description_of(markdown) == expected


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        pytest.param("<code>--zone a</code>", "<code><span>--zone</span> a</code>", id="flag-and-value"),
        pytest.param("<code>a b-c d-e</code>", "<code>a <span>b-c</span> <span>d-e</span></code>", id="words"),
        pytest.param(f"<code>-{'x' * 29}</code>", f"<code><span>-{'x' * 29}</span></code>", id="longest"),
        pytest.param(f"<code>-{'x' * 30}</code>", f"<code>-{'x' * 30}</code>", id="too-long"),
        pytest.param("<code>TPUCTL_ZONE</code>", "<code>TPUCTL_ZONE</code>", id="no-hyphen"),
        pytest.param("<code>-a\n-b</code>", "<code>-a\n-b</code>", id="block"),
        pytest.param("--zone", "--zone", id="prose"),
    ],
)
def test_hyphenated_words_of_code_stay_on_one_line(html: str, expected: str) -> None:
    assert hooks.keep_together(html) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "  -y, --yes  Go.", '  -y, <a class="option" id="--yes" href="#--yes">--yes</a>  Go.', id="short-and-long"
        ),
        pytest.param("  text with --yes", "  text with --yes", id="in-a-text"),
        pytest.param("tpuctl --yes", "tpuctl --yes", id="in-a-command"),
    ],
)
def test_options_in_the_help_of_a_command_have_anchors(line: str, expected: str) -> None:
    assert hooks.anchor_options(f"<p>  --yes</p><pre>\n{line}</pre>") == f"<p>  --yes</p><pre>\n{expected}</pre>"


def test_option_of_a_second_command_has_an_anchor_of_its_own() -> None:
    html = hooks.anchor_options("<pre>\n  --yes</pre><pre>\n  --yes</pre>")

    assert re.findall('id="(.*?)"', html) == ["--yes", "--yes-2"]


def test_install_page_is_the_chapter_of_the_readme() -> None:
    readme = "# a\n\n## Install\n\n[b](docs/c.md#d) [e](LICENSE) [f](https://g.example) [h](#i)\n\n## Next\n"

    assert hooks.install_page(readme) == "# Install\n\n[b](c.md#d) [e](../LICENSE) [f](https://g.example) [h](#i)\n"
