"""Keys and values that a layer has computed and need not compute again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.errors import ArgumentError

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["KeyValueCache"]


class KeyValueCache:
    """The keys and values of one attention layer for one batch, so that each token is projected once.

    ``layer(x, cache=cache)`` appends the keys and values of x to the cache and attends to all that is in it. Fed in
    pieces of any length, a causal layer gives what it gives for the whole sequence at once. Masks and biases are about
    all tokens so far: padding is (B, length). The cache belongs to the caller, who makes one a layer and a batch.

    ``window=n`` keeps the last n tokens alone, and its layer attends as under ``causal() & window(n)``.

    Where gradients are not recorded (`torch.no_grad`, `torch.inference_mode`), a token costs its own size: the memory
    doubles when it is full, and what was handed out before is not written to. Where they are recorded, and in what is
    compiled or exported, the cache is concatenated anew with each call, and gradients flow through it.

    Shapes: key and value (B, heads, T, d), None before the first token.
    Errors: `ArgumentError` where sizes, dtype or device are not those of what is in the cache.

    >>> from regard.nn import MultiHeadAttention
    >>> layer, x = MultiHeadAttention(8, 2, causal=True), torch.randn(3, 5, 8)
    >>> cache = KeyValueCache()
    >>> pieces = [layer(piece, cache=cache) for piece in x.split([1, 3, 1], 1)]
    >>> torch.allclose(torch.cat(pieces, 1), layer(x), atol=1e-6), cache
    (True, KeyValueCache(length=5))
    """

    def __init__(self, window: int | None = None) -> None:
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise ArgumentError(f"window must be at least 1 (it counts the token itself), got {window!r}")
        self.window = window
        self.length = 0  # of all tokens read, those too that a window has dropped
        self.fixed = False  # the keys of a memory, to which nothing is appended
        self._key: _Rows | None = None
        self._value: _Rows | None = None

    @classmethod
    def of_memory(cls, key: Float[Tensor, "*B H T d"], value: Float[Tensor, "*B H T d"]) -> KeyValueCache:
        """A cache of these keys and values of a memory, to which nothing is appended."""
        cache = cls()
        cache._key, cache._value = _Rows.whole(key), _Rows.whole(value)
        cache.length, cache.fixed = key.shape[-2], True
        return cache

    @property
    def key(self) -> Float[Tensor, "*B H T d"] | None:
        """The keys that are kept, turned as the layer's positions turn them."""
        return None if self._key is None else self._key.tensor

    @property
    def value(self) -> Float[Tensor, "*B H T d"] | None:
        """The values that are kept."""
        return None if self._value is None else self._value.tensor

    def append(
        self, key: Float[Tensor, "*B H T d"], value: Float[Tensor, "*B H T d"]
    ) -> tuple[Float[Tensor, "*B H Tk d"], Float[Tensor, "*B H Tk d"]]:
        """Take in the next tokens; what they may attend to: all keys and values, with a window the last ones."""
        if self.fixed:
            raise ArgumentError("this cache holds the keys of a memory and takes no more: make a KeyValueCache() for x")
        keep = None if self.window is None else self.window - 1
        keys, values = _extended(self._key, key, keep), _extended(self._value, value, keep)
        self._key, self._value = keys.last(self.window), values.last(self.window)
        self.length = self.length + key.shape[-2]
        return keys.tensor, values.tensor

    def select(self, rows: Int[Tensor, " B2"]) -> KeyValueCache:
        """A new cache, of these rows of the batch in this order: the hypotheses of a beam that go on."""
        if self.key is not None and self.key.dim() < 4:
            raise ArgumentError(f"a cache without a batch has no rows to select: its keys are {tuple(self.key.shape)}")
        check_rows(rows, "rows", (1,), None if self.key is None else self.key.shape[0])
        other = self.fork()
        other._key = None if self._key is None else self._key.select(rows)
        other._value = None if self._value is None else self._value.select(rows)
        return other

    def fork(self) -> KeyValueCache:
        """Another cache of the same tokens, which goes its own way from here; nothing is copied."""
        other = KeyValueCache(self.window)
        other.fixed = self.fixed
        other.adopt(self)
        return other

    def adopt(self, other: KeyValueCache) -> None:
        """Hold what the other holds: the way of a branch was the right one."""
        self.length, self._key, self._value = other.length, other._key, other._value

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        window = "" if self.window is None else f", window={self.window}"
        return f"KeyValueCache(length={self.length}{window})"


