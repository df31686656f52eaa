import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline_workloads.jobs.containers.output import TerminalLines


def shown(*chunks: bytes) -> str:
    lines = TerminalLines()
    return (b"".join(map(lines.feed, chunks)) + lines.close()).decode()


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (b"plain\n", "plain\n"),
        (b"  0%\r 50%\r100%\ndone\n", "100%\ndone\n"),
        (b"windows\r\n", "windows\n"),
        (b"abcdef\rXY\n", "XYcdef\n"),
        (b"abcdef\r\x1b[KXY\n", "XY\n"),
        (b"abcdef\x1b[2K\rXY\n", "XY\n"),
        (b"abcdef\x1b[3G\x1b[1K\n", "   def\n"),
        (b"ab\b\bX\n", "Xb\n"),
        (b"ab\x1b[3Dx\x1b[2Cy\n", "xb y\n"),
        (b"no newline\rNO", "NO newline"),
        (b"\n\n", "\n\n"),
        (b"a\tb\n", "a\tb\n"),
        ("\r50 %|█████     |\r100 %|██████████|\n".encode(), "100 %|██████████|\n"),
        (b"\x1b[32mgreen\x1b[0m\n", "\x1b[32mgreen\x1b[0m\n"),
        (b"\x1b[31m10%\x1b[0m\r\x1b[32m99%\x1b[0m\n", "\x1b[0m\x1b[32m99%\x1b[0m\n"),
        (b"\x1b]0;a title\x07text\x1b[A\x1b[?25l\n", "text\n"),
        (b"\xff is no UTF-8\n", "� is no UTF-8\n"),
    ],
)
def test_terminal_lines_control_characters_give_visible_text(written, seen):
    assert shown(written) == seen


def test_terminal_lines_newline_completes_line_at_once():
    lines = TerminalLines()

    assert lines.feed(b"first\nsec") == b"first\n"
    assert lines.feed(b"ond\rS") == b""
    assert lines.feed(b"\n") == b"Second\n"


@given(
    st.lists(
        st.sampled_from(
            ["é", "█", "a", "\r", "\n", "\b", "\x1b[K", "\x1b[2C", "\x1b[1m", "\x1b]0;t\x07", "日"]
        )
    ),
    st.data(),
)
def test_terminal_lines_any_chunk_boundaries_give_same_text(pieces, data):
    written = "".join(pieces).encode()
    cut = data.draw(st.integers(0, len(written)))
    again = data.draw(st.integers(cut, len(written)))

    assert shown(written[:cut], written[cut:again], written[again:]) == shown(written)


def test_terminal_lines_repeated_redraw_keeps_one_line():
    lines = TerminalLines()
    for percent in range(100_000):
        assert lines.feed(b"\r%6d" % percent) == b""
    assert len(lines._line) == 6
    assert lines.close() == b" 99999"


def test_terminal_lines_endless_line_is_passed_on_in_parts():
    lines = TerminalLines()
    written = b"x" * 3_000_000
    assert lines.feed(written) + lines.close() == written
