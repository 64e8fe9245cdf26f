"""Masks: which query may attend to which key. ``True`` means *may attend*, everywhere.

A :class:`Mask` is a small object that knows its structure (bands along the diagonal, keys that are padding, explicit
tables) and is turned into a tensor only by a kernel that needs one. Masks compose with ``&``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard._kernels.mask_parts import MaskParts
from regard.errors import ArgumentError

__all__ = ["Mask", "causal", "dense", "from_torch", "padding", "window"]

_DRAWN = 4  # how many tables of a batch a drawing shows
_DRAWN_SIZE = 6  # its queries and keys, where nothing says how many


class Band(NamedTuple):
    """Query i sees the keys j with ``i + offset - before < j < i + offset + after``; before=None: no lower bound."""

    before: int | None
    after: int
    offset: int | None  # None: Tk - Tq, the last query stands at the last key

    def limits(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """First key seen and first key no longer seen, for each query: two (Tq,) tensors within 0..Tk."""
        place = torch.arange(queries, device=device) + (keys - queries if self.offset is None else self.offset)
        first = torch.zeros_like(place) if self.before is None else (place - self.before + 1).clamp(0, keys)
        return first, (place + self.after).clamp(0, keys)

    def __str__(self) -> str:
        size = [] if self.before is None else [str(self.before)]
        offset = [] if self.offset is None else [f"offset={self.offset}"]
        return f"{'window' if size else 'causal'}({', '.join(size + offset)})"


@dataclass(frozen=True, eq=False)
class Mask:
    """The (query, key) pairs that may attend: built by `causal`, `window`, `padding`, `dense`, composed by ``&``.

    >>> print(causal() & window(2))
    causal() & window(2)
    ■ · · · · ·
    ■ ■ · · · ·
    · ■ ■ · · ·
    · · ■ ■ · ·
    · · · ■ ■ ·
    · · · · ■ ■
    """

    bands: tuple[Band, ...] = ()
    keeps: tuple[Tensor, ...] = ()  # (B, Tk) bool
    lengths: tuple[Tensor, ...] = ()  # (B,) integer
    tables: tuple[Tensor, ...] = ()  # (Tq, Tk) or the query's rank, bool

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            raise ArgumentError(
                f"a mask composes with masks, got {type(other).__name__}: wrap it as padding(keep) for (B, Tk) "
                "or dense(table) for (Tq, Tk)"
            )
        return Mask(
            self.bands + tuple(band for band in other.bands if band not in self.bands),
            self.keeps + other.keeps,
            self.lengths + other.lengths,
            self.tables + other.tables,
        )

    __rand__ = __and__

    def allowed(self, shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
        """The mask as a bool tensor of the scores' ``shape`` (..., Tq, Tk), a view where that saves memory.

        Raises ArgumentError where the mask does not fit the shape.

        >>> causal().allowed((2, 3)).int().tolist()  # the last query sees every key
        [[1, 1, 0], [1, 1, 1]]
        """
        device = torch.device(device)
        self.check(shape, device)
        return self.table(shape, device).expand(*shape)

    def check(self, shape: Sequence[int], device: torch.device) -> None:
        """Raise ArgumentError unless the mask fits scores of this shape on this device."""
        for keep in self.keeps:
            _check_padding("keep", keep, shape, (shape[0], shape[-1]), device)
        for length in self.lengths:
            _check_padding("lengths", length, shape, (shape[0],), device)
        for table in self.tables:
            _check_table(table, shape, device)

    def table(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """The mask as a bool tensor that broadcasts against scores of this shape, as small as it can be."""
        parts = []
        for band in self.bands:
            at = torch.arange(shape[-1], device=device)
            first, end = band.limits(shape[-2], shape[-1], device)
            parts.append(at < end[:, None])
            if band.before is not None:
                parts.append(at >= first[:, None])
        kept = self.kept_keys(shape, device)
        if kept is not None:
            parts.append(kept.unsqueeze(-2))
        parts.extend(self.tables)
        if not parts:
            return torch.ones((1, 1), dtype=torch.bool, device=device)
        table = parts[0]
        for part in parts[1:]:
            table = table & part
        return table

    def kept_keys(self, shape: Sequence[int], device: torch.device) -> Tensor | None:
        """What padding leaves, as (B, 1, ..., Tk) bool of one rank less than the scores; None without padding."""
        kept = None
        for keep in self.keeps:
            kept = keep if kept is None else kept & keep
        for length in self.lengths:
            keep = torch.arange(shape[-1], device=device) < length[:, None]
            kept = keep if kept is None else kept & keep
        return None if kept is None else kept.view(kept.shape[0], *[1] * (len(shape) - 3), kept.shape[1])

    def parts(self, shape: Sequence[int], device: torch.device) -> MaskParts:
        """The mask as a kernel takes it that knows structure; nothing of the size of the scores is made."""
        queries, keys = shape[-2], shape[-1]
        low, high = -queries, keys
        for k, (before, after, offset) in enumerate(self.bands):
            place = keys - queries if offset is None else offset
            high = place + after if k == 0 else min(high, place + after)
            if before is not None:
                low = max(low, place - before + 1)
        keep, table = self.kept_keys(shape, device), None
        for other in self.tables:
            table = other if table is None else table & other
        if keep is not None and len(shape) == 3:  # the first axis, to which padding belongs, is that of the heads
            table = keep.unsqueeze(-2) if table is None else table & keep.unsqueeze(-2)
            keep = None
        return MaskParts(low, high, None if keep is None else keep.reshape(keep.shape[0], keys), table)

    def of_last_keys(self, keys: int, total: int) -> Mask:
        """The mask of the last ``keys`` keys, of one that is about ``total`` of them.

        >>> print(causal(offset=3).of_last_keys(2, 5).draw(2, 2))
        ■ ·
        ■ ■
        """
        first = total - keys
        return Mask(
            tuple(b if b.offset is None else b._replace(offset=b.offset - first) for b in self.bands),
            tuple(keep[:, first:] for keep in self.keeps),
            tuple((length - first).clamp(min=0) for length in self.lengths),
            tuple(table[..., first:] if table.shape[-1] == total else table for table in self.tables),
        )

    def of_examples(self, rows: Tensor) -> Mask:
        """The mask of these examples of a batch, in this order.

        >>> padding(lengths=[3, 1]).of_examples(torch.tensor([1])).draw(1, 3)
        '■ · ·'
        """
        return Mask(
            self.bands,
            tuple(keep.index_select(0, rows) for keep in self.keeps),
            tuple(length.index_select(0, rows) for length in self.lengths),
            tuple(t.index_select(0, rows) if t.dim() > 2 and t.shape[0] > 1 else t for t in self.tables),
        )

    def reaches(self, marked: Tensor, shape: Sequence[int]) -> Tensor:
        """Whether each query may attend to one of the ``marked`` keys: (..., Tk) bool to (..., Tq) or (..., 1) bool.

        A mask without tables sees a run of keys from each query, so two prefix sums answer, in linear memory.
        """
        if self.tables:
            return (self.table(shape, marked.device) & marked.unsqueeze(-2)).any(-1)
        kept = self.kept_keys(shape, marked.device)
        if kept is not None:
            marked = marked & kept
        if not self.bands:
            return marked.any(-1, keepdim=True)
        limits = [band.limits(shape[-2], shape[-1], marked.device) for band in self.bands]
        first, end = limits[0]
        for other_first, other_end in limits[1:]:
            first, end = torch.maximum(first, other_first), torch.minimum(end, other_end)
        before = torch.nn.functional.pad(marked.cumsum(-1), (1, 0))
        return before.index_select(-1, end) > before.index_select(-1, first)

    def is_causal_from_start(self, queries: int, keys: int) -> bool:
        """Whether the mask is nothing but j <= i, the one causal mask that torch's kernels know."""
        if len(self.bands) != 1 or self.keeps or self.lengths or self.tables:
            return False
        before, after, offset = self.bands[0]
        if before is not None or after != 1:
            return False
        # A plain bool, also where sizes are symbols.
        return True if (queries == keys if offset is None else offset == 0) else False  # noqa: SIM210

    def draw(self, queries: int | None = None, keys: int | None = None) -> str:
        """The mask as text, a line a query: ■ may attend, · may not. One drawing for each example that differs.

        >>> print(causal().draw(2, 5))  # two new queries, three keys from a cache
        ■ ■ ■ ■ ·
        ■ ■ ■ ■ ■
        """
        lead, queries, keys = self._natural_shape(queries, keys)
        allowed = self.allowed((*lead, queries, keys))
        tables = []
        for index in itertools.islice(itertools.product(*map(range, lead)), _DRAWN):
            rows = allowed[index].tolist()
            tables.append("\n".join(" ".join("■" if seen else "·" for seen in row) for row in rows))
        more = allowed[..., 0, 0].numel() - len(tables) if queries and keys else 0
        return "\n\n".join([*tables, f"and {more} more"] if more else tables)

    def _natural_shape(self, queries: int | None, keys: int | None) -> tuple[tuple[int, ...], int, int]:
        """The leading axes, Tq and Tk that a drawing has where the caller leaves them open."""
        lead: tuple[int, ...] = ()
        found_queries, found_keys = 0, 0
        for table in self.tables:
            lead = lead or tuple(table.shape[:-2])
            found_queries, found_keys = max(found_queries, table.shape[-2]), max(found_keys, table.shape[-1])
        for keep in self.keeps:
            lead, found_keys = lead or (keep.shape[0],), max(found_keys, keep.shape[1])
        for length in self.lengths:
            lead, found_keys = lead or (length.shape[0],), max(found_keys, *length.tolist())
        keys = keys if keys is not None else found_keys or queries or _DRAWN_SIZE
        return lead, queries if queries is not None else found_queries or keys, keys

    def __repr__(self) -> str:
        names = [str(band) for band in self.bands]
        names += [f"padding(keep={_size(keep)})" for keep in self.keeps]
        names += [f"padding(lengths={_size(length)})" for length in self.lengths]
        names += [f"dense({_size(table)})" for table in self.tables]
        return " & ".join(names) or "Mask()"

    def __str__(self) -> str:
        return f"{self!r}\n{self.draw()}"


