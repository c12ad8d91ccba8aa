"""Messages to a session of `gemmgen run` that no runtime sends, drawn from a seed: most have the right layout and wrong numbers."""

from __future__ import annotations

import random
import struct
import warnings
from functools import cache

from emulator.helpers import compile_ptx

from gemmgen.emulator.memory import GLOBAL_BASE
from gemmgen.sanitizer.programs.messages import BadMessage, Body, Operation
from gemmgen.sanitizer.programs.places import Places
from gemmgen.sanitizer.programs.session import MISUSES, RunSettings, Session

SETTINGS = RunSettings(memory_bytes=1 << 26, seconds=60)
KERNEL = """
__device__ float table[16];
extern "C" __global__ void k(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] += table[threadIdx.x & 15]; }
"""
EDGES = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 64, 128, 255, 256, 512, 4096, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1)
WIDE = (*EDGES, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
REALS = (0.0, 1.0, -1.0, 0.5, 1e308, float("inf"), float("-inf"), float("nan"))
NAMES = ("k", "table", "nothing", "", "\x1b[2J", "::error::x", "_Z1kv", "a" * 4096, "a" * 4097, "é", "\0")
FILES = ("", "/dev/zero", "/etc/passwd", "/nowhere", "a" * 4096, "\x1b[2J.py", "/proc/self/mem", "/proc/self/exe")


@cache
def ptx() -> bytes:
    """A module with a kernel and a variable."""
    return compile_ptx(KERNEL).encode()


class Attacker:
    """Sends messages to a session of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.session = Session(SETTINGS, Places(()), lambda file: None)
        self.addresses = [0]

    def send(self, operation: Operation, body: bytes) -> bytes | None:
        """The answer; None if the session calls the message none of its runtime's."""
        try:
            status, answer = self.session._answer(operation, Body(body))
        except BadMessage:
            return None
        assert isinstance(status, int) and isinstance(answer, bytes)
        if operation == Operation.ALLOCATE and status == 0:
            self.addresses.append(struct.unpack("<Q", answer)[0])
        return answer

    def begin(self) -> None:
        """A module and three allocations."""
        assert self.send(Operation.LOAD_MODULE, ptx()) is not None
        for kind, size in enumerate((4096, 1 << 20, 3)):
            self.send(Operation.ALLOCATE, struct.pack("<QI", size, kind) + text("cudaMalloc") + self.frames())

    def number(self, choices: tuple[int, ...] = EDGES) -> int:
        """A number that fits, or not."""
        return self.rng.choice(choices) if self.rng.random() < 0.8 else self.rng.randrange(max(choices) + 1)

    def small(self) -> int:
        """A number that most fields take, and now and then any."""
        return self.rng.choice((1, 1, 2, 3, 4, 8, 16, 32)) if self.rng.random() < 0.9 else self.number()

    def address(self) -> int:
        """The start of an allocation, mostly, or a place near it."""
        near = self.rng.choice(self.addresses) + self.rng.choice((0, 0, 0, 4, 16, 128, 4096, -1))
        return near % 2**64 if self.rng.random() < 0.9 else self.rng.choice((*WIDE, GLOBAL_BASE, GLOBAL_BASE - 1))

    def frames(self) -> bytes:
        """Calls that led to a message."""
        count = self.rng.choice((0, 0, 1, 2, 4, 5))
        return struct.pack("<I", count) + b"".join(
            struct.pack("<Q", self.rng.choice(WIDE)) + text(self.rng.choice(FILES)) for _ in range(count)
        )

    def name(self) -> str:
        """The name of a kernel, a variable or a call."""
        return self.rng.choice(NAMES)

    def body(self, operation: Operation) -> bytes:
        """The body of a message, in the layout that it should have."""
        rng, pick = self.rng, struct.pack
        match operation:
            case Operation.LOAD_MODULE:
                return self.module()
            case Operation.FIND_VARIABLE | Operation.FIND_KERNEL:
                return pick("<Q", rng.choice((0, 0, 0, 1, *WIDE))) + self.name().encode()
            case Operation.LAUNCH:
                shape = [1, 1, 1, rng.choice((1, 3, 32)), 1, 1, 0, 0, 0]
                if rng.random() < 0.5:
                    shape[rng.randrange(9)] = rng.choice((0, 2, 3, 2**31, 2**32 - 1))
                    shape[0] %= 2**31 - 1
                words = pick("<Q12I", rng.choice((0, 0, 0, 1)), *shape, self.number(), self.number(), rng.choice((0, 1, 2)))
                return words + text(rng.choice(("k", "k", self.name()))) + pick("<Qi", self.address(), rng.choice((0, 1, 32, -1)))
            case Operation.ALLOCATE:
                return pick("<QI", self.number(WIDE), rng.choice((0, 1, 2, 3))) + text(self.name()) + self.frames()
            case Operation.RELEASE:
                return (
                    pick("<QI", self.address(), rng.choice((0, 1, 2**32 - 1)))
                    + text(rng.choice(("cudaFree", "cudaFreeAsync", self.name())))
                    + self.frames()
                )
            case Operation.COPIED:
                flags = rng.choice((0, 1)), rng.choice((0, 1))
                words = pick("<QQQIII", self.address(), self.address(), self.number(WIDE), rng.choice((0, 1, 2)), *flags)
                return words + text(self.name()) + self.frames()
            case Operation.STREAM:
                return pick("<III", rng.randrange(10), self.number(), self.number())
            case Operation.TENSOR_MAP:
                rank = rng.choice((1, 2, 3, 4, 5, 0, 6, 2**32 - 1))
                words = pick("<6I", rng.randrange(14), rank, *(rng.randrange(5) for _ in range(4))) + pick("<Q", self.address())
                count = min(rank, 6)
                words += b"".join(pick("<Q", rng.choice((16, 32, self.number(WIDE)))) for _ in range(max(2 * count - 1, 0)))
                return words + b"".join(pick("<I", self.small()) for _ in range(2 * count))
            case Operation.TEXTURE:
                words = pick("<Q", self.address()) + b"".join(pick("<Q", rng.choice((0, 1, 4, self.number(WIDE)))) for _ in range(4))
                bits = rng.choice((8, 16, 32, 64, 0))
                return words + pick("<8I", bits, rng.choice((1, 2, 4, 3)), rng.randrange(4), *(rng.randrange(4) for _ in range(5)))
            case Operation.MISUSE:
                return text(rng.choice((*MISUSES, self.name()))) + text(self.name()) + self.frames()
            case Operation.UNSUPPORTED:
                return text(self.name()) + self.frames()
            case _:
                return self.blas()

    def module(self) -> bytes:
        """PTX or a fat binary, with something wrong in it."""
        plain = ptx()
        header = struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, self.rng.choice((16, 0, 65535)), self.number(WIDE))
        entry = struct.pack("<HHIQIIHHI", 1, 0, self.rng.choice((64, 0)), self.rng.choice((len(plain), *WIDE)), 0, 0, 0, 0, 80)
        data = self.rng.choice((plain, header + entry.ljust(64, b"\0") + plain, header, b"", bytes(99)))
        if self.rng.random() < 0.7 and data:
            at = self.rng.randrange(len(data))
            data = data[:at] + self.rng.choice((b"", b"\xff", b"9" * 30, b"{", b"}", b".global .b8 t[99999999999];")) + data[at + 1 :]
        return data

    def blas(self) -> bytes:
        """A call of cuBLAS."""
        kind, counts = self.rng.randrange(15), {0: 18, 1: 10, 2: 11, 3: 9}
        count = counts.get(kind, 7)
        values = [kind]
        for _ in range(count):
            values.append(self.rng.choice((self.small(), self.small(), signed(self.address()), signed(self.number(WIDE)), 0, -1)))
        if kind == 0 and self.rng.random() < 0.7:
            values[1:7] = [self.rng.randrange(3), self.rng.randrange(3), 4, 4, 4, self.rng.choice((0, 1, 2, 3, 10, 14))]
            values[7:12] = [values[6], self.rng.choice((0, values[6], 10)), 4, 4, 4]
            values[12:16] = [64, 64, 64, 1]
            values[16:19] = [signed(self.address()) for _ in range(3)]
        elif kind >= 4 and self.rng.random() < 0.7:
            element = self.rng.choice((0, 1, 2, 3, 4, 5, 10, 14))
            values[1:8] = [
                self.small(),
                element,
                signed(self.address()),
                self.rng.choice((0, 1, -1, 2)),
                signed(self.address()),
                1,
                element,
            ]
        scalars = [self.rng.choice(REALS) for _ in range(self.rng.choice((4, 4, 2, 2, 0, 1, 5)))]
        numbers = struct.pack("<II", len(values), len(scalars))
        body = text(self.name()) + struct.pack("<I", self.rng.choice((0, 1))) + self.frames() + numbers
        return body + struct.pack(f"<{len(values)}q", *values) + struct.pack(f"<{len(scalars)}d", *scalars)

    def step(self) -> None:
        """One message, now and then cut or lengthened."""
        operation = self.rng.choice(list(Operation))
        body = self.body(operation)
        if self.rng.random() < 0.1:
            body = body[: self.rng.randrange(len(body) + 1)] + bytes(self.rng.choice((0, 0, 1, 9)))
        self.send(operation, body)

    def end(self) -> str:
        """All that the report says."""
        report = self.session.finish(0)
        return repr((report.findings, report.kernels, report.refused, report.unsupported))


def text(value: str) -> bytes:
    """A text behind its length."""
    data = value.encode()
    return struct.pack("<I", len(data)) + data


def signed(number: int) -> int:
    """The number of 64 bits that has a sign."""
    return number - 2**64 if number >= 2**63 else number


def attack(seed: int, messages: int) -> str:
    """The report behind so many messages. Raises whatever is no answer."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attacker = Attacker(seed)
        attacker.begin()
        for number in range(messages):
            try:
                attacker.step()
            except Exception as error:
                error.add_note(f"seed {seed}, message {number}")
                raise
        return attacker.end()
