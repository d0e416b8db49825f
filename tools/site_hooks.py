"""What mkdocs does not do by itself: pages from outside ``docs``, wide tables, and a look at what is built.

README, the design and others are where readers of the repository look for them. The site has them too, as
pages whose links are those of the site.
"""

import collections
import importlib
import inspect
import posixpath
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent

OUTSIDE: Final = {
    "README.md": "index.md",
    "DESIGN.md": "project/design.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "benchmarks/README.md": "project/benchmarks.md",
}
"""Files of the repository, and the pages that they are."""
_LINK: Final = re.compile(r"(!?\[(?:[^\]]*)\])\((?!\w+:|#)([^)#\s]*)(#[^)\s]*)?\)")
_TABLE: Final = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEADING: Final = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_ROW: Final = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CODE: Final = re.compile(r"<code>.*?</code>")
_TAG: Final = re.compile(r"<[^>]*>")
_WIDE: Final = 4
"""Columns of a table that a phone cannot show side by side."""
_FETCHED: Final = re.compile(
    r"<(?:script|img|iframe)\b[^>]*\bsrc=\"?(?:https?:)?//[^>]*>"
    r"|<link\b[^>]*\brel=\"?(?:stylesheet|preconnect)\b[^>]*\bhref=\"?(?:https?:)?//[^>]*>"
)
_REFERENCED: Final = re.compile(r"^::: ([\w.]+)", re.MULTILINE)
_ANCHOR: Final = re.compile(r"<h\d id=\"?([\w.]+)")
_NOT_ON_THE_SITE: Final = (".csv", ".ipynb", ".proto")


def on_pre_build(config: MkDocsConfig) -> None:  # noqa: ARG001 - mkdocs passes it
    """Refuse pages whose tables are not what the package says, and options without an explanation."""
    # mkdocs imports this file by its path, and leaves out those that its imports need.
    sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
    from tubemq_spark.options.table import NAMED

    for page, text in importlib.import_module("gen_docs").written():
        if page.read_text(encoding="utf-8") != text:
            raise PluginError(f"{page.name} is not up to date; run: make docs")
    bare = [name for name, option in NAMED.items() if not option.doc.strip()]
    if bare:
        raise PluginError(f"options without documentation: {', '.join(bare)}")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside ``docs``."""
    for source, page in OUTSIDE.items():
        text = with_links_of_the_site((ROOT / source).read_text(encoding="utf-8"), source)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Return a page of ``docs`` with its links to those from outside."""
    if page.file.src_uri in OUTSIDE.values():
        return markdown
    return with_links_of_the_site(markdown, f"docs/{page.file.src_uri}")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Return a page whose wide tables say in each cell which column it is; docs/stylesheets shows that.

    Names of conditions may break there, behind ``_`` and the full stop.
    """
    return _TABLE.sub(lambda table: _with_columns(table[0]), html)


def require_whole(name: str, html: str, page: str) -> None:
    """Refuse a page of the reference that does not have each public name of a module or a class once."""
    headings = collections.Counter(_ANCHOR.findall(html))
    wrong = [f"{public} {headings[public]} times" for public in public_names(name) if headings[public] != 1]
    if wrong:
        raise PluginError(f"{page} is to have each public name once, and has {', '.join(wrong)}")


def public_names(name: str) -> list[str]:
    """Return the full names of the functions, classes, methods and properties of a module or a class."""
    parent, _, last = name.rpartition(".")
    if last.islower():
        module = importlib.import_module(name)
        return [
            full
            for public in _exported(module)
            for full in _names_of(getattr(module, public), f"{name}.{public}")
        ]
    return _names_of(getattr(importlib.import_module(parent), last), name)


def _exported(module: ModuleType) -> list[str]:
    """Return the names of ``__all__``, or of what is defined in the module."""
    own = [
        name for name, member in vars(module).items() if getattr(member, "__module__", "") == module.__name__
    ]
    return getattr(module, "__all__", [name for name in own if not name.startswith("_")])


def _names_of(member: object, name: str) -> list[str]:
    if not inspect.isclass(member):
        return [name]
    calls = (
        attribute.name
        for attribute in inspect.classify_class_attrs(member)
        if attribute.kind != "data"
        and not attribute.name.startswith("_")
        and attribute.defining_class.__module__.startswith("tubemq_spark")
    )
    return [name, *(f"{name}.{call}" for call in calls)]


def _with_columns(table: str) -> str:
    columns = [_TAG.sub("", heading).replace('"', "&quot;") for heading in _HEADING.findall(table)]
    if len(columns) < _WIDE:
        return table

    def named(row: re.Match[str]) -> str:
        names = iter(columns)
        cells = re.sub(r"<td\b", lambda _: f'<td data-column="{next(names)}"', row[0])
        return _CODE.sub(lambda code: re.sub(r"([_.])(?=\w)", r"\1<wbr>", code[0]), cells)

    return _ROW.sub(named, table).replace("<table>", "<table data-wide>", 1)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Refuse a page that would fetch something from elsewhere, or lacks public names of the Python API."""
    for name in _REFERENCED.findall(page.markdown):
        require_whole(name, output, page.file.src_uri)
    fetched = _FETCHED.search(output)
    if fetched:
        raise PluginError(f"{page.file.src_uri} would fetch {fetched[0]}")
    return output


def with_links_of_the_site(markdown: str, source: str) -> str:
    """Return the text of a file of the repository with each link as the site has it.

    A link to a file that no page shows becomes its path: there is nothing to click on.
    """

    def link(match: re.Match[str]) -> str:
        text, path, anchor = match.groups(default="")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if target.endswith(_NOT_ON_THE_SITE):
            return (
                f"{text.strip('[]')} (`{target}`)"
                if text.strip("[]`") != posixpath.basename(target)
                else f"`{target}`"
            )
        place = OUTSIDE.get(target, target.removeprefix("docs/"))
        here = OUTSIDE.get(source, source.removeprefix("docs/"))
        return f"{text}({posixpath.relpath(place, posixpath.dirname(here) or '.')}{anchor})"

    return _LINK.sub(link, markdown)
