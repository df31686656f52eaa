"""Energy of a Python program: `with wattline.run("train") as run: …`."""

from wattline.client.runs import Run, run

__all__ = ["Run", "run"]
