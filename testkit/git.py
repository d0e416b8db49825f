"""What git says about the checkout that the tests run in."""

import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def git(*arguments: str) -> list[str]:
    """Return the lines that a git command prints; none if it fails or git is missing."""
    try:
        process = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return process.stdout.splitlines() if process.returncode == 0 else []
