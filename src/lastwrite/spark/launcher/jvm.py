"""Start a JVM for Spark on this machine without Spark's scripts, but with their options.

``spark-submit`` is a shell script that starts another script. The second script starts Python to
find its own location, and Java to find the options for Java. This module computes the results: the
class path, the options that Spark's launcher adds, and Lastwrite's own. The launcher's options are
read from its class file, so they match the installed Spark. Spark's scripts are used if their
result could differ, because of settings in the environment or a file, or a Spark in another place.
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
from lastwrite.spark.launcher.java import INSTALL_PYSPARK, JavaRuntime
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

# Spark's gateway checks whether its parent is alive only after it has begun to listen. A JVM that
# fails before that never ends. A shell therefore waits beside the JVM, on a pipe that closes when
# the driver ends. If the shell reads a line, it leaves the JVM alone, which ends by itself. When
# the pipe closes, the shell kills this process group and removes its unfinished files ($2, $3). $1
# is a command by which the system kills the JVM before the driver if memory runs out, because the
# driver can report this (``machine.raise_oom_score``).
_GUARD = (
    "{ read -r adjust </proc/self/oom_score_adj && "
    "echo $((adjust + $1)) >/proc/self/oom_score_adj; } 2>/dev/null; "
    '{ read -r told || { rm -f "$2" "$3"; kill -9 0; }; } <&1 >/dev/null 2>&1 & '
    'shift 3; exec "$@" >/dev/null'
)
_LEAST_OPTIONS = 8  # if fewer options are found, the class of Spark's launcher has an unknown form

# If one of these environment variables is set, Spark's scripts start the JVM. Variables that only
# name the machine are exceptions.
_FOREIGN = re.compile(r"SPARK_|PYSPARK_|HADOOP_|YARN_")
_HARMLESS = {
    "SPARK_LOCAL_IP",
    "SPARK_LOCAL_HOSTNAME",
    "SPARK_LOCAL_DIRS",
    "SPARK_USER",
    "PYSPARK_PYTHON",
    "PYSPARK_DRIVER_PYTHON",
    "SPARK_AUTH_SOCKET_TIMEOUT",
    "SPARK_BUFFER_SIZE",  # the last two variables are set by PySpark itself
}


def jvm_options() -> tuple[str, ...]:
    """Options for a JVM that only schedules tasks and lives for seconds.

    They select one compiler tier, one garbage collector thread and little memory.
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
    """The folder of Spark's classes.

    None if pip did not install Spark, or if the environment or a ``conf`` folder changes how Spark
    starts.
    """
    if any(_FOREIGN.match(name) and name not in _HARMLESS for name in os.environ):
        return None
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        return None
    home = Path(next(iter(found.submodule_search_locations)))
    jars = home / "jars"
    return jars if jars.is_dir() and not (home / "conf").exists() else None


def launcher_options(jars: Path, java: JavaRuntime) -> list[str] | None:
    """The options that Spark's launcher gives every JVM, from the strings in its class file.

    None means that they were not found.
    """
    try:
        launcher = next(jars.glob("spark-launcher_*.jar"))
        with zipfile.ZipFile(launcher) as jar:
            code = jar.read("org/apache/spark/launcher/JavaModuleOptions.class")
    except (OSError, StopIteration, KeyError, zipfile.BadZipFile):
        return None
    # In a class file, a string is the byte 1, two bytes with the length, and the text.
    texts = [
        code[at + 3 : at + 3 + int.from_bytes(code[at + 1 : at + 3], "big")]
        for at in range(len(code) - 3)
        if code[at] == 1 and code[at + 3 : at + 4] == b"-"
    ]
    options = [text.decode() for text in texts if re.fullmatch(rb"(--[a-z]|-D|-XX:)[ -~]+", text)]
    if len(options) < _LEAST_OPTIONS:
        return None
    # Remove this option: only MLlib needs it, it causes a warning, and its module may be missing.
    unknown = ["--add-modules=jdk.incubator.vector"]
    if java.version >= 24:
        # with Java 24 and newer, this option causes a warning too
        unknown.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    return [option for option in options if option not in unknown]


