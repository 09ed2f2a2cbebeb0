"""Record small stores as real brokers wrote them: ``tests/corpus/rocketmq/``.

    # from the project's root; needs Java 17
    .venv/bin/python -m tests.corpus.make_rocketmq HOME_5.5.0 HOME_4.9.3

The RocketMQ peer's ``setup.sh`` fills both HOME folders (LASTWRITE_PEERS is the folder of peers).

- ``5.5.0`` has topics with all three kinds of queues: ``ctopic`` is compacted, ``btopic`` has
  batches, and ``ptopic`` is an ordinary topic. It has bodies in all codecs, deletes, batches, a
  delayed message and a prepared message, and index files of 16 slots and 100 entries.
- ``5.5.0-compacted`` is its ``compaction/`` after RocketMQ's own compaction of both queues.
- ``5.5.0-ipv6`` is from a broker that listened on ``::``, with the address ``::1``. It has
  extensions, record checksums and a topic name of 140 characters.
- ``4.9.3`` is from the old release. It has no compaction, no last byte after the properties, and an
  empty ``abort``.

Each store has ``records.jsonl.gz``, every record of its commit log as RocketMQ's own decoder reads
it, and ``abort.running``, the file ``abort`` while the broker ran.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

from lastwrite.rocketmq.format.properties import build as properties
from lastwrite.rocketmq.format.record import encode_inner

TARGET = Path(__file__).with_name("rocketmq")
PEER = Path(os.environ.get("LASTWRITE_PEERS", "../shared/peers")).absolute() / "rocketmq"
NAMESRV_PORT, BROKER_PORT = 29876, 29911
NAMESRV = f"127.0.0.1:{NAMESRV_PORT}"
V4, V6 = f"127.0.0.1:{BROKER_PORT}", f"[::1]:{BROKER_PORT}"
# A broker accepts names of more than 127 bytes only as retry topics of a group that it has.
LONG_GROUP = "g" * 133
LONG_TOPIC = "%RETRY%" + LONG_GROUP
SETTINGS = [
    "mappedFileSizeCommitLog=16384",
    "mappedFileSizeConsumeQueue=1000",
    "maxHashSlotNum=16",
    "maxIndexNum=100",
]
SETTINGS_5 = [
    "mapperFileSizeBatchConsumeQueue=920",
    "compactionMappedFileSize=5060",
    "compactionCqMappedFileSize=1024",
    "compactionScheduleInternal=3600000",
    "searchBcqByCacheEnable=false",
]
KEPT = (
    *("commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "compaction"),
    *("checkpoint", "lock", "config/topics.json", "config/consumerOffset.json"),
)


def text(content: str) -> str:
    return base64.b64encode(content.encode()).decode()


def produce(topic: str, options: str) -> str:
    return f"produce {NAMESRV} {V4} {topic} {options} quiet=true"


def commands_new() -> list[str]:
    return [
        f"topic {NAMESRV} {V4} ctopic 2 +cleanup.policy=COMPACTION",
        f"topic {NAMESRV} {V4} ptopic 2",
        f"topic {NAMESRV} {V4} btopic 1 +queue.type=BatchCQ",
        produce(
            "ctopic",
            "count=110 keys=9 seed=1 deletes=0.1 compressed=0.2 batches=0.2 keyless=0.1 tags=2 max=60",
        ),
        produce("ctopic", "count=6 keys=9 seed=2 compressed=1 codec=lz4 max=60"),
        produce("ctopic", "count=6 keys=9 seed=3 compressed=1 codec=zstd max=60"),
        produce("ptopic", "count=20 keys=5 seed=4 batches=0.2 keyless=0.3 tags=2 props=1 max=60"),
        produce("btopic", "count=12 keys=5 seed=5 batches=0.5 tags=2 max=20"),
        f"send {NAMESRV} {V4} ctopic 1 k1 {base64.b64encode(zlib.compress(b'')).decode()} sysFlag=1",
        f"send {NAMESRV} {V4} ptopic 0 later {text('delayed')} DELAY=9",
        f"send {NAMESRV} {V4} ptopic 1 maybe {text('prepared')} sysFlag=4 TRAN_MSG=true PGROUP=peer UNIQ_KEY=MAYBE",
        f"send {NAMESRV} {V4} ptopic 1 käse-\U0001f9c0 {text('Käse')} TAGS=weiß",
    ]


def commands_v6() -> list[str]:
    sends = [
        f"send {NAMESRV} {broker} ptopic {n % 2} key-{n % 3} {text(f'body {n}')} TAGS=T{n % 2} UNIQ_KEY=U{n}"
        for n, broker in enumerate([V6, V4, V6, V6, V4, V6])
    ]
    return [
        f"topic {NAMESRV} {V6} ptopic 2",
        f"topic {NAMESRV} {V6} {LONG_TOPIC} 1",
        *sends,
        f"send {NAMESRV} {V6} {LONG_TOPIC} 0 key {text('a long topic')} TAGS=T",
    ]


def commands_old() -> list[str]:
    return [
        f"topic {NAMESRV} {V4} ptopic 2",
        produce(
            "ptopic",
            "count=50 keys=9 seed=6 compressed=0.2 batches=0.2 keyless=0.2 tags=2 props=1 max=60",
        ),
        f"send {NAMESRV} {V4} ptopic 0 later {text('delayed')} DELAY=9",
        f"send {NAMESRV} {V4} ptopic 1 maybe {text('prepared')} sysFlag=4 TRAN_MSG=true PGROUP=peer UNIQ_KEY=MAYBE",
        f"send {NAMESRV} {V4} ptopic 1 käse-\U0001f9c0 {text('Käse')} TAGS=weiß",
    ]


def send_inner_batches() -> None:
    """Send what mqtool cannot send: batches with their own unique key, stored as inner batches."""
    for n in range(6):
        members = [
            (n, f"inner {n}.{i}".encode(), properties({"KEYS": f"k{i}", "TAGS": "T"}))
            for i in range(n + 1)
        ]
        body = encode_inner(members)
        said = {
            "producerGroup": "peer",
            "topic": "btopic",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
        }
        said |= {
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": str(1_700_000_000_000 + n),
            "flag": "0",
        }
        said |= {
            "properties": f"UNIQ_KEY\x01BATCH{n}\x02TAGS\x01T",
            "reconsumeTimes": "0",
            "unitMode": "false",
        }
        said |= {"batch": "true"}
        head = json.dumps(
            {
                "code": 10,
                "language": "JAVA",
                "version": 0,
                "opaque": n,
                "flag": 0,
                "extFields": said,
            }
        )
        frame = len(head).to_bytes(4, "big") + head.encode() + body
        with socket.create_connection(("127.0.0.1", BROKER_PORT), timeout=30) as broker:
            broker.sendall(len(frame).to_bytes(4, "big") + frame)
            answer = broker.recv(1 << 16, socket.MSG_PEEK)
        if b'"code":0' not in answer:
            raise SystemExit(f"an inner batch was refused: {answer!r}")


def run(script: str, *arguments: str, given: str = "") -> str:
    done = subprocess.run(
        [str(PEER / script), *arguments],
        input=given,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )
    if done.returncode:
        raise SystemExit(f"{script} {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def record(
    name: str, home: str, decoder: str, commands: list[str], settings: list[str], work: Path
) -> Path:
    """Run a broker on a new store, send messages, stop it, and keep its files."""
    store, target = work / name, TARGET / name
    (store / "config").mkdir(parents=True)
    groups = {"subscriptionGroupTable": {LONG_GROUP: {"groupName": LONG_GROUP}}}
    (store / "config" / "subscriptionGroup.json").write_text(json.dumps(groups))
    run("start.sh", home, str(store), str(NAMESRV_PORT), str(BROKER_PORT), *settings)
    try:
        said = run("mqtool.sh", home, "-", given="\n".join(commands) + "\n")
        if said.count('{"done":true}') != len(commands):
            raise SystemExit(f"mqtool answered {said}")
        if name == "5.5.0":
            send_inner_batches()
        time.sleep(2)  # the index is built shortly after a message is acknowledged
        target.mkdir(parents=True)
        shutil.copy(store / "abort", target / "abort.running")
    finally:
        run("stop.sh", str(store))
    for part in KEPT:
        if (store / part).is_dir():
            shutil.copytree(store / part, target / part)
        elif (store / part).exists():
            (target / part).parent.mkdir(exist_ok=True)
            shutil.copy(store / part, target / part)
    *records, end = map(json.loads, ask(decoder, do="commitlog", store=str(store)))
    assert end["ok"] and end["messages"] == len(records), end
    with gzip.GzipFile(target / "records.jsonl.gz", "wb", mtime=0) as out:
        for one in records:
            out.write(json.dumps(one, sort_keys=True).encode() + b"\n")
    return store


def ask(home: str, **request: Any) -> list[str]:
    return run("oracle.sh", home, given=json.dumps(request) + "\n").splitlines()


def main(new: str, old: str) -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="lastwrite-corpus-") as folder:
        work = Path(folder)
        store = record("5.5.0", new, new, commands_new(), SETTINGS + SETTINGS_5, work)
        sizes = {"compactionMappedFileSize": 5060, "compactionCqMappedFileSize": 1024}
        for queue in (0, 1):
            [done] = map(
                json.loads,
                ask(new, do="compact", store=str(store), topic="ctopic", queue=queue, config=sizes),
            )
            assert done["ok"], done
        shutil.copytree(store / "compaction", TARGET / "5.5.0-compacted" / "compaction")
        settings = [
            "bindAddress=::",
            "brokerIP1=::1",
            "enabledAppendPropCRC=true",
            "enableConsumeQueueExt=true",
        ]
        settings += ["mappedFileSizeConsumeQueueExt=200", *SETTINGS, *SETTINGS_5]
        record("5.5.0-ipv6", new, new, commands_v6(), settings, work)
        record("4.9.3", old, new, commands_old(), SETTINGS, work)
    (TARGET / "ORIGIN.md").write_text(
        f"""Written by brokers 5.5.0 and 4.9.3 of Apache RocketMQ, on {time.strftime("%Y-%m-%d")}, by:

    python -m tests.corpus.make_rocketmq HOME_5.5.0 HOME_4.9.3

`make_rocketmq.py` says what each folder is. Nothing was touched afterwards; do not edit it, record it anew.
"""
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
