"""What mkdocs does not do by itself: pages from outside ``docs``, and a look at generated pages.

README, the design and others are where readers of the repository look for them. The site has them too, as
pages whose links are those of the site.
"""

import importlib
import posixpath
import re
import sys
from pathlib import Path
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
_NOT_ON_THE_SITE: Final = (".csv", ".ipynb", ".proto")


def on_pre_build(config: MkDocsConfig) -> None:  # noqa: ARG001 - mkdocs passes it
    """Refuse generated pages that are not what their generators write, and options without an explanation."""
    # mkdocs imports this file by its path, and leaves out those that its imports need.
    sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
    from tubemq_spark.options.table import NAMED

    for generator in sorted((ROOT / "tools").glob("gen_*.py")):
        tool = importlib.import_module(generator.stem)
        if tool.PAGE.read_text(encoding="utf-8") != tool.page():
            raise PluginError(f"{tool.PAGE.name} is not up to date; run: make docs")
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
