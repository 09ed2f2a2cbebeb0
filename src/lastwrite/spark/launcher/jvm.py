"""A JVM of our own for Spark on this machine, started as Spark's scripts would start it, without
them.

``spark-submit`` is a shell script that starts another, which starts Python to learn where it is and
Java to learn with which options to start Java. What they find out is known here: the class path,
the options that Spark's launcher adds (read from its class file, so that they are those of the
Spark that is installed), and ours. Where anything could make the answer another one (settings in
the environment or a file, a Spark that lies elsewhere), Spark's own way is taken.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import struct
import subprocess
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lastwrite.errors import EnvironmentUnfit
from lastwrite.spark.launcher.class_archive import class_archive
from lastwrite.spark.launcher.gateway import quieten
from lastwrite.spark.launcher.java import INSTALL_PYSPARK, JavaFound
from lastwrite.spark.launcher.lifeline import Lifeline
from lastwrite.spark.memory import HEAP_BYTES
from lastwrite.storage.machine import (
    LESS_MEMORY,
    MORE_LIKELY_TO_GO,
    memory_kill_since,
    memory_kills,
)

if TYPE_CHECKING:
    from py4j.clientserver import ClientServer

_GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"
_LOGGING = Path(__file__).with_name("log4j2.properties")
_SECONDS_TO_START = 60
_SECONDS_TO_DIE = 2.0

# Spark's gateway looks whether its parent lives only once it listens, and a JVM that fails before
# that stays for ever. So a shell waits beside it, from the first moment on: its standard output is
# the far end of a pipe that ends with the driver. A line means that the JVM may end by itself; the
# end of the pipe, that all of this process group goes, and with it what it may have begun to write
# ($2, $3). And by $1 the system prefers the JVM to the driver where it has to kill one of them for
# memory: the driver can say so (``machine.go_first_for_memory``).
_GUARD = (
    "{ read -r adjust </proc/self/oom_score_adj && echo $((adjust + $1)) >/proc/self/oom_score_adj; } 2>/dev/null; "
    '{ read -r told || { rm -f "$2" "$3"; kill -9 0; }; } <&1 >/dev/null 2>&1 & '
    'shift 3; exec "$@" >/dev/null'
)
_LEAST_OPTIONS = 8  # of the launcher; fewer: it is not the class that we know

# The environment that leaves the start to Spark: all of these, except what only names the machine.
_FOREIGN = re.compile(r"SPARK_|PYSPARK_|HADOOP_|YARN_")
_HARMLESS = {
    "SPARK_LOCAL_IP",
    "SPARK_LOCAL_HOSTNAME",
    "SPARK_LOCAL_DIRS",
    "SPARK_USER",
    "PYSPARK_PYTHON",
    "PYSPARK_DRIVER_PYTHON",
    "SPARK_AUTH_SOCKET_TIMEOUT",
    "SPARK_BUFFER_SIZE",  # the last two are set by PySpark
}


def jvm_options() -> tuple[str, ...]:
    """Ours: the JVM only schedules and lives for seconds. One compiler tier, one collecting thread,
    little of all.
    """
    return (
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-XX:ReservedCodeCacheSize=64m",
        "-Xss512k",
        "-Xms96m",
        "-XX:MaxNewSize=20m",
        "-XX:MaxDirectMemorySize=64m",
        "-XX:-UsePerfData",
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    )


def spark_jars() -> Path | None:
    """The folder of Spark's classes, where Spark would be started as pip installed it; None: it is
    otherwise.
    """
    if any(_FOREIGN.match(name) and name not in _HARMLESS for name in os.environ):
        return None
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        return None
    home = Path(next(iter(found.submodule_search_locations)))
    jars = home / "jars"
    return jars if jars.is_dir() and not (home / "conf").exists() else None


def launcher_options(jars: Path, java: JavaFound) -> list[str] | None:
    """The options that Spark's launcher gives every JVM, from the texts of its class file; None:
    they are not there.
    """
    try:
        launcher = next(jars.glob("spark-launcher_*.jar"))
        with zipfile.ZipFile(launcher) as jar:
            code = jar.read("org/apache/spark/launcher/JavaModuleOptions.class")
    except (OSError, StopIteration, KeyError, zipfile.BadZipFile):
        return None
    # A text in a class file: the byte 1, its length as two bytes, the text.
    texts = [
        code[at + 3 : at + 3 + int.from_bytes(code[at + 1 : at + 3], "big")]
        for at in range(len(code) - 3)
        if code[at] == 1 and code[at + 3 : at + 4] == b"-"
    ]
    options = [text.decode() for text in texts if re.fullmatch(rb"(--[a-z]|-D|-XX:)[ -~]+", text)]
    if len(options) < _LEAST_OPTIONS:
        return None
    # for MLlib; it may be missing, and costs a warning
    unknown = ["--add-modules=jdk.incubator.vector"]
    if java.version >= 24:
        # costs a warning, too
        unknown.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    return [option for option in options if option not in unknown]


@dataclass(frozen=True, slots=True)
class Death:
    """How the JVM ended, and what to do about it."""

    problem: str
    remedy: str
    for_memory: bool = False


class Jvm:
    """The process, and the gateway to it."""

    def __init__(
        self,
        java: JavaFound,
        jars: Path,
        folder: Path,
        environment: Mapping[str, str],
        kept_open: Sequence[int] = (),
    ) -> None:
        """Start it and return at once. ``folder``: of this run, for what it writes and
        ``environment`` does not place. ``kept_open``: files that it shall have open as long as it
        lives.

        Raises:
            EnvironmentUnfit: the installed Spark is not as we know it, or the process cannot be
                started.
        """
        given = launcher_options(jars, java)
        if given is None:
            raise EnvironmentUnfit("Spark's launcher is not as expected", remedy=INSTALL_PYSPARK)
        self._told = folder / "gateway"
        options = [f"-Xmx{HEAP_BYTES >> 20}m", *given, *jvm_options()]
        self.archive = class_archive(java, jars, options)
        class_path = os.pathsep.join([*map(str, jars.glob("slf4j-api-*.jar")), f"{jars}/*"])
        self._kills_before = memory_kills()
        self._input, self._life = Lifeline(), Lifeline()
        command = [
            "sh",
            "-c",
            _GUARD,
            "sh",
            str(MORE_LIKELY_TO_GO),
            *self.archive.unfinished,
            *self.archive.shell,
            java.path,
            "-cp",
            class_path,
            *options,
            *self.archive.options,
            "-Xlog:disable",
            "-Xlog:all=error:stderr",
            f"-Djava.io.tmpdir={folder}",
            f"-XX:ErrorFile={folder}/hs_err.log",
            "-XX:-CreateCoredumpOnCrash",
            _GATEWAY,
        ]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=self._input.far_end,
                stdout=self._life.far_end,
                start_new_session=True,
                stderr=subprocess.DEVNULL if self.archive.is_talkative else None,
                pass_fds=kept_open,
                env={
                    **os.environ,
                    **environment,
                    "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._told),
                    "SPARK_CONNECT_MODE": "0",
                },
            )
        except OSError as error:
            self._end_lines()
            raise EnvironmentUnfit(f"{java.path} does not start: {error.strerror}") from error
        finally:
            self._input.hand_over()
            self._life.hand_over()

    def gateway(self) -> ClientServer:
        """Wait until it listens, and connect PySpark's gateway.

        Raises:
            EnvironmentUnfit: it ended, or does not listen.
        """
        from pyspark.java_gateway import launch_gateway

        end = time.monotonic() + _SECONDS_TO_START
        while not self._told.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                death = self.death() or Death("Java does not listen", "run: lastwrite doctor")
                raise EnvironmentUnfit(death.problem, remedy=death.remedy)
            time.sleep(0.005)
        told = self._told.read_bytes()  # the port, the secret's length, the secret
        port, size = struct.unpack_from(">ii", told)
        names = {
            "PYSPARK_GATEWAY_PORT": str(port),
            "PYSPARK_GATEWAY_SECRET": told[8 : 8 + size].decode(),
        }
        os.environ.update(names)
        try:
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            for name in names:
                del os.environ[name]
        # PySpark has every argument of every call looked at by converters of its own, of which the
        # first imports pandas where that is installed: a third of a second. What we hand over are
        # texts and numbers.
        client = gateway._gateway_client
        client.converters = [
            each for each in client.converters or () if type(each).__module__.startswith("py4j.")
        ]
        return quieten(gateway)

    def death(self) -> Death | None:
        """How it has ended; None: it lives. Waits a little, since a connection breaks before its
        process is gone.
        """
        try:
            status = self._process.wait(_SECONDS_TO_DIE)
        except subprocess.TimeoutExpired:
            return None
        number = -status if status < 0 else max(0, status - 128)
        limit = memory_kill_since(self._kills_before) if number == signal.SIGKILL else None
        if limit is not None:
            return Death(
                f"the system killed Spark's JVM for memory: it met {limit}",
                LESS_MEMORY,
                for_memory=True,
            )
        how = (
            f"was killed by signal {number}" if number else f"ended by itself, with status {status}"
        )
        return Death(f"Spark's JVM {how}", "run again; where it ends again: lastwrite doctor")

    def kill(self) -> None:
        """End it where it stands, with the shells beside and before it."""
        has_died = self._process.poll() is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._end_lines()
        self._process.wait()
        if has_died or self.archive.is_written:
            self.archive.give_up()

    def let_go(self) -> None:
        """Let it end by itself, and write what it is to write; nobody waits for that."""
        self._life.tell(b"go\n")
        self._end_lines()

    def _end_lines(self) -> None:
        self._life.close()
        self._input.close()
