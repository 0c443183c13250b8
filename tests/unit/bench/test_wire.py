"""HTTP responses and events, in whatever pieces they come."""

import pytest

from kokuban.bench.wire import EventReader, ResponseReader, WireError

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n7;x=y\r\n, world\r\n0\r\nX-Trailer: 1\r\n\r\n"
)
PLAIN = b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\nRetry-After: 1\r\n\r\nbusy"


def in_pieces(data: bytes, size: int) -> tuple[bytes, ResponseReader]:
    reader = ResponseReader()
    body = b"".join(reader.feed(data[at : at + size]) for at in range(0, len(data), size))
    return body, reader


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("data", "status", "body"), [(CHUNKED, 200, b"hello, world"), (PLAIN, 429, b"busy")]
)
def test_a_body_is_the_same_in_pieces_of_any_size(
    data: bytes, status: int, body: bytes, size: int
) -> None:
    found, reader = in_pieces(data, size)

    assert (reader.status, found, reader.done, reader.keeps_alive) == (status, body, True, True)


def test_a_part_of_a_chunk_is_passed_on_before_its_end() -> None:
    reader = ResponseReader()

    assert reader.feed(CHUNKED[: CHUNKED.index(b"lo\r\n")]) == b"hel"
    assert not reader.done


def test_names_of_headers_have_no_case() -> None:
    assert in_pieces(PLAIN, 1000)[1].headers == {"content-length": "4", "retry-after": "1"}


def test_an_interim_response_is_passed_over() -> None:
    body, reader = in_pieces(b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN, 5)

    assert (reader.status, body) == (429, b"busy")


def test_a_body_of_unknown_length_ends_with_the_connection() -> None:
    body, reader = in_pieces(b"HTTP/1.1 200 OK\r\n\r\nall of it", 4)

    assert (body, reader.done, reader.keeps_alive) == (b"all of it", False, False)
    assert reader.end()


@pytest.mark.parametrize("cut", [len(CHUNKED) - 30, 10])
def test_a_response_that_is_cut_is_not_whole(cut: int) -> None:
    assert not in_pieces(CHUNKED[:cut], 1000)[1].end()


def test_a_server_may_say_that_it_closes() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close\r\n\r\n"

    reader = in_pieces(head, 1000)[1]

    assert (reader.done, reader.keeps_alive) == (True, False)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no status line"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "no status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n", "content-length: 'ten'"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "no size of a chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabcd", "where its size says"),
        (b"x" * 70_000, "70000 bytes came without an end of the headers"),
    ],
)
def test_what_is_no_response_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text):
        ResponseReader().feed(data)


STREAM = b': hello\n\ndata: {"a":1}\n\ndata:x\r\ndata: y\r\n\r\nevent: e\nid: 3\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_events_are_the_same_in_pieces_of_any_size(size: int) -> None:
    reader = EventReader()

    found = [e for at in range(0, len(STREAM), size) for e in reader.feed(STREAM[at : at + size])]

    assert found == [b'{"a":1}', b"x\ny", b"[DONE]"]


def test_an_event_without_its_blank_line_is_not_there_yet() -> None:
    reader = EventReader()

    assert reader.feed(b"data: 1\n") == []
    assert reader.feed(b"\n") == [b"1"]


def test_content_that_looks_like_a_chunk_is_content() -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")

    assert reader.feed(b"c\r\nab") == b"ab"
    assert reader.feed(b"5\r\nhello\r\n") == b"5\r\nhello\r\n"
    assert reader.feed(b"\r\n0\r\n\r\n") == b""
    assert reader.done


def test_a_chunk_that_is_a_read_of_its_own_is_passed_on_as_it_is() -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")

    assert [reader.feed(b"5\r\nhello\r\n"), reader.feed(b"2\r\n!!\r\n")] == [b"hello", b"!!"]
    assert reader.feed(b"0\r\n\r\n") == b""
    assert reader.done
