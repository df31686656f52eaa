import argparse

import pytest

from tests.workloads.jobs.llm_models import EOS, NEEDS_TORCH, counting_model
from wattline_workloads.jobs.llm import decoding, models

pytestmark = NEEDS_TORCH


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Model that predicts EOS at position 5: after 4 tokens from a prompt of 3, and after 2 from a
    prompt of 5.
    """
    folder = counting_model(tmp_path_factory.mktemp("model"), eos_at=5)
    return models.load_model(
        argparse.Namespace(model=folder, random=None, device="cpu", dtype="float32", seed=0)
    )


def _generate(model, new_tokens: int, eos: frozenset[int], *lengths: int):
    batch = decoding.pad_batch([[1] * length for length in lengths], left=True)
    clock = iter(range(100))
    limits = decoding.GenerationLimits(new_tokens, eos)
    return decoding.generate_tokens(
        model, batch, limits, decoding.choose_greedily, lambda: float(next(clock))
    )


def test_generate_tokens_each_text_ends_at_its_eos(model):
    steps, ids = _generate(model, 10, model.eos, 3, 5)

    assert model.eos == {EOS}
    assert ids.tolist() == [
        [3, 4, 5, EOS],
        [5, EOS, 7, 8],
    ]  # 7 and 8 follow EOS and are not counted
    assert steps.live == (2, 2, 1, 1)
    assert (steps.generated, steps.idle) == (6, 2)


def test_generate_tokens_times_each_step_after_its_tokens(model):
    steps, _ = _generate(model, 10, model.eos, 3)

    assert (steps.began_s, steps.token_times_s) == (0.0, (1.0, 2.0, 3.0, 4.0))


def test_generate_tokens_without_eos_generates_all_tokens(model):
    steps, ids = _generate(model, 6, frozenset(), 3, 5)

    assert ids.tolist() == [[3, 4, 5, EOS, 7, 8], [5, EOS, 7, 8, 9, 10]]
    assert (steps.generated, steps.idle) == (12, 0)


def test_generate_tokens_limit_of_one_generates_one_token(model):
    steps, ids = _generate(model, 1, model.eos, 3)

    assert (ids.tolist(), steps.live) == ([[3]], (1,))


@pytest.mark.parametrize(("top_k", "top_p"), [(1, None), (None, 1e-6)])
def test_sampling_chooser_single_candidate_is_most_likely(top_k, top_p):
    import torch

    logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, 4.0, 4.9]])

    assert decoding.sampling_chooser(1.0, top_k, top_p)(logits).tolist() == [1, 0]


@pytest.mark.parametrize(("top_k", "top_p"), [(2, None), (None, 0.8)])
def test_sampling_chooser_chooses_only_allowed_tokens(top_k, top_p):
    """Use probabilities 0.5, 0.1 and 0.4: the two largest reach 0.8."""
    import torch

    torch.manual_seed(0)
    logits = torch.tensor([[0.5, 0.1, 0.4]]).log().repeat(400, 1)

    assert set(decoding.sampling_chooser(1.0, top_k, top_p)(logits).tolist()) == {0, 2}


def test_sampling_chooser_temperature_scales_distribution():
    import torch

    torch.manual_seed(0)
    logits = torch.tensor([[0.6, 0.4]]).log().repeat(2000, 1)
    shares = [
        decoding.sampling_chooser(t, None, None)(logits).float().mean().item() for t in (0.1, 100.0)
    ]

    assert shares[0] < 0.05  # 1 / (1 + 1.5^10) = 0.017
    assert 0.4 < shares[1] < 0.6  # 0.499


@pytest.mark.parametrize("kind", ["gpt2", "llama", "opt", "bloom"])
def test_generate_tokens_equals_generate_of_transformers(kind, tmp_path):
    """Use models with rotary positions, with a position offset, and without positions."""
    from transformers import AutoConfig

    shape = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    other_fields = {
        "intermediate_size": 32,
        "ffn_dim": 32,
        "word_embed_proj_dim": 16,
        "initializer_range": 1.0,
    }
    AutoConfig.for_model(
        kind, **shape, **other_fields, eos_token_id=None, pad_token_id=0
    ).save_pretrained(tmp_path)
    options = argparse.Namespace(
        model=None, random=str(tmp_path), device="cpu", dtype="float32", seed=1
    )
    model = models.load_model(options)
    model.module.eval()
    batch = decoding.pad_batch([[3, 4, 5, 6, 7], [8, 9], [11]], left=True)
    limits = decoding.GenerationLimits(8, frozenset())

    _, ids = decoding.generate_tokens(model, batch, limits, decoding.choose_greedily, lambda: 0.0)
    expected = model.module.generate(
        batch.ids, attention_mask=batch.mask, max_new_tokens=8, do_sample=False
    )

    assert ids.tolist() == expected[:, 5:].tolist()
    assert (
        len({token for row in ids.tolist() for token in row}) > 3
    )  # the model does not repeat one token