def causal(offset: int | None = None) -> Mask:
    """A query sees the keys up to its own place: ``j <= i + offset``, by default with offset = Tk - Tq.

    The default stands the last query at the last key (bottom-right), which is what a cache of earlier keys needs; with
    Tq > Tk the first queries see nothing and give 0. ``offset=0`` stands the first query at the first key.

    >>> print(causal().draw(3, 5))
    ■ ■ ■ · ·
    ■ ■ ■ ■ ·
    ■ ■ ■ ■ ■
    >>> print(causal(offset=0).draw(3, 5))
    ■ · · · ·
    ■ ■ · · ·
    ■ ■ ■ · ·
    """
    _check_int("offset", offset, optional=True)
    return Mask(bands=(Band(None, 1, offset),))


def window(size: int, offset: int | None = None) -> Mask:
    """A query sees fewer than ``size`` places to each side of its own: ``|j - i - offset| < size``.

    The size counts the token itself; with ``causal() & window(size)`` a query sees at most ``size`` keys, the usual
    sliding window (Beltagy et al. 2020, Longformer, section 3.1; Jiang et al. 2023, Mistral 7B, section 2).
    Offset as in `causal`. Raises ArgumentError for a size below 1.

    >>> print(window(2).draw(4, 4))
    ■ ■ · ·
    ■ ■ ■ ·
    · ■ ■ ■
    · · ■ ■
    """
    _check_int("size", size, optional=False)
    _check_int("offset", offset, optional=True)
    if size < 1:
        raise ArgumentError(f"window size must be at least 1 (it counts the token itself), got {size}")
    return Mask(bands=(Band(size, size, offset),))


