"""What ``tubemq-spark receipts verify`` tells: people the faults, programs everything."""

import collections
import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.cli.receipts.checks import SOUND, Finding, Verdict
from tubemq_spark.receipts import counted

if TYPE_CHECKING:
    from tubemq_spark.cli.demo.screen import Screen

VERSION: Final = 1
"""Of the JSON."""


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """The result of a run."""

    writes: int
    """How many manifests were read."""
    findings: tuple[Finding, ...]
    expiry_is_a_fault: bool = True

    @property
    def sound(self) -> bool:
        """Whether there is no fault; to have found no manifest is one."""
        tolerated = SOUND if self.expiry_is_a_fault else SOUND | {Verdict.EXPIRED}
        return self.writes > 0 and all(finding.verdict in tolerated for finding in self.findings)

    @property
    def json(self) -> str:
        """Everything, as one object in one line."""
        return json.dumps(
            {
                "v": VERSION,
                "sound": self.sound,
                "manifests": self.writes,
                "verdicts": {verdict.value: count for verdict, count in self._counts().items()},
                "checks": [_to_json(finding) for finding in self.findings],
            }
        )

    def show(self, screen: "Screen") -> None:
        """Print what is not intact, and a sentence about everything."""
        doubtful = [finding for finding in self.findings if finding.verdict is not Verdict.INTACT]
        if doubtful:
            header = ("partition", "offsets", "acknowledged", "found", "verdict", "", "manifest")
            screen.table("Not intact, or not certain", header, [_row(finding) for finding in doubtful])
        counts = ", ".join(f"{count} {verdict.value}" for verdict, count in self._counts().items())
        messages = sum(finding.check.count for finding in self.findings)
        sent = f"{messages:,} {'message' if messages == 1 else 'messages'}"
        ranges = f"{sent} in {counted(len(self.findings), 'range')}"
        text = f"{counted(self.writes, 'manifest')}, {ranges}{counts and f': {counts}'}"
        if self.sound:
            screen.success(text)
        else:
            screen.failure(text)

    def _counts(self) -> dict[Verdict, int]:
        counts = collections.Counter(finding.verdict for finding in self.findings)
        return {verdict: counts[verdict] for verdict in Verdict if counts[verdict]}


def _row(finding: Finding) -> tuple[object, ...]:
    check, contents = finding.check, finding.contents
    first, *others = check.files
    return (
        check.range.partition,
        f"{check.range.start} to {check.range.end}",
        check.count,
        contents.count,
        finding.verdict.value,
        finding.text,
        f"{first} and {len(others)} more" if others else first,
    )


def _to_json(finding: Finding) -> dict[str, Any]:
    check, contents = finding.check, finding.contents
    partition = check.range.partition
    return {
        "topic": partition.topic,
        "brokerId": partition.broker_id,
        "partition": partition.partition_id,
        "startOffset": check.range.start,
        "endOffset": check.range.end,
        "manifests": list(check.files),
        "verdict": finding.verdict.value,
        "missing": finding.missing,
        "acknowledged": {"count": check.count, "bytes": check.bytes, "checksum": str(check.checksum)},
        "found": {"count": contents.count, "bytes": contents.bytes, "checksum": str(contents.checksum)},
        "copies": contents.copies,
        "others": contents.others,
        "losses": [
            {"reason": loss.loss.value, "startOffset": loss.start, "endOffset": loss.end}
            for loss in contents.losses
        ],
        "error": contents.error or None,
    }
