"""The end of a stream is kept, and no more."""

from nodeclient.output.streams import TAIL_BYTES, Tail


def test_the_tail_of_a_stream_is_bounded() -> None:
    tail = Tail()
    written = b""
    for number in range(5_000):
        line = b"line %d of many, and some more words\n" % number
        written += line
        tail.write(line)
    assert tail.data == written[-TAIL_BYTES:]
    tail.write(b"z" * 10 * TAIL_BYTES)
    assert tail.data == b"z" * TAIL_BYTES
