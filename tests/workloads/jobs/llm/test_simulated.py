import signal
import time

import pytest

from tests.fakes.run_api import RunApi, run_api_server
from tests.workloads.programs import Exporter
from wattline_exporter import simulation

PEAK = 67e12  # FLOP/s of an H200
GPT2 = 124_439_808  # parameters


@pytest.fixture
def simulated(tmp_path):
    """Two simulated H200, an exporter that measures them, and a `torch` module that fails on
    import.
    """
    path = tmp_path / "simulation.state"
    gpus = simulation.make_gpus(2, simulation.PRODUCTS["H200"])
    simulation.create(path, gpus, simulation.clock_s())
    (tmp_path / "torch.py").write_text("raise SystemExit('torch is imported')\n")
    api = RunApi(known_gpus=tuple(gpu.uuid for gpu in gpus), simulation=str(path))
    with simulation.Simulation.open(path) as opened, run_api_server(api) as address:
        yield Exporter(api, address), opened, str(tmp_path)


def test_llm_forward_simulated_speed_is_two_flop_per_parameter(simulated):
    exporter, _, path = simulated
    arguments = ("--random", "gpt2", "--batch-size", "64", "--seq-len", "128", "--iterations", "20")
    done = exporter.python("-m", "wattline_workloads.jobs.llm_forward", *arguments, PYTHONPATH=path)

    run = exporter.api.only_run
    assert done.returncode == 0
    assert "simulated: no model runs" in done.stderr
    assert run.work == {"prompt_tokens": 20 * 64 * 128, "samples": 20 * 64, "steps": 20}
    assert run.results["tokens_per_second"] <= PEAK / (2 * GPT2)  # 269,000
    assert run.duration_s >= 0.6  # 163,840 tokens


def test_llm_generate_simulated_slows_under_power_limit(simulated):
    """Limit the GPU to 200 W: at 60 % load it would draw 78 + 0.6 x 622 = 451 W and reach 60 % of
    its peak speed.
    """
    exporter, gpus, path = simulated
    gpus.set_limit(0, 200)
    arguments = ("--prompt-tokens", "8", "--new-tokens", "50", "--iterations", "2")
    done = exporter.python(
        "-m", "wattline_workloads.jobs.llm_generate", *arguments, PYTHONPATH=path
    )

    run = exporter.api.only_run
    share = ((200 - 78) / (0.6 * 622)) ** (1 / 3)  # 0.689
    batch_s = 2 * GPT2 * 512 * (8 + 49) / (0.6 * PEAK * share)
    assert done.returncode == 0
    assert run.work == {
        "generated_tokens": 2 * 512 * 50,
        "prompt_tokens": 2 * 512 * 8,
        "padding_tokens": 0,
        "requests": 1024,
    }
    assert run.results["tokens_per_second"] <= 512 * 50 / batch_s
    assert (
        run.results["ttft_seconds_p50"] > run.results["tpot_seconds_p50"]
    )  # prefill of eight columns, then one per token


def test_llm_train_simulated_reports_no_loss(simulated):
    exporter, _, path = simulated
    arguments = (
        "--sample-tokens",
        "64:512",
        "--epochs",
        "1",
        "--samples",
        "200",
        "--batch-size",
        "150",
    )
    done = exporter.python("-m", "wattline_workloads.jobs.llm_train", *arguments, PYTHONPATH=path)

    run = exporter.api.only_run
    assert done.returncode == 0
    assert (run.work["samples"], run.work["steps"]) == (200, 2)
    assert 200 * 64 <= run.work["trained_tokens"] <= 200 * 512
    assert run.work["padding_tokens"] > 0
    assert "loss" not in run.results


def test_llm_generate_simulated_loads_gpu_until_sigterm(simulated):
    exporter, gpus, path = simulated
    process = exporter.start(
        "-m", "wattline_workloads.jobs.llm_generate", "--duration", "60", PYTHONPATH=path
    )
    with process:
        give_up_s = time.monotonic() + 30
        while not gpus.gpus[0].processes and time.monotonic() < give_up_s:
            time.sleep(0.02)
        busy_w = gpus.power_w(0, gpus.now())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    assert busy_w == pytest.approx(451.2)
    assert process.returncode == -signal.SIGTERM
    assert exporter.api.only_run.outcome == "interrupted"
    assert gpus.gpus[0].processes == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "nobody/else"), "unknown model 'nobody/else'"),
        (("--prompts", __file__), "prompts are synthetic"),
    ],
)
def test_llm_generate_simulated_unsupported_is_one_line_error(simulated, arguments, message):
    exporter, _, path = simulated
    done = exporter.python(
        "-m", "wattline_workloads.jobs.llm_generate", *arguments, PYTHONPATH=path
    )

    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_llm_job_on_two_simulated_gpus_says_that_one_is_idle(simulated):
    exporter, gpus, path = simulated
    both = ",".join(gpu.uuid for gpu in gpus.gpus)
    arguments = (
        "--random",
        "tiny",
        "--batch-size",
        "1",
        "--seq-len",
        "8",
        "--iterations",
        "1",
        "--warmup",
        "0",
    )
    done = exporter.python(
        "-m",
        "wattline_workloads.jobs.llm_forward",
        *arguments,
        PYTHONPATH=path,
        CUDA_VISIBLE_DEVICES=both,
    )

    assert done.returncode == 0
    assert (
        "this process uses the first of 2 GPUs; the run includes the energy of the others"
        in done.stderr
    )
