"""Substitutes for the compose files' images, made of this machine's programs without a registry."""

from __future__ import annotations

import shutil

from tests.deploy.compose_node import DOCKER
from tests.fakes.podman import Podman
from tests.servers import require

_DEBIAN = "FROM localhost/base\nCOPY {program} /bin/\nCOPY --chown=65534:65534 none {data}\n"
_VMALERT = r"""
ENTRYPOINT ["sh", "-c", "exec vmalert $(echo \"$@\" | sed s,-notifier.blackhole,-notifier.url=http://127.0.0.1:9,)", ""]
"""
"""Debian 12's vmalert lacks that option."""
_SUBSTITUTES = {
    "prom/prometheus": (
        "prometheus",
        "/prometheus",
        'USER nobody\nENTRYPOINT ["/bin/prometheus"]\n',
    ),
    "victoriametrics/victoria-metrics": (
        "victoria-metrics",
        "/none",
        'ENTRYPOINT ["/bin/victoria-metrics"]\n',
    ),
    "victoriametrics/vmalert": ("vmalert", "/none", _VMALERT),
}
_NO_GRAFANA = """\
FROM {exporter}
COPY --chown=472:0 none /var/lib/grafana
USER 472
STOPSIGNAL SIGKILL
ENTRYPOINT ["python3", "-m", "http.server", "--directory=/var/lib/grafana"]
CMD ["3000"]
"""
"""The image serves the mounted files as the user of Grafana's image."""


def substitute_images(engine: Podman, exporter: str) -> None:
    for file in ("compose.yml", "victoria-metrics.yml"):
        text = (DOCKER / file).read_text()
        for image in {
            line.partition("image: ")[2].strip()
            for line in text.splitlines()
            if "image: docker.io/" in line
        }:
            name = image.removeprefix("docker.io/").partition(":")[0]
            folder = engine.folder / name.replace("/", "-")
            (folder / "none").mkdir(parents=True, exist_ok=True)
            text = _NO_GRAFANA.format(exporter=exporter)
            if name in _SUBSTITUTES:
                program, data, rest = _SUBSTITUTES[name]
                shutil.copy(require(program), folder / program)
                text = _DEBIAN.format(program=program, data=data) + rest
            (folder / "Dockerfile").write_text(text)
            engine(
                "build",
                "--isolation=chroot",
                "--layers=false",
                "--tag",
                image,
                str(folder),
                within_s=180,
            )
