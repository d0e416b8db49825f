"""The page on testing is true: its example runs as it stands."""

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "testing" / "testing.md"


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_example_of_the_page(pytester):
    example = re.search(
        r"<!-- the example .*?-->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    pytester.makepyfile(example[1])
    result = pytester.runpytest_subprocess("-p", "no:randomly", "--strict-markers", "-rs")
    result.assert_outcomes(passed=2)
