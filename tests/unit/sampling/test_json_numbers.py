"""Numbers in JSON end."""

import pytest

from kokuban.sampling.json_numbers import NumberRun, num_leading_digits


@pytest.mark.parametrize(
    ("text", "room"),
    [
        (b"", 60),
        (b"1", 59),
        (b"-12", 58),
        (b"12.", 60),
        (b"12.5", 59),
        (b"12e", 2),
        (b"12E+", 2),
        (b"12E-3", 1),
        (b"12E34", 0),
        (b"12E34,", 60),
        (b"1" * 60, 0),
        (b"1" * 70, 0),
        (b"1" * 60 + b".", 60),
        (b"[true", 60),
        (b"[true,1", 59),
        (b'{"' + b"1" * 70, 60),
        (b'{"\\"' + b"1" * 70, 60),
        (b'{"1\\\\":1', 59),
        (b'{"1e', 60),
    ],
)
def test_the_room_for_digits(text: bytes, room: int) -> None:
    """B53: digits are bounded wherever a number can be, and nowhere else."""
    run = NumberRun()
    for index in range(len(text)):  # However it is cut.
        run.feed(text[index : index + 1])

    assert run.room == room


def test_a_copy_goes_its_own_way() -> None:
    run = NumberRun()
    run.feed(b"1e")
    copy = run.copy()
    copy.feed(b"12")

    assert (run.room, copy.room) == (2, 0)


@pytest.mark.parametrize(("data", "count"), [(b"", 0), (b"12", 2), (b" 1", 0), (b"3e9", 1)])
def test_digits_at_the_start_of_a_token_count(data: bytes, count: int) -> None:
    assert num_leading_digits(data) == count
