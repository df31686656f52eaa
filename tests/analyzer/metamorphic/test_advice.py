"""Direction of advice against a law: lower cap, power and speed of a job are known."""

import random
from dataclasses import dataclass, replace
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyzer.metamorphic.world import BUDGET, EXAMPLES, MemorySource
from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    run_series,
    scrape,
    scrape_times,
    series_of_scrapes,
)
from wattline.contract import metrics as m
from wattline_analyzer.compare.comparison import RunGroup, compare_groups, group_member
from wattline_analyzer.core.runs.load import Clock, load_run
from wattline_analyzer.recommend.advice import advise
from wattline_analyzer.recommend.objective import QuestionError, SweepQuestion
from wattline_analyzer.recommend.sweep import group_sweeps, sweep_run
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.studies import with_throttling_samples
from wattline_analyzer.tenants.figures import step_figures
from wattline_analyzer.tenants.overlap import TenantRun, concurrent_step, solo_run
from wattline_analyzer.variability.figures import GpuRun, gpu_variability

HIGH_W, LOW_W = 500.0, 300.0
LONG_S = 12.0
CLOCK = "sm_clock_hertz"


@dataclass(frozen=True)
class Job:
    """Way in which a job reports its work: `work` and `results` by seconds and by units done."""

    name: str
    fixed_time: bool = False
    unit: str = ""
    result: str = ""

    def run(self, run_id, begin_s, speed, labels):
        """Return the run at `speed`, in units per second; a job of fixed work does as much as in
        LONG_S at speed 1.
        """
        long_s = LONG_S if self.fixed_time else LONG_S / speed
        done = 100 * speed * long_s
        rates = dict.fromkeys(("samples_per_second", "tokens_per_sec", "tps"), 100 * speed)
        values = {"score_seconds": long_s, "time": long_s, **rates}
        amounts = {self.unit: values.get(self.unit, done)} if self.unit else {}
        results = {self.result: values[self.result]} if self.result else {}
        work = {} if self.unit in values else amounts
        return NodeRun(
            run_id,
            begin_s,
            begin_s + long_s,
            "job",
            {"experiment": "law", **labels},
            work=amounts,
            results=results,
            phases={"measure": (long_s, 0.0)},
            phase_work={"measure": work} if work else {},
            uncertainty_j=1.0,
        )


JOBS = (
    *(Job(f"{unit}, fixed work", unit=unit) for unit in ("generated_tokens", "samples", "steps")),
    Job("tokens, fixed time", unit="generated_tokens", fixed_time=True),
    Job("score in seconds", result="score_seconds"),
    Job("score in seconds as work", unit="time"),
    Job("score as rate", result="samples_per_second"),
    Job("no work"),
)


def reports(runs, watts):
    """Return frames and report of each run on one GPU; `watts` are its powers by run."""
    steps = [(START_S - 1_000, 60.0)]
    for run in runs:
        steps += [(run.start_s, watts[run.run_id]), (run.end_s, 60.0)]
    gpu = NodeGpu(steps, limit_w=HIGH_W)
    runs = [_with_phase_energy(run, gpu) for run in runs]
    times = scrape_times(1, runs[0].start_s - 15.5, runs[-1].end_s + 20)
    series = series_of_scrapes(((t, list(_scrape(gpu, runs, t))) for t in times), "a:9847")
    source = MemorySource(series)
    clock = Clock(lambda: runs[-1].end_s + 3_600, lambda _: None)
    frames = [load_run(source, run.run_id, 86_400, clock, lambda _: None) for run in runs]
    return source, [(one, assess(one)) for one in frames]


def _with_phase_energy(run, gpu):
    joules = gpu.energy_j(run.end_s) - gpu.energy_j(run.start_s)
    return replace(
        run,
        phases={"measure": (run.end_s - run.start_s, joules)} if run.work or run.results else {},
    )


def _scrape(gpu, runs, t):
    yield from scrape([gpu], NodeRun(start_s=t + 1), t)
    for run in runs:
        if run.start_s <= t <= run.end_s + 30:
            yield from run_series([gpu], run, t)


@lru_cache
def sweep_runs(job, ratio):
    """Return the runs of a job at both caps; `ratio` is the speed at the lower one over that at the
    higher one.
    """
    high = job.run("high", START_S, 1.0, {"power_limit_watts": f"{HIGH_W:g}"})
    low = job.run("low", high.end_s + 5, ratio, {"power_limit_watts": f"{LOW_W:g}"})
    return reports([high, low], {"high": HIGH_W, "low": LOW_W})