def padding(keep: Tensor | None = None, *, lengths: Tensor | Sequence[int] | None = None) -> Mask:
    """Keys that are real and not filled up: ``keep`` (B, Tk) bool, or ``lengths`` (B,) where keys begin at 0.

    B is the first axis of the query, which has three axes or more. Raises ArgumentError for other ranks and dtypes.

    >>> print(padding(lengths=[3, 1]).draw(1, 4))
    ■ ■ ■ ·
    <BLANKLINE>
    ■ · · ·
    """
    if (keep is None) == (lengths is None):
        raise ArgumentError("padding takes either keep (B, Tk) bool or lengths (B,), one of the two")
    if keep is not None:
        _check_bool("padding(keep)", keep)
        if keep.ndim != 2:
            raise ArgumentError(f"padding keep must be (B, Tk), got {_size(keep)}; for (Tq, Tk) use dense(table)")
        return Mask(keeps=(keep,))
    counts = lengths if isinstance(lengths, Tensor) else torch.tensor(lengths, dtype=torch.int64)
    if counts.ndim != 1 or counts.is_floating_point() or counts.is_complex() or counts.dtype == torch.bool:
        raise ArgumentError(f"padding lengths must be (B,) integers, got {counts.dtype} {_size(counts)}")
    return Mask(lengths=(counts,))


