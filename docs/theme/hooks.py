"""Build the site from pages that also read well on GitHub: their links, their indented blocks, and a description for each."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

# The page that lists all commands; the pages of its folder follow it in the navigation.
COMMANDS = "reference/commands.md"
# The page that is a chapter of the README.
INSTALL = "install.md"
_DESCRIPTION_LENGTH = 160
# A word in a heading counts a thousand times. Catalogues have one for almost every word: guides and commands come before them.
_SEARCH_BOOSTS = {
    "reference/json.md": 0.001,
    "reference/topics.md": 0.003,
    "reference/checks.md": 0.1,
    "reference/doctor.md": 0.1,
    "reference/settings.md": 2,
    "python.md": 0.1,
    "doctor.md": 0.3,
    "ray.md": 0.01,
    "usable.md": 10,
    "how-to/keep-a-node-alive.md": 10,
    "contributing/test-your-own-tool.md": 0.01,
    "how-to/from-ai-platform.md": 0.1,
}
_LINK = re.compile(r"\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_FENCE = re.compile(r"(?P<mark>`{3,}|~{3,})")
_LIST_ITEM = re.compile(r" *(?:[-*+]|\d+\.) ")
_INLINE_CODE = re.compile(r"(?<=<code>)[^<\n]+(?=</code>)")
# In the help of a command: the names of an option at the begin of a line.
_OPTION = re.compile(r"^( +(?:-\w, )?)(--[a-z][a-z-]*)", re.MULTILINE)
_BLOCK = re.compile(r"<pre.*?</pre>", re.DOTALL)
_HYPHENATED = re.compile(r"(?<!\S)(?=\S*-)\S{2,30}(?!\S)")
_YAML = re.compile(r"(?:- )?(?!error:)[a-z_]+:(?: |$)")
_YAML_TITLE = re.compile(r"# \S+\.ya?ml$")
_PROGRAMS = {"tpuctl", "export", "cat", "eval", "gcloud", "python", "python3", "pip", "pipx", "uv", "git", "docker", "kubectl", "make", "ssh",
             "rsync", "source", "sh", "curl", "apt-get"}  # fmt: skip


def on_config(config: MkDocsConfig) -> None:
    """Make the anchors that GitHub makes, and put the page of each command below the list of commands."""
    from pymdownx.slugs import slugify  # noqa: PLC0415  # only the environment of the docs has it

    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    folder = Path(COMMANDS).with_suffix("")
    pages = sorted(page.stem for page in Path(config.docs_dir, folder).glob("*.md"))
    for section in config.nav or []:
        for entries in section.values():
            for entry in entries:
                if isinstance(entry, dict) and COMMANDS in entry.values():
                    [title] = entry
                    entry[title] = [COMMANDS, *({name: f"{folder}/{name}.md"} for name in pages)]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the page about the installation, which is a chapter of the README."""
    from mkdocs.structure.files import File  # noqa: PLC0415  # only the environment of the docs has it

    readme = Path(config.docs_dir).with_name("README.md").read_text("utf-8")
    files.append(File.generated(config, INSTALL, content=install_page(readme)))


