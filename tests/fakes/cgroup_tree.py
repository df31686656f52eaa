"""Cgroup file system of plain files, v2 by default, with the layouts of programs that create
cgroups.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ID = "4f1c0d" + "3b" * 29
OTHER_ID = "4f1c0d" + "77" * 29
UID = "c1d8f6a2-7b1e-4a53-9d1c-0f6e5b2a9c01"


@dataclass
class CgroupTree:
    """Tree of cgroups. `seen_from_inside`: the root is a container's cgroup, as in a cgroup
    namespace.
    """

    root: Path
    seen_from_inside: bool = False

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        self.group("/", events=self.seen_from_inside)

    def group(self, path: str, *pids: int, usage_s: float = 0.0, events: bool = True) -> Path:
        """Create or change a group, and its parents without processes, as the kernel requires."""
        folder = self.root
        for name in [part for part in path.split("/") if part]:
            folder /= name
            if not folder.exists():
                folder.mkdir()
                (folder / "cgroup.procs").write_text("")
                (folder / "cgroup.events").write_text("populated 0\nfrozen 0\n")
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        if events:
            (folder / "cgroup.events").write_text(f"populated {int(bool(pids))}\nfrozen 0\n")
        self.use(path, usage_s)
        return folder

    def use(self, path: str, usage_s: float) -> None:
        """Set the CPU time of all processes that ever ran in the group."""
        usec = round(usage_s * 1e6)
        text = f"usage_usec {usec}\nuser_usec {usec}\nsystem_usec 0\ncore_sched.force_idle_usec 0\n"
        (self.root / path.strip("/") / "cpu.stat").write_text(text)


@dataclass
class V1Tree:
    """Cgroup file system v1 of plain files, with a folder for each hierarchy."""

    root: Path

    def group(
        self, path: str, *pids: int, controllers: tuple[str, ...], usage_s: float | None = None
    ) -> None:
        """Create or change a group in these hierarchies, and its parents."""
        for controller in controllers:
            folder = self.root / controller
            for name in ["", *path.strip("/").split("/")]:
                folder = folder / name
                folder.mkdir(parents=True, exist_ok=True)
                if not (folder / "cgroup.procs").exists():
                    (folder / "cgroup.procs").write_text("")
            (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
            if controller == "cpuacct" and usage_s is not None:
                (folder / "cpuacct.usage").write_text(f"{round(usage_s * 1e9)}\n")


def docker_systemd(tree: CgroupTree) -> str:
    path = f"/system.slice/docker-{ID}.scope"
    tree.group(path, 101)
    tree.group(f"{path}/init.scope", 102)  # systemd within the container
    return path


def docker_cgroupfs(tree: CgroupTree) -> str:
    tree.group(f"/docker/{ID}", 101)
    return f"/docker/{ID}"


def podman_systemd(tree: CgroupTree) -> str:
    tree.group(f"/machine.slice/libpod-conmon-{ID}.scope", 100)
    path = f"/machine.slice/libpod-{ID}.scope"
    tree.group(f"{path}/container", 101)
    return path


def podman_rootless(tree: CgroupTree) -> str:
    user = "/user.slice/user-1000.slice/user@1000.service/user.slice"
    tree.group(f"{user}/libpod-conmon-{ID}.scope", 100)
    tree.group(f"{user}/libpod-{ID}.scope/container", 101)
    return f"{user}/libpod-{ID}.scope"


def podman_cgroupfs(tree: CgroupTree) -> str:
    tree.group(f"/libpod_parent/conmon-{ID}", 100)
    tree.group(f"/libpod_parent/libpod-{ID}", 101)
    return f"/libpod_parent/libpod-{ID}"


def kubernetes_containerd_systemd(tree: CgroupTree) -> str:
    slices = "/kubepods.slice/kubepods-besteffort.slice"
    path = (
        f"{slices}/kubepods-besteffort-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope"
    )
    tree.group(path, 101)
    return path


def kubernetes_crio_systemd(tree: CgroupTree) -> str:
    pod = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
    tree.group(f"{pod}/crio-conmon-{ID}.scope", 100)
    tree.group(f"{pod}/crio-{ID}.scope/container", 101)
    return f"{pod}/crio-{ID}.scope"


def kubernetes_cgroupfs(tree: CgroupTree) -> str:
    path = f"/kubepods/burstable/pod{UID}/{ID}"
    tree.group(path, 101)
    return path


def kubernetes_in_docker(tree: CgroupTree) -> str:
    slices = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
    path = (
        f"/system.slice/docker-{OTHER_ID}.scope{slices}"
        f"/kubelet-kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope"
    )
    tree.group(f"/system.slice/docker-{OTHER_ID}.scope/init.scope", 99)
    tree.group(path, 101)
    return path


CONTAINERS = (
    docker_systemd,
    docker_cgroupfs,
    podman_systemd,
    podman_rootless,
    podman_cgroupfs,
    kubernetes_containerd_systemd,
    kubernetes_crio_systemd,
    kubernetes_cgroupfs,
    kubernetes_in_docker,
)


def slurm(tree: CgroupTree, job: int = 4711, scope: str = "slurmstepd.scope") -> str:
    """Return the layout of slurmstepd's plugin cgroup/v2."""
    path = f"/system.slice/{scope}/job_{job}"
    tree.group(f"{path}/step_batch/user/task_0", 201)
    tree.group(f"{path}/step_batch/slurm", 200)
    tree.group(f"{path}/step_0/user/task_0", 202)
    tree.group(f"{path}/step_0/user/task_1", 203)
    tree.group(f"{path}/step_extern/user/task_special", 204)
    return path
