"""What the site's hooks do with pages: wide tables name their columns, and nothing is fetched."""

import importlib.util

import pytest

from testkit.git import ROOT

pytest.importorskip("mkdocs", reason="needs the packages of make site")


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "tools" / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class PageOf:
    """A page of which only its name matters."""

    markdown = ""

    class file:  # noqa: N801 (mkdocs names it so)
        src_uri = "page.md"


def table(*columns):
    heads = "".join(f"<th>{column}</th>" for column in columns)
    cells = "".join(f'<td style="text-align: right">{column}</td>' for column in columns)
    return f"<table>\n<thead>\n<tr>\n{heads}</tr>\n</thead>\n<tr>\n{cells}</tr>\n</table>"


def test_cells_of_a_wide_table_name_their_columns(hooks):
    page = hooks.on_page_content(table("a", "<code>b</code>", 'c "d"', "e"), None, None, None)

    assert page.startswith("<table data-wide>")
    for name in ("a", "b", "c &quot;d&quot;", "e"):
        assert page.count(f'<td data-column="{name}" style=') == 1


def test_conditions_of_a_wide_table_may_break(hooks):
    page = hooks.on_page_content(table("a", "b", "c", "<code>TUBEMQ_LOSS.EXPIRED</code>"), None, None, None)

    assert "<code>TUBEMQ_<wbr>LOSS.<wbr>EXPIRED</code></td>" in page


def test_a_narrow_table_stays_as_it_is(hooks):
    narrow = table("a", "b", "<code>c_d</code>")
    assert hooks.on_page_content(narrow, None, None, None) == narrow


@pytest.mark.parametrize(
    "fetched",
    [
        '<script src="https://example.com/a.js"></script>',
        '<img alt="" src="//example.com/a.png">',
        '<link rel="stylesheet" href="https://example.com/a.css">',
        '<link rel="preconnect" href="https://example.com">',
    ],
)
def test_a_page_that_would_fetch_something_is_refused(hooks, fetched):
    with pytest.raises(hooks.PluginError, match=r"page\.md would fetch <"):
        hooks.on_post_page(f"<html>{fetched}</html>", PageOf, None)


def test_links_and_files_of_the_site_are_no_reason(hooks):
    page = '<a href="https://example.com">x</a><img src="a.svg"><link rel="canonical" href="https://example.com">'
    assert hooks.on_post_page(page, PageOf, None) == page


CONSUMER = "tubemq_spark.client.GroupConsumer"


def page_of(names):
    return "".join(f'<h3 id="{name}" class="doc"></h3>' for name in names)


def test_public_names_of_a_class_are_what_users_call_inherited_ones_too(hooks):
    names = hooks.public_names(CONSUMER)

    assert {f"{CONSUMER}{call}" for call in ("", ".fetch", ".confirm", ".seek_to_time", ".paused")} <= {
        *names
    }
    assert [name for name in names if "._" in name] == []


def test_public_names_of_a_module_are_those_of_all_that_it_exports(hooks):
    names = hooks.public_names("tubemq_spark.client.aio")

    assert "tubemq_spark.client.aio.AsyncMasterAdmin.topics" in names
    assert "tubemq_spark.client.aio.AsyncAssignedConsumer.fetch" in names


@pytest.mark.parametrize("change", [lambda names: names[:-1], lambda names: [*names, names[-1]]])
def test_a_page_of_the_reference_has_each_public_name_once(hooks, change):
    from mkdocs.exceptions import PluginError

    names = hooks.public_names(CONSUMER)
    hooks.require_whole(CONSUMER, page_of(names), "client.md")

    with pytest.raises(PluginError, match=rf"client\.md.* {names[-1]} [02] times"):
        hooks.require_whole(CONSUMER, page_of(change(names)), "client.md")
