"""README's blocks as one program, in their order, with the end of a program that looks at what they did."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
DONE: Final = "README's blocks did what they say"

_MASTER: Final = "127.0.0.1:8715"
_CHECKPOINT: Final = "/tmp/shouting"
_END: Final = f"""
for query in spark.streams.active:
    query.processAllAvailable()
    query.stop()
shouting = spark.read.format("tubemq").options(**tubemq).option("subscribe", "shouting").load()
assert clicks.count() == 3, clicks.collect()
assert sorted(bytes(row.value) for row in shouting.collect()) == [b"HOME", b"PRICES", b"PRICES"]
assert record.value == b"Dear reader", record
spark.stop()
print("{DONE}")
"""


def program(master: str, checkpoint: Path) -> str:
    """Return the program for a server's address and a directory of its own."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    text = "\n".join(blocks)
    for written, meant in ((_MASTER, master), (_CHECKPOINT, str(checkpoint))):
        if written not in text:
            raise ValueError(f"README's blocks do not name {written}")
        text = text.replace(written, meant)
    return text + _END
