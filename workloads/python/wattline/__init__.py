"""Energy of a Python program: `with wattline.run("train") as run: …`."""

from wattline.client.summary import EnergySoFar, RunResult
from wattline.runs.run import Run
from wattline.runs.start import measure, run, start

__all__ = ["EnergySoFar", "Run", "RunResult", "measure", "run", "start"]
