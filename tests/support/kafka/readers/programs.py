"""Programs that read a topic with Kafka clients of other makers.

    command(READERS["franz-go"]) + [ADDRESS, TOPIC, COUNT, GROUP]

A program reads the topic from the begin as a member of the group, and prints ``offset key value``
of each record, with ``NULL`` for no value. It commits and ends after ``COUNT`` records. The client
is fetched once, into ``~/.cache/lastwrite/readers``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.support.jars import Unavailable, alone, fetch_jars, need_java
from tests.support.kafka.spark_source import peer_home

HERE = Path(__file__).parent
CACHE = Path.home() / ".cache" / "lastwrite" / "readers"
STREAMS = "4.3.1"  # the newest published version


class Reader(NamedTuple):
    """A client. ``make`` returns the begin of the command for a version.

    ``more`` has the arguments after the common ones.
    """

    make: Callable[[str], list[str]]
    version: str
    more: tuple[str, ...] = ()
    commits: bool = True

    def command(self, *arguments: str) -> list[str]:
        """The command that runs the client with these arguments.

        Raises:
            Unavailable: The client is not in the cache and cannot be fetched.
        """
        return [*self.make(self.version), *arguments, *self.more]


def java(version: str, program: str = "Read", artifact: str = "kafka-clients") -> list[str]:
    need_java()
    if shutil.which("javac") is None:
        raise Unavailable("no JDK")
    home = CACHE / f"{artifact}-{version}"
    said = f"-Dartifact={artifact}", f"-Dkafka={version}"
    pom = HERE / "clients-pom.xml"
    fetch_jars(home, f"{artifact} {version}", pom, f"{artifact}-{version}.jar", *said)
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return ["java", quiet, "-cp", str(home / "lib" / "*"), str(HERE / f"{program}.java")]


def python(package: str) -> list[str]:
    home = CACHE / package
    if package:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(home), package]
        _once(home, pip, CACHE)
    return ["env", f"PYTHONPATH={home}", sys.executable, str(HERE / "read.py")]


def spark(_: str) -> list[str]:
    """Spark's Kafka source, in the version of ``spark_source``."""
    home = peer_home()
    jars = ",".join(map(str, sorted((home / "jars" / "lib").glob("*.jar"))))
    settings = f"PYTHONPATH={home}", f"SPARK_PEER_JARS={jars}", f"PYSPARK_PYTHON={sys.executable}"
    return ["env", "-u", "SPARK_HOME", *settings, sys.executable, str(HERE / "read_spark.py")]


def go(_: str) -> list[str]:
    """The Go clients, in the versions of go.mod."""
    program = CACHE / "go-read"
    _once(program, [_needed("go"), "build", "-o", str(program), "."], HERE / "go")
    return [str(program)]


def node(_: str) -> list[str]:
    """The JavaScript clients, in the versions of package.json."""
    home = CACHE / "node"
    npm = _needed("npm")
    home.mkdir(parents=True, exist_ok=True)
    for each in (HERE / "node").iterdir():
        shutil.copy(each, home)
    _once(home / "node_modules", [npm, "install", "--no-audit", "--no-fund"], home)
    return [_needed("node"), str(home / "read.mjs")]


def kcat(_: str) -> list[str]:
    """Debian's kcat."""
    home = CACHE / "kcat"
    names = ["kcat", "librdkafka1", "libyajl2"]
    script = 'apt-get download "$@" && for each in *.deb; do dpkg -x $each .; done'
    home.mkdir(parents=True, exist_ok=True)
    _needed("apt-get")
    _once(home / "usr", ["sh", "-ec", script, "sh", *names], home)
    (library,) = home.glob("usr/lib/*/librdkafka.so.1")
    shell = (
        f'exec env LD_LIBRARY_PATH={library.parent} {home}/usr/bin/kcat -b "$1" -C -t "$2" -c "$3"'
    )
    return ["sh", "-c", shell + " -o beginning -u -Z -f '%o %k %s\\n'", "kcat"]


def _needed(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise Unavailable(f"no {program} on PATH")
    return found


def _once(made: Path, command: list[str], folder: Path) -> None:
    """Run the command that makes ``made``, unless ``made`` exists."""
    folder.mkdir(parents=True, exist_ok=True)
    with alone(made):
        if made.exists():
            return
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
        if done.returncode:
            raise Unavailable(f"{made.name} cannot be fetched: {done.stderr[-1000:]}")


READERS = {
    "confluent": Reader(python, "", ("confluent",)),
    "java": Reader(java, "4.4.0", ("classic",)),
    "java, newer groups": Reader(java, "4.4.0", ("consumer",)),
    "java 3.9": Reader(java, "3.9.1", ("classic",)),
    "java 2.1": Reader(java, "2.1.1", ("classic",)),
    "kcat": Reader(kcat, "", commits=False),
    "kafka-python": Reader(python, "kafka-python==3.0.12", ("kafka-python",)),
    "aiokafka": Reader(python, "aiokafka==0.14.0", ("aiokafka",)),
    "franz-go": Reader(go, "", ("franz-go",)),
    "sarama": Reader(go, "", ("sarama",)),
    "segmentio": Reader(go, "", ("segmentio",)),
    "spark": Reader(spark, "", commits=False),
    "kafkajs": Reader(node, "", ("kafkajs",)),
    "platformatic": Reader(node, "", ("platformatic",)),
}
