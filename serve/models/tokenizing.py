"""Tokenizing that holds up neither the event loop nor other requests, and how many tokens a text will have."""

import asyncio
import contextlib
import ctypes
import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from attenuator.errors import NotReady
from attenuator.runtime import Encoded, Input, Model

INLINE_SIZE, INLINE_INPUTS = 4096, 32  # characters or ids that the event loop encodes itself: below 1 ms
SLICE_SIZE = 32_768  # about 8 ms
LARGE_SIZE = 200_000
TRIM_DELAY_S = 0.5
STOPPED = "the service is stopping: this request was not finished"


@dataclass(slots=True)
class TokenEstimate:
    """How many tokens a model's tokenizer makes of a text: a moving average over what it has tokenized.

    Attributes:
        tokens_per_byte: of UTF-8, whose size says more across scripts than the number of characters.
    """

    tokens_per_byte: float = 0.25

    def tokens(self, item: Input, max_tokens: int) -> int:
        """Tokens to expect of an input; exact for token ids."""
        if item.token_ids is not None:
            return min(len(item.token_ids), max_tokens)
        return max(1, min(round(utf8_size(item) * self.tokens_per_byte), max_tokens))

    def learn(self, inputs: Sequence[Input], encoded: Sequence[Encoded]) -> None:
        """Learns from a request's inputs; token ids teach nothing."""
        size = tokens = 0
        for item, result in zip(inputs, encoded, strict=True):
            if item.token_ids is None:
                size += utf8_size(item)
                tokens += len(result.token_ids) + result.truncated
        if size:
            self.tokens_per_byte += 0.1 * (tokens / size - self.tokens_per_byte)


def utf8_size(item: Input) -> int:
    """Bytes of an input's texts; half of a surrogate pair, which is refused later, counts too."""
    text = (item.text or "") + (item.text_pair or "")
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class HeapTrim:
    """Gives memory back to the system a little after a large request, once for all that end meanwhile.

    glibc keeps what a thread has freed for later: after a text of megabytes, hundreds of MiB. Other C libraries have no
    `malloc_trim`: with them nothing is done.
    """

    def __init__(self, threads: Executor) -> None:
        """`threads` is where to trim; it takes milliseconds."""
        self._threads = threads
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._due: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Asks for a trim, once what the request held is freed."""
        if self._due is None and self._trim is not None:
            self._due = asyncio.get_running_loop().call_later(TRIM_DELAY_S, self._begin)

    def cancel(self) -> None:
        """Forgets the trim that was asked for."""
        if self._due is not None:
            self._due.cancel()

    def _begin(self) -> None:
        self._due = None
        self._threads.submit(self._release)

    def _release(self) -> None:
        """Frees what is in cycles, such as an error with the frames that held a text, and then what the heap keeps."""
        gc.collect()
        if self._trim is not None:
            self._trim(0)


class TokenizerThreads:
    """Tokenizes in threads, where requests take turns.

    A request's inputs are encoded slice by slice, and each slice queues behind those of other requests, so that many
    long texts delay a short one by a slice each. A single text of megabytes cannot be sliced: such texts have a thread
    of their own.

    Attributes:
        arriving: requests whose tokens will be there soon.
        settled: set whenever none is arriving any more.
    """

    def __init__(self) -> None:
        self.arriving = 0
        self.settled = asyncio.Event()
        self._usual = ThreadPoolExecutor(2, thread_name_prefix="tokenize")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="tokenize-large")
        self._heap = HeapTrim(self._large)
        self._stopped = False
        self._under_way: set[asyncio.Future[list[Encoded]]] = set()

    async def encode(self, model: Model, inputs: Sequence[Input], truncate: bool) -> list[Encoded]:
        """Encodes a request's inputs; cancelling the call leaves at most one slice under way.

        Raises:
            InvalidRequest: names the input.
            NotReady: the service was stopped meanwhile.
        """
        if self.is_quick(inputs):
            return [item.encode(model.encoder, truncate) for item in inputs]
        sizes = [item.size for item in inputs]
        soon = sum(sizes) <= LARGE_SIZE
        self.arriving += soon
        try:
            encoded: list[Encoded] = []
            for first, last in slices(sizes):
                encoded += await self._encode_slice(model, inputs[first:last], truncate)
            return encoded
        finally:
            if not soon:
                self._heap.soon()
            self.arriving -= soon
            if not self.arriving:
                self.settled.set()

    def is_quick(self, inputs: Sequence[Input]) -> bool:
        """Whether inputs are so short that the event loop encodes them itself."""
        return len(inputs) <= INLINE_INPUTS and sum([item.size for item in inputs]) <= INLINE_SIZE

    async def wait_settled(self, seconds: float) -> None:
        """Waits until no request is being tokenized that could join a batch, at most for some seconds."""
        if self.arriving and seconds:
            self.settled.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.settled.wait(), seconds)

    def stop(self) -> None:
        """Takes no more inputs; requests that are being tokenized get NotReady."""
        self._stopped = True
        self._heap.cancel()
        for work in self._under_way:
            work.cancel()
        for pool in (self._usual, self._large):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _encode_slice(self, model: Model, inputs: Sequence[Input], truncate: bool) -> list[Encoded]:
        if self._stopped:
            raise NotReady(STOPPED)
        pool = self._large if sum(item.size for item in inputs) > LARGE_SIZE else self._usual
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(pool, lambda: [item.encode(model.encoder, truncate) for item in inputs])
        self._under_way.add(work)
        try:
            return await work
        except asyncio.CancelledError:
            if self._stopped:
                raise NotReady(STOPPED) from None
            raise
        finally:
            self._under_way.discard(work)


def slices(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cuts a request's inputs into runs of about `SLICE_SIZE`, at least one input each.

    Yields:
        First index and the one after the last.
    """
    first, size = 0, 0
    for index, value in enumerate(sizes):
        if index > first and size + value > SLICE_SIZE:
            yield first, index
            first, size = index, 0
        size += value
    if first < len(sizes):
        yield first, len(sizes)
