"""The documents that commands print with ``--json``, by command."""

from __future__ import annotations

from lastwrite.reports.document import Document, FrozenDocument

DocumentType = type[Document] | type[FrozenDocument]


def documents() -> dict[str, tuple[DocumentType, ...]]:
    """The document types by command. There is one type per system if the systems' types differ.

    ``error`` is the document that any command prints when it fails.
    """
    from lastwrite.cleaner import events
    from lastwrite.cli.doctor import DoctorReport
    from lastwrite.cli.output import FailureReport
    from lastwrite.cli.release import ReleaseReport
    from lastwrite.cli.send import SendReport
    from lastwrite.demo.run import DemoReport
    from lastwrite.kafka.look.inspection import InspectReport
    from lastwrite.kafka.restored import LogsGiven, LogsRestored
    from lastwrite.pulsar.fetched import FetchReport
    from lastwrite.pulsar.look.inspection import PulsarReport
    from lastwrite.reports.compaction import CompactionReport
    from lastwrite.reports.explanation import ExplainReport
    from lastwrite.reports.fetching import LogsFetched
    from lastwrite.reports.groups import GroupsReport
    from lastwrite.reports.lines import DUMPED, READ
    from lastwrite.reports.settings import SettingsReport
    from lastwrite.reports.sweeping import SweepReport
    from lastwrite.reports.table_proof import TableProof
    from lastwrite.reports.table_round import TableRound
    from lastwrite.reports.verification import VerifyReport
    from lastwrite.rocketmq.look.export import ExportReport
    from lastwrite.rocketmq.look.inspection import StoreReport
    from lastwrite.rocketmq.reports import CutReport, DispatchReport, Restoration

    return {
        "clean": (
            events.RoundEnded,
            events.PartitionQuarantined,
            events.FollowerFetched,
            events.FetchHeldBack,
            events.FilesUntouched,
            events.DaemonNote,
        ),
        "compact": (CompactionReport,),
        "cut": (CutReport,),
        "demo": (DemoReport,),
        "dispatch": (DispatchReport,),
        "doctor": (DoctorReport,),
        "dump": (*DUMPED, ExportReport),
        "error": (FailureReport,),
        "explain": (ExplainReport,),
        "fetch": (FetchReport, LogsFetched),
        "groups": (GroupsReport,),
        "inspect": (InspectReport, StoreReport, PulsarReport),
        "plan": (CompactionReport,),
        "read": READ,
        "release": (ReleaseReport,),
        "restore": (Restoration, LogsGiven, LogsRestored),
        "send": (SendReport,),
        "settings": (SettingsReport,),
        "sweep": (SweepReport,),
        "table": (TableRound, TableProof),
        "verify": (VerifyReport,),
    }