def dense(table: Tensor) -> Mask:
    """Any mask, written out: bool (Tq, Tk), or of the query's rank with sizes 1 or equal, such as (B, 1, Tq, Tk).

    Raises ArgumentError for what is not a bool tensor of two axes or more.

    >>> print(dense(torch.eye(3, dtype=torch.bool)))
    dense(3 x 3)
    ■ · ·
    · ■ ·
    · · ■
    """
    _check_bool("dense(table)", table)
    if table.ndim < 2:
        raise ArgumentError(f"dense table must be (Tq, Tk) or of the query's rank, got {_size(table)}")
    return Mask(tables=(table,))


def from_torch(key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None, *, num_heads: int = 1) -> Mask:
    """The mask that torch.nn.MultiheadAttention's bool arguments mean: there, ``True`` hides the key.

    ``key_padding_mask`` (B, Tk), ``attn_mask`` (Tq, Tk) or (B * num_heads, Tq, Tk). A float attn_mask is no mask: it
    is refused, and belongs in ``bias=``. (The attn_mask of scaled_dot_product_attention already means *may attend*.)

    >>> above = torch.ones(3, 3, dtype=torch.bool).triu(1)
    >>> torch.equal(from_torch(attn_mask=above).allowed((3, 3)), causal().allowed((3, 3)))
    True
    """
    mask = Mask()
    if key_padding_mask is not None:
        _check_bool("key_padding_mask", key_padding_mask)
        mask &= padding(~key_padding_mask)
    if attn_mask is not None:
        _check_bool("attn_mask", attn_mask)
        if attn_mask.ndim == 3:
            if num_heads < 1 or attn_mask.shape[0] % num_heads:
                raise ArgumentError(
                    f"attn_mask must be (B * num_heads, Tq, Tk) with num_heads={num_heads}, got {_size(attn_mask)}"
                )
            attn_mask = attn_mask.reshape(-1, num_heads, *attn_mask.shape[1:])
        mask &= dense(~attn_mask)
    return mask


def _size(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "scalar"


def _check_int(name: str, value: object, *, optional: bool) -> None:
    if isinstance(value, bool) or not (isinstance(value, int | torch.SymInt) or (optional and value is None)):
        raise ArgumentError(f"{name} must be an int, got {type(value).__name__}")


def _check_bool(name: str, tensor: object) -> None:
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"{name} must be a bool tensor, got {type(tensor).__name__}")
    if tensor.is_floating_point():
        raise ArgumentError(f"{name} must be bool (True = may attend), got {tensor.dtype}: pass what is added as bias=")
    if tensor.dtype != torch.bool:
        raise ArgumentError(f"{name} must be bool (True = may attend), got {tensor.dtype}: use .bool()")


def _check_padding(
    name: str, tensor: Tensor, shape: Sequence[int], expected: tuple[int, ...], device: torch.device
) -> None:
    if len(shape) < 3:
        raise ArgumentError("padding needs a query with a batch axis (3-D or more), got 2-D: use dense(table)")
    if tuple(tensor.shape) != expected:
        axes = "(B, Tk)" if name == "keep" else "(B,)"
        raise ArgumentError(f"padding {name} must be {axes} = {expected}, got {tuple(tensor.shape)}")
    _check_device(f"padding {name}", tensor, device)


def _check_table(table: Tensor, shape: Sequence[int], device: torch.device) -> None:
    full = len(table.shape) == len(shape)
    fits = full and all(size in (1, there) for size, there in zip(table.shape, shape, strict=True))
    if not fits and tuple(table.shape) != tuple(shape[-2:]):
        raise ArgumentError(
            f"mask table must be (Tq, Tk) = {tuple(shape[-2:])} or {tuple(shape)} with sizes 1 or equal, "
            f"got {tuple(table.shape)}"
        )
    _check_device("mask table", table, device)


def _check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise ArgumentError(f"{name} is on {tensor.device} and the query on {device}: move it with .to(query.device)")
