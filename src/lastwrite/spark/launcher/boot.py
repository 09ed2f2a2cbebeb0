"""What Spark on this machine consists of before there is a session: a folder, a JVM and a nursery of workers.

Both processes take a second to come up, and need nothing for it that a command line could say; so they are started
first and looked after later.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from lastwrite.errors import EnvironmentUnfit
from lastwrite.logstore.run_folder import make_folder, remove_folder
from lastwrite.pipeline.java import find_java, set_local_defaults
from lastwrite.pipeline.jvm import Jvm, spark_jars
from lastwrite.pipeline.machine import spill_folders
from lastwrite.pipeline.nursery import Nursery, can_fork, can_listen


class Boot:
    """The processes, from their start to their end."""

    def __init__(self, *, forks: bool = False) -> None:
        """Start them. ``forks``: this process is ours alone, and loads what workers need for itself and for them.

        Raises:
            EnvironmentUnfit: they cannot be started like this here; Spark's own way may do.
        """
        jars = spark_jars()
        if jars is None or sys.platform == "win32":
            raise EnvironmentUnfit("Spark is not as pip installs it")
        set_local_defaults()
        java = find_java(by_release=True)
        self.folder = _short_folder()
        self._spill = [
            make_folder(parent) for parent in spill_folders() if parent != str(self.folder.parent)
        ]
        self.nursery: Nursery | None = None
        try:
            if os.environ["PYSPARK_PYTHON"] == sys.executable:
                self.nursery = Nursery(self.folder)
            forks = forks and can_fork()
            if self.nursery is not None and not forks:
                self.nursery.spawn()
            environment = self.nursery.environment if self.nursery else {}
            spill = ",".join(map(str, self._spill or [self.folder]))
            self.jvm = Jvm(java, jars, self.folder, {**environment, "SPARK_LOCAL_DIRS": spill})
            if self.nursery is not None and forks:
                self.nursery.fork()
        except BaseException:
            if hasattr(self, "jvm"):
                self.jvm.kill()
            self._end_nursery()
            raise

    def close(self, *, let_go: bool = False) -> None:
        """End both. ``let_go``: the JVM may end by itself, and writes what it has to write."""
        if let_go:
            self.jvm.let_go()
        else:
            self.jvm.kill()
        self._end_nursery()

    def _end_nursery(self) -> None:
        if self.nursery is not None:
            self.nursery.close()
        for folder in (self.folder, *self._spill):
            remove_folder(folder)


def _short_folder() -> Path:
    """A folder of this run, in which sockets can have names.

    Raises:
        EnvironmentUnfit: every temporary folder has too long a name.
    """
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        try:
            folder = make_folder(parent)
        except OSError:
            continue
        if can_listen(folder):
            return folder
        remove_folder(folder)
    raise EnvironmentUnfit(
        "no temporary folder has a name short enough for sockets", remedy="set TMPDIR to one"
    )
