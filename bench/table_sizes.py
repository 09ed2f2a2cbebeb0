"""Tables of many and of few keys, built and updated:  python -m bench.table_sizes 5000000 100000000

Each topic has a record of 108 bytes for every key, and then 2.2 % as many with random keys, which
the update has to apply. Each step is a process of its own with ``--memory``. The results are its
peak memory, the part that is not pages of files, and its seconds. At the end ``verify_table``
compares each table with its topic by another method than the one that built it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import generate
from bench.kept_tables import FORMATS, SHARE, VECTORS
from bench.sampling import own_bytes

_WORDS = 11  # a value's size in words of 8 bytes
_SEGMENT_BYTES = (1 << 30) - (1 << 20)
_LOOK_S = 0.01
_STEP = """
import json, resource, sys
import lastwrite
asked = json.loads(sys.argv[1])
done = getattr(lastwrite, asked.pop("do"))(**asked)
assert getattr(done, "is_proven", True), done
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss >> 10}))
"""


def measure(folder: Path, keys: int, format: str, memory: str) -> dict[str, Any]:
    """Write the topic and its table, update the table, and verify it."""
    log, table = folder / "log", folder / "table"
    changes = int(keys * SHARE)
    partition = log / "t-0"
    generate.write_log(partition, generate.counted, 0, keys, _WORDS, _SEGMENT_BYTES)
    asked: dict[str, Any] = {"path": str(log), "topic": "t", "memory": memory}
    plain = format.removesuffix(VECTORS)
    made = {**asked, "do": "table_to", "to": str(table), "format": plain}
    made["vectors"] = plain != format
    found = {"keys": keys, "changes": changes, "format": format, "memory": memory}
    found["whole"] = _process(made)
    end = keys + changes
    dirty = generate.drawn(keys)
    generate.write_log(partition, dirty, keys, end, _WORDS, _SEGMENT_BYTES)
    found["update"] = _process(made)
    found["verify"] = _process({**asked, "do": "verify_table", "to": str(table)})
    return found


def _process(asked: dict[str, Any]) -> dict[str, float]:
    begin = time.monotonic()
    own = 0
    with subprocess.Popen(
        [sys.executable, "-c", _STEP, json.dumps(asked)], stdout=subprocess.PIPE
    ) as running:
        while running.poll() is None:
            own = max(own, own_bytes(running.pid))
            time.sleep(_LOOK_S)
        assert running.stdout is not None and running.returncode == 0, asked
        found: dict[str, float] = json.loads(running.stdout.read())
    return found | {"own_mib": own >> 20, "wall_s": round(time.monotonic() - begin, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.table_sizes", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("keys", type=int, nargs="+")
    parser.add_argument("--as", dest="format", choices=FORMATS, default="iceberg")
    parser.add_argument("--memory", default="512m")
    parser.add_argument("--folder", type=Path, help="where all lies; default: a temporary one")
    given = parser.parse_args()
    for keys in given.keys:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            print(json.dumps(measure(Path(folder), keys, given.format, given.memory)), flush=True)


if __name__ == "__main__":
    main()