def check_rows(rows: object, name: str, ranks: tuple[int, ...], count: int | None) -> None:
    """Refuse what are not numbers of rows, of which there are ``count``; None: nobody knows yet."""
    what = "(B,) integers" if ranks == (1,) else "integers, (B, K) or (B,)"
    if not isinstance(rows, Tensor):
        raise ArgumentError(f"{name} must be a tensor of {what}, got {type(rows).__name__}")
    if rows.dim() not in ranks or rows.is_floating_point() or rows.dtype == torch.bool:
        raise ArgumentError(f"{name} must be {what}, got {rows.dtype} of shape {tuple(rows.shape)}")
    if count is None or not rows.numel() or not rows.is_cpu or torch.compiler.is_compiling():
        return  # to look would make a graph depend on values, or wait for a GPU, which checks by itself
    if int(rows.min()) < 0 or int(rows.max()) >= count:
        raise ArgumentError(f"{name} must be from 0 to {count - 1}, got {int(rows.min())} to {int(rows.max())}")


class _Buffer:
    """Memory for rows (..., capacity, d), of which the first ``used`` are written."""

    def __init__(self, data: Tensor, used: int) -> None:
        self.data = data
        self.used = used


class _Rows:
    """The rows ``start`` to ``end`` of a buffer. Rows once written stay as they are, so buffers can be shared."""

    def __init__(self, buffer: _Buffer, start: int, end: int) -> None:
        self.buffer = buffer
        self.start = start
        self.end = end

    @classmethod
    def whole(cls, data: Tensor) -> _Rows:
        return cls(_Buffer(data, data.shape[-2]), 0, data.shape[-2])

    @property
    def tensor(self) -> Tensor:
        return self.buffer.data[..., self.start : self.end, :]

    def last(self, count: int | None) -> _Rows:
        return self if count is None else _Rows(self.buffer, max(self.start, self.end - count), self.end)

    def select(self, rows: Tensor) -> _Rows:
        # The whole buffer: its room to grow comes along, else the next token would copy everything again.
        return _Rows(_Buffer(self.buffer.data.index_select(0, rows), self.buffer.used), self.start, self.end)

    def extended(self, new: Tensor, start: int) -> _Rows:
        """These rows from ``start`` on, and new ones behind them."""
        buffer, end = self.buffer, self.end + new.shape[-2]
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return _Rows.whole(torch.cat([buffer.data[..., start : self.end, :], new], -2))
        # An inference tensor may not be written to outside of inference mode.
        open_to_us = not buffer.data.is_inference() or torch.is_inference_mode_enabled()
        if not (open_to_us and buffer.used == self.end and end <= buffer.data.shape[-2]):
            kept = buffer.data[..., start : self.end, :]
            room = new.new_empty(*new.shape[:-2], 2 * (end - start), new.shape[-1])
            room[..., : self.end - start, :] = kept
            buffer, start, end = _Buffer(room, self.end - start), 0, end - start
        buffer.data[..., buffer.used : end, :] = new
        buffer.used = end
        return _Rows(buffer, start, end)


def _extended(rows: _Rows | None, new: Tensor, keep: int | None) -> _Rows:
    """Rows and new ones behind them; of the old ones the last ``keep``."""
    if rows is None:
        return _Rows.whole(new)
    there = rows.buffer.data
    if new.shape[:-2] != there.shape[:-2] or new.shape[-1] != there.shape[-1]:
        raise ArgumentError(
            f"the cache holds (B, heads, T, d) = {(*there.shape[:-2], 'T', there.shape[-1])}, got {tuple(new.shape)}: "
            "make a new cache for another batch"
        )
    if new.dtype != there.dtype or new.device != there.device:
        raise ArgumentError(
            f"the cache holds {there.dtype} on {there.device}, got {new.dtype} on {new.device}: make a new cache"
        )
    return rows.extended(new, rows.start if keep is None else max(rows.start, rows.end - keep))
