"""What TubeMQ's administration accepts as the name of a topic or of a group (TStringUtils, WebFieldDef)."""

import re
from typing import Final

TOPIC_NAME: Final = re.compile(r"[a-zA-Z]\w{1,63}", re.ASCII)  # RPCs check the length only
TOPIC_NAME_RULE: Final = "2 to 64 letters, digits or _, the first a letter"

GROUP_NAME: Final = re.compile(r"[a-zA-Z][\w-]{1,1023}", re.ASCII)
GROUP_NAME_RULE: Final = "2 to 1024 letters, digits, _ or -, the first a letter"

MOST_MESSAGE_TYPES: Final = 500
"""How many message types a consumer may choose in a topic; TubeMQ's Java client checks that."""
LONGEST_MESSAGE_TYPE: Final = 256
"""In characters; TubeMQ's Java client checks that."""


def is_encodable(text: str) -> bool:
    """Return whether UTF-8 has bytes for a text: none for what Python makes of bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
