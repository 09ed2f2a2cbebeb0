"""The parts of Spark on this machine that exist before a session: a folder, a JVM, a fork server.

Both processes need a second to start, and the command line does not affect them. They are therefore
started before the rest of the program is imported, and their errors are reported later.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from lastwrite.errors import EnvironmentUnfit
from lastwrite.spark.launcher.forkserver import WARM_UP, ForkServer, can_fork, can_listen
from lastwrite.spark.launcher.java import find_java, set_local_defaults
from lastwrite.spark.launcher.jvm import Jvm, spark_jars
from lastwrite.storage.machine import spill_folders
from lastwrite.storage.run_folder import hold_of, make_folder, remove_folder


class Boot:
    """The processes of a run of Spark that are started early: the JVM and the fork server."""

    # whether ``close`` has ended the processes, so that they are not started again
    is_ended = False

    def __init__(
        self,
        system: Callable[[], str | None],
        *,
        forks: bool = False,
        note: Callable[[str], None] | None = None,
        warm_up: str = WARM_UP,
    ) -> None:
        """Start the processes.

        ``system`` returns the system whose logs are processed, or None if this is no round. With
        ``forks``, the fork server may be a fork of this process, which then loads the modules that
        workers need. ``note`` gets a text before a step that takes seconds.

        Raises:
            EnvironmentUnfit: the processes cannot be started. PySpark's launcher may succeed.
        """
        jars = spark_jars()
        if jars is None or sys.platform == "win32":
            raise EnvironmentUnfit(
                "Spark was not installed by pip, so the fast launcher cannot start it"
            )
        set_local_defaults()
        java = find_java(by_release=True)
        self.folder = _short_folder()
        self._process = os.getpid()
        self._spill: list[Path] = []
        self.fork_server: ForkServer | None = None
        # registered before the start, because Ctrl-C may interrupt the start
        atexit.register(self._end)
        self._spill = [
            make_folder(parent) for parent in spill_folders() if parent != str(self.folder.parent)
        ]
        try:
            if os.environ["PYSPARK_PYTHON"] == sys.executable:
                self.fork_server = ForkServer(self.folder)
            forks = forks and can_fork()
            if self.fork_server is not None and not forks:
                self.fork_server.spawn(system())
            environment = self.fork_server.environment if self.fork_server else {}
            spill = ",".join(map(str, self._spill or [self.folder]))
            held = [
                handle
                for folder in (self.folder, *self._spill)
                if (handle := hold_of(folder)) is not None
            ]
            self.jvm = Jvm(
                java, jars, self.folder, {**environment, "SPARK_LOCAL_DIRS": spill}, held
            )
            if self.fork_server is not None and forks:
                self.fork_server.fork(system, note, warm_up)
        except BaseException:
            self._end()
            atexit.unregister(self._end)
            raise

    def close(self, *, let_go: bool = False) -> None:
        """End the JVM and the fork server.

        With ``let_go`` the JVM is not killed: it finishes the files that it is writing, and ends.
        """
        self.is_ended = True
        if let_go:
            self.jvm.release()
        else:
            self.jvm.kill()
        self._end_fork_server()
        atexit.unregister(self._end)

    def _end(self) -> None:
        self.is_ended = True
        if self._process == os.getpid():  # not in a forked copy
            if hasattr(self, "jvm"):
                self.jvm.kill()
            self._end_fork_server()

    def _end_fork_server(self) -> None:
        if self.fork_server is not None:
            self.fork_server.close()
        for folder in (self.folder, *self._spill):
            remove_folder(folder)


def _short_folder() -> Path:
    """A folder for this run whose path is short enough for sockets.

    Raises:
        EnvironmentUnfit: the path of every temporary folder is too long.
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
        "every temporary folder has a path that is too long for sockets",
        remedy="set TMPDIR to a folder with a shorter path",
    )