def sweep_of(source, loaded):
    runs = [sweep_run(with_throttling_samples(source, frames), report) for frames, report in loaded]
    (sweep,) = group_sweeps([run for run in runs if run is not None])
    return sweep


SEEDS = st.integers(0, 2**32)


def ratio_of(job, seed):
    """Return a speed at 60 % of the power; at 0.6 both caps cost the same."""
    chance = random.Random(f"{job.name} {seed}")
    return chance.choice([chance.uniform(0.4, 0.56), chance.uniform(0.64, 0.95)])


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
@BUDGET
@given(seed=SEEDS)
def test_recommend_any_kind_of_job_follows_law(job, seed):
    ratio = ratio_of(job, seed)
    source, loaded = sweep_runs(job, ratio)
    sweep = sweep_of(source, loaded)

    advice = advise(sweep, SweepQuestion())

    saving = 1 - LOW_W / ratio / HIGH_W
    assert advice.advised.setting.power_limit_w == (LOW_W if saving > 0 else HIGH_W)
    low = next(one for one in advice.candidates if one.setting.power_limit_w == LOW_W)
    assert low.saving.value == pytest.approx(saving, rel=1e-6)
    assert low.slowdown.value == pytest.approx(1 / ratio - 1, rel=1e-6)


@pytest.mark.parametrize("result", ["samples_per_second", "tokens_per_sec", "tps", ""])
@BUDGET
@given(seed=SEEDS)
def test_recommend_fixed_time_without_work_is_refused(result, seed):
    """Energy of a run is not that of equal work: the lower cap would always save 40 %."""
    job = Job("rate", fixed_time=True, result=result)
    source, loaded = sweep_runs(job, ratio_of(job, seed))
    sweep = sweep_of(source, loaded)

    with pytest.raises(QuestionError, match=r"report no work and last equally long.*--unit runs"):
        advise(sweep, SweepQuestion())
    assert advise(sweep, SweepQuestion(unit="runs")).costs.unit is None


@pytest.mark.parametrize("job", [JOBS[0], JOBS[3], JOBS[4], JOBS[7]], ids=lambda job: job.name)
@BUDGET
@given(seed=SEEDS)
def test_compare_words_follow_law_and_reverse(job, seed):
    """B costs 60 % of the power and takes 1 / ratio of the time, per unit where there is one."""
    ratio = ratio_of(job, seed)
    _, loaded = sweep_runs(job, ratio)
    first, second = (
        RunGroup(name, (group_member(*one),)) for name, one in zip("AB", loaded, strict=True)
    )

    forward, backward = (
        _differences(compare_groups(groups)) for groups in ((first, second), (second, first))
    )

    key = f"energy_per_{job.unit}_joules" if job.unit else "energy_gpu_joules"
    assert forward[key] == pytest.approx(LOW_W / ratio / HIGH_W - 1, rel=1e-6)
    for name, difference in forward.items():
        assert (1 + difference) * (1 + backward[name]) == pytest.approx(1)


def _differences(comparison):
    found = {
        line.figure.key: line.differences[1].ratio - 1
        for line in comparison.lines
        if line.differences[1]
    }
    words = {line.figure.key: (line.less, line.more) for line in comparison.lines}
    assert all(words[key][0].startswith("saves") for key in words if "joules" in key)
    assert words["duration_seconds"] == ("takes {} less time", "takes {} more time")
    return found


