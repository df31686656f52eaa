import pytest

from wattline_workloads.jobs.llm import decoding
from wattline_workloads.jobs.llm.models import ModelError


def test_pad_batch_left_aligns_last_tokens():
    pytest.importorskip("torch", reason="needs the extra torch")
    batch = decoding.pad_batch([[7, 8, 9], [5]], left=True)

    assert batch.ids.tolist() == [[7, 8, 9], [0, 0, 5]]
    assert batch.mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert (batch.tokens, batch.padding) == (4, 2)


def test_pad_batch_right_aligns_first_tokens():
    pytest.importorskip("torch", reason="needs the extra torch")
    batch = decoding.pad_batch([[7, 8, 9], [5]], left=False)

    assert batch.ids.tolist() == [[7, 8, 9], [5, 0, 0]]
    assert batch.mask.tolist() == [[1, 1, 1], [1, 0, 0]]


def test_synthetic_texts_have_lengths_and_depend_on_seed():
    rows = decoding.synthetic_texts(200, (3, 5), 10, seed=1)

    assert {len(row) for row in rows} == {3, 4, 5}
    assert {token for row in rows for token in row} == set(range(10))
    assert rows == decoding.synthetic_texts(200, (3, 5), 10, seed=1)
    assert rows != decoding.synthetic_texts(200, (3, 5), 10, seed=2)


def test_endless_batches_restart_after_last_text():
    batches = decoding.endless_batches([[1], [2], [3]], 2)

    assert [next(batches) for _ in range(3)] == [[[1], [2]], [[3], [1]], [[2], [3]]]


def test_tokenize_file_reads_one_text_per_line(tmp_path):
    (tmp_path / "texts").write_text("a b\n\n  \nc\n")

    assert decoding.tokenize_file(
        str(tmp_path / "texts"), lambda line: {"input_ids": [len(line)]}
    ) == [[3], [1]]


@pytest.mark.parametrize("content", [b"\n \n", b"\xff\xfe\x00"])
def test_tokenize_file_without_text_is_rejected(tmp_path, content):
    (tmp_path / "texts").write_bytes(content)

    with pytest.raises(ModelError, match="texts"):
        decoding.tokenize_file(str(tmp_path / "texts"), lambda line: {"input_ids": [1]})