@dataclass(frozen=True, slots=True)
class JvmDeath:
    """The reason why a JVM has ended, as text, and a remedy."""

    problem: str
    remedy: str
    for_memory: bool = False


class Jvm:
    """A JVM process, and PySpark's gateway to it."""

    def __init__(
        self,
        java: JavaRuntime,
        jars: Path,
        folder: Path,
        environment: Mapping[str, str],
        kept_open: Sequence[int] = (),
    ) -> None:
        """Start the JVM and return at once.

        ``folder`` belongs to this run, and receives the JVM's files unless ``environment`` sets
        another folder for them. The JVM keeps the files ``kept_open`` open while it lives.

        Raises:
            EnvironmentUnfit: the installed Spark has an unknown form, or the process cannot be
                started.
        """
        given = launcher_options(jars, java)
        if given is None:
            raise EnvironmentUnfit(
                "Spark's launcher has an unexpected form", remedy=INSTALL_PYSPARK
            )
        self._gateway_file = folder / "gateway"
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
                    "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._gateway_file),
                    "SPARK_CONNECT_MODE": "0",
                },
            )
        except OSError as error:
            self._end_lines()
            raise EnvironmentUnfit(f"{java.path} cannot be started: {error.strerror}") from error
        finally:
            self._input.hand_over()
            self._life.hand_over()

    def gateway(self) -> ClientServer:
        """Wait until the JVM listens, and connect PySpark's gateway.

        Raises:
            EnvironmentUnfit: the JVM has ended, or does not listen.
        """
        from pyspark.java_gateway import launch_gateway

        end = time.monotonic() + _SECONDS_TO_START
        while not self._gateway_file.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                death = self.find_death() or JvmDeath(
                    "Java did not open its port", "run lastwrite doctor"
                )
                raise EnvironmentUnfit(death.problem, remedy=death.remedy)
            time.sleep(0.005)
        # the file contains the port, the length of the secret, and the secret
        told = self._gateway_file.read_bytes()
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
        # PySpark passes every argument of every call to converters. PySpark's first converter
        # imports pandas if it is installed, which takes a third of a second. PySpark's converters
        # are not needed, because Lastwrite passes only strings and numbers.
        client = gateway._gateway_client
        client.converters = [
            each for each in client.converters or () if type(each).__module__.startswith("py4j.")
        ]
        return quieten(gateway)

    def find_death(self) -> JvmDeath | None:
        """The reason why the JVM has ended. None means that it is alive.

        Waits up to two seconds for the end of the process, because the connection breaks before the
        process ends.
        """
        try:
            status = self._process.wait(_SECONDS_TO_DIE)
        except subprocess.TimeoutExpired:
            return None
        number = -status if status < 0 else max(0, status - 128)
        limit = memory_kill_since(self._kills_before) if number == signal.SIGKILL else None
        if limit is not None:
            return JvmDeath(
                f"the system killed Spark's JVM for memory: it reached {limit}",
                LESS_MEMORY,
                for_memory=True,
            )
        how = (
            f"was killed by signal {number}" if number else f"ended by itself, with status {status}"
        )
        return JvmDeath(
            f"Spark's JVM {how}", "run the command again; if it ends again, run lastwrite doctor"
        )

    def kill(self) -> None:
        """Kill the JVM immediately, together with the shells that started and guard it."""
        has_died = self._process.poll() is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._end_lines()
        self._process.wait()
        if has_died or self.archive.is_written:
            self.archive.discard()

    def release(self) -> None:
        """Let the JVM end by itself and finish its files, without waiting."""
        self._life.send_line(b"go\n")
        self._end_lines()

    def _end_lines(self) -> None:
        self._life.close()
        self._input.close()