@BUDGET
@given(
    st.floats(0.2, 0.9),
    st.floats(0.2, 0.9),
    st.floats(0.1, 0.9),
    st.sampled_from(["generated_tokens", "steps"]),
)
def test_tenants_follow_law_and_exchange(first, second, share, unit):
    """Both tenants run at a part of their speed alone, at the power of one of them: progress adds
    up to STP.
    """
    job = Job("tenant", fixed_time=True, unit=unit)
    solo = [
        job.run(f"solo-{n}", START_S + 20 * n, 1.0, {"tenant": n, "case": "solo"}) for n in (0, 1)
    ]
    begin_s = START_S + 40
    both = [
        job.run(f"both-{n}", begin_s, speed, {"tenant": n, "case": "both"})
        for n, speed in ((0, first), (1, second))
    ]
    runs = [
        replace(run, labels={**run.labels, "tenant": f"t{run.labels['tenant']}"})
        for run in (*solo, *both)
    ]

    loaded = tenant_reports(runs, share)

    alone = {run.name: solo_run(run) for run in loaded[:2]}
    for order in ((0, 1), (1, 0)):
        found = step_figures(concurrent_step([loaded[2 + n] for n in order]), alone)
        figures = {name: one.value for name, one in found.items()}
        assert figures["stp"] == pytest.approx(first + second, rel=1e-6)
        assert figures["antt"] == pytest.approx((1 / first + 1 / second) / 2, rel=1e-6)
        assert figures["t0:slowdown"] == pytest.approx(1 / first, rel=1e-6)
        # solo: 500 W for 100 units a second; together: 500 W for 100 x (first + second)
        assert figures["energy_over_sequential_ratio"] == pytest.approx(
            1 / (first + second), rel=1e-6
        )


def tenant_reports(runs, share):
    """Return the tenants' runs; `share` is the part of the GPU that is attributed to the first of
    both.
    """
    gpu = NodeGpu([(START_S - 1_000, 60.0), *_steps(runs)], limit_w=HIGH_W)
    runs = [_with_phase_energy(run, gpu) for run in runs]
    parts = {"both-0": share, "both-1": 1 - share}

    def values(t):
        yield from _scrape(gpu, runs, t)
        for run in runs:
            if run.start_s <= t <= run.end_s + 30:
                where = {
                    "run_id": run.run_id,
                    "component": "gpu",
                    "device": gpu.uuid,
                    "policy": "idle_shared",
                }
                joules = gpu.energy_j(min(t, run.end_s)) - gpu.energy_j(run.start_s)
                yield m.RUN_ATTRIBUTED_ENERGY, where, parts.get(run.run_id, 1.0) * joules
                yield m.RUN_PHASE_START, {"run_id": run.run_id, "phase": "measure"}, run.start_s

    times = scrape_times(1, START_S - 15.5, runs[-1].end_s + 20)
    source = MemorySource(series_of_scrapes(((t, list(values(t))) for t in times), "a:9847"))
    clock = Clock(lambda: START_S + 7_200, lambda _: None)
    found = []
    for run in runs:
        frames = load_run(source, run.run_id, 86_400, clock, lambda _: None)
        series = source.fetch(
            [m.RUN_PHASE_WORK, m.RUN_WORK, m.RUN_ATTRIBUTED_ENERGY], {"run_id": run.run_id}, 0, 2e9
        )
        found.append(TenantRun(frames.scrapes, assess(frames), series))
    return found


def _steps(runs):
    for run in {run.start_s: run for run in runs}.values():
        yield run.start_s, HIGH_W
        yield run.end_s, 60.0


@settings(max_examples=15 * EXAMPLES, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-15, 1e15), st.integers(5, 30))
def test_variability_scale_and_names_of_gpus_change_nothing(seed, factor, count):
    """Ratios do not depend on the unit or on the order of GPUs; a correlation changes its sign with
    the covariate.
    """
    chance = random.Random(seed)
    rows = [
        GpuRun(f"g{n:02d}", chance.uniform(90, 110), covariates={CLOCK: chance.uniform(1e9, 2e9)})
        for n in range(count)
        for _ in range(3)
    ]
    names = {f"g{n:02d}": f"x{at:02d}" for at, n in enumerate(chance.sample(range(count), count))}
    changed = [
        GpuRun(names[r.gpu], factor * r.value, covariates={CLOCK: 3e9 - r.covariates[CLOCK]})
        for r in chance.sample(rows, len(rows))
    ]

    result, expected = gpu_variability(changed), gpu_variability(rows)

    for name in ("between", "within", "whisker_gpus", "whisker_runs"):
        mine, other = getattr(result, name), getattr(expected, name)
        assert mine.value == pytest.approx(other.value), name
        assert (mine.skewed is None) == (other.skewed is None)
        if mine.skewed:
            assert mine.skewed == pytest.approx(other.skewed), name
    assert {names[one.gpu]: one.outlier for one in expected.gpus} == {
        one.gpu: one.outlier for one in result.gpus
    }
    clock = result.correlations[CLOCK]
    assert clock.value == pytest.approx(-expected.correlations[CLOCK].value)
