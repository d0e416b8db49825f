"""What TubeMQ's administration accepts as the name of a topic or of a group (TStringUtils, WebFieldDef)."""

import re
from typing import Final

TOPIC_NAME: Final = re.compile(r"[a-zA-Z]\w{1,63}", re.ASCII)
TOPIC_NAME_RULE: Final = "2 to 64 letters, digits or _, the first a letter"

GROUP_NAME: Final = re.compile(r"[a-zA-Z][\w-]{1,1023}", re.ASCII)
GROUP_NAME_RULE: Final = "2 to 1024 letters, digits, _ or -, the first a letter"
