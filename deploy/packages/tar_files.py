"""Tar archive whose bytes depend on its files and their time only."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass, field


@dataclass
class TarFiles:
    """Members of an archive by name; none is newer than `epoch`."""

    epoch: int
    _members: dict[str, tuple[tarfile.TarInfo, bytes]] = field(default_factory=dict)

    def add(self, member: tarfile.TarInfo, content: bytes = b"") -> None:
        member.name = member.name.removeprefix("./").rstrip("/")
        member.mtime = min(int(member.mtime), self.epoch)
        member.uname = member.gname = ""
        member.pax_headers = {}
        if member.name not in ("", "."):
            self._members[member.name] = (member, content)

    def folder(self, name: str, mode: int = 0o755, owner: int = 0) -> None:
        member = tarfile.TarInfo(name)
        member.type = tarfile.DIRTYPE
        member.mode = mode
        member.uid = owner
        member.gid = owner
        member.mtime = self.epoch
        self.add(member)

    def link(self, name: str, target: str) -> None:
        member = tarfile.TarInfo(name)
        member.type = tarfile.SYMTYPE
        member.linkname = target
        member.mode = 0o777
        member.mtime = self.epoch
        self.add(member)

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        member.mode = mode
        member.mtime = self.epoch
        self.add(member, content)

    def read(self, prefix: str, suffix: str) -> bytes:
        """Return the contents of matching files in the order of their names."""
        found = [
            name
            for name in sorted(self._members)
            if name.startswith(prefix) and name.endswith(suffix)
        ]
        return b"".join(self._members[name][1] for name in found)

    def archive(self) -> bytes:
        result = io.BytesIO()
        with tarfile.open(fileobj=result, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for name in sorted(self._members):
                member, content = self._members[name]
                tar.addfile(member, io.BytesIO(content) if member.isreg() else None)
        return result.getvalue()
