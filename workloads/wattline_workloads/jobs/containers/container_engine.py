"""Docker or Podman, through Docker's API."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

_HELLO_TIMEOUT_S = 20
_ANY_VERSION = "1.24"
"""Version of the API in the first request, which all engines answer with theirs."""
_MOST_LISTED = 20
_PREPARING = re.compile(r"preparing container [0-9a-f]{64} for attach: ")
# Remedies by a part of the engine's error message.
_REMEDIES = {
    "could not select device driver": "install the NVIDIA Container Toolkit, then: "
    "nvidia-ctk runtime configure --runtime=docker, and restart Docker",
    "unresolvable CDI": "describe the GPUs to Podman: nvidia-ctk cdi generate "
    "--output=/etc/cdi/nvidia.yaml "
    "--device-name-strategy=index --device-name-strategy=uuid",
    "executable file not found": "the command after the image's name runs in the container and "
    "must be on its PATH",
    "bind source path does not exist": "give --volume an existing folder",
}


class EngineError(Exception):
    """Error of the engine; one line with cause and remedy."""


@dataclass(frozen=True, slots=True)
class EngineImage:
    """Tagged image; `bytes` is the engine's size."""

    name: str
    bytes: int
    created: str


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """Engine; `api` is the Docker package's low-level client, without timeout for silent
    containers.
    """

    host: str
    is_podman: bool
    api: Any


def find_engine(
    host: str | None, environ: Mapping[str, str], root: Path = Path("/")
) -> ContainerEngine:
    """Find the engine: `host` (URL or socket path), else the environment's, else the first existing
    socket.

    Raises EngineError.
    """
    chosen = host or environ.get("DOCKER_HOST") or environ.get("CONTAINER_HOST")
    if not chosen:
        candidates = _sockets(environ, root)
        socket = next((path for path in candidates if _is_socket(path)), None)
        if socket is None:
            raise EngineError(
                f"cannot find a container engine: no socket at {', '.join(map(str, candidates))}; "
                "start one "
                "(systemctl start docker, or systemctl --user start podman.socket), or set --host"
            )
        chosen = str(socket)
    url = f"unix://{Path(chosen).absolute()}" if "://" not in chosen else chosen
    return _connect(url, environ)


def _sockets(environ: Mapping[str, str], root: Path) -> list[Path]:
    own = Path(environ.get("XDG_RUNTIME_DIR") or root / f"run/user/{os.getuid()}")
    names = (
        "var/run/docker.sock",
        own / "docker.sock",
        own / "podman/podman.sock",
        "run/podman/podman.sock",
    )
    return [root / name for name in names]


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def _connect(url: str, environ: Mapping[str, str]) -> ContainerEngine:
    try:
        import docker
    except ImportError as error:
        from wattline.command_line import install

        raise EngineError(f"cannot import docker: {error}; {install('workloads')}") from error
    environment = {**environ, "DOCKER_HOST": url}
    with engine_errors(f"cannot reach a container engine at {url}"):
        client = docker.from_env(
            environment=environment,
            timeout=_HELLO_TIMEOUT_S,
            use_ssh_client=True,
            version=_ANY_VERSION,
        )
        api = client.api
        pong = api.get(f"{api.base_url}/_ping", timeout=_HELLO_TIMEOUT_S)
        pong.raise_for_status()
    if "Api-Version" not in pong.headers:
        raise EngineError(
            f"cannot use the server at {url}: it is no container engine; set another --host"
        )
    # as with `version="auto"`, which asks for /version: Podman then searches the files of all
    # Debian packages
    api._version = pong.headers["Api-Version"]  # noqa: SLF001
    api.timeout = None
    return ContainerEngine(url, "Libpod-Api-Version" in pong.headers, api)


@contextlib.contextmanager
def engine_errors(failure: str) -> Iterator[None]:
    """Convert errors within to EngineError with the prefix `failure`."""
    import docker.errors
    import requests

    try:
        yield
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise EngineError(f"{failure}: {error_cause(error)}") from error


def error_cause(error: Exception) -> str:
    """Return the innermost cause in one line, with a known remedy."""
    import docker.errors

    if isinstance(error, docker.errors.APIError) and error.explanation:
        return with_remedy(str(error.explanation))
    cause = _os_error(error)
    if isinstance(cause, PermissionError):
        return (
            "permission denied; join the group of the socket (sudo usermod -aG docker $USER, then "
            "log in again), "
            "or start a rootless engine: systemctl --user start podman.socket"
        )
    if isinstance(cause, FileNotFoundError | ConnectionRefusedError):
        return f"{cause.strerror}; start the engine, or set another --host"
    return " ".join(str(cause or error).split())


def with_remedy(message: str) -> str:
    """Return the engine's message in one line, with a known remedy."""
    text = _PREPARING.sub("", " ".join(message.split()))
    remedy = next((remedy for part, remedy in _REMEDIES.items() if part in text), None)
    return f"{text}; {remedy}" if remedy else text


def _os_error(error: BaseException | None) -> OSError | None:
    """Return the OSError wrapped by requests and urllib3, partly only in arguments."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error
        inner = next((part for part in error.args if isinstance(part, BaseException)), None)
        error = error.__cause__ or inner or error.__context__
    return None


def list_images(engine: ContainerEngine) -> list[EngineImage]:
    """List the named images, sorted. Raises EngineError."""
    with engine_errors("cannot list the images of the engine"):
        listed = engine.api.images()
    return sorted(
        (
            EngineImage(name, int(image.get("Size", 0)), _day(image.get("Created")))
            for image in listed
            for name in image.get("RepoTags") or []
            if not name.endswith("<none>")
        ),
        key=lambda image: image.name,
    )


def _day(created: Any) -> str:
    return (
        f"{datetime.fromtimestamp(created).astimezone():%Y-%m-%d}"
        if isinstance(created, int)
        else ""
    )


def describe_images(engine: ContainerEngine) -> str:
    """Describe the images for an error message; never raises."""
    try:
        names = [image.name for image in list_images(engine)]
    except EngineError:
        return "available images: unknown"
    if not names:
        return f"no image is available at {engine.host}"
    more = (
        f" and {len(names) - _MOST_LISTED} more (--list-images)"
        if len(names) > _MOST_LISTED
        else ""
    )
    return f"available images: {', '.join(names[:_MOST_LISTED])}{more}"


def resolve_image(engine: ContainerEngine, image: str) -> str | None:
    """Return the engine's name of the image, None if missing. Raises EngineError."""
    import docker.errors

    # Podman names a local build localhost/NAME; Docker's API assumes Docker Hub for a name without
    # a registry.
    first, slash, _ = image.partition("/")
    has_registry = bool(slash) and (first == "localhost" or not {".", ":"}.isdisjoint(first))
    for name in (image,) if has_registry else (image, f"localhost/{image}"):
        with (
            engine_errors(f"cannot look up image {image}"),
            contextlib.suppress(docker.errors.NotFound),
        ):
            engine.api.inspect_image(name)
            return name
    return None


def pull_image(engine: ContainerEngine, image: str) -> None:
    """Fetch the image from its registry. Raises EngineError."""
    with engine_errors(f"cannot pull {image}"):
        for event in engine.api.pull(image, stream=True, decode=True):
            if "error" in event:
                raise EngineError(f"cannot pull {image}: {' '.join(str(event['error']).split())}")
