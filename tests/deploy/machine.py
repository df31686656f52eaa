"""Machine with a real systemd as its first process: files of a root folder in an overlay, in new
namespaces.

It needs root and Debian's `systemd`. Changes to its files are discarded.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.polling import eventually

SYSTEMD = Path("/lib/systemd/systemd")
REPOSITORY = Path(__file__).parents[2]
SOURCE = Path("/opt/wattline-source")
_PYTHON = Path("/opt/wattline-python")
_BOOT = """
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 upper "$1"
mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=$2,upperdir=$1/up,workdir=$1/work" overlay "$1/root"
cd "$1/root"
mkdir -p old
shift 2
while [ $# -gt 0 ]; do mkdir -p ".$2"; mount --bind "$1" ".$2"; shift 2; done
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 run run
mount -t tmpfs tmp tmp
mount -t tmpfs -o mode=755 dev dev
mkdir dev/pts dev/shm
for node in null zero full random urandom tty; do touch "dev/$node"; mount --bind "/dev/$node" "dev/$node"; done
ln -s /proc/self/fd dev/fd
ip link set lo up
pivot_root . old
umount -l /old
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=basic.target </dev/null
"""
_SCRIPT = """#!/opt/wattline/bin/python3
import sys
from {program} import main
sys.exit(main())
"""


class Machine:
    """Machine that boots when the context is entered and is killed when it is left."""

    def __init__(
        self, folder: Path, root: Path = Path("/"), binds: Mapping[Path, Path] | None = None
    ) -> None:
        """Take the files of `root`, and each folder of the keys of `binds` at the path of its
        value.
        """
        self._folder, self._root = folder, root
        self._binds = (
            {REPOSITORY: SOURCE, Path(sys.base_prefix): _PYTHON} if binds is None else binds
        )
        self._group = _cgroups() / f"wattline-machine-{os.getpid()}-{folder.name}"
        self._log = folder / "boot.log"

    def __enter__(self) -> Self:
        upper = self._folder / "upper"
        upper.mkdir(parents=True)
        self._group.mkdir()
        binds = [str(path) for pair in self._binds.items() for path in pair]
        boot = ["sh", "-c", _BOOT, "boot", str(upper), str(self._root), *binds]
        spaces = [
            "unshare",
            "--pid",
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--cgroup",
            "--fork",
            "--kill-child",
        ]
        enter = f'echo $$ > "{self._group}/cgroup.procs"; exec "$@"'
        with self._log.open("w") as log:
            self._outside = subprocess.Popen(
                ["sh", "-c", enter, "sh", *spaces, *boot], stdout=log, stderr=log
            )
        eventually(self._is_up, "systemd is up", self._log.read_text, within_s=60)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._outside.send_signal(signal.SIGKILL)
        self._outside.wait()
        eventually(self._is_empty, "all of its processes have ended", within_s=30)

    def run(self, *command: str, input_: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine as root."""
        inside = [
            "nsenter",
            "-t",
            str(self._init()),
            "-m",
            "-u",
            "-i",
            "-n",
            "-p",
            "-C",
            "-r",
            "-w",
            *command,
        ]
        return subprocess.run(
            inside, input=input_, capture_output=True, text=True, timeout=60, check=False
        )

    def write(self, path: str, text: str, mode: str = "0644") -> None:
        script = f"mkdir -p $(dirname {path}) && cat > {path} && chmod {mode} {path}"
        completed = self.run("sh", "-c", script, input_=text)
        assert completed.returncode == 0, completed.stderr

    def _init(self) -> int:
        """Return the PID of its systemd on the host."""
        children = (
            Path(f"/proc/{self._outside.pid}/task/{self._outside.pid}/children").read_text().split()
        )
        return int(children[0]) if children else 0

    def _is_up(self) -> bool:
        if self._outside.poll() is not None:
            raise AssertionError(f"the machine did not boot: {self._log.read_text()}")
        if not self._init() or Path(f"/proc/{self._init()}/comm").read_text().strip() != "systemd":
            return False
        return self.run("systemctl", "is-active", "basic.target").stdout.strip() == "active"

    def _is_empty(self) -> bool:
        with suppress(OSError):
            for group in sorted(self._group.rglob("*"), reverse=True):
                if group.is_dir():
                    group.rmdir()
            self._group.rmdir()
        return not self._group.exists()

    def install_checkout(self) -> None:
        """Install this checkout in /opt/wattline as the README does; a service cannot see files
        below /root.
        """
        packages = SOURCE / Path(sysconfig.get_path("purelib")).relative_to(REPOSITORY)
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        sources = "\n".join(
            [
                *(f"{SOURCE}/{name}" for name in ("exporter", "workloads", "analyzer")),
                f"{packages}",
                "",
            ]
        )
        self.write(
            "/opt/wattline/pyvenv.cfg",
            f"home = {_PYTHON}/bin\ninclude-system-site-packages = false\n",
        )
        self.write(f"/opt/wattline/lib/{python}/site-packages/wattline.pth", sources)
        self.write(
            "/etc/ld.so.conf.d/00-wattline.conf", f"{_PYTHON}/lib\n"
        )  # a Python finds its library by its path
        self.run("ldconfig")
        self.run("mkdir", "/opt/wattline/bin")
        self.run("ln", "-s", f"{_PYTHON}/bin/{python}", "/opt/wattline/bin/python3")
        for program, module in [
            ("exporter", "wattline_exporter.__main__"),
            ("workloads", "wattline_workloads.cli"),
        ]:
            self.write(f"/opt/wattline/bin/{program}", _SCRIPT.format(program=module), "0755")


def _cgroups() -> Path:
    """Return the mount point of cgroup v2."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    raise AssertionError("no cgroup2 is mounted")
