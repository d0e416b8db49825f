"""docs/gateway.md names every setting and every metric as they are."""

import importlib.util

from testkit.git import ROOT


def test_the_page_is_up_to_date():
    """Run ``make docs`` when this fails."""
    spec = importlib.util.spec_from_file_location("gen_gateway_docs", ROOT / "tools" / "gen_gateway_docs.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page()