def install_page(readme: str) -> str:
    """Return the chapter about the installation as a page, with links as from a page of docs/."""
    chapter = readme.partition("\n## Install\n")[2].partition("\n## ")[0]
    return "# Install\n" + re.sub(r"\]\((?!\w+://|#)(docs/)?", lambda link: "](" if link[1] else "](../", chapter)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Return the page as the site needs it, and set its description."""
    text = _COMMENT.sub("\n", whole_page(page.file.src_uri, config.docs_dir) or markdown)
    page.meta.setdefault("description", description_of(text))
    page.meta.setdefault("search", {"boost": _SEARCH_BOOSTS.get(page.file.src_uri, 1)})
    return "\n".join(fence_blocks(link_repository(text, page.file.src_uri, str(config.repo_url)).splitlines())) + "\n"


def whole_page(page: str, docs: str) -> str | None:
    """Return all of a page of which the repository has the beginning; None for any other."""
    folder, name = posixpath.split(page)
    if folder != "reference":
        return None
    sys.path.insert(0, str(Path(docs, folder)))
    from generate import SITE_PAGES  # type: ignore[import-not-found]  # noqa: PLC0415  # it is beside the pages

    return str(SITE_PAGES[name][0]()) if name in SITE_PAGES else None


def on_page_content(html: str, page: Page, **_: object) -> str:
    """Return the HTML of the page as the style sheet needs it, and the help of commands with anchors."""
    is_help = page.file.src_uri == COMMANDS or page.file.src_uri.startswith("reference/commands/")
    return keep_together(anchor_options(html) if is_help else html)


def anchor_options(html: str) -> str:
    """Return the help of a command with an anchor for each option: `#--zone`, and for a second one `#--zone-2`."""
    used: dict[str, int] = {}

    def anchor(option: re.Match[str]) -> str:
        name = option[2]
        used[name] = used.get(name, 0) + 1
        target = name if used[name] == 1 else f"{name}-{used[name]}"
        return f'{option[1]}<a class="option" id="{target}" href="#{target}">{name}</a>'

    return _BLOCK.sub(lambda block: _OPTION.sub(anchor, block[0]), html)


def keep_together(html: str) -> str:
    """Return the HTML with hyphenated words of inline code marked, so that `--on-recover` is not broken over two lines."""
    return _INLINE_CODE.sub(lambda code: _HYPHENATED.sub(r"<span>\g<0></span>", code[0]), html)


def link_repository(markdown: str, page: str, repository: str) -> str:
    """Return the text with links to files outside of docs/ as links to the repository, and the one to the README's chapter to its page."""

    def absolute(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link["target"]))
        if "://" in link["target"] or path.startswith(("docs/", "/")):
            return link[0]
        if path == "README.md" and link["anchor"] == "#install":
            return f"]({posixpath.relpath(INSTALL, posixpath.dirname(page) or '.')})"
        return f"]({repository}/blob/main/{path}{link['anchor'] or ''})"

    return _LINK.sub(absolute, markdown)


def fence_blocks(lines: list[str]) -> Iterator[str]:
    """Yield the lines with each indented block as a fenced one that names its language. Lists and fenced blocks stay as they are."""
    fence, in_list, at = "", False, 0
    while at < len(lines):
        line = lines[at]
        mark = _FENCE.match(line.lstrip())
        if fence or mark:
            fence = "" if fence and line.strip() == fence else fence or mark["mark"]
            if line == "```python" and lines[at + 1].startswith(">>> "):
                line = "```pycon"  # prompts and output are not copied
        elif line.startswith("    ") and not in_list and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            block = "\n".join(lines[at:end]).rstrip().split("\n")
            yield from (f"```{language_of(block)}", *(inner[4:] for inner in block), "```", "")
            at = end
            continue
        elif line.strip():
            in_list = _LIST_ITEM.match(line) is not None or (in_list and line.startswith(" "))
        yield line
        at += 1


def language_of(block: list[str]) -> str:
    """Return the name of the language of an indented block."""
    first = block[0].strip()
    if first.startswith("$ "):
        return "console"
    if _YAML_TITLE.match(first) or _YAML.match(first):
        return "yaml"
    if first.startswith(("{", "[")):
        return "json"
    is_command = first.split()[0] in _PROGRAMS or first.startswith("#")
    return "shell" if is_command else "text"


def description_of(markdown: str) -> str:
    """Return the first paragraph without markup, cut at a word."""
    for paragraph in re.split(r"\n\s*\n", markdown):
        if (
            paragraph.strip()
            and not paragraph.lstrip().startswith(("#", "|", "```", "!", "- "))
            and not paragraph.startswith("    ")
        ):
            plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", paragraph)
            plain = " ".join(re.sub(r"[`*]", "", plain).split()).rstrip(":")
            if len(plain) <= _DESCRIPTION_LENGTH:
                return plain
            return plain[:_DESCRIPTION_LENGTH].rpartition(" ")[0].rstrip(",;:.") + " …"
    return ""
