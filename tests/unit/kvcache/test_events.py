"""The log of KV events: numbers without a hole, and a gap that is told whenever there is one."""

import pytest

from kokuban.kvcache.events import START, Cursor, EventLog, KvEvent, Replay


def log_of(num_events: int, *, capacity: int = 8, epoch: str = "e") -> EventLog:
    """A log that has been read from the start, with `num_events` in it."""
    log = EventLog(epoch, capacity)
    log.start()
    for number in range(1, num_events + 1):
        log.removed("pool", 0, bytes([number]))
    return log


def numbers(replay: Replay) -> list[int]:
    return [event.sequence for event in replay.events]


def test_events_tell_all_that_they_were_told() -> None:
    log = EventLog("e")
    log.start()

    log.stored("pool", 1, b"key", b"root", (5, 6), (3,))
    log.stored("disk", 0, b"next", b"key", (7,))
    log.removed("ram", 1, b"key", (9,))
    log.cleared("pool")

    assert log.since(START) == Replay(
        (
            KvEvent(1, "stored", "pool", 1, b"key", b"root", (5, 6), (3,)),
            KvEvent(2, "stored", "disk", 0, b"next", b"key", (7,), ()),
            KvEvent(3, "removed", "ram", 1, b"key", None, (), (9,)),
            KvEvent(4, "cleared", "pool", None, b"", None, (), ()),
        ),
        Cursor("e", 4),
    )


def test_a_reader_goes_on_where_it_stopped() -> None:
    log = log_of(5)

    first = log.since(START, limit=2)
    second = log.since(first.cursor, limit=2)
    third = log.since(second.cursor)

    assert [numbers(each) for each in (first, second, third)] == [[1, 2], [3, 4], [5]]
    assert third.cursor == log.cursor == ("e", 5)
    assert log.since(third.cursor) == Replay((), Cursor("e", 5))
    assert not any(each.is_gap for each in (first, second, third))


def test_what_the_ring_has_overwritten_is_a_gap() -> None:
    log = log_of(11, capacity=8)

    late = log.since(Cursor("e", 1))
    in_time = log.since(Cursor("e", 3))

    assert (numbers(late), late.is_gap, late.num_lost) == ([4, 5, 6, 7, 8, 9, 10, 11], True, 2)
    assert (numbers(in_time), in_time.is_gap) == ([4, 5, 6, 7, 8, 9, 10, 11], False)


def test_what_came_before_the_first_reader_was_counted_and_not_kept() -> None:
    log = EventLog("e", 8)
    for _ in range(3):
        log.stored("pool", 0, b"k", None, (1,))
    log.start()
    before = log.since(START)
    log.removed("pool", 0, b"k")
    after = log.since(START)

    assert before == Replay((), Cursor("e", 3), is_gap=True, num_lost=3)
    assert (numbers(after), after.is_gap, after.num_lost) == ([4], True, 3)
    assert numbers(log.since(before.cursor)) == [4]


def test_starting_again_keeps_what_there_is() -> None:
    log = log_of(2)
    log.start()

    assert numbers(log.since(START)) == [1, 2]


@pytest.mark.parametrize("cursor", [Cursor("other", 2), Cursor("other", 0), Cursor("e", 4)])
def test_a_place_in_another_log_or_in_the_future_is_a_gap_and_everything_is_told(
    cursor: Cursor,
) -> None:
    replay = log_of(3).since(cursor)

    assert (numbers(replay), replay.is_gap, replay.num_lost) == ([1, 2, 3], True, 0)


def test_a_reader_that_the_writer_overtakes_loses_and_never_mixes() -> None:
    """The ring as a reader may find it: event 2 has just been replaced by event 10."""
    log = log_of(8, capacity=8)
    log._ring[2] = KvEvent(10, "cleared", "pool")

    replay = log.since(START)

    assert (numbers(replay), replay.is_gap, replay.num_lost) == ([3, 4, 5, 6, 7, 8], True, 2)


def test_a_reader_in_the_middle_of_a_write_does_not_see_the_event_yet() -> None:
    log = log_of(3)
    seen: list[Replay] = []

    class Watched(list[KvEvent | None]):
        def __setitem__(self, *item: object) -> None:
            seen.append(log.since(START))
            super().__setitem__(*item)  # type: ignore[call-overload]

    log._ring = Watched(log._ring)
    log.cleared("pool")

    assert [numbers(replay) for replay in seen] == [[1, 2, 3]]
    assert numbers(log.since(START)) == [1, 2, 3, 4]


def test_a_cursor_is_read_as_it_is_written() -> None:
    assert str(Cursor("3fa0", 17)) == "3fa0-17"
    assert Cursor.parse("3fa0-17") == ("3fa0", 17)
    assert Cursor.parse("17") == ("", 17)


@pytest.mark.parametrize("text", ["", "-", "x", "3fa0-", "1.5", "+1", "²", "9" * 20])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no place in the events"):
        Cursor.parse(text)
