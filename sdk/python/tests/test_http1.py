"""Tests of HTTP/1.1 as bytes."""

import random
import unittest

from forkd._http1 import MAX_HEAD, ProtocolError, Reply, chunk, request_head


def parse(data, method="GET", size=None, end=False):
    """Feed a parser in pieces, and return it and the body."""
    reply, body = Reply(method), b""
    for i in range(0, len(data), size or len(data)):
        reply.feed(data[i : i + (size or len(data))])
        body += reply.take()
    if end:
        reply.feed(b"")
    return reply, body


OK = b"HTTP/1.1 200 OK\r\n"


class TestReply(unittest.TestCase):
    def test_bodies_in_any_pieces(self):
        for name, data, body, reusable in [
            ("length", OK + b"Content-Length: 5\r\n\r\nhello", b"hello", True),
            ("nothing", OK + b"Content-Length: 0\r\n\r\n", b"", True),
            ("chunks", OK + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\nB;x=y\r\n01234567890\r\n0\r\n\r\n", b"abc01234567890", True),
            ("trailer", OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\n", b"a", True),
            ("closing", OK + b"Content-Length: 1\r\nConnection: close\r\n\r\na", b"a", False),
            ("old", b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", b"a", False),
            ("no content", b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
            ("continue", b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\na", b"a", True),
            ("no reason", b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\na", b"a", True),
        ]:
            for size in (1, 2, 3, None):
                with self.subTest(name, size=size):
                    reply, got = parse(data, size=size)
                    self.assertEqual((got, reply.complete, reply.reusable), (body, True, reusable))

    def test_until_the_end(self):
        reply, body = parse(OK + b"\r\nall of it", end=True)
        self.assertEqual((body, reply.complete, reply.reusable), (b"all of it", True, False))

    def test_head_alone(self):
        reply, body = parse(OK + b"Content-Length: 5\r\nX-Y:  z \r\n\r\n", "HEAD")
        self.assertTrue(reply.complete and reply.reusable)
        self.assertEqual(reply.headers["x-y"], "z")

    def test_upgrade(self):
        reply, body = parse(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: tcp\r\n\r\nfirst bytes")
        self.assertEqual((reply.status, body, reply.rest(), reply.reusable), (101, b"", b"first bytes", False))

    def test_chunks_alone(self):
        data = chunk(b"abc") + chunk(b"x" * 20) + chunk(b"")
        for size in (1, 2, 3, len(data)):
            reply, body = Reply.of_chunks(), b""
            for i in range(0, len(data), size):
                self.assertFalse(reply.complete)
                reply.feed(data[i : i + size])
                body += reply.take()
            self.assertEqual((body, reply.complete), (b"abc" + b"x" * 20, True))
            reply.feed(b"")
        for cut in range(len(data)):
            reply = Reply.of_chunks()
            if cut:
                reply.feed(data[:cut])
            with self.assertRaises(ProtocolError):
                reply.feed(b"")

    def test_more_than_was_asked_for(self):
        reply, body = parse(OK + b"Content-Length: 1\r\n\r\nabc")
        self.assertEqual((body, reply.reusable), (b"a", False))

    def test_lines(self):
        reply = Reply("GET")
        reply.feed(OK + b"Content-Length: 100\r\n\r\none\n\ntw")
        self.assertEqual([reply.take_line() for _ in range(3)], [b"one\n", b"\n", b""])
        reply.feed(b"o\nthree")
        self.assertEqual([reply.take_line() for _ in range(2)], [b"two\n", b""])
        self.assertEqual(reply.take(), b"three")

    def test_broken(self):
        for data in [
            b"HTTP/2 200\r\n\r\n",
            b"SSH-2.0-OpenSSH\r\n\r\n",
            b"HTTP/1.1 20x OK\r\n\r\n",
            OK + b"no colon\r\n\r\n",
            OK + b"Content-Length: -1\r\n\r\n",
            OK + b"Content-Length: 1e3\r\n\r\n",
            OK + b"Transfer-Encoding: chunked\r\n\r\nx\r\n",
            OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
            OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc",
            OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 2000,
            b"x" * MAX_HEAD,
        ]:
            with self.subTest(data[:60]), self.assertRaises(ProtocolError):
                parse(data)
        for data in [b"", OK, OK + b"Content-Length: 5\r\n\r\nhell", OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhell"]:
            with self.subTest(data[:60]), self.assertRaises(ProtocolError):
                parse(data or b"H", end=True)

    def test_noise_is_never_more_than_an_error(self):
        seeds = [OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", OK + b"Content-Length: 5\r\n\r\nhello"]
        source = random.Random(1)
        for _ in range(3000):
            data = bytearray(source.choice(seeds))
            for _ in range(source.randrange(1, 4)):
                data[source.randrange(len(data))] = source.randrange(256)
            try:
                parse(bytes(data), size=source.choice([1, 5, None]), end=True)
            except ProtocolError:
                pass


class TestRequests(unittest.TestCase):
    def test_head(self):
        self.assertEqual(request_head("GET", "/a?b=%20", {"Host": "h"}), b"GET /a?b=%20 HTTP/1.1\r\nHost: h\r\n\r\n")
        self.assertEqual((chunk(b"abc"), chunk(b"")), (b"3\r\nabc\r\n", b"0\r\n\r\n"))

    def test_nothing_slips_in(self):
        for target in ["/a b", "/a\r\nX: y", "/ü", "/\0"]:
            with self.subTest(target), self.assertRaises(ValueError):
                request_head("GET", target, {})
        with self.assertRaises(ValueError):
            request_head("GET", "/", {"Authorization": "Bearer x\r\nX: y"})


if __name__ == "__main__":
    unittest.main()
