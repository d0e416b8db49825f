"""The command ``tubemq-spark receipts``: is what was written still there?"""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tubemq_spark.cli.connection import cluster_config, connection
from tubemq_spark.cli.output import complain
from tubemq_spark.cli.parser import FOLDER, CommandGroup, argument, command, of_kind
from tubemq_spark.settings.kinds import MAX_LONG, integer

if TYPE_CHECKING:
    from tubemq_spark.cli.verification import Finding
    from tubemq_spark.files.folder_uri import FolderUri
    from tubemq_spark.files.manifests import Manifest


@command(
    name="verify",
    summary="read again the messages that manifests list, and compare counts and checksums",
    description="Read again the messages that manifests list, and compare counts and checksums.",
    example="receipts --master 10.1.2.3",
    failure="messages are missing, changed, damaged, removed, expired or unreadable, or none are listed",
    arguments=(
        argument("uri URI", "the receiptsPath of the writes", FOLDER),
        argument("--query-id ID", "only the micro-batches of this streaming query"),
        argument("--batch-id N", "only micro-batches with this number", of_kind(integer(0, MAX_LONG))),
        argument("--run-id ID", "only this run of a batch write"),
        argument(
            "--allow-expired", "exit with 0 although retention has removed messages, if nothing else is wrong"
        ),
        argument("--json", "print one JSON object, with every check"),
        connection("tubemq_spark_receipts"),
    ),
)
def _verify(arguments: argparse.Namespace) -> int:
    config = cluster_config(arguments)
    from rich.console import Console

    from tubemq_spark.cli.screen import Screen
    from tubemq_spark.cli.verification import Report, checks_of, findings, neighbours_of, together
    from tubemq_spark.cluster.open import open_cluster

    # Standard output is for JSON when that is asked for.
    screen = Screen(Console(stderr=True)) if arguments.json else Screen()
    manifests = _manifests(arguments.uri)
    meant = {name for name, manifest in manifests if _is_meant(manifest, arguments)}
    checks = [check for check in checks_of(manifests) if not meant.isdisjoint(check.files)]
    results: tuple[Finding, ...] = ()
    if checks:
        neighbours = neighbours_of(checks)
        entries = sum(together(some).entries for some in neighbours)
        with screen.phase("read again", "entries", entries) as phase:
            results = tuple(findings(open_cluster(config), neighbours, phase.advance))
    report = Report(len(meant), results, expiry_is_a_fault=not arguments.allow_expired)
    if not meant:
        complain(f"nothing was verified: {_none_is_meant([name for name, _ in manifests], arguments)}")
    elif not arguments.json:
        report.show(screen)
    if arguments.json:
        sys.stdout.write(report.json + "\n")
    return int(not report.sound)


def _manifests(folder: "FolderUri") -> "list[tuple[str, Manifest]]":
    from tubemq_spark.files.manifests import SUFFIX, manifest_of
    from tubemq_spark.files.text_files import TextFiles

    files = TextFiles(folder, "receiptsPath", SUFFIX).read()
    return [(name, manifest_of(text, f"{folder}/{name}")) for name, text in files]


def _is_meant(manifest: "Manifest", arguments: argparse.Namespace) -> bool:
    batch = manifest.write.micro_batch
    return (
        (arguments.query_id is None or (batch is not None and batch.query_id == arguments.query_id))
        and (arguments.batch_id is None or (batch is not None and batch.batch_id == arguments.batch_id))
        and (arguments.run_id is None or manifest.write.run_id == arguments.run_id)
    )


def _none_is_meant(names: Sequence[str], arguments: argparse.Namespace) -> str:
    """Say that no manifest is as the arguments want it, and what there is instead."""
    if not names:
        return f"there is no manifest in {arguments.uri}; name the receiptsPath of the writes"
    wanted = {
        "--query-id": arguments.query_id,
        "--batch-id": arguments.batch_id,
        "--run-id": arguments.run_id,
    }
    of = " and ".join(f"{option} {value}" for option, value in wanted.items() if value is not None)
    manifests = f"are {len(names):,} manifests, none of which is"
    if len(names) == 1:
        manifests = "is 1 manifest, which is not"
    return f"there {manifests} of {of}; the names have the ids, as in {max(names)}"


receipts: Final = CommandGroup(
    "receipts",
    "check that what was written is still there",
    "Work with the manifests that writes with the option receiptsPath leave.",
    (_verify,),
)
