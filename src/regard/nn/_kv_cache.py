"""A cache of the keys and values that an attention layer has computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard._eager import is_eager_on_cpu
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["KeyValueCache"]


class KeyValueCache:
    """A cache of the keys and values of one attention layer for one batch, so that each token is projected once.

    ``layer(x, cache=cache)`` appends the keys and values of x to the cache and attends to everything in it. A causal
    layer that is fed a sequence in pieces of any length gives the same outputs as for the whole sequence. Masks and
    biases cover all tokens so far: padding is (B, length). The cache belongs to the caller, who makes one for each
    layer and batch.

    With ``window=n`` the cache holds only the last n tokens, and the layer attends as under ``causal() & window(n)``.

    Without gradients (`torch.no_grad`, `torch.inference_mode`) a token costs its own size: the memory doubles when it
    is full, and tensors returned earlier are never overwritten. With gradients, and in compiled or exported code, each
    call concatenates the cache into new tensors, and gradients flow through it.

    Shapes: key and value (B, heads, T, d), None before the first token.
    Errors: `ArgumentError` if sizes, dtype or device differ from those in the cache.

    >>> from regard.nn import MultiHeadAttention
    >>> layer, x = MultiHeadAttention(8, 2, causal=True), torch.randn(3, 5, 8)
    >>> cache = KeyValueCache()
    >>> pieces = [layer(piece, cache=cache) for piece in x.split([1, 3, 1], 1)]
    >>> torch.allclose(torch.cat(pieces, 1), layer(x), atol=1e-6), cache
    (True, KeyValueCache(length=5))
    """

    def __init__(self, window: int | None = None) -> None:
        """Make an empty cache, of the last ``window`` tokens if given."""
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise ArgumentError(f"window must be at least 1 (it counts the token itself), got {window!r}")
        self.window = window
        self.length = 0  # of all tokens read, including those that a window has dropped
        self.fixed = False  # True for a memory, whose keys do not grow
        self._key: _Rows | None = None
        self._value: _Rows | None = None

    @classmethod
    def of_memory(cls, key: Float[Tensor, "*B H T d"], value: Float[Tensor, "*B H T d"]) -> KeyValueCache:
        """Return a fixed cache of a memory's keys and values (B, heads, T, d)."""
        cache = cls()
        cache._key, cache._value = _Rows.whole(key), _Rows.whole(value)
        cache.length, cache.fixed = key.shape[-2], True
        return cache

    @property
    def key(self) -> Float[Tensor, "*B H T d"] | None:
        """The keys in the cache, rotated by the layer's positions."""
        return None if self._key is None else self._key.tensor

    @property
    def value(self) -> Float[Tensor, "*B H T d"] | None:
        """The values in the cache."""
        return None if self._value is None else self._value.tensor

    def append(
        self, key: Float[Tensor, "*B H T d"], value: Float[Tensor, "*B H T d"]
    ) -> tuple[Float[Tensor, "*B H Tk d"], Float[Tensor, "*B H Tk d"]]:
        """Append the keys and values of the next tokens; return those that they attend to, all or a window's."""
        if self.fixed:
            raise ArgumentError("this cache holds the keys of a memory and cannot grow: make a KeyValueCache() for x")
        keep = None if self.window is None else self.window - 1
        keys, values = _extended(self._key, key, keep), _extended(self._value, value, keep)
        self._key, self._value = keys.last(self.window), values.last(self.window)
        self.length = self.length + key.shape[-2]
        return keys.tensor, values.tensor

    def select(self, rows: Int[Tensor, " B2"]) -> KeyValueCache:
        """Return a new cache of these rows of the batch, in this order, such as the surviving hypotheses of a beam."""
        if self.key is not None and self.key.dim() < 4:
            raise ArgumentError(f"a cache without a batch has no rows to select: its keys are {tuple(self.key.shape)}")
        check_rows(rows, "rows", (1,), None if self.key is None else self.key.shape[0])
        other = self.fork()
        other._key = None if self._key is None else self._key.select(rows)
        other._value = None if self._value is None else self._value.select(rows)
        return other

    def fork(self) -> KeyValueCache:
        """Return a cache of the same tokens that grows independently; nothing is copied."""
        other = KeyValueCache(self.window)
        other.fixed = self.fixed
        other.adopt(self)
        return other

    def adopt(self, other: KeyValueCache) -> None:
        """Take over the contents of another cache, such as a fork that was successful."""
        self.length, self._key, self._value = other.length, other._key, other._value

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        window = "" if self.window is None else f", window={self.window}"
        return f"KeyValueCache(length={self.length}{window})"


def check_rows(rows: object, name: str, ranks: tuple[int, ...], count: int | None) -> None:
    """Check that rows are indices of ``count`` rows; None if the number is not yet fixed."""
    what = "(B,) integers" if ranks == (1,) else "integers, (B, K) or (B,)"
    if not isinstance(rows, Tensor):
        raise ArgumentError(f"{name} must be a tensor of {what}, got {type(rows).__name__}")
    if rows.dim() not in ranks or rows.is_floating_point() or rows.dtype == torch.bool:
        raise ArgumentError(f"{name} must be {what}, got {rows.dtype} of shape {tuple(rows.shape)}")
    if count is None or not rows.numel() or not is_eager_on_cpu(rows):
        return  # values would enter a graph, or be waited for on a GPU, which checks them itself
    if int(rows.min()) < 0 or int(rows.max()) >= count:
        raise ArgumentError(f"{name} must be from 0 to {count - 1}, got {int(rows.min())} to {int(rows.max())}")


class _Buffer:
    """A tensor of rows (..., capacity, d), of which the first ``used`` are written."""

    def __init__(self, data: Tensor, used: int) -> None:
        self.data = data
        self.used = used


class _Rows:
    """A view of the rows ``start`` to ``end`` of a buffer, which can be shared, as written rows never change."""

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
        # The whole buffer, with its spare capacity; otherwise the next token would copy everything again.
        return _Rows(_Buffer(self.buffer.data.index_select(0, rows), self.buffer.used), self.start, self.end)

    def extended(self, new: Tensor, start: int) -> _Rows:
        """Return these rows from ``start`` on with new ones after them."""
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
    """Return the last ``keep`` rows with new ones after them."""
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
