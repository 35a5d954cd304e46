"""Runs on a worker: one unary gRPC call over HTTP/2 without TLS, and the fields of a protobuf message.

Workers have no gRPC library unless a user installs one. A call needs little of the protocol: one stream, headers without
Huffman coding or a dynamic table, and the literal `grpc-status` that grpc-core sends. Tried against servers of grpcio, never
against libtpu. Servers are not trusted: size and time of an answer are bounded. It must run under Python 3.8.
"""

from __future__ import annotations

import socket
import struct
import time

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LONGEST_FRAME, LONGEST_MESSAGE, MOST_FRAMES = 1 << 20, 1 << 20, 4096
# Kinds of frames [RFC 9113, section 6].
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32
NOT_FOUND = 5
STREAM = 1


class GrpcError(Exception):
    """A call without an answer. `status` is that of gRPC, None if the server gave none."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


def unary_call(port: int, path: str, message: bytes, seconds: float) -> bytes:
    """Call a method of a server on this machine, and return the bytes of its answer. Raises `GrpcError`."""
    until = time.monotonic() + seconds
    try:
        with socket.create_connection(("127.0.0.1", port), seconds) as connection:
            connection.sendall(request_frames(path, message))
            return read_answer(connection, until)
    except TimeoutError:
        raise GrpcError("no answer within %g s" % seconds) from None
    except OSError as error:
        raise GrpcError((error.strerror or str(error)).lower()) from None


def request_frames(path: str, message: bytes) -> bytes:
    """Return the bytes of a whole request: preface, settings without server push, headers and data."""
    pairs = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode("ascii")),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    head = b"".join(literal_header(name, value) for name, value in pairs)
    body = b"\0" + struct.pack(">I", len(message)) + message
    settings = struct.pack(">HI", 2, 0)  # SETTINGS_ENABLE_PUSH
    return (
        PREFACE
        + http2_frame(SETTINGS, 0, 0, settings)
        + http2_frame(HEADERS, END_HEADERS, STREAM, head)
        + http2_frame(DATA, END_STREAM, STREAM, body)
    )


def http2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return the bytes of a frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal_header(name: bytes, value: bytes) -> bytes:
    """Return a header that is never indexed, without Huffman coding; both parts are shorter than 127 bytes."""
    return b"\x10" + bytes([len(name)]) + name + bytes([len(value)]) + value


def read_answer(connection: socket.socket, until: float) -> bytes:
    """Return the message of the only stream. Raises `GrpcError`."""
    data, headers = b"", b""
    for _ in range(MOST_FRAMES):
        head = receive(connection, 9, until)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        stream = int.from_bytes(head[5:9], "big") & 0x7FFFFFFF
        if size > LONGEST_FRAME:
            raise GrpcError("it speaks another protocol" if head[:4] == b"HTTP" else "a frame of %d bytes" % size)
        payload = receive(connection, size, until)
        if kind == SETTINGS and not flags & ACK:
            connection.sendall(http2_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            connection.sendall(http2_frame(PING, ACK, 0, payload[:8]))
        elif kind == DATA and stream == STREAM:
            data += without_padding(payload, flags)
            if len(data) > LONGEST_MESSAGE:
                raise GrpcError("an answer of more than %d bytes" % LONGEST_MESSAGE)
            if size:
                more = struct.pack(">I", size)
                connection.sendall(http2_frame(WINDOW_UPDATE, 0, 0, more) + http2_frame(WINDOW_UPDATE, 0, STREAM, more))
        elif kind in (HEADERS, CONTINUATION) and stream == STREAM:
            headers = (headers + payload)[-LONGEST_FRAME:]
        elif kind == PUSH_PROMISE or (kind == RST_STREAM and stream == STREAM):
            raise GrpcError("the server refused the call")
        elif kind == GOAWAY and (int.from_bytes(payload[:4], "big") < STREAM or any(payload[4:8])):
            raise GrpcError("the server closes its connections")
        if kind in (DATA, HEADERS) and stream == STREAM and flags & END_STREAM:
            return message_of(data, headers)
    raise GrpcError("more than %d frames" % MOST_FRAMES)


def without_padding(payload: bytes, flags: int) -> bytes:
    """Return the data of a frame."""
    return payload[1 : len(payload) - payload[0]] if flags & PADDED and payload else payload


def receive(connection: socket.socket, size: int, until: float) -> bytes:
    """Return exactly this many bytes. Raises `GrpcError` and `OSError`."""
    found = b""
    while len(found) < size:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        block = connection.recv(min(size - len(found), 1 << 16))
        if not block:
            raise GrpcError("the server closed the connection")
        found += block
    return found


def message_of(data: bytes, headers: bytes) -> bytes:
    """Return the message of a whole answer. Raises `GrpcError` for an error of the server."""
    status = trailing_status(headers)
    if status:
        raise GrpcError("status %d of gRPC" % status, status)
    if len(data) < 5 or data[0] or len(data) < 5 + int.from_bytes(data[1:5], "big"):
        raise GrpcError("an incomplete answer")
    return data[5 : 5 + int.from_bytes(data[1:5], "big")]


def trailing_status(headers: bytes) -> int:
    """Return the status in the blocks of headers; 0 if they have none, as a server that ends well may send it coded."""
    begin = headers.rfind(b"grpc-status") + len(b"grpc-status")
    if begin < len(b"grpc-status") or begin >= len(headers):
        return 0
    value = headers[begin + 1 : begin + 1 + (headers[begin] & 0x7F)]
    return int(value) if value.isdigit() and len(value) <= 2 else 0


def encode_varint(number: int) -> bytes:
    """Return a number in protobuf's coding."""
    coded = b""
    while number > 127:
        coded += bytes([number & 127 | 128])
        number >>= 7
    return coded + bytes([number])


def encode_text(field: int, text: str) -> bytes:
    """Return a text field of a protobuf message."""
    data = text.encode()
    return encode_varint(field << 3 | 2) + encode_varint(len(data)) + data


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in protobuf's coding, and the place behind it. Raises `ValueError`."""
    number = shift = 0
    while shift < 70:
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number & (1 << 64) - 1, at
    raise ValueError("a number without an end")


def protobuf_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message: a number for a varint, else its bytes. Raises `ValueError`."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        kind = key & 7
        if kind == 0:
            number, at = read_varint(data, at)
            yield key >> 3, number
            continue
        if kind == 2:
            size, at = read_varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError("a field of kind %d" % kind)
        if at + size > len(data):
            raise ValueError("a field without an end")
        yield key >> 3, data[at : at + size]
        at += size


def signed(number: int) -> int:
    """Return an int64 of protobuf."""
    return number - (1 << 64) if number >> 63 else number
