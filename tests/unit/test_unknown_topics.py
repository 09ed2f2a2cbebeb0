"""Tests that a topic whose policy is unknown is left unchanged, whatever roots are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cleaner.events import DaemonNote, Event
from lastwrite.cli import run
from lastwrite.cli.output import Output
from lastwrite.cli.plan import show_compaction
from lastwrite.errors import CorruptLog, InvalidConfig, NotALog
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.reports.compaction import CompactionReport, Status
from lastwrite.spark.inline import INLINE
from tests.support.kafka.crashing import contents
from tests.support.kafka.logs import write_segment
from tests.support.kafka.metadata import write_identity, write_metadata

NOW_MS = 1_700_000_000_000
TOPICS = {"clicks": {"cleanup.policy": "delete"}, "orders": {"cleanup.policy": "compact"}}
COMPACT = {"cleanup.policy": "compact"}


def write_log(folder: Path) -> Path:
    records = [Record(n, NOW_MS - 1000, b"k", b"%d" % n) for n in range(20)]
    write_segment(folder, 0, [encode_batch(records[:10]), encode_batch(records[10:])])
    write_segment(folder, 20, [])
    return folder


@pytest.fixture
def disks(tmp_path: Path) -> tuple[Path, Path]:
    """A broker with ``log.dirs=a,b``: the metadata in a, the topics clicks and orders in b."""
    a, b = tmp_path / "a", tmp_path / "b"
    for root in (a, b):
        write_identity(root, "of-a-and-b")
    write_metadata(a, TOPICS)
    write_log(a / "orders-0")
    write_log(b / "clicks-0")
    write_log(b / "orders-1")
    return a, b


def compact(*paths: Path, **arguments: Any) -> CompactionReport:
    return lastwrite.compact(list(map(str, paths)), now_ms=NOW_MS, spark=INLINE, **arguments)


def statuses(report: CompactionReport) -> dict[str, str]:
    return {str(each.name): str(each.status) for each in report.partitions}


def test_second_disk_alone_is_left_unchanged(disks: tuple[Path, Path]) -> None:
    _, b = disks
    before = {name: contents(b / name) for name in ("clicks-0", "orders-1")}
    report = compact(b)
    assert (
        statuses(report) == {"clicks-0": "skipped", "orders-1": "skipped"}
        and report.exit_status == 0
    )
    assert {name: contents(b / name) for name in before} == before
    assert not (b / "cleaner-offset-checkpoint").exists()
    reason = report.partitions[0].reason or ""
    for what in (
        "the policy of topic clicks is unknown",
        "--topic-config clicks:cleanup.policy=compact",
        "--config cleanup.policy=compact",
        "--metadata PATH",
        "other log roots",
    ):
        assert what in reason
    planned = lastwrite.plan(str(b), now_ms=NOW_MS, spark=INLINE)
    assert statuses(planned) == statuses(report) and planned.partitions[0].reason == reason


def test_both_disks_together_provide_the_policies(disks: tuple[Path, Path]) -> None:
    a, b = disks
    before = contents(b / "clicks-0")
    assert statuses(compact(b, a)) == {
        "orders-0": "cleaned",
        "clicks-0": "unchanged",
        "orders-1": "cleaned",
    }
    assert contents(b / "clicks-0") == before


@pytest.mark.parametrize("what", ["root", "folder", "copy"])
def test_metadata_option_accepts_a_root_a_folder_and_a_copy(
    disks: tuple[Path, Path], tmp_path: Path, what: str
) -> None:
    a, b = disks
    (tmp_path / "away").mkdir()
    copy = (a / "__cluster_metadata-0").rename(tmp_path / "away" / "__cluster_metadata-0")
    if what == "root":
        shown = copy.parent
    elif what == "folder":
        shown = copy
    else:
        shown = copy.rename(tmp_path / "metadata")
        (shown / f"{0:020d}-0000000001.checkpoint").touch()
    assert statuses(compact(b, metadata=str(shown))) == {
        "clicks-0": "unchanged",
        "orders-1": "cleaned",
    }
    with pytest.raises(NotALog):
        compact(b, metadata=str(b / "clicks-0"))
    with pytest.raises(NotALog):
        compact(b, metadata=str(tmp_path / "nowhere"))


def test_default_applies_to_unknown_topics_and_an_override_to_all(disks: tuple[Path, Path]) -> None:
    a, b = disks
    found = lastwrite.plan([str(a), str(b)], config=COMPACT, now_ms=NOW_MS, spark=INLINE)
    assert statuses(found)["clicks-0"] == "unchanged", "the metadata says otherwise"
    overriding = {"clicks": COMPACT, "orders-*": {"cleanup.policy": "delete"}}
    found = lastwrite.plan([str(a), str(b)], topic_config=overriding, now_ms=NOW_MS, spark=INLINE)
    assert statuses(found)["clicks-0"] == "cleaned"
    found = lastwrite.plan(str(b), config=COMPACT, now_ms=NOW_MS, spark=INLINE)
    assert statuses(found) == {"clicks-0": "cleaned", "orders-1": "cleaned"}


def test_named_topic_counts_as_compacted(disks: tuple[Path, Path]) -> None:
    a, b = disks
    for path, topic in (
        (b, "orders"),
        (b / "orders-1", None),
        (b / "orders-1" / f"{0:020d}.log", None),
    ):
        report = lastwrite.plan(str(path), topic=topic, now_ms=NOW_MS, spark=INLINE)
        assert statuses(report) == {"orders-1": "cleaned"}
    assert statuses(lastwrite.plan(str(b), partition=1, now_ms=NOW_MS, spark=INLINE)) == {
        "orders-1": "skipped"
    }
    report = lastwrite.plan([str(a), str(b)], topic="clicks", now_ms=NOW_MS, spark=INLINE)
    assert statuses(report) == {"clicks-0": "unchanged"}, "the cluster says otherwise"


def test_metadata_of_another_cluster_is_ignored(disks: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = disks
    write_identity(b, "of-b-alone")
    report = compact(a, b)
    assert statuses(report) == {"orders-0": "cleaned", "clicks-0": "skipped", "orders-1": "skipped"}
    reason = report.partitions[1].reason or ""
    assert "of-a-and-b" in reason and "of-b-alone" in reason and "was not used" in reason
    with pytest.raises(InvalidConfig, match="of-a-and-b.*of-b-alone"):
        compact(b, metadata=str(a))
    # A copy without meta.properties belongs to the cluster if there is only one, otherwise to none.
    c = tmp_path / "c"
    write_log(c / "orders-2")
    assert (
        statuses(lastwrite.plan([str(a), str(c)], now_ms=NOW_MS, spark=INLINE))["orders-2"]
        == "cleaned"
    )
    three = lastwrite.plan([str(a), str(b), str(c)], now_ms=NOW_MS, spark=INLINE)
    assert statuses(three)["orders-2"] == "skipped" and "no meta.properties" in str(
        three.partitions[-1].reason
    )


def test_topic_missing_from_the_metadata_is_unknown(disks: tuple[Path, Path]) -> None:
    a, b = disks
    stray = write_log(a / "gone-0")
    before = contents(stray)
    report = compact(a, b)
    [found] = [each for each in report.partitions if each.topic == "gone"]
    assert found.status is Status.SKIPPED and "does not list topic gone" in (found.reason or "")
    assert contents(stray) == before


def test_crash_of_an_unknown_topic_is_not_recovered(disks: tuple[Path, Path]) -> None:
    """Its files may wait for recovery by their own broker."""
    _, b = disks
    (b / "clicks-0" / f"{0:020d}.log.cleaned").write_bytes(b"half")
    before = contents(b / "clicks-0")
    compact(b)
    assert contents(b / "clicks-0") == before


def test_copy_contains_unknown_topics_unchanged(disks: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = disks
    compact(b, to=str(tmp_path / "to"))
    for name in ("clicks-0", "orders-1"):
        assert contents(tmp_path / "to" / name) == contents(b / name)
    write_log(a / "clicks-0")
    with pytest.raises(InvalidConfig, match="clicks-0 is in"):
        compact(a, b, to=str(tmp_path / "both"))


def test_root_with_only_metadata_is_accepted(disks: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = disks
    controller = tmp_path / "controller"
    write_identity(controller, "of-a-and-b", node=9)
    (a / "__cluster_metadata-0").rename(controller / "__cluster_metadata-0")
    assert statuses(compact(b, controller)) == {"clicks-0": "unchanged", "orders-1": "cleaned"}
    with pytest.raises(NotALog):
        compact(b, tmp_path / "nowhere")


def test_daemon_skips_unknown_topics_and_names_them(disks: tuple[Path, Path]) -> None:
    a, b = disks
    write_log(a / "gone-0")
    events: list[Event] = []
    before = contents(a / "gone-0")
    assert lastwrite.clean([str(a), str(b)], once=True, spark=INLINE, tell=events.append) == 0
    notes = [event.text for event in events if isinstance(event, DaemonNote)]
    assert [note for note in notes if "skipped gone: " in note and str(a) in note]
    assert contents(a / "gone-0") == before
    assert {"orders-0", "orders-1"} == {str(e.report.name) for e in events if hasattr(e, "report")}
    with pytest.raises(InvalidConfig, match="cannot determine which"):
        lastwrite.clean([str(b)], once=True, spark=INLINE)
    events.clear()
    assert (
        lastwrite.clean([str(b)], metadata=str(a), once=True, spark=INLINE, tell=events.append) == 0
    )
    overriding = {"clicks": COMPACT}
    assert (
        lastwrite.clean(
            [str(b)], topic_config=overriding, once=True, spark=INLINE, tell=events.append
        )
        == 0
    )
    assert {"clicks-0"} == {str(e.report.name) for e in events if hasattr(e, "report")}


def test_explain_and_inspect_agree_with_compact(disks: tuple[Path, Path]) -> None:
    a, b = disks
    [clicks, orders] = lastwrite.explain(str(b), now_ms=NOW_MS).partitions
    assert (
        not clicks.is_due and "the policy of topic clicks is unknown" in clicks.reasons[0].message
    )
    [clicks, orders] = lastwrite.explain(str(b), metadata=str(a), now_ms=NOW_MS).partitions
    assert "cleanup.policy is delete" in clicks.reasons[0].message and orders.is_due
    seen = {
        f"{p.topic}-{p.partition}": p
        for p in lastwrite.inspect([str(a), str(b)], now_ms=NOW_MS).partitions
    }
    assert seen["orders-1"].is_due and "cleanup.policy is delete" in (seen["clicks-0"].reason or "")


def test_other_systems_refuse_kafkas_topic_options() -> None:
    store = str(Path(__file__).parents[1] / "corpus" / "rocketmq" / "5.5.0")
    for arguments in ({"topic_config": {"ctopic": COMPACT}}, {"metadata": store}):
        with pytest.raises(InvalidConfig, match="of Kafka"):
            lastwrite.plan(store, spark=INLINE, **arguments)  # type: ignore[arg-type]


def test_default_that_does_not_apply_is_reported(
    disks: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = disks
    config = {**COMPACT, "min.cleanable.dirty.ratio": "0"}
    report = lastwrite.plan([str(a), str(b)], config=config, now_ms=NOW_MS, spark=INLINE)
    [note] = report.to_dict()["notes"]
    assert (note["topic"], note["name"], note["stated"], note["value"]) == (
        "clicks",
        "cleanup.policy",
        "compact",
        "delete",
    )
    assert (
        note["source"] == "topic (metadata)"
        and "--topic-config clicks:cleanup.policy=compact" in note["remedy"]
    )
    assert [n.topic for n in lastwrite.inspect([str(a), str(b)], config=config).notes] == ["clicks"]
    assert not lastwrite.plan([str(a), str(b)], now_ms=NOW_MS, spark=INLINE).notes
    output = Output()
    show_compaction(output, report)
    output.close()
    said = capsys.readouterr().out
    assert (
        "note: cleanup.policy=compact is a default and does not apply to clicks, because "
        "cleanup.policy is set to delete" in said
    )


def test_text_output_names_the_missing_setting_once(
    disks: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, b = disks
    output = Output()
    show_compaction(output, lastwrite.plan(str(b), now_ms=NOW_MS, spark=INLINE))
    output.close()
    said = capsys.readouterr().out
    assert (
        said.count("--topic-config") == 1
        and "skipped: clicks, orders: give the cluster's metadata with --metadata PATH" in said
    )
    assert "the policy of topic orders is unknown" in said


def test_every_partition_lists_its_settings(disks: tuple[Path, Path]) -> None:
    a, b = disks
    arguments: dict[str, Any] = {"config": {"min.cleanable.dirty.ratio": 0.25}, "metadata": str(a)}
    for report in (
        lastwrite.plan(str(b), now_ms=NOW_MS, spark=INLINE, **arguments),
        lastwrite.inspect(str(b), **arguments),
    ):
        clicks, _ = report.to_dict()["partitions"]
        assert clicks["settings"]["cleanup.policy"] == {
            "value": "delete",
            "source": "topic (metadata)",
        }
        assert clicks["settings"]["min.cleanable.dirty.ratio"] == {
            "value": "0.25",
            "source": "config",
        }
        assert clicks["settings"]["delete.retention.ms"] == {
            "value": "86400000",
            "source": "default",
        }
        assert clicks["settings"]["retention.ms"] == {"value": None, "source": "unknown"}, (
            "nobody states it"
        )
    [unknown, _] = lastwrite.plan(str(b), now_ms=NOW_MS, spark=INLINE).to_dict()["partitions"]
    assert unknown["settings"]["cleanup.policy"] == {"value": None, "source": "unknown"}


def test_settings_command_lists_sources(
    disks: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    a, b = disks
    report = lastwrite.settings([str(a), str(b)])
    assert [(found.topic, len(found.folders)) for found in report.topics] == [
        ("clicks", 1),
        ("orders", 2),
    ]
    stated = ["--config", "cleanup.policy=compact", "--topic-config", "o*:segment.ms=9"]
    assert run(["settings", str(a), str(b), *stated]) == 0
    said = capfd.readouterr().out
    assert said.startswith(
        "Configs for topic 'clicks':\n  cleanup.policy=delete  source=topic (metadata)  "
        "synonyms={topic (metadata):cleanup.policy=delete, default:log.cleanup.policy=delete}\n"
        "  retention.ms=?  source=unknown  synonyms={}\nConfigs for topic 'orders':\n"
    )
    assert (
        "segment.ms=9  source=topic-config  synonyms={topic-config:segment.ms=9, default:" in said
    )
    assert "note: cleanup.policy=compact is a default and does not apply to clicks" in said
    assert "min.cleanable.dirty.ratio" not in said
    assert run(["settings", str(b), "--topic", "orders", "--all", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    [orders] = document["topics"]
    assert orders["settings"]["cleanup.policy"]["source"] == "named" and orders["reason"] is None
    assert run(["settings", str(b)]) == 0
    assert "cleanup.policy=?  source=unknown" in capfd.readouterr().out


def test_inspect_of_one_partition_shows_the_source_of_settings(
    disks: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    a, b = disks
    assert (
        run(["inspect", str(b / "clicks-0"), "--metadata", str(a), "--config", "segment.ms=5"]) == 0
    )
    said = capfd.readouterr().out
    settings = (
        "cleanup.policy=delete (topic (metadata)), segment.ms=5 (config), retention.ms=? (unknown)"
    )
    assert f"  settings     {settings}" in said


def test_settings_command_covers_other_systems() -> None:
    corpus = Path(__file__).parents[1] / "corpus"
    [topic] = lastwrite.settings(
        str(corpus / "rocketmq" / "5.5.0"), config={"keyless.messages": "keep"}
    ).topics
    found = {setting.name: (setting.value, setting.source) for setting in topic.settings}
    assert topic.topic == "ctopic" and found["keyless.messages"] == ("keep", "config")
    assert found["delete.retention.ms"] == ("86400000", "default")
    for arguments in ({"topic_config": {"ctopic": COMPACT}}, {"metadata": str(corpus)}):
        with pytest.raises(InvalidConfig):
            lastwrite.settings(str(corpus / "rocketmq" / "5.5.0"), **arguments)  # type: ignore[arg-type]


def test_dynamic_broker_defaults_apply_to_topics(disks: tuple[Path, Path]) -> None:
    """Brokers' dynamic defaults apply to topics without own setting, and override
    stated settings.
    """
    a, b = disks
    write_metadata(
        a,
        {"clicks": {}, "orders": {}},
        {"": {"log.cleanup.policy": "compact"}, "1": {"log.roll.ms": "9"}},
    )
    found = lastwrite.settings([str(a), str(b)], config={"segment.ms": 5}).to_dict()["topics"]
    assert isinstance(found, list)
    for topic in found:
        assert topic["settings"]["cleanup.policy"]["source"] == "broker default (metadata)"
        assert (
            topic["settings"]["segment.ms"]["value"],
            topic["settings"]["segment.ms"]["source"],
        ) == ("9", "broker (metadata)")


def test_topic_matched_only_by_a_pattern_is_not_named(disks: tuple[Path, Path]) -> None:
    a, b = disks
    found_on_both = lastwrite.plan(
        [str(a), str(b)], topic=["ord*", "clicks"], now_ms=NOW_MS, spark=INLINE
    )
    assert statuses(found_on_both) == {
        "orders-0": "cleaned",
        "clicks-0": "unchanged",
        "orders-1": "cleaned",
    }
    before = contents(b / "clicks-0")
    assert statuses(compact(b, topic=["click*", "orders"])) == {
        "clicks-0": "skipped",
        "orders-1": "cleaned",
    }
    assert contents(b / "clicks-0") == before
    for topic, wanted in (
        (["click*", "clicks"], ""),
        ("click*", "the policy of topic clicks is unknown"),
    ):
        (found,) = lastwrite.settings(str(b), topic=topic).topics
        assert wanted in (found.reason or "") and bool(found.reason) is bool(wanted)
    with pytest.raises(NotALog, match="no topic 'ordrs' — did you mean orders?"):
        compact(a, b, topic=["clicks", "ordrs"])
    with pytest.raises(NotALog, match="orders has no partition 7 — there are: 0-1"):
        compact(a, b, topic="orders", partition=7)


def test_broken_metadata_log_is_a_single_error(
    disks: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = disks
    [log] = (a / "__cluster_metadata-0").glob("*.log")
    whole = log.read_bytes()
    log.write_bytes(whole[:70] + bytes([whole[70] ^ 1]) + whole[71:])
    before = contents(tmp_path)
    for act in (compact, lambda *paths: lastwrite.plan(list(map(str, paths)), spark=INLINE)):
        with pytest.raises(CorruptLog, match=f"{log}, byte 0: .* with --metadata PATH") as caught:
            act(a, b)
        assert caught.value.exit_status == 3 and "partition" not in str(caught.value)
    for command in ("inspect", "explain", "settings"):
        assert run([command, str(a)]) == 3
        said = capsys.readouterr()
        assert said.err.count(str(log)) == 1 and str(log) not in said.out
    assert contents(tmp_path) == before
    c = tmp_path / "c"
    write_identity(c, "another")
    write_metadata(c, {"payments": {"cleanup.policy": "compact"}})
    write_log(c / "payments-0")
    found = compact(a, c)
    assert statuses(found) == {"orders-0": "damaged", "payments-0": "cleaned"}
    assert "with --metadata PATH" in str(found.to_dict()["partitions"][0])


def test_plan_uses_the_conditional(
    disks: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a, _ = disks
    for act, said in ((lastwrite.plan, "would be cleaned"), (lastwrite.compact, "cleaned")):
        output = Output()
        show_compaction(output, act(str(a), now_ms=NOW_MS, spark=INLINE))
        output.close()
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if line.startswith("orders-0 ") and f" {said}  " in line]
        assert f"1 partition: 1 {said}" in lines
