"""The dashboards, one module each."""

from grafana.boards.carbon import CARBON
from grafana.boards.fleet import FLEET
from grafana.boards.health import HEALTH
from grafana.boards.node import NODE_BOARD
from grafana.boards.overview import OVERVIEW
from grafana.boards.requests import REQUESTS_BOARD
from grafana.boards.runs import RUNS
from grafana.boards.sweep import SWEEP
from grafana.boards.tenants import TENANTS
from grafana.boards.variability import VARIABILITY
from grafana.boards.waste import WASTE

BOARDS = (
    OVERVIEW,
    NODE_BOARD,
    RUNS,
    CARBON,
    SWEEP,
    TENANTS,
    REQUESTS_BOARD,
    VARIABILITY,
    FLEET,
    WASTE,
    HEALTH,
)
